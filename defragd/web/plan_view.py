"""A plan drawn on the cluster: what the touched nodes look like before and after its moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from defragd.core.model import Allocation, Pod
from defragd.core.plan import Move
from defragd.core.plan_json import move_from_json
from defragd.core.snapshot import Snapshot
from defragd.obs.pools import PoolOf, pool_of
from defragd.web.cluster_view import NodeView, build_view


@dataclass(frozen=True, slots=True)
class PlanPicture:
    """Touched nodes before and after, in order of name. ``left_out`` are moves that the cluster no longer allows to
    draw (pod gone, replaced or elsewhere). ``freed`` names devices that become idle."""

    before: tuple[NodeView, ...]
    after: tuple[NodeView, ...]
    moved: frozenset[str]
    freed: frozenset[str]
    left_out: tuple[Move, ...]


def read_moves(plan: Mapping[str, Any]) -> tuple[Move, ...]:
    """The plan's moves; broken ones are left out."""
    found = []
    for item in plan.get("moves") or ():
        try:
            found.append(move_from_json(item))
        except (KeyError, TypeError, ValueError):
            continue
    return tuple(found)


def draw_plan(snapshot: Snapshot, moves: Sequence[Move], pools: PoolOf = pool_of) -> PlanPicture:
    """See `PlanPicture`. Pure; costs a pass over the touched nodes only."""
    changed: dict[str, Pod | None] = {}
    left_out = []
    for move in moves:
        pod = snapshot.pods.get(move.pod)
        if pod is None or (move.uid and pod.uid != move.uid) or pod.booked_node != move.source.node:
            left_out.append(move)
        else:
            changed[move.pod] = _moved(snapshot, pod, move)
    touched = {m.source.node for m in moves} | {m.target.node for m in moves}
    nodes = {name: snapshot.nodes[name] for name in touched if name in snapshot.nodes}
    local = replace(
        snapshot,
        nodes=nodes,
        pods={
            key: pod
            for name in nodes
            for pod in (*snapshot.booked_on.get(name, ()), *snapshot.pods_on.get(name, ()))
            for key in (pod.key,)
        },
        holds=tuple(h for h in snapshot.holds if h.node in nodes),
    )
    # Holds of the same moves are left out of the second picture: the pods themselves stand there.
    after = replace(local.with_pods(changed), holds=())
    first, second = build_view(local, pools).nodes, build_view(after, pools).nodes
    was_busy = {d.device.uuid for view in first for d in view.devices if d.use.holders}
    freed = {d.device.uuid for view in second for d in view.devices if not d.use.holders} & was_busy
    return PlanPicture(first, second, frozenset(changed), frozenset(freed), tuple(left_out))


def _moved(snapshot: Snapshot, pod: Pod, move: Move) -> Pod:
    places = dict(zip(pod.devices, move.target.devices, strict=False))
    allocations = tuple(
        replace(a, uuid=places.get(a.uuid, a.uuid), memory_mib=_memory(snapshot, pod, a, places.get(a.uuid, a.uuid)))
        for a in pod.allocations
    )
    return replace(pod, node=move.target.node, booked_node=move.target.node, allocations=allocations)


def _memory(snapshot: Snapshot, pod: Pod, allocation: Allocation, target: str) -> int:
    """A request in percent takes other MiB on another model."""
    device = snapshot.devices.get(target)
    for request in pod.requests:
        if device is not None and request.vendor == allocation.vendor and not request.memory_mib:
            return request.memory_on(device)
    return allocation.memory_mib
