"""After the pin: watch the pod bind, start, and stay Ready on exactly the promised devices; name what goes wrong.

A pod that runs is never evicted again, wherever it landed: the failure is typed and reported, the rest is left to the
next plan. A pinned pod that never got bound cannot fall back by itself (node affinity cannot be taken off), so once the
target cannot take it any more it is recycled: evicted while Pending, once, and its owner makes an unpinned one.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from defragd.core.annotations import start_limit
from defragd.core.gating import format_time
from defragd.core.model import Pod
from defragd.core.placement import Phase, Placement
from defragd.core.placement_answers import assignments, conditions, ended, fail, pause, shown, soonest, span, told
from defragd.core.placement_holds import tag
from defragd.core.placement_pin import WOKEN, pin_annotations, widen_patch
from defragd.core.placement_retarget import asked, moved_on, retarget
from defragd.core.placement_surge import hand_over
from defragd.core.placement_world import Decision, Emit, Evict, Memory, PatchPod, World
from defragd.core.reasons import Reason
from defragd.core.validate import Validation, room, target

WAKE_PAUSES = (0.4, 1.0, 2.0, 4.0, 8.0, 10.0)
SILENT_WAKE = timedelta(seconds=2)
"""A pod that nobody has judged yet is given more time than one that was called unschedulable."""
RECYCLE_PATIENCE = timedelta(seconds=60)
SHOW_SETTLING = timedelta(seconds=10)


def landing(placement: Placement, world: World, memory: Memory, now: datetime) -> Decision:
    """Stored as Pinned."""
    status = placement.status
    pod = world.snapshot.pods.get(f"{placement.namespace}/{status.pod_name}")
    gone = pod is None or pod.uid != status.pod_uid or pod.deleting
    if status.recycled and (gone or (pod is not None and not pod.node)):
        return _recycling(placement, pod if not gone else None, memory, now)
    if gone or pod is None:
        detail = f"{placement.namespace}/{status.pod_name} was deleted before it had settled"
        return fail(placement, memory, Reason.POD_DELETED, detail, now)
    limit = (status.pinned_at or now) + (start_limit(world.snapshot, pod, now) or placement.spec.timeouts.start)
    if pod.phase == "Failed":
        return _failed(placement, pod, memory, now)
    if not pod.node:
        return _unbound(placement, pod, world, memory, now, limit)
    wrong = _wrong_place(placement, pod, asked(placement, world.snapshot, pod))
    if wrong is not None:
        reason, detail = wrong
        found = assignments(pod, world.snapshot)
        return fail(placement, memory, reason, detail, now, assignments=found)
    if pod.phase == "Succeeded":
        return _completed(placement, pod, world, memory, now)
    if pod.ready:
        return _settling(placement, pod, world, memory, now)
    return _starting(placement, pod, memory, now, limit)


def _failed(placement: Placement, pod: Pod, memory: Memory, now: datetime) -> Decision:
    """Allocate failures are a loop of their own, as fast as the owner makes pods; nothing of ours feeds it."""
    if pod.bind_phase != "success" and not memory.ready_seen:
        detail = f"the device plugin could not allocate {', '.join(placement.status.devices)} to {pod.key}"
        return fail(placement, memory, Reason.ALLOCATE_FAILED, detail, now)
    return fail(placement, memory, Reason.POD_CRASHED, f"{pod.key} failed after it had started", now)


def _wrong_place(placement: Placement, pod: Pod, first: set[str]) -> tuple[Reason, str] | None:
    """Read back from HAMi's allocation. Nothing recorded yet is no verdict before the pod is Ready."""
    want_node, want = placement.spec.node_name, placement.status.devices
    if pod.node != want_node:
        return Reason.WRONG_NODE, f"{pod.key} is bound to {pod.node}, not to {want_node}"
    if pod.problem:
        return Reason.WRONG_DEVICE, f"{pod.key}: {pod.problem}"
    if not pod.allocations:
        return (Reason.WRONG_DEVICE, f"HAMi recorded no device for {pod.key}") if pod.ready else None
    if set(pod.devices) not in (set(want), first):
        return Reason.WRONG_DEVICE, f"{pod.key} got {', '.join(pod.devices)}, not {', '.join(want)}"
    return None


# -- not bound -------------------------------------------------------------------------------------------------------


def _unbound(placement: Placement, pod: Pod, world: World, memory: Memory, now: datetime, limit: datetime) -> Decision:
    status, tuning = placement.status, world.tuning
    if now >= limit:
        detail = f"{pod.key} was not bound within {span(now - (status.pinned_at or now))}"
        return _recycle(placement, pod, world, memory, Reason.START_TIMEOUT, detail, now)
    if pod.gates:
        return Decision(wake=min(now + timedelta(seconds=1), limit), memory=memory)
    if moved_on(placement, pod):
        if memory.after is not None and now < memory.after:
            return Decision(wake=min(memory.after, limit), memory=memory)
        pins = pin_annotations(target(world.view, placement).devices, world.vendors)
        patch = {"metadata": {"uid": pod.uid, "annotations": dict(pins)}}
        memory = replace(memory, after=now + timedelta(seconds=0.5), taken_since=None)
        return Decision(actions=(PatchPod(pod, patch, "retarget"),), wake=memory.after, memory=memory)
    found = _still_free(placement, pod, world)
    if not found.ok:
        since = memory.taken_since or now
        memory = replace(memory, taken_since=since)
        if not found.temporary or (found.reason in _TAKEN and now >= since + tuning.stolen):
            other = retarget(placement, pod, world, memory, found)
            if other is not None:
                return other
            reason = Reason.PLACE_STOLEN if found.reason in _TAKEN else found.reason or Reason.PLACE_STOLEN
            return _recycle(placement, pod, world, memory, reason, f"{pod.key} lost its place: {found.detail}", now)
        return Decision(wake=min(since + tuning.stolen, limit) if found.reason in _TAKEN else limit, memory=memory)
    memory = replace(memory, taken_since=None)
    due = _wake_due(placement, pod, world, memory, now)
    if due is None or now < due:
        return Decision(wake=soonest(due, limit), memory=memory)
    stamp = {"metadata": {"uid": pod.uid, "annotations": {WOKEN: format_time(now)}}}
    memory = replace(memory, wakes=memory.wakes + 1, after=now + pause(memory.wakes + 1, WAKE_PAUSES))
    return Decision(actions=(PatchPod(pod, stamp, "wake"),), wake=soonest(memory.after, limit), memory=memory)


_TAKEN = frozenset(
    {Reason.DEVICE_FULL, Reason.NODE_FULL, Reason.TARGET_HELD, Reason.NO_PLACE, Reason.IN_USE_OUTSIDE_HAMI}
)


def _still_free(placement: Placement, pod: Pod, world: World) -> Validation:
    there = target(world.view, placement, prefer={request.vendor for request in pod.requests})
    if not there.ok:
        return there
    without = frozenset({pod.key, tag(placement)})
    return room(world.view, placement, pod, there.devices, vendors=world.vendors, without=without)


def _wake_due(placement: Placement, pod: Pod, world: World, memory: Memory, now: datetime) -> datetime | None:
    """When a pod that is Pending on a free device counts as forgotten. One that HAMi has booked is being bound; its
    back-off cannot be shortened."""
    judged = bool(pod.unschedulable) and "scheduling gates" not in pod.unschedulable
    if pod.booked_node and not judged:
        return None
    if memory.after is not None:
        return memory.after
    return (placement.status.pinned_at or now) + (world.tuning.forgotten if judged else SILENT_WAKE)


def _recycle(
    placement: Placement, pod: Pod, world: World, memory: Memory, reason: Reason, detail: str, now: datetime
) -> Decision:
    """Recorded first, then evicted: a Pending pod, so nobody loses anything, and once. A pod that nobody would create
    again is never evicted; it is given the choice among the node's devices back."""
    if placement.surges:
        # the count goes back, and a pod that is not bound is the first that its controller removes
        return fail(placement, memory, reason, detail, now)
    if pod.owner is None:
        wider = PatchPod(pod, widen_patch(pod, world.vendors), "widen")
        detail = f"{detail}; it has no controller, so it stays and may use any device of {placement.spec.node_name}"
        return fail(placement, memory, reason, detail, now, actions=(wider,))
    status = shown(placement, Phase.BINDING, reason, detail, recycled=True)
    memory = replace(memory, after=now + timedelta(seconds=1), tries=0)
    return Decision(status, (Evict(pod, recycle=True),), memory=memory)


def _recycling(placement: Placement, pod: Pod | None, memory: Memory, now: datetime) -> Decision:
    status = placement.status
    try:
        reason = Reason(status.reason)
    except ValueError:
        reason = Reason.PLACE_STOLEN
    start = status.pinned_at or now
    if pod is None:
        return fail(placement, memory, reason, f"{status.message}; it was recycled", now)
    if memory.after is None:
        # a new process: it starts this clock again, so the wait is bounded per process
        return Decision(actions=(Evict(pod, recycle=True),), memory=replace(memory, after=now + timedelta(seconds=1)))
    if now < memory.after:
        return Decision(wake=memory.after, memory=memory)
    if memory.tries > 8 or now > start + placement.spec.timeouts.start + RECYCLE_PATIENCE * 10:
        return fail(placement, memory, reason, f"{status.message}; it could not be recycled: {memory.blocked}", now)
    memory = replace(memory, tries=memory.tries + 1, after=now + pause(memory.tries, WAKE_PAUSES))
    return Decision(actions=(Evict(pod, recycle=True),), memory=memory)


# -- bound -----------------------------------------------------------------------------------------------------------


def _starting(placement: Placement, pod: Pod, memory: Memory, now: datetime, limit: datetime) -> Decision:
    if memory.ready_seen:
        limit += placement.spec.settle
    if now < limit:
        return Decision(wake=limit, memory=memory)
    if memory.ready_seen:
        return fail(placement, memory, Reason.POD_CRASHED, f"{pod.key} was Ready and did not stay so", now)
    took = span(now - (placement.status.pinned_at or now))
    return fail(placement, memory, Reason.START_TIMEOUT, f"{pod.key} is bound but was not Ready within {took}", now)


def _settling(placement: Placement, pod: Pod, world: World, memory: Memory, now: datetime) -> Decision:
    spec, status = placement.spec, placement.status
    memory = replace(memory, ready_seen=True)
    settled = _ready_from(pod, now) + spec.settle
    if now >= settled:
        waits = hand_over(placement, pod, world, memory, now) if placement.surges else None
        return waits or _completed(placement, pod, world, memory, now)
    if status.phase is not Phase.SETTLING and spec.settle >= SHOW_SETTLING and not memory.dry_run:
        # affordable only when the dry run was saved: eight calls per move
        detail = f"{pod.name} is Ready on {', '.join(status.devices)}; settled in {span(spec.settle)}"
        answer = told(placement, memory, Phase.SETTLING, Reason.SETTLING, detail, settled)
        assert answer.status is not None
        ready = replace(answer.status, ready_at=_ready_from(pod, now), assignments=assignments(pod, world.snapshot))
        return replace(answer, status=ready)
    return Decision(wake=settled, memory=memory)


def _ready_from(pod: Pod, now: datetime) -> datetime:
    """Since when the pod is Ready at the latest. Kubernetes cuts times down to whole seconds: counted from there, a
    pod would be called settled up to a second too early."""
    since = pod.ready_since
    if since is None:
        return now
    return since if since.microsecond else min(now, since + timedelta(seconds=1))


def _completed(placement: Placement, pod: Pod, world: World, memory: Memory, now: datetime) -> Decision:
    where = f"{', '.join(pod.devices)} on {pod.node}"
    message = f"{pod.name} runs on {where}"
    status = ended(
        placement,
        Phase.COMPLETED,
        Reason.COMPLETED,
        message,
        now,
        ready_at=_ready_from(pod, now) if pod.ready_since else placement.status.ready_at or now,
        assignments=assignments(pod, world.snapshot),
    )
    status = replace(
        status,
        conditions=conditions(status.conditions, now, placement.generation, Ready=(True, Reason.COMPLETED, message)),
    )
    return Decision(status, (Emit(str(Reason.COMPLETED), message),), memory=memory)
