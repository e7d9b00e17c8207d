"""The pin: one merge patch that claims a gated pod for a placement, and how such a pod is recognised afterwards.

The patch is the claim. It removes our gate, binds the pod to the node by a required node affinity in *every* term
(terms are alternatives, so one without it would be a way out) and to the devices by the vendors' UUID annotations, and
leaves our mark. Lists in a merge patch replace, so the complete lists are rebuilt from the pod as it was read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from defragd.core.model import Device, Expression, NodeTerm, Pod
from defragd.core.placement import DEADLINE, GATE, GROUP, PINNED, PLACEMENT, STEERED, Placement
from defragd.core.vendor import Vendor

USER_UUIDS = f"{GROUP}/user-uuids"
"""Annotation: the UUID list the user had set before our pin replaced it (``key=list;...``)."""
WOKEN = f"{GROUP}/woken"
"""Annotation touched to wake a pinned pod that kube-scheduler has forgotten (a lost wake-up)."""
NAME_FIELD = "metadata.name"


def label_value(name: str) -> str:
    """A placement's name as a label value: names may be longer than the 63 characters a label holds."""
    if len(name) <= 63:
        return name
    return f"{name[:54].rstrip('-.')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def is_pinned_by(pod: Pod, placement: Placement) -> bool:
    """The pod carries the pin of this placement. A pod older than the placement was pinned for a namesake."""
    if pod.namespace != placement.namespace or pod.annotations.get(PINNED) != placement.name:
        return False
    if pod.created is None or placement.created is None:
        return True
    return pod.created >= placement.created.replace(microsecond=0)


def uuid_lists(pod: Pod, vendors: Mapping[str, Vendor]) -> dict[str, str]:
    """The pod's use and nouse annotations by key. A pod that was read keeps what they say in its selection, not the
    text; so the text is made again (members sorted). Keys that share a vendor then carry that vendor's whole list."""
    lists = {key: text for vendor in vendors.values() for key in _keys(vendor) if (text := pod.annotations.get(key))}
    for word in dict.fromkeys(request.vendor for request in pod.requests):
        vendor, chosen = vendors.get(word), pod.selections.get(word, pod.selection)
        if vendor is None:
            continue
        for keys, members in ((vendor.use_keys, chosen.use_uuids), (vendor.nouse_keys, chosen.nouse_uuids)):
            for key in keys if members else ():
                lists.setdefault(key, ",".join(sorted(members or ())))
    return lists


def _keys(vendor: Vendor) -> tuple[str, ...]:
    return (*vendor.use_keys, *vendor.nouse_keys)


def pin_annotations(devices: Sequence[Device], vendors: Mapping[str, Vendor]) -> dict[str, str]:
    """Use-UUID annotations of the devices' vendors: exactly these devices, no blanks (HAMi <= 2.9 does not trim)."""
    return {
        key: ",".join(device.uuid for device in devices if device.vendor == word)
        for word in dict.fromkeys(device.vendor for device in devices)
        if word in vendors
        for key in vendors[word].use_keys
    }


def pin_patch(
    pod: Pod, placement: Placement, devices: Sequence[Device], vendors: Mapping[str, Vendor]
) -> dict[str, Any]:
    """The merge patch of the pin; ``metadata.uid`` makes it fail on a namesake of the pod."""
    pins = pin_annotations(devices, vendors)
    annotations: dict[str, str | None] = {**pins, PINNED: placement.name, DEADLINE: None}
    lists = uuid_lists(pod, vendors)
    before = {key: lists[key] for key in pins if lists.get(key, "").strip()}
    if before:
        annotations[USER_UUIDS] = ";".join(f"{key}={value}" for key, value in sorted(before.items()))
    annotations |= unsteered(pod, vendors)
    term = {"key": NAME_FIELD, "operator": "In", "values": [placement.spec.node_name]}
    terms = pod.scheduling.node_terms
    rebuilt = [_term(t, term) for t in terms] if terms else [{"matchFields": [term]}]
    return {
        "metadata": {
            "uid": pod.uid,
            "annotations": annotations,
            "labels": {PLACEMENT: label_value(placement.name)},
        },
        "spec": {
            "schedulingGates": [{"name": gate} for gate in pod.gates if gate != GATE],
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": rebuilt}}
            },
        },
    }


def _term(term: NodeTerm, extra: Mapping[str, Any]) -> dict[str, Any]:
    """One term, tightened. An empty term matches no node and must stay empty: with a field it would match ours."""
    out: dict[str, Any] = {}
    if term.expressions:
        out["matchExpressions"] = [_expression(e) for e in term.expressions]
    if term.fields:
        out["matchFields"] = [_expression(e) for e in term.fields]
    if out and extra not in out.get("matchFields", ()):
        out["matchFields"] = [*out.get("matchFields", ()), dict(extra)]
    return out


def _expression(expression: Expression) -> dict[str, Any]:
    out: dict[str, Any] = {"key": expression.key, "operator": expression.operator}
    if expression.values:
        out["values"] = list(expression.values)
    return out


def unsteered(pod: Pod, vendors: Mapping[str, Vendor]) -> dict[str, str | None]:
    """Annotation changes that take our steering off a pod again and leave what the user had set; {} = none on it."""
    ours = {part.strip() for part in pod.annotations.get(STEERED, "").split(",") if part.strip()}
    if STEERED not in pod.annotations:
        return {}
    changes: dict[str, str | None] = {STEERED: None}
    lists = uuid_lists(pod, vendors)
    for vendor in vendors.values():
        for key in vendor.nouse_keys:
            listed = [part.strip() for part in lists.get(key, "").split(",") if part.strip()]
            kept = [uuid for uuid in listed if uuid not in ours]
            if len(kept) != len(listed):
                changes[key] = ",".join(kept) or None
    return changes


def can_widen(pod: Pod) -> bool:
    """The pod's device list is still our pin (and not the user's own list again)."""
    pins = pod.selection.pin_uuids
    return pins is not None and pins != frozenset(_user_uuids(pod))


def widen_patch(pod: Pod, vendors: Mapping[str, Vendor]) -> dict[str, Any]:
    """Gives a pinned pod that is not bound its device list back, as far as a pod can be unpinned: its node affinity
    cannot be taken off. For pods that nobody would create again; others are recycled."""
    before = dict(part.partition("=")[::2] for part in pod.annotations.get(USER_UUIDS, "").split(";") if part)
    words = dict.fromkeys(request.vendor for request in pod.requests)
    keys = [key for word in words if word in vendors for key in vendors[word].use_keys]
    return {"metadata": {"uid": pod.uid, "annotations": {key: before.get(key) for key in keys}}}


def unpinned(pod: Pod) -> Pod:
    """The pod as its template makes it: without our own pin. What a replacement will look like, and what the user
    wants of it; a pod that carries no pin of ours is returned as it is."""
    if not pod.selection.pinned_by_us and PINNED not in pod.annotations:
        return pod
    node = pod.node or pod.booked_node
    terms = pod.scheduling.node_terms
    stripped: tuple[NodeTerm, ...] | None = terms
    if terms is not None:
        ours = Expression(NAME_FIELD, "In", (node,))
        cut = tuple(replace(term, fields=tuple(f for f in term.fields if f != ours)) for term in terms)
        # a term that held nothing but our pin was added by us: the template has no required affinity
        stripped = None if all(not t.expressions and not t.fields for t in cut) else cut
    use = frozenset(_user_uuids(pod)) or None
    return replace(
        pod,
        selection=replace(pod.selection, use_uuids=use, pinned_by_us=False, pin_uuids=None, pin_node=""),
        scheduling=replace(pod.scheduling, node_terms=stripped),
    )


def user_lists(annotations: Mapping[str, str]) -> dict[str, str]:
    """The user's own UUID lists by annotation key, as they were before our pin replaced them; {} = there were none."""
    found: dict[str, str] = {}
    for part in annotations.get(USER_UUIDS, "").split(";"):
        key, equal, value = part.partition("=")
        if equal and key.strip() and value.strip():
            found[key.strip()] = value
    return found


def _user_uuids(pod: Pod) -> list[str]:
    lists = user_lists(pod.annotations).values()
    return [uuid.strip() for value in lists for uuid in value.split(",") if uuid.strip()]
