"""The gate keeper: every replica, leader or not, lets pods go whose gate has no reason (any more).

A gated pod starts only when somebody removes the gate, so this must work when the leader is dead, the placement is
gone, or the data is old. It needs nothing but the pod and the list of placements; in doubt the pod goes, unpinned, as
if we did not exist. A replica that starts does this before anything else.
"""

from __future__ import annotations

import threading
from functools import partial

from defragd.controllers.lane import InlineLane, Lane
from defragd.core.gating import gated, overdue, release_patch, why_release
from defragd.core.model import Pod
from defragd.ports import Clock, ClusterReader, Hook, Outcome, PlacementStore, PodWriter, Written

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
        lane: Lane | None = None,
    ) -> None:
        """``lane``: where the calls run, so that one that hangs keeps no other pod waiting (default: at once)."""
        self._lane = lane or InlineLane()
        self._reader, self._placements, self._pods, self._clock, self._hook = reader, placements, pods, clock, hook
        self._closed_for = closed_for
        self._since: dict[str, float] = {}
        """Pod UID -> when its gate was first found without a reason."""
        self._tries: dict[str, tuple[int, float]] = {}
        """Pod UID -> attempts so far, and not before which (monotonic) the next one."""
        self._pods_asked: dict[str, tuple[Pod, str]] = {}
        """Pod UID -> the pod and why it is let go, while the call is under way."""
        self.beat = clock.monotonic()

    def release_overdue(self) -> int:
        """Lets go every pod that is past its deadline or whose placement is gone, ended or has another pod. Returns
        how many were let go since the last pass. Old data is no excuse here: letting go is always safe."""
        released = self._answers()
        found = gated(self._reader.snapshot().pods.values())
        known = {pod.uid for pod in found}
        self._since = {uid: since for uid, since in self._since.items() if uid in known}
        self._tries = {uid: tries for uid, tries in self._tries.items() if uid in known}
        if not found:
            return released
        placements = self._placements.list()
        taken = {p.status.pod_uid for p in placements if p.status.pod_uid and p.open}
        waiting = [p for p in placements if p.open]
        now, tick = self._clock.now(), self._clock.monotonic()
        for pod in found:
            why = "overdue" if overdue(pod, now) else why_release(pod, waiting, now)
            if not why:
                self._since.pop(pod.uid, None)
                continue
            if why == "closed" and (pod.uid in taken or tick - self._first(pod, tick) < self._closed_for):
                continue
            self._release(pod, why, tick)
        return released + self._answers()

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
        self._lane.close()

    def _first(self, pod: Pod, tick: float) -> float:
        return self._since.setdefault(pod.uid, tick)

    def _release(self, pod: Pod, why: str, tick: float) -> None:
        tries, after = self._tries.get(pod.uid, (0, tick))
        if tick < after or pod.uid in self._lane.busy():
            return
        patch = release_patch(pod, optimistic=tries < OPTIMISTIC_TRIES)
        self._tries[pod.uid] = (tries + 1, tick + PAUSES[min(tries + 1, len(PAUSES) - 1)])
        self._pods_asked[pod.uid] = (pod, why)
        self._lane.submit(pod.uid, partial(self._pods.patch_pod, pod.namespace, pod.name, patch))

    def _answers(self) -> int:
        """Takes in what the calls gave; returns how many pods were let go."""
        released = 0
        for done in self._lane.collect():
            pod, why = self._pods_asked.pop(done.key)
            tries, _ = self._tries.get(done.key, (1, 0.0))
            answer = done.value
            if not isinstance(answer, Written):
                answer = Written(Outcome.UNKNOWN, f"{type(done.error).__name__}: {done.error}")
            if answer.retry_after:
                self._tries[done.key] = (tries, self._clock.monotonic() + answer.retry_after)
            if answer.ok:
                released += 1
                self._hook("gate.released", {"pod": pod.key, "why": why})
            elif answer.outcome is not Outcome.GONE:
                fields = {"pod": pod.key, "outcome": str(answer.outcome), "reason": answer.message, "tries": tries}
                self._hook("gate.stuck" if tries > OPTIMISTIC_TRIES else "gate.retry", fields)
        return released
