"""The leader's janitor: what is left over is found by what it carries, and healed. Foreign marks are never touched.

- steering is put on waiting competitors of held devices, and taken off when the hold ends or the pod is bound;
- a pod that a dead placement pinned, and that never got bound, is recycled (it cannot fall back by itself); one that
  nobody would create again is given its choice of devices back instead;
- what a surge that is over has left (a raised replica count, a deletion cost) is taken back;
- ended placements are deleted after their time to live.

Gates are not its business: every replica looks after those (`controllers.gates`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from defragd.controllers.leader_loop import AGAIN, MAX_AGE_SECONDS, LeaderLoop
from defragd.core.model import Pod
from defragd.core.placement import GATE, PINNED, Placement, Step
from defragd.core.placement_claims import strayed
from defragd.core.placement_pin import can_widen, widen_patch
from defragd.core.placement_steering import held_devices, steer_patches
from defragd.core.placement_surge import cost_restored, left_behind
from defragd.core.snapshot import Snapshot
from defragd.core.vendor import Vendor
from defragd.ports import Clock, ClusterReader, Hook, Leadership, PlacementStore, PodWriter, WorkloadWriter

ORPHAN_AFTER = timedelta(seconds=60)
"""A pinned pod without an open placement is given so long to be bound all the same."""
PER_PASS = 50
"""Writes per kind and pass, so that a large clean-up does not starve the moves."""


class Janitor(LeaderLoop):
    """Each kind of leftover is looked for once per pass."""

    NAME, EVERY = "janitor", 0.5

    def __init__(
        self,
        *,
        reader: ClusterReader,
        placements: PlacementStore,
        pods: PodWriter,
        leadership: Leadership,
        clock: Clock,
        hook: Hook,
        vendors: Mapping[str, Vendor],
        max_age_seconds: float = MAX_AGE_SECONDS,
        workloads: WorkloadWriter | None = None,
    ) -> None:
        """``workloads``: takes replicas of surges back."""
        self._workloads = workloads
        super().__init__(reader, leadership, clock, hook, max_age_seconds)
        self._placements, self._pods, self._vendors = placements, pods, vendors
        self._orphans: dict[str, datetime] = {}
        """UID of a pinned pod without a placement -> when it was first seen so."""

    def _forget(self) -> None:
        super()._forget()
        self._orphans.clear()

    def _pass(self, tick: float) -> int:
        snapshot, placements = self._reader.snapshot(), self._placements.list()
        return (
            self._steer(snapshot, placements, tick)
            + self._end_surges(snapshot, placements, tick)
            + self._recycle_orphans(snapshot, placements, tick)
            + self._expire(placements, tick)
        )

    def _may_touch(self, what: str, tick: float) -> bool:
        if what in self._resting:
            return False
        self._resting[what] = tick + AGAIN
        return True

    def _steer(self, snapshot: Snapshot, placements: Sequence[Placement], tick: float) -> int:
        arrived = [
            p.key
            for p in placements
            if p.status.step is Step.PINNED
            and (pod := snapshot.pods.get(f"{p.namespace}/{p.status.pod_name}")) is not None
            and pod.uid == p.status.pod_uid
            and bool(pod.node)
        ]
        held = held_devices(placements, arrived=arrived)
        done = 0
        for pod, patch in steer_patches(snapshot.pods.values(), held, self._vendors):
            if done >= PER_PASS:
                break
            if not self._may_touch(f"steer:{pod.uid}", tick):
                continue
            answer = self._pods.patch_pod(pod.namespace, pod.name, patch)
            done += 1
            self._hook("pod.patched", {"pod": pod.key, "why": "steer", "result": str(answer.outcome)})
        return done

    def _recycle_orphans(self, snapshot: Snapshot, placements: Sequence[Placement], tick: float) -> int:
        """Pods pinned for a placement that has ended or is gone, and still not bound: nobody watches over them."""
        now = self._clock.now()
        watched = {(p.namespace, p.name) for p in placements if p.open}
        orphans = [
            pod
            for pod in snapshot.pods.values()
            if _stranded(pod) and ((pod.namespace, pod.annotations[PINNED]) not in watched or strayed(pod, placements))
        ]
        known = {pod.uid for pod in orphans}
        self._orphans = {uid: since for uid, since in self._orphans.items() if uid in known}
        done = 0
        for pod in orphans:
            since = self._orphans.setdefault(pod.uid, now)
            if now - since < ORPHAN_AFTER or not self._may_touch(f"recycle:{pod.uid}", tick):
                continue
            done += 1
            if pod.owner is None:
                answer = self._pods.patch_pod(pod.namespace, pod.name, widen_patch(pod, self._vendors))
                self._hook("pod.patched", {"pod": pod.key, "why": "widen", "result": str(answer.outcome)})
                continue
            answer = self._pods.evict(pod, check_revision=True)
            reason = "pinned for a placement that is gone"
            self._hook("recycle", {"pod": pod.key, "result": str(answer.outcome), "reason": reason})
        return done

    def _end_surges(self, snapshot: Snapshot, placements: Sequence[Placement], tick: float) -> int:
        """Surges that failed, or whose placement is gone: the cost first, so that the count takes the new pod away."""
        if self._workloads is None:
            return 0
        pods, scales = left_behind(snapshot, placements)
        done = 0
        for pod in pods[:PER_PASS]:
            if self._may_touch(f"cost:{pod.uid}", tick):
                answer = self._pods.patch_pod(pod.namespace, pod.name, cost_restored(pod))
                self._hook("pod.patched", {"pod": pod.key, "why": "cost", "result": str(answer.outcome)})
                done += 1
        for scale in scales[:PER_PASS]:
            if self._may_touch(f"surge:{scale.workload.uid}", tick):
                answer = self._workloads.scale(scale.workload, scale.replicas, manager=scale.manager)
                fields = {"workload": scale.workload.key, "replicas": scale.replicas, "result": str(answer.outcome)}
                self._hook("surge", {**fields, "reason": "the surge is over"})
                done += 1
        return done

    def _expire(self, placements: Sequence[Placement], tick: float) -> int:
        now = self._clock.now()
        done = 0
        for placement in placements:
            ended = placement.status.ended_at
            if placement.open or placement.deleting or ended is None or now < ended + placement.spec.ttl:
                continue
            if done >= PER_PASS:
                break
            if self._may_touch(f"expire:{placement.uid}", tick):
                self._placements.delete(placement)
                done += 1
        return done


def _stranded(pod: Pod) -> bool:
    """Pinned by us and not bound."""
    return (
        bool(pod.annotations.get(PINNED))
        and pod.phase == "Pending"
        and not pod.node
        and not pod.deleting
        and GATE not in pod.gates
        and (pod.owner is not None or can_widen(pod))
    )
