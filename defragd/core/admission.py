"""What the webhook answers: the JSON patch for one pod that is being created. Pure, quick, and never a refusal.

A pod for which a placement waits gets a scheduling gate, a deadline and a label, nothing else: creations that are
refused later, and dry runs, so use up nothing. Any other pod of HAMi is kept off devices that are held. Everything
that is there already is merged with or left alone, so the patch of a patched pod is empty.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from defragd.core.gating import MARGIN, MARGIN_UNOWNED, format_time, wants_owner, wants_selected
from defragd.core.placement import DEADLINE, GATE, PINNED, PLACEMENT, Placement
from defragd.core.placement_pin import label_value
from defragd.core.placement_steering import held_devices, steering
from defragd.core.selectors import matches
from defragd.core.validate import SCHEDULERS
from defragd.core.vendor import Vendor

Op = dict[str, Any]


def admit(
    request: Mapping[str, Any],
    placements: Sequence[Placement],
    *,
    now: datetime,
    mode: str = "gate",
    vendors: Mapping[str, Vendor],
    schedulers: Collection[str] = SCHEDULERS,
    resources: Collection[str] = (),
) -> list[Op]:
    """JSON patch operations (RFC 6902) for an AdmissionReview's ``request``; [] = leave the pod as it is.

    ``placements``: all open ones this replica knows. ``resources``: names of device resources, by which a pod is
    recognised as HAMi's when its own webhook was down. ``mode`` "gate" is the way for API servers with scheduling
    gates; with "pin" this is the answer for a pod that has no claim on a place (`core.placement_claims`): steering.
    """
    pod = request.get("object")
    if request.get("operation", "CREATE") != "CREATE" or request.get("subResource") or not isinstance(pod, Mapping):
        return []
    meta, spec = _map(pod, "metadata"), _map(pod, "spec")
    if spec.get("nodeName"):
        return []
    hami = is_hami(spec, schedulers, resources)
    annotations = _map(meta, "annotations")
    if PINNED in annotations:
        return []
    placement = next(waiting_placements(*names_of(request, meta), meta, placements), None) if mode == "gate" else None
    if placement is not None and (hami or placement.spec.evict_pod):
        # the owner of a pod that HAMi placed makes pods for HAMi, also while HAMi's own webhook is down
        return _gate(meta, spec, placement, now)
    if not hami:
        return []
    changes = steering(annotations, held_devices(placements), vendors)
    return set_map("/metadata/annotations", annotations, changes, "annotations" in meta)


def is_hami(spec: Mapping[str, Any], schedulers: Collection[str], resources: Collection[str]) -> bool:
    """The pod is HAMi's to place, or asks for its devices although HAMi's webhook has not seen it."""
    if spec.get("schedulerName") in schedulers:
        return True
    if not resources:
        return False
    for kind in ("containers", "initContainers"):
        for container in spec.get(kind) or ():
            limits = _map(_map(container, "resources"), "limits")
            if any(name in resources for name in limits):
                return True
    return False


def names_of(request: Mapping[str, Any], meta: Mapping[str, Any]) -> tuple[str, str]:
    """Namespace and name ("" at the admission of a ReplicaSet's pod) of the pod that is being created."""
    return str(request.get("namespace") or meta.get("namespace") or "default"), str(meta.get("name") or "")


def waiting_placements(
    namespace: str, name: str, meta: Mapping[str, Any], placements: Iterable[Placement]
) -> Iterator[Placement]:
    """The open placements for which a coming pod may be the one. Those with an evicted pod go first: they must not lose
    their replacement to a selector. At admission a ReplicaSet's pod has neither name nor UID."""
    owner = next((ref for ref in meta.get("ownerReferences") or () if ref.get("controller")), None)
    labels = _map(meta, "labels")
    selected: list[Placement] = []
    for placement in placements:
        if placement.namespace != namespace:
            continue
        if wants_owner(placement):
            if owner is None or owner.get("uid") != placement.status.owner_uid:
                continue
            if owner.get("kind") != "StatefulSet" or name == placement.spec.evict_pod:
                yield placement
        elif wants_selected(placement) and matches(placement.spec.pod_selector, labels):
            selected.append(placement)
    yield from selected


def _gate(meta: Mapping[str, Any], spec: Mapping[str, Any], placement: Placement, now: datetime) -> list[Op]:
    gates = spec.get("schedulingGates") or []
    if any(gate.get("name") == GATE for gate in gates):
        return []
    if placement.spec.evict_pod:
        deadline = now + timedelta(seconds=max(placement.status.grace_seconds, 0)) + MARGIN
    else:
        deadline = now + MARGIN_UNOWNED
    ops: list[Op] = [{"op": "add", "path": "/spec/schedulingGates", "value": [*gates, {"name": GATE}]}]
    ops += set_map(
        "/metadata/annotations", _map(meta, "annotations"), {DEADLINE: format_time(deadline)}, "annotations" in meta
    )
    ops += set_map("/metadata/labels", _map(meta, "labels"), {PLACEMENT: label_value(placement.name)}, "labels" in meta)
    return ops


def set_map(path: str, old: Mapping[str, Any], changes: Mapping[str, str], there: bool) -> list[Op]:
    """Sets members of a map that may be absent or null. Keys escape ~ and / (RFC 6901)."""
    if not changes:
        return []
    if not there or not old:
        return [{"op": "add", "path": path, "value": dict(changes)}]
    return [
        {"op": "add", "path": f"{path}/{key.replace('~', '~0').replace('/', '~1')}", "value": value}
        for key, value in changes.items()
    ]


def _map(parent: Any, key: str) -> Mapping[str, Any]:
    found = parent.get(key) if isinstance(parent, Mapping) else None
    return found if isinstance(found, Mapping) else {}
