"""From the eviction to the pin: wait until the old pod's object is gone and the target free, then pin one gated pod.

The order matters and was measured: a pod that is let go before HAMi has seen the deletion, or while another arrival
holds the node's lock, waits for seconds or minutes on a free device. So one arrival per node at a time, a short pause
after the deletion, and one patch that is claim, pin and start signal at once.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from defragd.core.annotations import start_limit
from defragd.core.gating import deadline_of, extend_patch, release_patch
from defragd.core.model import Device, Pod
from defragd.core.placement import CLAIM, GATE, Phase, Placement, Step
from defragd.core.placement_answers import conditions, fail, shown, soonest, span, told
from defragd.core.placement_evicting import before_eviction
from defragd.core.placement_holds import tag
from defragd.core.placement_pin import pin_patch
from defragd.core.placement_retarget import retarget
from defragd.core.placement_surge import awaited, overridden, raise_count
from defragd.core.placement_world import Decision, Memory, PatchPod, World
from defragd.core.reasons import Reason
from defragd.core.validate import Validation, leaving, lock_in_the_way, room, target

MAX_PIN_TRIES = 4


def arriving(placement: Placement, world: World, memory: Memory, now: datetime) -> Decision:
    """Stored as Evicting, the old pod leaving or gone."""
    pinned = world.pinned_pod(placement)
    old = world.old_pod(placement)
    early = pinned is not None and CLAIM in pinned.annotations and not pinned.node and not pinned.gates
    if pinned is not None and not (early and (old is not None or _mates_leave(placement, world))):
        return record_pin(placement, pinned, memory, now)
    if old is not None:
        # pinned at its creation, the replacement waits for what leaves; its own clock starts when that is gone
        return _leaving(placement, old, memory, now, world)
    if memory.gone_at is None:
        memory = replace(memory, gone_at=now, after=None, checks=0)
    assert memory.gone_at is not None
    limit = memory.gone_at + _start_limit(placement, world, now)
    if pinned is not None and now < limit:
        return Decision(wake=min(now + timedelta(seconds=0.3), limit), memory=memory)
    pod = world.seating.candidates.get(placement.key)
    memory = _settle_pin(memory, world, pod)
    if pod is None:
        return _no_pod(placement, world, memory, now, limit)
    memory = replace(memory, satisfied_since=None)
    return _pin_or_wait(placement, pod, world, memory, now, limit)


def surging(placement: Placement, world: World, memory: Memory, now: datetime) -> Decision:
    """Stored as Evicting, make before break: ask for one replica more, then pin the pod that comes of it."""
    pinned = world.pinned_pod(placement)
    if pinned is not None:
        return record_pin(placement, pinned, memory, now)
    if not world.surging(placement) and memory.evicted != "OK":
        return raise_count(placement, world, memory, now, before_eviction(placement, world, now))
    taken = overridden(placement, world, memory, now)
    if taken is not None:
        return taken
    memory = replace(memory, gone_at=memory.gone_at or now)
    assert memory.gone_at is not None
    limit = memory.gone_at + _start_limit(placement, world, now)
    pod = world.seating.candidates.get(placement.key)
    memory = _settle_pin(memory, world, pod)
    if pod is None:
        return awaited(placement, world, memory, now, limit)
    return _pin_or_wait(placement, pod, world, memory, now, limit)


def awaiting_selected(placement: Placement, world: World, memory: Memory, now: datetime) -> Decision:
    """Stored as Held without a pod to evict: the next pod that the selector matches is taken."""
    pinned = world.pinned_pod(placement)
    if pinned is not None:
        return record_pin(placement, pinned, memory, now)
    limit = (placement.status.held_at or now) + placement.spec.timeouts.pod
    pod = world.seating.candidates.get(placement.key)
    memory = _settle_pin(memory, world, pod)
    if placement.spec.suspend:
        return Decision(memory=memory)
    if pod is not None:
        return _pin_or_wait(placement, pod, world, memory, now, limit)
    if now >= limit:
        detail = f"no pod came within {span(placement.spec.timeouts.pod)}"
        return fail(placement, memory, Reason.POD_TIMEOUT, detail, now, phase=Phase.EXPIRED)
    return Decision(wake=limit, memory=replace(memory, after=None, checks=0, taken_since=None))


def _start_limit(placement: Placement, world: World, now: datetime) -> timedelta:
    """The workload's own limit where it names one. Its pods carry the annotation; any of them will do."""
    for pod in world.owned.get(placement.status.owner_uid, ()):
        return start_limit(world.snapshot, pod, now) or placement.spec.timeouts.start
    return placement.spec.timeouts.start


def _settle_pin(memory: Memory, world: World, candidate: Pod | None) -> Memory:
    """Forgets a pin that was sent to a pod which is gone, or which somebody else let go before it arrived."""
    if not memory.pin_uid or (candidate is not None and candidate.uid == memory.pin_uid):
        return memory
    pod = next((p for p in world.snapshot.pods.values() if p.uid == memory.pin_uid), None)
    if pod is not None and GATE in pod.gates and not pod.deleting:
        return memory
    return replace(memory, pin_uid="", pinned=False, after=None)


# -- the old pod is on its way out -----------------------------------------------------------------------------------


def _leaving(placement: Placement, old: Pod, memory: Memory, now: datetime, world: World) -> Decision:
    spec, status = placement.spec, placement.status
    begun = status.evicting_at or now
    limit = begun + spec.timeouts.evict
    if old.deletion_deadline is not None:
        limit = max(limit, old.deletion_deadline + world.tuning.grace_slack)
    if now >= limit:
        detail = f"{old.key} was evicted but its object is still there after {span(now - begun)}"
        return fail(placement, memory, Reason.EVICT_TIMEOUT, detail, now, eviction_accepted=True, evicted_at=begun)
    if memory.evicted == "Unknown" and not old.deleting:
        # the answer was lost; if the pod is untouched for a while the eviction never happened
        wake = memory.after or now
        if now >= wake:
            return Decision(wake=now, memory=replace(memory, evicted="", after=None))
        return Decision(wake=min(wake, limit), memory=memory)
    pod = world.seating.candidates.get(placement.key)
    keep = _keep_waiting(pod, now, limit, world) if pod is not None else ()
    return Decision(actions=keep, wake=soonest(limit, _extend_at(pod, world)), memory=memory)


# -- nobody has come yet ---------------------------------------------------------------------------------------------


def _no_pod(placement: Placement, world: World, memory: Memory, now: datetime, limit: datetime) -> Decision:
    """The replacement is late, escaped the gate (our webhook was down), or will never come."""
    status = placement.status
    gone = memory.gone_at or now
    workload = world.snapshot.workloads.get(status.owner_uid)
    pods = [p for p in world.owned.get(status.owner_uid, ()) if p.live and not p.deleting]
    since = (status.evicting_at or now).replace(microsecond=0)
    newcomers = [p for p in pods if p.uid != status.evicted_uid and p.created is not None and p.created >= since]
    wanted = workload.replicas if workload is not None and workload.kind != "Job" else None
    satisfied = (wanted is not None and len(pods) >= wanted) or (wanted is None and bool(newcomers))
    if workload is not None and workload.deleting:
        return _missing(placement, memory, f"{workload.key} is being deleted", now)
    if not satisfied:
        memory = replace(memory, satisfied_since=None)
        if now >= limit:
            detail = f"{_owner_name(world, status.owner_uid)} made no new pod within {span(limit - gone)}"
            return _missing(placement, memory, detail, now)
        return _still_waiting(placement, world, memory, now, limit)
    if memory.satisfied_since is None:
        memory = replace(memory, satisfied_since=now)
    assert memory.satisfied_since is not None
    due = memory.satisfied_since + world.tuning.escaped
    if now < due:
        return Decision(wake=min(due, limit), memory=memory)
    if newcomers:
        pod = max(newcomers, key=lambda p: (p.created is not None and p.created, p.uid))
        where = f" on {pod.node or pod.booked_node}" if pod.node or pod.booked_node else ""
        detail = f"the replacement {pod.key} came without our gate and runs where the scheduler put it{where}"
        return fail(
            placement, memory, Reason.UNPINNED, detail, now, evicted_at=gone, pod_name=pod.name, eviction_accepted=True
        )
    return _missing(placement, memory, f"{_owner_name(world, status.owner_uid)} wants no further pod", now)


def _missing(placement: Placement, memory: Memory, detail: str, now: datetime) -> Decision:
    return fail(
        placement,
        memory,
        Reason.REPLACEMENT_MISSING,
        detail,
        now,
        evicted_at=memory.gone_at or now,
        eviction_accepted=True,
    )


def _owner_name(world: World, uid: str) -> str:
    workload = world.snapshot.workloads.get(uid)
    return workload.key if workload is not None else f"the owner {uid}"


def _still_waiting(placement: Placement, world: World, memory: Memory, now: datetime, limit: datetime) -> Decision:
    gone = memory.gone_at or now
    lazy = gone + world.tuning.lazy
    if placement.status.phase is not Phase.AWAITING_POD and now >= lazy:
        detail = f"{placement.spec.evict_pod} is gone; waiting for its replacement"
        return told(placement, memory, Phase.AWAITING_POD, Reason.AWAITING_POD, detail, limit)
    return Decision(wake=limit if now >= lazy else min(lazy, limit), memory=memory)


# -- one pod is there ------------------------------------------------------------------------------------------------


def _pin_or_wait(
    placement: Placement, pod: Pod, world: World, memory: Memory, now: datetime, limit: datetime
) -> Decision:
    tuning = world.tuning
    if memory.pinned:
        # the pin was accepted; the snapshot is behind. It is recorded now, not when the watch has caught up
        return record_pin(placement, pod, memory, now)
    if pod.scheduler not in world.schedulers:
        detail = f"{pod.key} came with the scheduler {pod.scheduler or 'default-scheduler'}: HAMi's webhook missed it"
        return _refuse(placement, pod, memory, Reason.NOT_HAMI_SCHEDULER, detail, now)
    if memory.pin_tries >= MAX_PIN_TRIES:
        return _refuse(placement, pod, memory, Reason.API_ERROR, f"the pin is refused: {memory.blocked}", now)
    if memory.after is not None and now < memory.after:
        return Decision(wake=min(memory.after, limit), memory=memory)
    settled = memory.gone_at + tuning.after_gone if memory.gone_at is not None else now
    if now < settled and not _free_all_along(placement, pod, world, memory):
        return Decision(wake=settled, memory=memory)
    if [gate for gate in pod.gates if gate != GATE]:
        others = ", ".join(gate for gate in pod.gates if gate != GATE)
        return Decision(wake=soonest(deadline_of(pod), limit), memory=replace(memory, blocked=f"other gates: {others}"))
    found = _free(placement, pod, world, now)
    if not found.ok:
        return _not_free(placement, pod, world, memory, found, now, limit)
    patch = pin_patch(pod, placement, found.devices, world.vendors)
    memory = replace(memory, pin_uid=pod.uid, pin_tries=memory.pin_tries + 1, taken_since=None, checks=0)
    return Decision(actions=(PatchPod(pod, patch, "pin"),), memory=memory)


def _free_all_along(placement: Placement, pod: Pod, world: World, memory: Memory) -> bool:
    """The place was proven free while the old pod still ran: HAMi has nothing to notice before it can use it."""
    return (
        memory.source not in ("", placement.spec.node_name)
        and not placement.spec.group
        and not any(quota.namespace == pod.namespace for quota in world.snapshot.quotas)
    )


def _free(placement: Placement, pod: Pod, world: World, now: datetime) -> Validation:
    """The target as it is now: device and node really free for this very pod, HAMi's lock not in the way, and no
    other arrival of ours on the node."""
    spec = placement.spec
    words = {request.vendor for request in pod.requests}
    there = target(world.view, placement, prefer=words)
    if not there.ok:
        return there
    devices: tuple[Device, ...] = there.devices
    found = room(
        world.view, placement, pod, devices, vendors=world.vendors, without=frozenset({pod.key, tag(placement)})
    )
    if not found.ok:
        return found
    lock = lock_in_the_way(world.snapshot, world.snapshot.nodes[spec.node_name], now, mine=pod.key)
    if lock is not None:
        return lock
    busy = world.arrivals.get(spec.node_name)
    if busy is not None and busy != placement.key:
        return Validation(False, Reason.BINDING, f"placement {busy} is arriving on {spec.node_name}", True)
    return found


def _not_free(
    placement: Placement, pod: Pod, world: World, memory: Memory, found: Validation, now: datetime, limit: datetime
) -> Decision:
    """Wait for what passes by itself; a place that others have taken is given up within seconds."""
    spec = placement.spec
    reason = found.reason or Reason.NO_PLACE
    memory = replace(memory, blocked=found.detail)
    if not spec.evict_pod and reason not in _PASSING:
        # nothing was evicted for this pod, so it must not wait for a place that it does not fit or that is taken
        memory = replace(memory, after=now + timedelta(seconds=1))
        return Decision(actions=(PatchPod(pod, release_patch(pod), "release"),), wake=limit, memory=memory)
    if now >= limit:
        detail = f"the target did not get free within {span(limit - (memory.gone_at or now))}: {found.detail}"
        return _refuse(placement, pod, memory, reason, detail, now)
    taken = reason not in _PASSING and not _mates_leave(placement, world)
    if taken:
        since = memory.taken_since or now
        memory = replace(memory, taken_since=since)
        if now >= since + world.tuning.stolen or not found.temporary:
            other = retarget(placement, pod, world, memory, found)
            if other is not None:
                return other
            kind = Reason.PLACE_STOLEN if reason in _ROOM else reason
            return _refuse(placement, pod, memory, kind, f"the place is taken: {found.detail}", now)
    else:
        memory = replace(memory, taken_since=None)
    pause = timedelta(seconds=0.05 if reason is Reason.BINDING else 0.3)
    wake = soonest(now + pause, limit, _extend_at(pod, world))
    actions = _keep_waiting(pod, now, limit, world)
    lazy = (memory.gone_at or now) + world.tuning.lazy
    if reason is not Reason.BINDING and now >= lazy and placement.status.reason != reason and spec.evict_pod:
        answer = told(placement, memory, Phase.AWAITING_POD, reason, found.detail, wake)
        return replace(answer, actions=actions)
    return Decision(actions=actions, wake=wake, memory=memory)


_PASSING = frozenset({Reason.BINDING, Reason.NODE_LOCKED, Reason.NODE_LOCK_MALFORMED, Reason.NODE_NOT_READY})
"""Passes without anybody losing the place."""
_ROOM = frozenset(
    {Reason.DEVICE_FULL, Reason.NODE_FULL, Reason.TARGET_HELD, Reason.NO_PLACE, Reason.IN_USE_OUTSIDE_HAMI}
)


def _mates_leave(placement: Placement, world: World) -> bool:
    """Pods of the same group are still on their way out, so the place may yet come free."""
    others = tuple(world.placements.values())
    return any(key in world.snapshot.pods for key in leaving(placement, others))


def _refuse(placement: Placement, pod: Pod, memory: Memory, reason: Reason, detail: str, now: datetime) -> Decision:
    """The end with a gated pod in hand: it is let go (as surplus, since nobody waits for it any more)."""
    gone = None if placement.surges else memory.gone_at
    return fail(placement, memory, reason, detail, now, evicted_at=gone, eviction_accepted=bool(gone))


def _extend_at(pod: Pod | None, world: World) -> datetime | None:
    deadline = deadline_of(pod) if pod is not None else None
    return deadline - world.tuning.extend / 3 if deadline is not None else None


def _keep_waiting(pod: Pod, now: datetime, limit: datetime, world: World) -> tuple[PatchPod, ...]:
    """Moves the gate's deadline while there is a reason to wait and somebody who looks."""
    due = _extend_at(pod, world)
    if due is None or now < due or now >= limit:
        return ()
    return (PatchPod(pod, extend_patch(pod, now + world.tuning.extend), "extend"),)


def record_pin(placement: Placement, pod: Pod, memory: Memory, now: datetime) -> Decision:
    """The pin is on the pod: the placement is consumed."""
    devices = ", ".join(placement.status.devices)
    message = f"{pod.name} is pinned to {devices} on {placement.spec.node_name}"
    evicts = bool(placement.spec.evict_pod) and not placement.surges
    gone = memory.gone_at or placement.status.evicted_at or now
    status = shown(
        placement,
        Phase.BINDING,
        Reason.BINDING,
        message,
        step=Step.PINNED,
        pod_name=pod.name,
        pod_uid=pod.uid,
        pinned_at=now,
        consumed_at=now,
        evicted_at=gone if evicts else None,
        eviction_accepted=evicts,
        conditions=conditions(
            placement.status.conditions, now, placement.generation, Pinned=(True, Reason.BINDING, message)
        ),
    )
    return Decision(status, memory=replace(memory, after=None, checks=0, blocked="", taken_since=None))
