"""Building what a step answers: the next status with its conditions, a wait with a growing pause, an end."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from defragd.core.model import Pod
from defragd.core.placement import Assignment, Condition, Phase, Placement, PlacementStatus, Step
from defragd.core.placement_world import Action, Decision, Emit, Evict, Memory, PatchPod, Scale
from defragd.core.reasons import Reason
from defragd.core.snapshot import Snapshot
from defragd.core.validate import Validation

CHECK_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds between looks at a placement that waits for something to change."""
RETRY_PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds between attempts that the API server refuses for now."""
QUIET_CHECKS = 3
"""So many looks in vain before the reason is written: most waits are over by then."""


def conditions(
    old: tuple[Condition, ...], now: datetime, generation: int, **changes: tuple[bool, Reason | str, str]
) -> tuple[Condition, ...]:
    """Conditions with some set; the time of the last transition moves only when the status does."""
    known = {condition.type: condition for condition in old}
    for kind, (true, reason, message) in changes.items():
        before = known.get(kind)
        word = "True" if true else "False"
        since = before.last_transition if before is not None and before.status == word else now
        known[kind] = Condition(kind, word, str(reason), message, since, generation)
    return tuple(known.values())


def shown(placement: Placement, phase: Phase, reason: Reason | str, message: str, **changes: Any) -> PlacementStatus:
    """The status with another phase, reason and message (a derived phase: the stored step stays unless given)."""
    return replace(
        placement.status,
        phase=phase,
        reason=str(reason),
        message=message,
        observed_generation=placement.generation,
        **changes,
    )


def ended(
    placement: Placement, phase: Phase, reason: Reason | str, message: str, now: datetime, **changes: Any
) -> PlacementStatus:
    """The last status of a placement. Its hold and its claim on gated pods end with it."""
    done = phase is Phase.COMPLETED
    return shown(
        placement,
        phase,
        reason,
        message,
        step=Step.ENDED,
        ended_at=now,
        conditions=conditions(
            placement.status.conditions,
            now,
            placement.generation,
            Held=(False, reason, "the hold has ended"),
            Completed=(done, reason, message),
        ),
        **changes,
    )


def assignments(pod: Pod, snapshot: Snapshot) -> tuple[Assignment, ...]:
    """What the pod got, read back from HAMi's allocation."""
    found = []
    for uuid in pod.devices:
        device = snapshot.devices.get(uuid)
        found.append(Assignment(pod.name, pod.uid, f"gpu-{device.index}" if device else uuid, uuid))
    return tuple(found)


def soonest(*times: datetime | None) -> datetime | None:
    return min((time for time in times if time is not None), default=None)


def pause(tries: int, steps: tuple[float, ...] = CHECK_PAUSES) -> timedelta:
    return timedelta(seconds=steps[min(tries, len(steps) - 1)])


def wait(
    placement: Placement, memory: Memory, phase: Phase, found: Validation, now: datetime, limit: datetime
) -> Decision:
    """Look again after a growing pause. The status is written when the reason changes, not at every look."""
    after = now + pause(memory.checks)
    memory = replace(memory, checks=memory.checks + 1, after=after)
    wake = min(after, limit)
    reason = found.reason or Reason.NO_PLACE
    if placement.status.reason == reason or memory.checks < QUIET_CHECKS:
        return Decision(wake=wake, memory=memory)
    return told(placement, memory, phase, reason, found.detail, wake)


def told(
    placement: Placement, memory: Memory, phase: Phase, reason: Reason, message: str, wake: datetime | None
) -> Decision:
    """A status written for people only."""
    memory = replace(memory, extra_writes=memory.extra_writes + 1)
    return Decision(shown(placement, phase, reason, message), wake=wake, memory=memory)


def fail(
    placement: Placement,
    memory: Memory,
    reason: Reason,
    message: str,
    now: datetime,
    *,
    phase: Phase = Phase.FAILED,
    actions: tuple[Action, ...] = (),
    **changes: Any,
) -> Decision:
    """The end without success. Gates and the hold go with it."""
    status = ended(placement, phase, reason, message, now, **changes)
    return Decision(status, (*actions, Emit(str(reason), message, warning=True)), memory=memory)


def span(value: timedelta) -> str:
    return f"{value.total_seconds():g} s"


def learn(
    memory: Memory, action: Action, outcome: str, message: str, retry_after: float | None, now: datetime
) -> Memory:
    """What the answer to a write teaches. ``outcome`` is a `ports.Outcome` value.

    Only an accepted eviction counts as one; an answer that was lost is settled by looking at the pod (its revision is
    a precondition of any second attempt, so that attempt cannot evict twice).
    """
    if isinstance(action, Evict) and not action.recycle:
        return _learn_eviction(memory, action, outcome, message, retry_after, now)
    if isinstance(action, Evict):
        return memory if outcome in ("OK", "Gone") else replace(memory, blocked=message)
    if isinstance(action, PatchPod) and action.why == "pin":
        return _learn_pin(memory, outcome, message, retry_after, now)
    if isinstance(action, PatchPod) and action.why == "cost":
        again = None if outcome == "OK" else now + pause(0, RETRY_PAUSES)
        return replace(memory, marked=outcome == "OK", after=again)
    if isinstance(action, Scale):
        return _learn_scale(memory, outcome, message, retry_after, now)
    return memory


def _learn_scale(memory: Memory, outcome: str, message: str, retry_after: float | None, now: datetime) -> Memory:
    """The revision is a precondition, so asking again after a lost answer cannot change the count twice."""
    tries = memory.tries + 1
    match outcome:
        case "OK":
            return replace(memory, evicted="OK", scaled_at=now, after=None, tries=0, blocked="")
        case "Refused":
            again = now + pause(tries - 1, RETRY_PAUSES)
            return replace(memory, evicted="", refused=message or "refused", after=again, tries=tries)
        case "Unknown":
            again = now + pause(tries - 1, RETRY_PAUSES)
            return replace(memory, evicted="Unknown", after=again, tries=tries)
        case _:
            again = now + max(timedelta(seconds=retry_after or 0), pause(tries - 1))
            return replace(memory, evicted="", after=again, tries=tries, blocked=message)


def _learn_eviction(
    memory: Memory, action: Evict, outcome: str, message: str, retry_after: float | None, now: datetime
) -> Memory:
    if outcome == "OK" and action.dry_run:
        return replace(memory, dry_run=action.pod.revision or action.pod.uid, blocked="", tries=0, after=None)
    tries = memory.tries + 1
    match outcome:
        case "OK" | "Gone":
            return (
                replace(memory, evicted="OK", blocked="", after=None)
                if not action.dry_run
                else replace(memory, tries=tries, after=now + pause(0))
            )
        case "Unknown" if not action.dry_run:
            return replace(memory, evicted="Unknown", tries=tries, after=now + pause(tries - 1, RETRY_PAUSES))
        case "Refused":
            return replace(memory, refused=message or "refused", tries=tries)
        case "Conflict":
            return replace(memory, dry_run="", tries=tries, after=now + pause(tries - 1))
        case "Blocked":
            after = max(timedelta(seconds=retry_after or 0), pause(tries - 1, RETRY_PAUSES))
            blocked = message or "a disruption budget does not allow the eviction now"
            return replace(memory, blocked=blocked, tries=tries, after=now + after, dry_run="")
        case _:
            return replace(memory, tries=tries, after=now + pause(tries - 1, RETRY_PAUSES))


def _learn_pin(memory: Memory, outcome: str, message: str, retry_after: float | None, now: datetime) -> Memory:
    match outcome:
        case "OK":
            return replace(memory, pinned=True, blocked="", after=None)
        case "Unknown":
            # same pod, same patch again: it changes nothing if the first one arrived
            return replace(memory, after=now + pause(memory.pin_tries - 1, RETRY_PAUSES), pin_tries=0)
        case "Blocked":
            after = max(timedelta(seconds=retry_after or 0), pause(memory.pin_tries - 1, RETRY_PAUSES))
            return replace(memory, after=now + after, pin_tries=0, pin_uid="")
        case _:
            return replace(memory, pin_uid="", blocked=message, after=now + pause(memory.pin_tries - 1))


def durations(placement: Placement) -> dict[str, float]:
    """Seconds per phase, as far as the status knows them."""
    status = placement.status
    marks = [
        ("pending", placement.created, status.held_at or status.ended_at),
        ("held", status.held_at, status.evicting_at or status.ended_at),
        ("evicting", status.evicting_at, status.evicted_at or status.ended_at),
        ("awaiting", status.evicted_at, status.pinned_at or status.ended_at),
        ("starting", status.pinned_at, status.ready_at or status.ended_at),
        ("settling", status.ready_at, status.ended_at),
    ]
    return {name: round((end - begin).total_seconds(), 3) for name, begin, end in marks if begin and end}
