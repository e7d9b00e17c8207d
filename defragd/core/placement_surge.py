"""SurgeFirst, make before break: one replica more, pinned to the target; when it is Ready, the old pod is let go.

Nothing is evicted. The Deployment's count goes up by one and down by one through its scale sub-resource; the old pod
gets the lowest deletion cost, so that its controller removes exactly it. The API server remembers who wrote a count
last (the field's manager carries the placement's UID), so after a crash anybody can tell whether the extra replica is
still ours to take back, and a count that a person or an autoscaler has set meanwhile is never touched.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from defragd.core.free import DELETION_COST
from defragd.core.model import Pod
from defragd.core.placement import COST_BEFORE, MANAGER, SURGE_MANAGER, Phase, Placement
from defragd.core.placement_answers import fail, span, wait
from defragd.core.placement_claims import deployment_of
from defragd.core.placement_world import Decision, Emit, Memory, PatchPod, Scale, World
from defragd.core.reasons import Reason
from defragd.core.snapshot import Snapshot
from defragd.core.validate import Validation

LOWEST_COST = str(-(2**31))
BEHIND = timedelta(seconds=10)
"""How long the watch may lag behind our own scaling, and a controller may take to let the old pod go."""
SETTLE_DOWN = timedelta(seconds=1)
"""After our own scaling down the cache is given so long before it is asked for again."""
SHARED = frozenset({"ReadWriteMany", "ReadOnlyMany"})


def surge_refused(snapshot: Snapshot, placement: Placement) -> Validation | None:
    """Why this pod cannot be replaced before it goes; None = it can, as far as its owner is concerned."""
    pod = snapshot.pods.get(f"{placement.namespace}/{placement.spec.evict_pod}")
    if pod is None or pod.owner is None:
        return None  # said better elsewhere
    if placement.spec.group:
        return _no("pods that change places leave together; that cannot be made before it is broken")
    above = deployment_of(snapshot, pod.owner.uid)
    if above is None:
        return _no(f"{pod.key} belongs to a {pod.owner.kind}, not to a Deployment: only Deployments can surge")
    if above.recreate:
        return _no(f"{above.key} has the strategy Recreate: two of its pods must not run at once")
    if above.paused or above.deleting or not above.replicas:
        what = "is paused" if above.paused else "is being deleted" if above.deleting else "wants no pods"
        return _no(f"{above.key} {what}")
    for volume in pod.scheduling.volumes:
        if volume.kind == "claim" and not SHARED & set(volume.access_modes):
            return _no(f"{pod.key} uses the claim {volume.claim}, which two pods cannot share")
    if above.surged_by not in ("", placement.uid):
        return Validation(False, Reason.ALREADY_MOVING, f"another placement surges {above.key}", True)
    for other in snapshot.pods.values():
        owner = snapshot.workload_of(other)
        if owner is None or owner.top is None or owner.top.uid != above.uid or owner.uid == pod.owner.uid:
            continue
        if other.live:
            return Validation(False, Reason.SURGE_UNSUPPORTED, f"a rollout of {above.key} is under way", True)
    return None


def _no(detail: str) -> Validation:
    return Validation(False, Reason.SURGE_UNSUPPORTED, f"{detail}; use EvictFirst")


# -- one more --------------------------------------------------------------------------------------------------------


def raise_count(placement: Placement, world: World, memory: Memory, now: datetime, found: Validation) -> Decision:
    """Stored as Evicting, nothing asked for yet; ``found`` is all that must hold before, on this moment's snapshot."""
    spec, status = placement.spec, placement.status
    begun = status.evicting_at or now
    limit = begun + spec.timeouts.hold
    if memory.refused:
        detail = f"the API server refuses to scale: {memory.refused} (the chart grants that with surge.enabled)"
        return fail(placement, memory, Reason.SURGE_UNSUPPORTED, detail, now)
    if memory.after is not None and now < memory.after and now < limit:
        return Decision(wake=min(memory.after, limit), memory=memory)
    memory = replace(memory, evicted="", after=None)
    above = deployment_of(world.snapshot, status.owner_uid)
    found = surge_refused(world.snapshot, placement) or found
    if found.ok and above is not None and now < limit:
        up = Scale(above, (above.replicas or 0) + 1, f"{SURGE_MANAGER}{placement.uid}")
        return Decision(actions=(up,), memory=replace(memory, checks=0))
    if not found.ok and not found.temporary:
        return fail(placement, memory, found.reason or Reason.NO_PLACE, found.detail, now)
    if now >= limit:
        detail = f"not begun within {span(spec.timeouts.hold)}: {found.detail or memory.blocked}"
        return fail(placement, memory, Reason.HOLD_TIMEOUT, detail, now)
    return wait(placement, memory, Phase.AWAITING_POD, found, now, limit)


def overridden(placement: Placement, world: World, memory: Memory, now: datetime) -> Decision | None:
    """Somebody else has set the count since: the extra replica is theirs now, or gone. None while that is not sure."""
    if world.surging(placement) or (memory.scaled_at is not None and now < memory.scaled_at + BEHIND):
        return None
    return fail(placement, memory, Reason.SURGE_OVERRIDDEN, _by_others(placement, world), now)


def _by_others(placement: Placement, world: World) -> str:
    above = deployment_of(world.snapshot, placement.status.owner_uid)
    name = above.key if above is not None else "the Deployment"
    stays = placement.spec.evict_pod
    return f"{stays} stays: the replica count of {name} was set by somebody else, or another pod went in its place"


def awaited(placement: Placement, world: World, memory: Memory, now: datetime, limit: datetime) -> Decision:
    """No second pod has come to us yet; when the owner has as many as it wants, it came without being asked."""
    above = deployment_of(world.snapshot, placement.status.owner_uid)
    there = [p for p in world.of_owner(placement.status.owner_uid) if p.live and not p.deleting]
    if above is not None and world.surging(placement) and len(there) >= (above.replicas or 0):
        memory = replace(memory, satisfied_since=memory.satisfied_since or now)
        assert memory.satisfied_since is not None
        due = memory.satisfied_since + world.tuning.escaped
        if now < due:
            return Decision(wake=min(due, limit), memory=memory)
        detail = f"{above.key} has its second pod, but it came without passing our webhook; it is taken back"
        return fail(placement, memory, Reason.UNPINNED, detail, now)
    memory = replace(memory, satisfied_since=None)
    if now >= limit:
        detail = f"no second pod came within {span(limit - (memory.gone_at or now))}"
        return fail(placement, memory, Reason.REPLACEMENT_MISSING, detail, now)
    return Decision(wake=limit, memory=memory)


# -- one less --------------------------------------------------------------------------------------------------------


def hand_over(placement: Placement, pod: Pod, world: World, memory: Memory, now: datetime) -> Decision | None:
    """The replacement is Ready and settled: the old pod goes. None: it has gone, all is done."""
    old = world.old_pod(placement)
    begun = memory.handing_since or now
    memory = replace(memory, handing_since=begun)
    limit = begun + placement.spec.timeouts.evict
    if memory.after is not None and now < memory.after:
        return Decision(wake=memory.after, memory=memory)
    if world.surging(placement):
        return _lower_count(placement, pod, old, world, memory, now, limit)
    if old is None:
        return None
    if old.deleting:
        gone = (old.deletion_deadline or now) + world.tuning.grace_slack
        return Decision(wake=gone, memory=memory) if now < gone else None
    since = memory.scaled_at or begun
    if now < since + BEHIND:
        return Decision(wake=since + BEHIND, memory=memory)
    return fail(placement, memory, Reason.SURGE_OVERRIDDEN, _by_others(placement, world), now)


def _lower_count(
    placement: Placement, pod: Pod, old: Pod | None, world: World, memory: Memory, now: datetime, limit: datetime
) -> Decision:
    above = deployment_of(world.snapshot, placement.status.owner_uid)
    assert above is not None
    begun = memory.handing_since or now
    others = world.of_owner(placement.status.owner_uid)
    behind = [p for p in others if p.live and not p.deleting and not p.ready and p.uid != (old.uid if old else "")]
    if behind and now < limit:
        # its controller lets those go first that are not Ready, whatever their cost
        return Decision(wake=min(now + timedelta(seconds=1), limit), memory=memory)
    if memory.scaled_at is not None and begun <= memory.scaled_at and now < memory.scaled_at + SETTLE_DOWN:
        return Decision(wake=memory.scaled_at + SETTLE_DOWN, memory=memory)
    if now >= limit:
        detail = f"the old pod could not be let go within {span(placement.spec.timeouts.evict)}"
        return fail(placement, memory, Reason.EVICT_TIMEOUT, detail, now)
    if old is not None and not old.deleting and COST_BEFORE not in old.annotations and not memory.marked:
        return Decision(actions=(PatchPod(old, cost_patch(old), "cost"),), memory=memory)
    down = Scale(above, max(0, (above.replicas or 1) - 1), MANAGER)
    if old is None or old.deleting:
        return Decision(actions=(down,), memory=memory)
    told = f"goes for {pod.name} on {placement.spec.node_name} (placement {placement.name})"
    return Decision(actions=(down, Emit(str(Reason.EVICTING), told, pod=old)), memory=memory)


def cost_patch(pod: Pod) -> dict[str, Any]:
    """The pod goes first when its ReplicaSet shrinks; what it cost before is kept beside it."""
    before = pod.annotations.get(DELETION_COST, "")
    return {"metadata": {"uid": pod.uid, "annotations": {DELETION_COST: LOWEST_COST, COST_BEFORE: before}}}


def cost_restored(pod: Pod) -> dict[str, Any]:
    before = pod.annotations.get(COST_BEFORE) or None
    return {"metadata": {"uid": pod.uid, "annotations": {DELETION_COST: before, COST_BEFORE: None}}}


def left_behind(snapshot: Snapshot, placements: Iterable[Placement]) -> tuple[list[Pod], list[Scale]]:
    """What surges that are over have left: pods whose cost is still ours, counts that are still raised."""
    running = {p.uid: p for p in placements if p.open and not p.deleting and p.surges}
    leaving = {p.status.evicted_uid for p in running.values()}
    pods = [
        pod
        for pod in snapshot.pods.values()
        if COST_BEFORE in pod.annotations and not pod.deleting and pod.uid not in leaving
    ]
    scales = [
        Scale(workload, max(0, (workload.replicas or 1) - 1), MANAGER)
        for workload in snapshot.workloads.values()
        if workload.surged_by and workload.surged_by not in running and not workload.deleting
    ]
    return pods, scales
