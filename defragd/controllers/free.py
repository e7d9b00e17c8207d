"""Defragmentation without evictions: tells ReplicaSets which replica to let go first when they scale in anyway.

By policy (``free.deletionCost``), never in mode DryRun, and only on pods that the policy might move. Costs that
somebody else wrote are left alone: ours are marked, and taken off when they no longer help or no policy wants them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from defragd.core.eligibility import eligible
from defragd.core.free import DELETION_COST, OURS, deletion_costs
from defragd.core.model import Pod
from defragd.core.snapshot import Snapshot
from defragd.core.vendor import Vendor
from defragd.errors import NotLeader
from defragd.policy.loaded import LoadedPolicy
from defragd.ports import Clock, ClusterReader, Hook, Leadership, PodWriter

EVERY_SECONDS = 600.0
PER_PASS = 20
"""Patches per pass: hints are not urgent, moves are."""
MAX_AGE_SECONDS = 90.0


class FreeHints:
    """``cycle`` is one pass; ``run`` passes every ten minutes."""

    def __init__(
        self,
        *,
        policies: Callable[[], Iterable[LoadedPolicy]],
        reader: ClusterReader,
        pods: PodWriter,
        leadership: Leadership,
        clock: Clock,
        hook: Hook,
        vendors: Mapping[str, Vendor],
        paused: Callable[[], str] = lambda: "",
        max_age_seconds: float = MAX_AGE_SECONDS,
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        self._policies, self._reader, self._pods, self._leadership = policies, reader, pods, leadership
        self._clock, self._hook, self._vendors, self._paused = clock, hook, vendors, paused
        self._max_age, self._every = max_age_seconds, every_seconds
        self.beat = clock.monotonic()

    def run(self, stop: threading.Event) -> None:
        last = self._clock.monotonic() - self._every + 30.0
        while not stop.wait(1.0):
            self.beat = self._clock.monotonic()
            if self.beat - last < self._every:
                continue
            last = self.beat
            try:
                self.cycle()
            except NotLeader:
                continue
            except Exception as error:  # noqa: BLE001 - hints must not end anything
                self._hook("loop.failed", {"loop": "free", "error": f"{type(error).__name__}: {error}"})

    def cycle(self) -> int:
        """One pass; returns the number of patches."""
        if not self._leadership.is_leader() or self._paused():
            return 0
        if not self._reader.synced() or self._reader.age_seconds() > self._max_age:
            return 0
        snapshot = self._reader.snapshot()
        wanted = self._wanted(snapshot)
        done = 0
        for pod in snapshot.pods.values():
            patch = hint_patch(pod, wanted.get(pod.key))
            if patch is None:
                continue
            written = self._pods.patch_pod(pod.namespace, pod.name, patch)
            self._hook("free.hint", {"pod": pod.key, "cost": wanted.get(pod.key), "result": str(written.outcome)})
            done += 1
            if done >= PER_PASS:
                break
        return done

    def _wanted(self, snapshot: Snapshot) -> dict[str, int]:
        active = [
            p for p in self._policies() if p.model.spec.free.deletion_cost and p.mode != "DryRun" and not p.suspended
        ]
        if not active:
            return {}
        now = self._clock.now()
        costs = deletion_costs(snapshot)
        return {
            key: cost
            for key, cost in costs.items()
            if any(eligible(snapshot, snapshot.pods[key], p.rules, now, vendors=self._vendors).ok for p in active)
        }


def hint_patch(pod: Pod, cost: int | None) -> dict[str, object] | None:
    """The merge patch that brings a pod's hint up to date; None when nothing is to do or the cost is not ours."""
    has, ours = pod.annotations.get(DELETION_COST), pod.annotations.get(OURS)
    wanted = None if cost is None else str(cost)
    if pod.deleting or not pod.live or (has is not None and has != ours):
        return None
    if has == wanted and ours == wanted:
        return None
    return {"metadata": {"uid": pod.uid, "annotations": {DELETION_COST: wanted, OURS: wanted}}}
