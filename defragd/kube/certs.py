"""Keeps the webhook's certificates: Secret, rotation, and the caBundle that the API server trusts.

Every replica watches and reconciles; the Secret's revision decides who writes. A replica serves what the Secret holds.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from defragd.errors import ConfigError
from defragd.kube import pki, webhook_config
from defragd.kube.client import Client, no_hook
from defragd.kube.decode import ListDecoder
from defragd.kube.reflector import Kind, Reflector
from defragd.kube.store import Hub, Store
from defragd.kube.webhook_config import ConfigWire
from defragd.kube.wire import ObjectMeta, Wire
from defragd.kube.writes import absorb
from defragd.ports import Hook, Outcome

SECRET = "gpu-descheduler-webhook-tls"
_TICK = 600.0
_RETRY = 5.0


class SecretWire(Wire):
    metadata: ObjectMeta
    data: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ServingPair:
    """PEM bytes: chain, key and the authorities that sign for us."""

    cert: bytes
    key: bytes
    ca: bytes


def hosts_of_url(url: str) -> tuple[str, ...]:
    """The host of --webhook-url. Raises ConfigError when it is no https URL with a host."""
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise ConfigError(f"--webhook-url {url!r} is no https URL; write it like https://10.0.0.5:8443/mutate")
    return (parts.hostname,)


def service_hosts(service: str, namespace: str) -> tuple[str, ...]:
    """The names under which the API server calls a Service."""
    return (f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local", f"{service}.{namespace}")


class CertKeeper:
    """``url`` given: the whole webhook configuration is ours; else only its caBundle. ``manage`` False (cert-manager):
    the Secret and the caBundle are somebody else's, we only serve what is there. ``on_pair`` hears every new pair."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        hosts: Sequence[str],
        url: str = "",
        secret: str = SECRET,
        manage: bool = True,
        match_conditions: bool = False,
        on_pair: Callable[[ServingPair], None] = lambda pair: None,
        hook: Hook = no_hook,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client, self._namespace, self._secret = client, namespace, secret
        self._hosts, self._url, self._manage, self._conditions = tuple(hosts), url, manage, match_conditions
        self._on_pair, self._hook, self._now = on_pair, hook, now
        self._hub = Hub()
        self._secrets: Store[SecretWire] = Store(self._hub)
        self._configs: Store[ConfigWire] = Store(self._hub)
        self._secret_decoder = ListDecoder(SecretWire, "Secret")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pair: ServingPair | None = None
        self._reflectors: list[Reflector[Any]] = [
            Reflector(
                client,
                Kind(
                    "secrets",
                    "Secret",
                    f"/api/v1/namespaces/{namespace}/secrets",
                    SecretWire,
                    {"fieldSelector": f"metadata.name={secret}"},
                ),
                self._secrets,
                hook=hook,
            ),
            Reflector(
                client,
                Kind(
                    "mutatingwebhookconfigurations",
                    "MutatingWebhookConfiguration",
                    webhook_config.PATH,
                    ConfigWire,
                    {"fieldSelector": f"metadata.name={webhook_config.NAME}"},
                ),
                self._configs,
                hook=hook,
            ),
        ]

    # -- read -----------------------------------------------------------------------------------------------------

    def pair(self) -> ServingPair | None:
        """What to serve with; None until the Secret has been read or made."""
        return self._pair

    def expiry(self) -> float | None:
        """Unix time at which the pair in service expires; None without one."""
        pair = self.pair()
        return None if pair is None else pki.expires(pair.cert).timestamp()

    def ready(self) -> bool:
        """There is a pair that has not run out, and the API server trusts it."""
        pair, config = self._pair, self._configs.get(webhook_config.NAME)
        if pair is None or config is None or pki.expires(pair.cert) <= self._now():
            return False
        trusted = pki.split_bundle(webhook_config.bundle_of(config))
        return any(ca in trusted for ca in pki.split_bundle(pair.ca))

    def wait_pair(self, timeout: float) -> ServingPair | None:
        """The pair as soon as there is one."""
        end = time.monotonic() + timeout
        version = -1
        while self._pair is None and not self._stop.is_set() and time.monotonic() < end:
            version = self._hub.wait(version, 0.1)
        return self._pair

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        for reflector in self._reflectors:
            reflector.start()
        self._thread = threading.Thread(target=self._run, name="certs", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._hub.bump()
        for reflector in self._reflectors:
            reflector.stop()
        if self._thread is not None:
            self._thread.join(5.0)

    def _run(self) -> None:
        seen = -1
        pause = _TICK
        while not self._stop.is_set():
            seen = self._hub.wait(seen, pause)
            if self._stop.is_set():
                break
            try:
                pause = _TICK if self.reconcile() else _RETRY
            except Exception as err:  # noqa: BLE001 - serving with the old pair beats not serving
                self._hook("certs.trouble", {"reason": f"{type(err).__name__}: {err}"})
                pause = _RETRY

    # -- work -----------------------------------------------------------------------------------------------------

    def reconcile(self) -> bool:
        """One pass; True when nothing is left to do. After a conflict the watch brings the winner's version."""
        if not all(store.synced for store in (self._secrets, self._configs)):
            return False
        now = self._now()
        key = f"{self._namespace}/{self._secret}"
        secret = self._secrets.get(key)
        config = self._configs.get(webhook_config.NAME)
        material = _material(secret, need_ca_key=self._manage)
        if self._manage:
            if material is not None and (wrong := pki.check(material)):
                self._hook("certs.trouble", {"reason": f"Secret {key} is replaced: {wrong}"})
                material = None
            trusted = webhook_config.bundle_of(config)
            fresh = pki.renew(material, self._hosts, now, trusted=trusted)
            if fresh is not None:
                return self._store_secret(fresh, secret)
        if material is None:
            return False
        self._serve(material)
        return self._trust(config, material, now) if self._manage else True

    def _store_secret(self, material: pki.Material, secret: SecretWire | None) -> bool:
        meta = {"namespace": self._namespace, "name": self._secret}
        if secret is not None:
            meta["resourceVersion"] = secret.metadata.resource_version
        data = {"ca.crt": material.bundle, "ca.key": material.ca_key, "tls.crt": material.cert, "tls.key": material.key}
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {**meta, "labels": {"app.kubernetes.io/name": "gpu-descheduler"}},
            "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
        }
        base = f"/api/v1/namespaces/{self._namespace}/secrets"
        method, path = ("POST", base) if secret is None else ("PUT", f"{base}/{self._secret}")
        result, answer = self._client.write_raw(method, path, body)
        absorb(self._secrets, self._secret_decoder, result, answer)
        if result.ok:
            self._hook("certs.renewed", {"secret": f"{self._namespace}/{self._secret}"})
        elif result.outcome is not Outcome.CONFLICT:
            self._hook("certs.trouble", {"reason": f"Secret {self._namespace}/{self._secret}: {result.message}"})
        return False

    def _serve(self, material: pki.Material) -> None:
        pair = ServingPair(material.cert, material.key, material.bundle)
        if pair != self._pair:
            self._pair = pair
            self._on_pair(pair)

    def _trust(self, config: ConfigWire | None, material: pki.Material, now: datetime) -> bool:
        bundle = pki.merge_bundles(material.cas, webhook_config.bundle_of(config), now)
        if self._url:
            namespaces = ("kube-system", self._namespace)
            wanted = webhook_config.desired(self._url, bundle, namespaces=namespaces, conditions=self._conditions)
            if webhook_config.agrees(config, wanted):
                return True
            result = webhook_config.put_right(self._client, wanted, config)
        elif config is None:
            name = webhook_config.NAME
            self._hook(
                "certs.trouble", {"reason": f"MutatingWebhookConfiguration {name} is missing; install the chart"}
            )
            return False
        elif webhook_config.bundle_of(config) == bundle:
            return True
        else:
            result = webhook_config.patch_bundle(self._client, config, bundle)
        if not result.ok and result.outcome is not Outcome.CONFLICT:
            self._hook("certs.trouble", {"reason": f"webhook configuration: {result.message}"})
        return False


def _material(secret: SecretWire | None, *, need_ca_key: bool) -> pki.Material | None:
    """What a Secret holds; None when something is missing or is no base64."""
    data = (secret.data if secret else None) or {}
    try:
        cert, key = (base64.b64decode(data[name], validate=True) for name in ("tls.crt", "tls.key"))
        cas = pki.split_bundle(base64.b64decode(data.get("ca.crt", ""), validate=True))
        ca_key = base64.b64decode(data.get("ca.key", ""), validate=True)
    except (KeyError, ValueError):
        return None
    if not cert or not key or (need_ca_key and (not cas or not ca_key)):
        return None
    return pki.Material(cas, ca_key, cert, key)
