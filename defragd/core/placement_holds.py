"""Holds: room on a target that is promised to a coming pod, derived from the open placements and nothing else.

The promise is stored in the placement's status (`PlacementStatus.hold`), so it survives a restart and the end of the
pod it was taken from. A hold is advisory towards HAMi (its scheduler knows no reservations): our planner, validators
and steering honour it; a pod that nobody steered may still take the place, and the engine notices that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from defragd.core.model import Hold, Resources
from defragd.core.placement import Placement, Step
from defragd.core.snapshot import Snapshot

HOLDING = frozenset({Step.HELD, Step.EVICTING, Step.PINNED})
_INDEXES = ("devices", "pods_on", "booked_on")


def hold_of(placement: Placement) -> Hold | None:
    """The hold of one placement; ``Hold.placement`` is its ns/name. None: it promises nothing."""
    status = placement.status
    if not placement.open or placement.deleting or status.step not in HOLDING or not status.hold:
        return None
    return Hold(
        placement=placement.key,
        node=placement.spec.node_name,
        allocations=status.hold,
        resources=status.hold_resources or Resources(pods=0),
        pod_uid=status.pod_uid,
    )


def open_holds(placements: Iterable[Placement]) -> tuple[Hold, ...]:
    """Holds of all open placements, in the order given."""
    return tuple(hold for placement in placements if (hold := hold_of(placement)) is not None)


def moving_pods(placements: Iterable[Placement]) -> dict[str, str]:
    """ns/name of the pod that each open placement evicts -> the placement."""
    return {f"{p.namespace}/{p.spec.evict_pod}": p.key for p in placements if p.open and p.spec.evict_pod}


def with_holds(snapshot: Snapshot, placements: Iterable[Placement]) -> Snapshot:
    """The snapshot with the holds of ``placements`` instead of its own; indexes that do not depend on holds are kept,
    so that 400 placements taking their holds one after the other stay cheap."""
    changed = replace(snapshot, holds=open_holds(placements))
    for name in _INDEXES:
        if name in snapshot.__dict__:
            changed.__dict__[name] = snapshot.__dict__[name]
    return changed


def tag(placement: Placement) -> str:
    """What ``without`` arguments call the hold of a placement."""
    return f"hold:{placement.key}"
