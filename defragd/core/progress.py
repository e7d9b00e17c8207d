"""The state machine of a placement: `step` looks at one placement and the world and says what to write and do next.

Pure and level-triggered: it never asks what happened, only what is. Four steps are stored (Held, Evicting, Pinned,
Ended), each before its effect; the pin itself is recognised on the pod. So a new process that finds any combination of
stored step and world goes on from there, and doing a step twice does nothing twice:

    New       -> Held       the target is proven and promised                      (nothing has happened yet)
    Held      -> Evicting   the whole group is held, budgets allow, a dry run too  (the webhook gates from here on)
    Evicting  -> (evict)    every webhook replica acts on it, all proven again     (once: UID + revision precondition)
    Evicting  -> Pinned     the old pod is gone, the target free, one pod pinned   (the pin is the claim)
    Pinned    -> Ended      Ready on exactly the promised devices, and settled

`placement_evicting`, `placement_arrival` and `placement_landing` hold the later steps; this module the first ones.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from defragd.core.placement import ENDED_PHASES, Phase, Placement, Step
from defragd.core.placement_answers import conditions, fail, shown, span, told, wait
from defragd.core.placement_arrival import arriving, awaiting_selected, surging
from defragd.core.placement_evicting import evicting, group_in_the_way, proven
from defragd.core.placement_landing import landing
from defragd.core.placement_surge import surge_refused
from defragd.core.placement_world import Action, Decision, Emit, Evict, Memory, PatchPod, World
from defragd.core.reasons import Reason
from defragd.core.validate import Validation

__all__ = ["Action", "Decision", "Emit", "Evict", "Memory", "PatchPod", "World", "derived_phase", "step"]

_LATEST = datetime.max.replace(tzinfo=UTC)


def step(placement: Placement, world: World, now: datetime) -> Decision:
    """What to write and do now. The caller writes the status first, feeds the answers back into the memory, and asks
    again until there is nothing to do."""
    memory = world.memories.get(placement.key, Memory())
    if placement.deleting or not placement.open:
        return Decision(memory=memory)
    match placement.status.step:
        case Step.NEW:
            return _new(placement, world, memory, now)
        case Step.HELD if placement.spec.evict_pod:
            return _held(placement, world, memory, now)
        case Step.HELD:
            return awaiting_selected(placement, world, memory, now)
        case Step.EVICTING if placement.surges:
            return surging(placement, world, memory, now)
        case Step.EVICTING if world.leaving(placement):
            return arriving(placement, world, memory, now)
        case Step.EVICTING:
            return evicting(placement, world, memory, now)
        case Step.PINNED:
            return landing(placement, world, memory, now)
        case _:
            return Decision(memory=memory)


def derived_phase(placement: Placement, world: World) -> Phase:
    """The phase as it is, where the stored one may be older (API and CLI show this)."""
    status = placement.status
    if status.phase in ENDED_PHASES or status.step is Step.ENDED:
        return status.phase
    if status.step is Step.EVICTING:
        gone = world.old_pod(placement) is None
        return Phase.AWAITING_POD if gone or placement.surges else Phase.EVICTING
    if status.step is Step.PINNED:
        pod = world.snapshot.pods.get(f"{placement.namespace}/{status.pod_name}")
        settled = pod is not None and pod.uid == status.pod_uid and pod.ready and bool(pod.node)
        return Phase.SETTLING if settled else Phase.BINDING
    if status.step is Step.HELD:
        return Phase.HELD if placement.spec.evict_pod else Phase.AWAITING_POD
    return Phase.PENDING


# -- New: prove and promise ------------------------------------------------------------------------------------------


def _new(placement: Placement, world: World, memory: Memory, now: datetime) -> Decision:
    spec = placement.spec
    if spec.suspend:
        return _suspended(placement, memory, now)
    older = _same_request(placement, world)
    if older is not None:
        detail = f"request {spec.req_id} is that of placement {older.name} already"
        return fail(placement, memory, Reason.DUPLICATE_REQUEST, detail, now)
    limit = _waiting_since(placement, now) + spec.timeouts.hold
    if memory.after is not None and now < memory.after:
        return Decision(wake=memory.after, memory=memory)
    found = (surge_refused(world.snapshot, placement) if placement.surges else None) or proven(placement, world, now)
    if found.ok:
        return _hold(placement, found, now)
    if not found.temporary:
        return fail(placement, memory, found.reason or Reason.NO_PLACE, found.detail, now)
    if now >= limit:
        detail = f"not possible within {span(spec.timeouts.hold)}: {found.detail}"
        return fail(placement, memory, Reason.HOLD_TIMEOUT, detail, now)
    return wait(placement, memory, Phase.PENDING, found, now, limit)


def _hold(placement: Placement, found: Validation, now: datetime) -> Decision:
    pod = found.pod
    uuids = tuple(device.uuid for device in found.devices)
    what = f"{', '.join(uuids)} on {placement.spec.node_name}"
    message = f"{what} is held" if pod is not None else f"waiting for a pod for {what}"
    status = shown(
        placement,
        Phase.HELD if pod is not None else Phase.AWAITING_POD,
        Reason.HELD if pod is not None else Reason.AWAITING_POD,
        message,
        step=Step.HELD,
        devices=uuids,
        held_at=now,
        conditions=conditions(
            placement.status.conditions, now, placement.generation, Held=(True, Reason.HELD, message)
        ),
    )
    if pod is not None and pod.owner is not None:
        status = replace(
            status,
            owner_uid=pod.owner.uid,
            evicted_uid=pod.uid,
            grace_seconds=pod.grace_seconds,
            hold=found.allocations,
            hold_resources=found.resources,
        )
    return Decision(status, memory=Memory())


def _same_request(placement: Placement, world: World) -> Placement | None:
    """The placement that carries this request id by right: one that has begun, else the older creation (the name
    breaks ties, creation times being whole seconds)."""
    mine = (placement.created or _LATEST, placement.name)
    for other in world.requests.get((placement.namespace, placement.spec.req_id), ()):
        if other.name != placement.name and (
            other.status.step is not Step.NEW or (other.created or _LATEST, other.name) < mine
        ):
            return other
    return None


def _suspended(placement: Placement, memory: Memory, now: datetime) -> Decision:
    if placement.status.reason == Reason.SUSPENDED:
        return Decision(memory=memory)
    message = "suspended: nothing is begun until spec.suspend is false"
    status = shown(
        placement,
        Phase.PENDING,
        Reason.SUSPENDED,
        message,
        conditions=conditions(
            placement.status.conditions, now, placement.generation, Suspended=(True, Reason.SUSPENDED, message)
        ),
    )
    return Decision(status, memory=memory)


def _waiting_since(placement: Placement, now: datetime) -> datetime:
    """The start of the clock of phase Pending: creation, or the last time that a suspension was seen."""
    since = placement.created or now
    if placement.status.reason == Reason.SUSPENDED:
        return now
    for condition in placement.status.conditions:
        if condition.type == "Suspended" and condition.last_transition is not None:
            return max(since, condition.last_transition)
    return since


# -- Held: wait for the group, ask the eviction API ------------------------------------------------------------------


def _held(placement: Placement, world: World, memory: Memory, now: datetime) -> Decision:
    spec, status = placement.spec, placement.status
    if spec.suspend:
        return _let_hold_go(placement, now)
    if memory.refused:
        reason = Reason.SEVERAL_PDBS if "more than one" in memory.refused.lower() else Reason.API_ERROR
        return fail(placement, memory, reason, f"the API server refuses the eviction: {memory.refused}", now)
    limit = (status.held_at or now) + spec.timeouts.hold
    if memory.after is not None and now < memory.after and now < limit:
        wake = min(memory.after, limit)
        if memory.blocked and status.reason != Reason.PDB_BLOCKS:
            return told(placement, memory, Phase.HELD, Reason.PDB_BLOCKS, memory.blocked, wake)
        return Decision(wake=wake, memory=memory)
    found = group_in_the_way(placement, world, frozenset({Step.HELD, Step.EVICTING})) or proven(placement, world, now)
    if found.ok and found.pod is not None and not placement.surges and _must_ask(found, world, memory):
        if now < limit:
            return Decision(actions=(Evict(found.pod, dry_run=True),), memory=memory)
        found = Validation(False, Reason.PDB_BLOCKS, memory.blocked or "the API server gave no answer", True)
    if found.ok:
        return _begin_eviction(placement, found, memory, now)
    if not found.temporary:
        return fail(placement, memory, found.reason or Reason.NO_PLACE, found.detail, now)
    if now >= limit:
        detail = f"held for {span(spec.timeouts.hold)} without a chance to evict: {found.detail}"
        return fail(placement, memory, Reason.HOLD_TIMEOUT, detail, now)
    return wait(placement, memory, Phase.HELD, found, now, limit)


def _must_ask(found: Validation, world: World, memory: Memory) -> bool:
    """A dry run finds what the cache may not show: several budgets, one not processed yet. Without any budget that
    selects the pod there is nothing to find, so the call is saved."""
    pod = found.pod
    assert pod is not None
    if world.ledger.known and not world.ledger.budgets_of(pod):
        return False
    return memory.dry_run != (pod.revision or pod.uid)


def _begin_eviction(placement: Placement, found: Validation, memory: Memory, now: datetime) -> Decision:
    assert found.pod is not None
    where = f"{', '.join(placement.status.devices)} on {placement.spec.node_name}"
    message = f"evicting {found.pod.key} for {where}"
    if placement.surges:
        message = f"starting a second pod beside {found.pod.key} for {where}"
    status = shown(
        placement,
        Phase.AWAITING_POD if placement.surges else Phase.EVICTING,
        Reason.AWAITING_POD if placement.surges else Reason.EVICTING,
        message,
        step=Step.EVICTING,
        evicting_at=now,
        grace_seconds=found.pod.grace_seconds,
        hold=found.allocations,
        hold_resources=found.resources,
    )
    return Decision(status, memory=replace(memory, checks=0, after=None, tries=0, blocked=""))


def _let_hold_go(placement: Placement, now: datetime) -> Decision:
    """Suspended before anything happened: back to the start, the hold is free for others."""
    message = "suspended before the eviction; the hold is released"
    status = shown(
        placement,
        Phase.PENDING,
        Reason.SUSPENDED,
        message,
        step=Step.NEW,
        hold=(),
        hold_resources=None,
        held_at=None,
        conditions=conditions(
            placement.status.conditions,
            now,
            placement.generation,
            Suspended=(True, Reason.SUSPENDED, message),
            Held=(False, Reason.SUSPENDED, message),
        ),
    )
    return Decision(status, memory=Memory())
