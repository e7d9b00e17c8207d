"""The eviction: everything is proven once more, every webhook replica is known to act, then it is sent once.

"Once" does not rest on memory: the eviction carries the UID *and* the revision of the pod as it was validated, so a
second one after a lost answer meets a changed pod and is refused by the API server. Until it is accepted the placement
can still end without harm.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta

from defragd.core.placement import Phase, Placement, Step
from defragd.core.placement_answers import fail, span, told, wait
from defragd.core.placement_world import Decision, Emit, Evict, Memory, World
from defragd.core.reasons import Reason
from defragd.core.validate import Validation, lock_in_the_way, mates, validate

LOCK_PATIENCE_SECONDS = 10.0
"""A younger lock of HAMi is a bind in progress, gone before the old pod is."""
QUICK = timedelta(seconds=0.05)
QUICK_LOOKS = 20
"""The other replicas' words come by themselves within a moment; they are cheap to look at."""


def proven(placement: Placement, world: World, now: datetime) -> Validation:
    """All that must hold before anything is promised or evicted, on this moment's snapshot."""
    found = validate(
        world.view,
        placement,
        vendors=world.vendors,
        now=now,
        ledger=lambda: world.ledger,
        others=tuple(world.latest.values()),
        schedulers=world.schedulers,
    )
    if not found.ok or not placement.spec.evict_pod:
        return found
    node = world.snapshot.nodes[placement.spec.node_name]
    lock = lock_in_the_way(world.snapshot, node, now)
    fresh = node.lock is not None and node.lock.since is not None
    if lock is not None and fresh and node.lock is not None and node.lock.since is not None:
        return found if (now - node.lock.since).total_seconds() < LOCK_PATIENCE_SECONDS else lock
    return lock or found


def group_in_the_way(placement: Placement, world: World, steps: Collection[Step]) -> Validation | None:
    """What a co-evicted group still lacks: all its members in one of ``steps`` or beyond, budgets for all at once."""
    spec = placement.spec
    if not spec.group:
        return None
    others = mates(placement, world.placements.values())
    for mate in others:
        if not mate.open and mate.status.phase is not Phase.COMPLETED and mate.status.evicted_at is None:
            detail = f"placement {mate.name} of the same group ended before its pod left: {mate.status.reason}"
            return Validation(False, Reason.WAITING_FOR_GROUP, detail, temporary=False)
    reached = {*steps, Step.PINNED, Step.ENDED}
    there = 1 + sum(1 for mate in others if mate.status.step in reached)
    if there < spec.group_size:
        detail = f"{there} of {spec.group_size} placements of group {spec.group} are as far"
        return Validation(False, Reason.WAITING_FOR_GROUP, detail, temporary=True)
    ledger = world.ledger.copy()
    for member in sorted([placement, *others], key=lambda p: p.key):
        pod = world.old_pod(member)
        if pod is None or pod.deleting or not member.open:
            continue
        permit = ledger.may_evict(pod)
        if not permit.ok:
            return Validation(False, permit.reason, f"{permit.detail} (all of group {spec.group} leave at once)", True)
        ledger.take(pod)
    return None


def evicting(placement: Placement, world: World, memory: Memory, now: datetime) -> Decision:
    """Stored as Evicting, the old pod still running: evict it, or say why not yet."""
    spec, status = placement.spec, placement.status
    begun = status.evicting_at or now
    if memory.refused:
        reason = Reason.SEVERAL_PDBS if "more than one" in memory.refused.lower() else Reason.API_ERROR
        return fail(placement, memory, reason, f"the API server refuses the eviction: {memory.refused}", now)
    if memory.blocked:
        limit = begun + spec.timeouts.evict
        if now >= limit:
            detail = f"{spec.evict_pod} could not be evicted within {span(spec.timeouts.evict)}: {memory.blocked}"
            return fail(placement, memory, Reason.EVICT_TIMEOUT, detail, now)
    else:
        limit = begun + spec.timeouts.hold
    if memory.after is not None and now < memory.after and now < limit:
        wake = min(memory.after, limit)
        if memory.blocked and status.reason != Reason.PDB_BLOCKS:
            return told(placement, memory, Phase.EVICTING, Reason.PDB_BLOCKS, memory.blocked, wake)
        return Decision(wake=wake, memory=memory)
    found = before_eviction(placement, world, now)
    if found.ok:
        assert found.pod is not None
        memory = replace(memory, checks=0, source=found.pod.node)
        where = f"{', '.join(status.devices)} on {spec.node_name}"
        event = Emit(str(Reason.EVICTING), f"evicted to move to {where} (placement {placement.name})", pod=found.pod)
        return Decision(actions=(Evict(found.pod), event), memory=memory)
    reason = found.reason or Reason.NO_PLACE
    if not found.temporary:
        return fail(placement, memory, reason, found.detail, now)
    if reason is Reason.PDB_BLOCKS:
        limit = begun + spec.timeouts.evict
    if now >= limit:
        kind = Reason.WEBHOOK_NOT_SEEN if reason is Reason.WEBHOOK_NOT_SEEN else Reason.HOLD_TIMEOUT
        kind = Reason.EVICT_TIMEOUT if reason is Reason.PDB_BLOCKS else kind
        return fail(placement, memory, kind, f"not evicted within {span(limit - begun)}: {found.detail}", now)
    if reason is Reason.WEBHOOK_NOT_SEEN and memory.checks < QUICK_LOOKS:
        return Decision(wake=now + QUICK, memory=replace(memory, checks=memory.checks + 1))
    return wait(placement, memory, Phase.EVICTING, found, now, limit)


def before_eviction(placement: Placement, world: World, now: datetime) -> Validation:
    """All that must hold right before the old pod is sent away (or its replacement is asked for)."""
    return (
        group_in_the_way(placement, world, frozenset({Step.EVICTING}))
        or _unseen(placement, world)
        or _crowded(placement, world)
        or proven(placement, world, now)
    )


def _unseen(placement: Placement, world: World) -> Validation | None:
    """A webhook replica that does not know the placement yet would let the replacement through ungated."""
    revision = placement.revision
    if revision.isdecimal() and world.seen < int(revision):
        who = world.unseen_by or "a webhook replica"
        detail = f"{who} has not seen the placement yet; nothing is evicted before every serving replica has"
        return Validation(False, Reason.WEBHOOK_NOT_SEEN, detail, True)
    return None


def _crowded(placement: Placement, world: World) -> Validation | None:
    """Pinned at their creation, replacements bind as soon as they can; several on one node at once would meet HAMi's
    lock and back off for a minute. So the next eviction for a node waits until the last arrival has bound."""
    node = placement.spec.node_name
    if world.admission != "pin" or placement.spec.group:
        return None
    coming = world.arrivals.get(node, "")
    for other in world.placements.values():
        if other.spec.node_name == node and other.open and other.status.step is Step.EVICTING and world.leaving(other):
            coming = other.key
    if coming in ("", placement.key):
        return None
    return Validation(False, Reason.BINDING, f"placement {coming} is arriving on {node}", True)
