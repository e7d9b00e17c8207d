"""The gate keeper: every replica, leader or not, lets pods go whose gate has no reason (any more).

A gated pod starts only when somebody removes the gate, so this must work when the leader is dead, the placement is
gone, or the data is old. It needs nothing but the pod and the list of placements; in doubt the pod goes, unpinned, as
if we did not exist. A replica that starts does this before anything else.
"""

from __future__ import annotations

import threading

from defragd.core.gating import gated, overdue, release_patch, why_release
from defragd.core.model import Pod
from defragd.ports import Clock, ClusterReader, Hook, Outcome, PlacementStore, PodWriter

CLOSED_FOR = 1.0
"""Seconds for which a gate must look unfounded before a replica removes it: this replica's view of the placements may
be a moment behind the webhook that set the gate. Deadlines know no such patience."""
PAUSES = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)
OPTIMISTIC_TRIES = 2
"""So often the pod's revision is a precondition; after that an old view must not keep a pod waiting."""


class GateKeeper:
    """``release_overdue`` is one pass; ``run`` passes at every change and at least once a second."""

    def __init__(
        self,
        *,
        reader: ClusterReader,
        placements: PlacementStore,
        pods: PodWriter,
        clock: Clock,
        hook: Hook,
        closed_for: float = CLOSED_FOR,
    ) -> None:
        self._reader, self._placements, self._pods, self._clock, self._hook = reader, placements, pods, clock, hook
        self._closed_for = closed_for
        self._since: dict[str, float] = {}
        """Pod UID -> when its gate was first found without a reason."""
        self._tries: dict[str, tuple[int, float]] = {}
        """Pod UID -> attempts so far, and not before which (monotonic) the next one."""
        self.beat = clock.monotonic()

    def release_overdue(self) -> int:
        """Lets go every pod that is past its deadline or whose placement is gone, ended or has another pod. Returns
        how many were let go. Old data is no excuse here: letting go is always safe."""
        found = gated(self._reader.snapshot().pods.values())
        known = {pod.uid for pod in found}
        self._since = {uid: since for uid, since in self._since.items() if uid in known}
        self._tries = {uid: tries for uid, tries in self._tries.items() if uid in known}
        if not found:
            return 0
        placements = self._placements.list()
        taken = {p.status.pod_uid for p in placements if p.status.pod_uid and p.open}
        waiting = [p for p in placements if p.open]
        released = 0
        now, tick = self._clock.now(), self._clock.monotonic()
        for pod in found:
            why = "overdue" if overdue(pod, now) else why_release(pod, waiting, now)
            if not why:
                self._since.pop(pod.uid, None)
                continue
            if why == "closed" and (pod.uid in taken or tick - self._first(pod, tick) < self._closed_for):
                continue
            released += self._release(pod, why, tick)
        return released

    def next_look(self) -> float:
        """Seconds until the next pass is due although nothing changed."""
        return 0.25 if self._since or self._tries else 1.0

    def run(self, stop: threading.Event) -> None:
        """Until ``stop``. Never dies: pods would stay gated."""
        version = -1
        while not stop.is_set():
            try:
                if self._reader.synced():
                    self.release_overdue()
            except Exception as error:  # noqa: BLE001 - whatever is wrong, the next pass must come
                self._hook("loop.failed", {"loop": "gates", "error": f"{type(error).__name__}: {error}"})
                stop.wait(1.0)
            self.beat = self._clock.monotonic()
            version = self._reader.wait(version, self.next_look())
            stop.wait(0.05)

    def _first(self, pod: Pod, tick: float) -> float:
        return self._since.setdefault(pod.uid, tick)

    def _release(self, pod: Pod, why: str, tick: float) -> int:
        tries, after = self._tries.get(pod.uid, (0, tick))
        if tick < after:
            return 0
        patch = release_patch(pod, optimistic=tries < OPTIMISTIC_TRIES)
        answer = self._pods.patch_pod(pod.namespace, pod.name, patch)
        pause = PAUSES[min(tries + 1, len(PAUSES) - 1)]
        self._tries[pod.uid] = (tries + 1, tick + max(pause, answer.retry_after or 0.0))
        if answer.ok:
            self._hook("gate.released", {"pod": pod.key, "why": why})
            return 1
        if answer.outcome is not Outcome.GONE:
            fields = {"pod": pod.key, "outcome": str(answer.outcome), "reason": answer.message, "tries": tries + 1}
            self._hook("gate.stuck" if tries >= OPTIMISTIC_TRIES else "gate.retry", fields)
        return 0
