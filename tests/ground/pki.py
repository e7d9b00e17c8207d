"""A certificate authority for one test cluster: serving certificates for loopback, and the service-account key pair."""

from __future__ import annotations

import base64
import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def key_pair(private: Path, public: Path) -> None:
    """Writes an EC key pair (the API server signs service-account tokens with it)."""
    key = ec.generate_private_key(ec.SECP256R1())
    private.write_bytes(_pem(key))
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


class Authority:
    """Signs serving certificates for 127.0.0.1 and localhost; ``bundle`` is the caBundle in base64."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ground-ca")])
        self._cert = self._sign(self._name, self._key, authority=True, valid=_DAY)
        self.path = folder / "ca.crt"
        self.path.write_bytes(self._cert.public_bytes(serialization.Encoding.PEM))

    @property
    def bundle(self) -> str:
        return base64.b64encode(self.path.read_bytes()).decode()

    def issue(self, name: str, *, valid: datetime.timedelta = _DAY) -> tuple[Path, Path]:
        """(certificate, key) files. A negative ``valid`` gives a certificate that has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        cert = self._sign(subject, key, authority=False, valid=valid)
        crt_path, key_path = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        crt_path.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        key_path.write_bytes(_pem(key))
        return crt_path, key_path

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, authority: bool, valid: datetime.timedelta
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * _DAY)
            .not_valid_after(now + valid)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if not authority:
            names: list[x509.GeneralName] = [
                x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
                x509.DNSName("localhost"),
            ]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())
