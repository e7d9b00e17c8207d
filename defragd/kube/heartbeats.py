"""Which replicas live, and which placements each of them has seen: one Lease per replica (ports.Heartbeats).

Nobody evicts before every serving webhook knows the placement (design section 3, rule 3), so a replica says what it has
seen at once, at most four times a second, and renews every 5 s. The others' leases come from a watch.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from defragd.errors import DefragError
from defragd.kube.client import Client, no_hook
from defragd.kube.lease import LEASES, LeaseWire, delete_lease, micro, read_lease, record_of, write_lease
from defragd.kube.reflector import Kind, Reflector
from defragd.kube.store import Hub, Store
from defragd.ports import Beat, Hook, Outcome

PREFIX = "gpu-descheduler-"
LABEL = {"app.kubernetes.io/component": "heartbeat", "app.kubernetes.io/name": "gpu-descheduler"}
SEEN = "scheduling.hami.placement.com/seen"
SERVING = "scheduling.hami.placement.com/serving"
RENEW_SECONDS = 5.0
LEASE_SECONDS = 20
FASTEST = 0.25
FORGET_SECONDS = 300.0
"""A dead replica's lease is removed after this."""


_CLOCK_SKEW = 120.0


class KubeHeartbeats:
    """``publish`` only notes the number; a thread writes. ``serving`` is False until ``set_serving(True)``: a replica
    whose webhook does not answer yet (or any more, while it drains) need not be waited for."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        identity: str,
        hook: Hook = no_hook,
        renew_seconds: float = RENEW_SECONDS,
        lease_seconds: int = LEASE_SECONDS,
        forget_seconds: float = FORGET_SECONDS,
        pod: tuple[str, str] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """``pod``: (name, UID) of our own pod. Its lease is garbage-collected with it, so the chart's role need not
        grant the deletion of leases."""
        self._client, self._namespace, self.identity, self._hook, self._now = client, namespace, identity, hook, now
        self._pod = pod
        self._name = lease_name(identity)
        self._renew, self._lasts, self._forget = renew_seconds, lease_seconds, forget_seconds
        self._revision: str | None = None
        self._seen = 0
        self._written = -1
        self._serving = False
        self._buries = True
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._hub = Hub()
        self._store: Store[LeaseWire] = Store(self._hub)
        self._moved: dict[str, tuple[str, float]] = {}
        """Revision and monotonic time of each lease's last change that we saw."""
        kind = Kind("leases", "Lease", LEASES.format(namespace), LeaseWire, {"labelSelector": _selector()})
        self._reflector = Reflector(client, kind, self._store, hook=hook)

    # -- ports.Heartbeats -----------------------------------------------------------------------------------------

    def publish(self, seen: int) -> None:
        if seen > self._seen:
            self._seen = seen
            self._wake.set()

    def others(self) -> Sequence[Beat]:
        """Live replicas but this one. Liveness is judged by our own clock: a lease that has not changed for its whole
        duration since we first saw it so belongs to a dead replica."""
        out = []
        tick = time.monotonic()
        for key, lease in self._store.items().items():
            record = record_of(lease)
            if lease.metadata.name == self._name or not record.holder:
                continue
            revision, since = self._moved.get(key, ("", None))
            if revision != record.revision:
                since = tick if since is not None else tick - self._age_at_first_sight(record.renewed)
                self._moved[key] = (record.revision, since)
            assert since is not None
            if tick - since > (record.duration or self._lasts):
                continue
            out.append(
                Beat(
                    identity=record.holder,
                    seen=_number(record.annotations.get(SEEN)),
                    renewed=self._now() - timedelta(seconds=tick - since),
                    serving=record.annotations.get(SERVING) == "true",
                )
            )
        return out

    def _age_at_first_sight(self, renewed: datetime | None) -> float:
        """Clocks may differ by minutes, and taking a live replica for a dead one would be the worse mistake."""
        age = (self._now() - renewed).total_seconds() if renewed else 0.0
        return age if age > _CLOCK_SKEW else 0.0

    # -- life -----------------------------------------------------------------------------------------------------

    def synced(self) -> bool:
        """The others are known: no placement may evict before."""
        return self._store.synced

    def age_seconds(self) -> float:
        return self._reflector.age_seconds()

    def version(self) -> int:
        return self._hub.version

    def wait(self, after: int, timeout: float) -> int:
        """Until some replica's beat changed (as ports.ClusterReader.wait)."""
        return self._hub.wait(after, timeout)

    def set_serving(self, serving: bool) -> None:
        if serving != self._serving:
            self._serving, self._written = serving, -1
            self._wake.set()

    def start(self) -> None:
        self._reflector.start()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Removes our own lease: from then on nobody waits for us."""
        self._stopping.set()
        self._wake.set()
        self._reflector.stop()
        if self._thread is not None:
            self._thread.join(5.0)
        self._reflector.join(2.0)
        result = delete_lease(self._client, self._namespace, self._name)
        if result.outcome is Outcome.REFUSED:
            # Without the right to delete, an empty holder says the same.
            self._serving, self.identity = False, ""
            with contextlib.suppress(DefragError):
                self._beat()

    # -- loop -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._beat()
                if self._buries:
                    self._bury()
            except DefragError as err:
                self._hook("heartbeat.trouble", {"reason": str(err)})
            self._stopping.wait(FASTEST)
            if self._written == self._seen:
                self._wake.wait(max(0.0, self._renew - (time.monotonic() - began)))
            self._wake.clear()

    def _beat(self) -> None:
        seen = self._seen
        if self._revision is None:
            self._revision = read_lease(self._client, self._namespace, self._name, timeout=5.0).revision
        now = micro(self._now())
        spec: dict[str, Any] = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._lasts,
            "acquireTime": now,
            "renewTime": now,
        }
        result = write_lease(
            self._client,
            self._namespace,
            self._name,
            spec,
            revision=self._revision,
            annotations={SEEN: str(seen), SERVING: "true" if self._serving else "false"},
            labels=LABEL,
            pod=self._pod,
        )
        if result.ok:
            self._revision, self._written = result.revision, seen
        else:
            self._revision = None
            self._hook("heartbeat.trouble", {"reason": result.message})

    def _bury(self) -> None:
        """Leases of replicas that died without removing theirs. Everybody may; the revision decides."""
        alive = {beat.identity for beat in self.others()}
        tick = time.monotonic()
        known = self._store.items()
        for key in [key for key in self._moved if key not in known]:
            self._moved.pop(key, None)
        for key, lease in known.items():
            holder = lease.spec.holder_identity or ""
            since = self._moved.get(key, ("", tick))[1]
            if lease.metadata.name == self._name or holder in alive or tick - since <= self._forget:
                continue
            revision = lease.metadata.resource_version
            result = delete_lease(self._client, self._namespace, lease.metadata.name, revision=revision)
            if result.outcome is Outcome.REFUSED:
                self._buries = False
                self._hook("heartbeat.trouble", {"reason": f"leases of dead replicas stay: {result.message}"})
                return


def lease_name(identity: str) -> str:
    """``gpu-descheduler-<identity>`` as a DNS name."""
    return (PREFIX + re.sub(r"[^a-z0-9.-]+", "-", identity.lower())).strip("-.")[:253]


def _selector() -> str:
    return ",".join(f"{key}={value}" for key, value in LABEL.items())


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0
