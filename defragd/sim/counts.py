"""Deployments of the simulated cluster: who set a replica count last, and which pod goes when a count falls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from defragd.core.free import DELETION_COST
from defragd.core.model import Pod, Workload
from defragd.core.placement import SURGE_MANAGER
from defragd.ports import Outcome, Written

if TYPE_CHECKING:
    from defragd.sim.cluster import Owned, SimCluster


class Counts:
    """The scale sub-resource of Deployments, with its precondition and the memory of its last writer."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._last: dict[str, tuple[int, str, str]] = {}
        """Deployment UID -> count, field manager, revision."""

    def tops(self, known: Mapping[str, Workload]) -> dict[str, Workload]:
        """The owners of owners as they are now; a count that nobody set through here is somebody else's."""
        return {uid: self._now(uid, top) for uid, top in known.items()}

    def _owned(self, uid: str) -> list[Owned]:
        found = [o for o in self._cluster.owners.values() if o.workload.top is not None and o.workload.top.uid == uid]
        return [o for o in found if o.replicas] or found

    def _now(self, uid: str, top: Workload) -> Workload:
        owned = self._owned(uid) if top.kind == "Deployment" else []
        if not owned:
            return top
        count = sum(o.replicas for o in owned)
        if uid not in self._last or self._last[uid][0] != count:
            self._last[uid] = (count, "", f"{len(self._last)}-{count}-{self._cluster.version}")
        _, by, revision = self._last[uid]
        surge = by.removeprefix(SURGE_MANAGER) if by.startswith(SURGE_MANAGER) else ""
        return replace(top, replicas=count, surged_by=surge, revision=revision)

    def scale(self, workload: Workload, replicas: int, manager: str) -> Written:
        cluster, owned = self._cluster, self._owned(workload.uid)
        if len(owned) != 1:
            return Written(Outcome.GONE, f'deployments "{workload.name}" not found')
        if self._now(workload.uid, workload).revision != workload.revision:
            return Written(Outcome.CONFLICT, "the object has been modified")
        owned[0].replicas = replicas
        cluster.touch()
        self._last[workload.uid] = (replicas, manager, str(cluster.version))
        uid = owned[0].workload.uid
        cluster.at(cluster.faults.create, lambda: cluster.reconcile(uid))
        return Written(Outcome.OK)


def goes_first(pods: Iterable[Pod]) -> list[Pod]:
    """In the order in which a ReplicaSet lets them go: not bound, not running, not Ready, cheap, young."""

    def rank(pod: Pod) -> tuple[Any, ...]:
        cost = int(pod.annotations.get(DELETION_COST) or 0)
        since = pod.ready_since or pod.created
        return (bool(pod.node), pod.phase != "Pending", pod.ready, cost, -(since.timestamp() if since else 0), pod.name)

    return sorted(pods, key=rank)
