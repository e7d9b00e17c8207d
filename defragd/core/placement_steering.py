"""Steering: keeping other pods off held devices by the vendors' exclusion lists, and taking that off again.

HAMi has no reservations, so a hold is kept by telling competitors "not this device". What we add is recorded on the
pod (`STEERED`), merged with what the user set, and removed when the pod is bound or the hold ends. Never more than
that: a pod is kept off a place for the minutes of a move, not sent anywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from defragd.core.model import Pod
from defragd.core.placement import GATE, PINNED, STEERED, Placement, Step
from defragd.core.placement_pin import unsteered, uuid_lists
from defragd.core.vendor import Vendor


def held_devices(placements: Iterable[Placement], *, arrived: Collection[str] = ()) -> dict[str, str]:
    """UUID -> vendor of all devices that open placements hold for a pod that has not arrived yet. ``arrived``: keys of
    placements whose pod HAMi counts by now (who sees no pods goes by the status, which is a little later)."""
    return {
        allocation.uuid: allocation.vendor
        for placement in placements
        if placement.open
        and not placement.deleting
        and placement.status.step in (Step.HELD, Step.EVICTING, Step.PINNED)
        and placement.status.ready_at is None
        and placement.key not in arrived
        for allocation in placement.status.hold
    }


def steering(annotations: Mapping[str, str], held: Mapping[str, str], vendors: Mapping[str, Vendor]) -> dict[str, str]:
    """Annotations to set so that a pod keeps off ``held`` (UUID -> vendor); {} = it does already.

    UUIDs that the user excludes himself are not recorded as ours, so taking our steering off leaves them.
    """
    changes: dict[str, str] = {}
    added: dict[str, None] = dict.fromkeys(_members(annotations.get(STEERED)))
    known = len(added)
    for uuid in sorted(held):
        facts = vendors.get(held[uuid])
        if facts is None:
            continue
        for key in facts.nouse_keys:
            listed = _members(changes.get(key, annotations.get(key)))
            if uuid not in listed:
                changes[key] = ",".join([*listed, uuid])
                added[uuid] = None
    if len(added) != known:
        changes[STEERED] = ",".join(added)
    return changes


def competes(pod: Pod, vendors: Collection[str]) -> bool:
    """A pod that HAMi may place any moment: asks for devices of these vendors, unbound, not gated, not ours."""
    return (
        pod.live
        and not pod.node
        and not pod.deleting
        and not pod.gates
        and not pod.booked_node
        and PINNED not in pod.annotations
        and any(request.vendor in vendors for request in pod.requests)
    )


def steer_patches(
    pods: Iterable[Pod], held: Mapping[str, str], vendors: Mapping[str, Vendor]
) -> list[tuple[Pod, dict[str, Any]]]:
    """Merge patches for all pods whose steering is not what the open holds ask for: competitors that wait are kept
    off, pods that are bound or steered for a hold that has ended are relieved."""
    words = frozenset(held.values())
    out: list[tuple[Pod, dict[str, Any]]] = []
    for pod in pods:
        annotations = pod.annotations
        if STEERED in annotations:
            ours = set(_members(annotations[STEERED]))
            if pod.live and not pod.deleting and (pod.node or not ours <= held.keys()):
                out.append((pod, _relief(pod, held, vendors)))
                continue
        if held and not pod.node and competes(pod, words):
            wanted = {uuid: word for uuid, word in held.items() if any(r.vendor == word for r in pod.requests)}
            changes = steering({**annotations, **uuid_lists(pod, vendors)}, wanted, vendors)
            if changes:
                out.append((pod, {"metadata": {"uid": pod.uid, "annotations": changes}}))
    return out


def _relief(pod: Pod, held: Mapping[str, str], vendors: Mapping[str, Vendor]) -> dict[str, Any]:
    """Takes off what is no longer held (everything, once the pod is bound)."""
    changes: dict[str, str | None] = dict(unsteered(pod, vendors))
    if not pod.node and GATE not in pod.gates:
        still = {uuid: held[uuid] for uuid in _members(pod.annotations.get(STEERED)) if uuid in held}
        if still:
            merged = {**pod.annotations, **uuid_lists(pod, vendors), **changes}
            cleaned = {key: value for key, value in merged.items() if value is not None}
            changes |= steering(cleaned, still, vendors)
    return {"metadata": {"uid": pod.uid, "annotations": changes}}


def _members(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]
