"""The webhook's own certificate authority and serving pair, as PEM bytes. No I/O; `kube.certs` keeps them in a Secret.

ECDSA P-256 throughout: supported by every API server, and a pair is made in a millisecond.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_LIFE = timedelta(days=3650)
CA_RENEW = timedelta(days=365)
PAIR_LIFE = timedelta(days=365)
PAIR_RENEW = timedelta(days=90)
_EARLIER = timedelta(hours=1)
"""Certificates are valid from before now, because clocks differ."""
_MOST_CAS = 5


@dataclass(frozen=True, slots=True)
class Material:
    """``cas``: PEM certificates, the one that signs first, then older ones that are still trusted."""

    cas: tuple[bytes, ...]
    ca_key: bytes
    cert: bytes
    key: bytes

    @property
    def bundle(self) -> bytes:
        return b"".join(self.cas)


def make_ca(now: datetime) -> tuple[bytes, bytes]:
    """(certificate, key). The name holds the day, so that two authorities are told apart."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"gpu-descheduler-webhook-ca-{now:%Y%m%d%H%M%S}")])
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pem(cert), _key_pem(key)


def make_pair(ca_cert: bytes, ca_key: bytes, hosts: Sequence[str], now: datetime) -> tuple[bytes, bytes]:
    """(certificate, key) for DNS names and IP addresses, signed by the authority."""
    authority = x509.load_pem_x509_certificate(ca_cert)
    signer = _load_key(ca_key)
    key = ec.generate_private_key(ec.SECP256R1())
    short = next((host for host in hosts if len(host) <= 64), "gpu-descheduler-webhook")
    cert = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, short)]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(min(now + PAIR_LIFE, authority.not_valid_after_utc))
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
            critical=False,
        )
        .sign(signer, hashes.SHA256())
    )
    return _pem(cert), _key_pem(key)


def renew(current: Material | None, hosts: Sequence[str], now: datetime, *, trusted: bytes) -> Material | None:
    """What should replace ``current``; None = nothing is due. ``trusted`` is the bundle the API server has now.

    A new authority is announced first (beside the old one) and signs only once the API server trusts it, so that no
    admission call fails in between.
    """
    if current is None:
        ca, ca_key = make_ca(now)
        return Material((ca,), ca_key, *make_pair(ca, ca_key, hosts, now))
    signer = x509.load_pem_x509_certificate(current.cas[0])
    if signer.not_valid_after_utc - now < CA_RENEW:
        ca, ca_key = make_ca(now)
        cas = (ca, *alive(current.cas, now))[:_MOST_CAS]
        if signer.not_valid_after_utc <= now:
            return Material(cas, ca_key, *make_pair(ca, ca_key, hosts, now))
        return Material(cas, ca_key, current.cert, current.key)
    cert = x509.load_pem_x509_certificate(current.cert)
    covered = names_of(cert)
    ours, announced = signed_by(cert, signer), contains(trusted, current.cas[0])
    missing = not set(hosts) <= set(covered)
    old = cert.not_valid_after_utc - now < PAIR_RENEW
    gone = cert.not_valid_after_utc <= now
    if missing or (old and (ours or announced or gone)) or (announced and not ours):
        wanted = tuple(dict.fromkeys([*hosts, *covered]))
        pair = make_pair(current.cas[0], current.ca_key, wanted, now)
        return Material(alive(current.cas, now), current.ca_key, *pair)
    return None


def check(material: Material) -> str:
    """Why the material is not usable ("" = it is): keys that do not belong, garbage."""
    try:
        authority = x509.load_pem_x509_certificate(material.cas[0])
        if authority.public_key() != _load_key(material.ca_key).public_key():
            return "ca.key does not belong to ca.crt"
        cert = x509.load_pem_x509_certificate(material.cert)
        if cert.public_key() != _load_key(material.key).public_key():
            return "tls.key does not belong to tls.crt"
        if not any(signed_by(cert, x509.load_pem_x509_certificate(ca)) for ca in material.cas):
            return "tls.crt is not signed by ca.crt"
    except (ValueError, TypeError, IndexError, AttributeError) as err:
        return f"not PEM: {err}"
    return ""


def split_bundle(pem: bytes) -> tuple[bytes, ...]:
    """Certificates of a bundle, one PEM each; unreadable bundles are empty."""
    try:
        return tuple(_pem(cert) for cert in x509.load_pem_x509_certificates(pem)) if pem.strip() else ()
    except ValueError:
        return ()


def alive(cas: Iterable[bytes], now: datetime) -> tuple[bytes, ...]:
    """Those that have not run out."""
    return tuple(ca for ca in cas if x509.load_pem_x509_certificate(ca).not_valid_after_utc > now)


def contains(bundle: bytes, ca: bytes) -> bool:
    return x509.load_pem_x509_certificate(ca) in [x509.load_pem_x509_certificate(c) for c in split_bundle(bundle)]


def merge_bundles(own: Sequence[bytes], present: bytes, now: datetime) -> bytes:
    """Our authorities first, then what is trusted now and has not run out. Adding only means that replicas of
    different knowledge never take each other's authority away."""
    known = {x509.load_pem_x509_certificate(ca) for ca in own}
    kept = [ca for ca in alive(split_bundle(present), now) if x509.load_pem_x509_certificate(ca) not in known]
    return b"".join([*own, *kept][:_MOST_CAS])


def expires(cert: bytes) -> datetime:
    return x509.load_pem_x509_certificate(cert).not_valid_after_utc


def names_of(cert: x509.Certificate) -> tuple[str, ...]:
    try:
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(name.value) for name in names if isinstance(name, (x509.DNSName, x509.IPAddress)))


def signed_by(cert: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        cert.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign,
        crl_sign=sign,
        encipher_only=False,
        decipher_only=False,
    )


def _load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the key is no ECDSA key")
    return key


def _pem(cert: x509.Certificate) -> bytes:
    return cert.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
