"""Who leads: one Lease, a pure decision, a loop around it, and a fence that trusts only our own monotonic clock.

Times as in client-go: a lease lasts 15 s without renewal, we give up after 10 s without a successful one, and try every
2 s. Another holder's lease counts as abandoned only after *we* have watched it unchanged for its whole duration, so
clocks that differ between machines do no harm.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from defragd.errors import DefragError
from defragd.kube.client import Client, no_hook
from defragd.kube.lease import Record, micro, read_lease, write_lease
from defragd.ports import Hook, Written

LEASE_NAME = "gpu-descheduler"
LABELS = {"app.kubernetes.io/component": "leader", "app.kubernetes.io/name": "gpu-descheduler"}
LEASE_SECONDS = 15.0
RENEW_DEADLINE = 10.0
RETRY_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Decision:
    """``act``: renew (it is ours), take (it is free or abandoned) or wait; ``why`` for logs."""

    act: str
    why: str


def decide(record: Record, identity: str, unchanged_for: float) -> Decision:
    """``unchanged_for``: seconds for which we have seen this very record without a change."""
    if record.holder == identity:
        return Decision("renew", "ours")
    if not record.revision or not record.holder:
        return Decision("take", "free")
    lasts = record.duration or LEASE_SECONDS
    if unchanged_for > lasts:
        return Decision("take", f"{record.holder} has not renewed it for {lasts:g} s")
    return Decision("wait", f"held by {record.holder}")


class LeaderElector:
    """ports.Leadership. ``start`` runs the loop in a thread; ``stop`` gives the lease back so that a successor need not
    wait for it to run out. Use one identity per process: pod name and a random suffix."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        identity: str,
        name: str = LEASE_NAME,
        lease_seconds: float = LEASE_SECONDS,
        renew_deadline: float = RENEW_DEADLINE,
        retry_seconds: float = RETRY_SECONDS,
        hook: Hook = no_hook,
    ) -> None:
        self._client, self._namespace, self._name, self._identity = client, namespace, name, identity
        self._lease_seconds, self._deadline, self._retry = lease_seconds, renew_deadline, retry_seconds
        self._hook = hook
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._record = Record()
        self._seen_at = time.monotonic()
        self._fence_until = float("-inf")
        self._told = ""

    # -- ports.Leadership -----------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        return self._identity

    def is_leader(self) -> bool:
        """False as soon as the last renewal was sent more than the renew deadline ago, whatever the loop does."""
        return time.monotonic() < self._fence_until

    def holder(self) -> str:
        return self._record.holder

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="leader", daemon=True)
        self._thread.start()

    def wait_leader(self, timeout: float) -> bool:
        """Until we lead; a convenience for start-up and tests."""
        end = time.monotonic() + timeout
        while not self.is_leader() and time.monotonic() < end and not self._stop.wait(0.02):
            pass
        return self.is_leader()

    def stop(self) -> None:
        """Ends the loop and releases the lease, if it is ours."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(self._deadline)
        if self._record.holder == self._identity:
            self._fence_until = float("-inf")
            self._release()

    # -- loop -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.attempt()
            except DefragError as err:
                self._hook("leader.trouble", {"reason": str(err)})
            self._tell()
            if self._stop.wait(self._retry * random.uniform(0.9, 1.1)):
                break

    def attempt(self) -> None:
        """One round: look, decide, write. Raises DefragError when the lease cannot be read."""
        asked = time.monotonic()
        # While it is ours we replace the revision we wrote last: one request per renewal, and a 409 tells us the rest.
        if self._record.holder != self._identity or not self.is_leader():
            self._observe(read_lease(self._client, self._namespace, self._name, timeout=self._deadline / 2))
        choice = decide(self._record, self._identity, time.monotonic() - self._seen_at)
        if choice.act == "wait":
            self._fence_until = float("-inf")
            return
        now = datetime.now(UTC)
        taking = choice.act == "take"
        spec: dict[str, Any] = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._lease_seconds)),
            "acquireTime": micro(now if taking or self._record.acquired is None else self._record.acquired),
            "renewTime": micro(now),
            "leaseTransitions": self._record.transitions + (1 if taking and self._record.revision else 0),
        }
        result = self._write(spec)
        if result.ok:
            acquired = now if taking else self._record.acquired
            self._observe(
                Record(self._identity, self._lease_seconds, acquired, now, spec["leaseTransitions"], result.revision)
            )
            # Counted from before the request was sent: the server's idea of the renewal cannot be older.
            self._fence_until = asked + self._deadline
        elif result.outcome.value in ("Conflict", "Gone"):
            self._fence_until = float("-inf")
            self._observe(read_lease(self._client, self._namespace, self._name, timeout=self._deadline / 2))
        else:
            # No answer: the renewal may have happened. Read before the next write; the fence runs on meanwhile.
            self._hook("leader.trouble", {"reason": result.message})
            self._observe(read_lease(self._client, self._namespace, self._name, timeout=self._deadline / 2))

    def _write(self, spec: Mapping[str, Any]) -> Written:
        """Over the revision that we have seen, and no other."""
        return write_lease(
            self._client,
            self._namespace,
            self._name,
            spec,
            revision=self._record.revision,
            labels=LABELS,
            timeout=self._deadline / 2,
        )

    def _observe(self, record: Record) -> None:
        if (record.revision, record.holder) != (self._record.revision, self._record.holder):
            self._seen_at = time.monotonic()
        self._record = record

    def _tell(self) -> None:
        holder = self._record.holder
        if holder != self._told:
            self._told = holder
            self._hook("leader.changed", {"leader": holder})

    def _release(self) -> None:
        now = datetime.now(UTC)
        spec = {
            "holderIdentity": "",
            "leaseDurationSeconds": 1,
            "renewTime": micro(now),
            "acquireTime": micro(now),
            "leaseTransitions": self._record.transitions,
        }
        result = self._write(spec)
        if result.ok:
            self._observe(Record("", 1.0, now, now, self._record.transitions, result.revision))


class AlwaysLeader:
    """ports.Leadership for --no-leader-elect: a single replica without a Lease."""

    def __init__(self, identity: str) -> None:
        self._identity = identity

    @property
    def identity(self) -> str:
        return self._identity

    def is_leader(self) -> bool:
        return True

    def holder(self) -> str:
        return self._identity
