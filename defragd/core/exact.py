"""The exact rules on a what-if state: HAMi's (`core.fit`) and kube-scheduler's (`core.kube_fit`), one move at a time.

Tables choose, these rules decide. A question needs only the pods that can matter for it (those of the target node, and
all of them where pods look at each other or a quota counts), so a plan of hundreds of moves is proven in a moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from defragd.core.fit import FitConfig, fit_pod
from defragd.core.kube_fit import kube_fit
from defragd.core.model import Allocation, Pod
from defragd.core.moves import landed
from defragd.core.plan import Place, Refusal
from defragd.core.reasons import Reason
from defragd.core.snapshot import Snapshot
from defragd.core.vendor import Vendor

ARRIVAL = "~arrival"
"""Suffix of the key under which a pod stands on its target while it still stands on its source."""


class Exact:
    """Answers for one snapshot. ``moved`` pods stand elsewhere than in the snapshot."""

    def __init__(self, snapshot: Snapshot, vendors: Mapping[str, Vendor]) -> None:
        self.snapshot, self.vendors = snapshot, vendors
        self._watchers = {
            key: pod
            for key, pod in snapshot.pods.items()
            if pod.live and (pod.scheduling.anti_affinity or pod.scheduling.affinity)
        }
        self._needs_all = bool(snapshot.quotas)

    def refusal(self, pod: Pod, place: Place, moved: Mapping[str, Pod | None]) -> Refusal | None:
        """Why ``pod`` cannot stand on ``place`` when the pods of ``moved`` stand there (None = gone); None = it can."""
        _, why = self.land(pod, place, moved)
        return why

    def land(self, pod: Pod, place: Place, moved: Mapping[str, Pod | None]) -> tuple[Pod | None, Refusal | None]:
        """The pod as HAMi would book it on ``place``, or why not."""
        node = self.snapshot.nodes.get(place.node)
        if node is None:
            return None, Refusal(pod.key, Reason.NODE_UNKNOWN, f"node {place.node} is not in the snapshot")
        world = self._around(pod, place.node, moved)
        without = frozenset((pod.key,))
        verdict = kube_fit(world, pod, place.node, without=without)
        if not verdict.ok:
            return None, Refusal(pod.key, verdict.reason or Reason.NODE_UNFIT, f"{place.node}: {verdict.detail}")
        wanted = landed(pod, place, self.snapshot.devices)
        uuids = tuple(dict.fromkeys(a.uuid for a in wanted.allocations))
        fit = fit_pod(world, pod, place.node, vendors=self.vendors, devices=uuids, without=without, config=FitConfig())
        if not fit.ok:
            return None, Refusal(pod.key, fit.reason or Reason.DEVICE_FULL, f"{place.node}: {fit.text}")
        if _alike(pod) and _devices(fit.allocations) == _devices(wanted.allocations):
            # some backends book other figures than were asked (units of the device, the slice of a profile)
            return replace(wanted, allocations=fit.allocations), None
        if not _same(fit.allocations, wanted.allocations):
            return None, Refusal(
                pod.key,
                Reason.UNJUDGED,
                f"{place.node}: HAMi would give its containers other devices of the pinned ones than planned",
            )
        return wanted, None

    def _around(self, pod: Pod, node: str, moved: Mapping[str, Pod | None]) -> Snapshot:
        snapshot = self.snapshot
        wants = pod.scheduling
        if self._needs_all or wants.affinity or wants.anti_affinity or wants.spread:
            return snapshot.with_pods(moved)
        near: dict[str, Pod] = dict(self._watchers)
        for other in (*snapshot.pods_on.get(node, ()), *snapshot.booked_on.get(node, ())):
            near[other.key] = other
        for key, now in moved.items():
            if now is None:
                near.pop(key, None)
            elif now.node == node or key in self._watchers or now.booked_node == node:
                near[key] = now
            else:
                near.pop(key, None)
        return replace(snapshot, pods=near)

    def replay(
        self, waves: Sequence[Sequence[tuple[Pod, Place, bool]]]
    ) -> tuple[dict[str, Pod], tuple[Pod, Refusal] | None]:
        """Carries out all waves on paper. Items are (pod, place, whether it is in a co-evicted group).

        Inside a wave nobody has left when the others arrive, but for groups, which all leave first. Returns the moved
        pods as they stand in the end, and the first move that the rules refuse (with the reason), if any.
        """
        moved: dict[str, Pod | None] = {}
        for wave in waves:
            during = dict(moved)
            for pod, _, grouped in wave:
                if grouped:
                    during[pod.key] = None
            arrived: dict[str, Pod] = {}
            for pod, place, _ in wave:
                there, why = self.land(pod, place, during)
                if there is None:
                    assert why is not None
                    return {}, (pod, why)
                arrived[pod.key] = there
                during[f"{pod.key}{ARRIVAL}"] = replace(there, name=f"{pod.name}{ARRIVAL}", uid=f"{pod.uid}{ARRIVAL}")
            moved.update(arrived)
        return {key: pod for key, pod in moved.items() if pod is not None}, None


def _alike(pod: Pod) -> bool:
    """All containers that ask for devices ask for the same: no matter which of them gets which device."""
    return len({(r.init, r.vendor, r.count, r.memory_mib, r.memory_pct, r.cores) for r in pod.requests}) == 1


def _devices(allocations: tuple[Allocation, ...]) -> list[str]:
    return sorted(a.uuid for a in allocations)


def _same(found: tuple[Allocation, ...], wanted: tuple[Allocation, ...]) -> bool:
    """Equal use per device; which container gets which of equal shares does not matter."""
    return _shares(found) == _shares(wanted)


def _shares(allocations: tuple[Allocation, ...]) -> list[tuple[str, int, int, bool]]:
    return sorted((a.uuid, a.memory_mib, a.cores, a.init) for a in allocations)
