"""Scheduling gates: which gated pods have a reason to wait, which placement gets which pod, and how one is let go.

A gated pod starts only when somebody removes the gate. So the rules for letting go need nothing but the pod and the
open placements: any replica can apply them, and when in doubt the pod goes (unpinned, as if we did not exist).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from defragd.core.model import Pod
from defragd.core.placement import DEADLINE, GATE, PINNED, PLACEMENT, Placement, Step
from defragd.core.selectors import matches
from defragd.core.snapshot import Snapshot

MARGIN = timedelta(seconds=60)
"""How long after the old pod's grace period a gate may stay without anybody working on it."""
MARGIN_UNOWNED = timedelta(seconds=30)
"""The same for placements that evict nothing."""
NO_DEADLINE = timedelta(seconds=60)
"""A gate whose deadline is missing or unreadable is overdue so long after the pod's creation."""


def gated(pods: Iterable[Pod]) -> list[Pod]:
    """Live pods that carry our gate, oldest first (UID breaks ties): the order in which places are given."""
    found = [pod for pod in pods if pod.gates and GATE in pod.gates and pod.live and not pod.deleting]
    return sorted(found, key=age_order)


def age_order(pod: Pod) -> tuple[datetime, str]:
    return (pod.created or datetime.min.replace(tzinfo=UTC), pod.uid)


def deadline_of(pod: Pod) -> datetime | None:
    """The time after which any replica lets the pod go. None = unreadable, or the pod's age is unknown."""
    text = pod.annotations.get(DEADLINE, "")
    try:
        found = datetime.fromisoformat(text) if text else None
    except ValueError:
        found = None
    if found is not None and found.tzinfo is not None:
        return found
    return pod.created + NO_DEADLINE if pod.created else None


def format_time(when: datetime) -> str:
    """RFC 3339 in UTC, to the millisecond."""
    return when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def overdue(pod: Pod, now: datetime) -> bool:
    deadline = deadline_of(pod)
    return deadline is None or now >= deadline


def wants_owner(placement: Placement) -> bool:
    """The placement gates coming pods of the evicted pod's controller."""
    status = placement.status
    return (
        placement.open
        and not placement.deleting
        and status.step is Step.EVICTING
        and bool(placement.spec.evict_pod and status.owner_uid)
    )


def wants_selected(placement: Placement) -> bool:
    """The placement gates any coming pod that its selector matches."""
    return (
        placement.open
        and not placement.deleting
        and placement.status.step is Step.HELD
        and not placement.spec.evict_pod
        and not placement.spec.suspend
    )


def may_take(placement: Placement, pod: Pod) -> bool:
    """Whether this gated pod may become the placement's pod at all. A StatefulSet's pod comes back under its own name,
    so another ordinal of the set is not the replacement; the UID tells the old pod from the new one."""
    if pod.namespace != placement.namespace:
        return False
    if pod.created and placement.created and pod.created < placement.created.replace(microsecond=0):
        # left over from an earlier placement; a pin on it would not be recognised as ours after a crash
        return False
    if wants_owner(placement):
        owner = pod.owner
        if owner is None or owner.uid != placement.status.owner_uid or pod.uid == placement.status.evicted_uid:
            return False
        return owner.kind != "StatefulSet" or pod.name == placement.spec.evict_pod
    return wants_selected(placement) and matches(placement.spec.pod_selector, pod.labels)


@dataclass(frozen=True, slots=True)
class Seating:
    """``candidates``: placement key -> its gated pod. ``surplus``: gated pods for which nobody waits."""

    candidates: Mapping[str, Pod] = field(default_factory=dict)
    surplus: tuple[Pod, ...] = ()


def seat(
    pods: Iterable[Pod],
    placements: Iterable[Placement],
    *,
    ready: Iterable[str],
    sticky: Mapping[str, str] | None = None,
    suits: Callable[[Placement, Pod], bool] = lambda placement, pod: True,
) -> Seating:
    """Gives every gated pod to at most one placement, and every placement at most one pod; ``pods`` as `gated` sorts.

    ``ready``: keys of placements whose old pod is on its way out (or that evict nothing); the others wait for no pod
    yet, so a pod gated for them is surplus. ``sticky``: placement key -> UID of a pod whose pin may have been written
    already (its answer was lost); such a placement takes no other pod while that one lives. ``suits`` picks among the
    pods of a selector, which need not be alike: the oldest that fits, else the oldest.
    """
    sticky = sticky or {}
    may_wait = set(ready)
    waiting = sorted(
        (p for p in placements if p.key in may_wait and (wants_owner(p) or wants_selected(p))),
        key=lambda p: (not p.spec.evict_pod, p.status.evicting_at or p.status.held_at or _EPOCH, p.key),
    )
    free = list(pods)
    candidates: dict[str, Pod] = {}
    for placement in waiting:
        uid = sticky.get(placement.key)
        if uid:
            kept = next((pod for pod in free if pod.uid == uid), None)
            if kept is not None:
                candidates[placement.key] = kept
                free.remove(kept)
    by_owner: dict[str, list[Pod]] = {}
    for pod in free:
        by_owner.setdefault(pod.owner.uid if pod.owner else "", []).append(pod)
    given = {pod.uid for pod in candidates.values()}
    for placement in waiting:
        if placement.key in candidates or sticky.get(placement.key):
            continue
        pool = by_owner.get(placement.status.owner_uid, []) if placement.spec.evict_pod else free
        able = [pod for pod in pool if pod.uid not in given and may_take(placement, pod)]
        chosen = able[0] if able else None
        if len(able) > 1 and not placement.spec.evict_pod:
            chosen = next((pod for pod in able if suits(placement, pod)), chosen)
        if chosen is not None:
            candidates[placement.key] = chosen
            given.add(chosen.uid)
    return Seating(candidates, tuple(pod for pod in free if pod.uid not in given))


_EPOCH = datetime.min.replace(tzinfo=UTC)


def justified(pod: Pod, placements: Iterable[Placement]) -> bool:
    """Some open placement may still take this gated pod (what a replica that does not lead can know)."""
    return any(may_take(placement, pod) for placement in placements)


def release_patch(pod: Pod, *, optimistic: bool = True) -> dict[str, Any]:
    """Lets a pod go: our gate, deadline and label are taken off, everything else stays.

    ``optimistic`` adds the revision as a precondition, so that a pod that was pinned (or let go) meanwhile is left
    alone; a replica whose view is old for long leaves it out rather than keep a pod waiting.
    """
    metadata: dict[str, Any] = {"uid": pod.uid, "annotations": {DEADLINE: None}}
    if PLACEMENT in pod.labels and PINNED not in pod.annotations:
        metadata["labels"] = {PLACEMENT: None}
    if optimistic and pod.revision:
        metadata["resourceVersion"] = pod.revision
    return {"metadata": metadata, "spec": {"schedulingGates": [{"name": g} for g in pod.gates if g != GATE]}}


def extend_patch(pod: Pod, until: datetime) -> dict[str, Any]:
    """Moves a gate's deadline while the leader is at work on it (a node lock that takes minutes to expire)."""
    return {"metadata": {"uid": pod.uid, "annotations": {DEADLINE: format_time(until)}}}


def why_release(pod: Pod, placements: Iterable[Placement], now: datetime) -> str:
    """ "" while the pod has a reason to wait, else "overdue" or "closed"."""
    if overdue(pod, now):
        return "overdue"
    return "" if justified(pod, placements) else "closed"


def next_deadline(snapshot: Snapshot) -> datetime | None:
    """The earliest deadline of any gated pod."""
    return min((d for pod in gated(snapshot.pods.values()) if (d := deadline_of(pod)) is not None), default=None)
