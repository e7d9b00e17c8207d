"""HamiPodPlacement objects <-> `core.placement.Placement`. Only form; the rules are in `core.progress`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from defragd.core.model import Allocation, Expression, Resources, Selector
from defragd.core.placement import (
    GROUP,
    KIND,
    PLURAL,
    VERSION,
    Assignment,
    Condition,
    Phase,
    Placement,
    PlacementSpec,
    PlacementStatus,
    Step,
)
from defragd.core.rules import Timeouts
from defragd.kube.errors import BrokenObject
from defragd.kube.times import format_span, format_time, parse_span, parse_time
from defragd.kube.wire import LabelSelector
from defragd.kube.wire_custom import (
    AssignmentWire,
    ConditionWire,
    HeldResourcesWire,
    HeldWire,
    PlacementSpecWire,
    PlacementStatusWire,
    PlacementWire,
    TimeoutsWire,
)

API_VERSION = f"{GROUP}/{VERSION}"
PATH = f"/apis/{GROUP}/{VERSION}"

_DEFAULT = PlacementSpec(req_id="", pod_selector=Selector(), node_name="", gpu_devices=())
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def path_of(namespace: str, name: str = "", *, plural: str = PLURAL) -> str:
    """The API path of one object (or of the namespace's list, without a name)."""
    base = f"{PATH}/namespaces/{namespace}/{plural}"
    return f"{base}/{name}" if name else base


def selector_from_wire(selector: LabelSelector | None) -> Selector:
    """Labels first, sorted, then expressions in their order. A missing selector is an empty one (it catches all)."""
    if selector is None:
        return Selector()
    labels = [Expression(key, "In", (value,)) for key, value in sorted((selector.match_labels or {}).items())]
    others = [
        Expression(item.key, item.operator, tuple(item.values or ())) for item in selector.match_expressions or ()
    ]
    return Selector((*labels, *others))


def selector_to_wire(selector: Selector) -> dict[str, Any]:
    """The inverse: a single-valued In becomes a label, unless two speak of one key."""
    labels: dict[str, str] = {}
    others: list[dict[str, Any]] = []
    for item in selector.expressions:
        if item.operator == "In" and len(item.values) == 1 and item.key not in labels:
            labels[item.key] = item.values[0]
        else:
            entry: dict[str, Any] = {"key": item.key, "operator": item.operator}
            if item.values:
                entry["values"] = list(item.values)
            others.append(entry)
    out: dict[str, Any] = {}
    if labels:
        out["matchLabels"] = labels
    if others:
        out["matchExpressions"] = others
    return out


def placement_from_wire(obj: PlacementWire) -> Placement:
    """Raises BrokenObject (naming the field) for what a server without CEL may have let in."""
    meta = obj.metadata
    try:
        return Placement(
            namespace=meta.namespace,
            name=meta.name,
            spec=_spec(obj.spec),
            status=_status(obj.status),
            uid=meta.uid,
            generation=meta.generation or 1,
            revision=meta.resource_version,
            created=parse_time(meta.creation_timestamp),
            deleting=meta.deletion_timestamp is not None,
            labels=meta.labels or {},
            annotations=meta.annotations or {},
            finalizers=tuple(meta.finalizers or ()),
        )
    except BrokenObject as err:
        raise BrokenObject(f"{KIND} {meta.namespace}/{meta.name}: {err}") from err


def _spec(spec: PlacementSpecWire) -> PlacementSpec:
    limits = spec.timeouts or TimeoutsWire()
    default = _DEFAULT.timeouts
    return PlacementSpec(
        req_id=spec.req_id,
        pod_selector=selector_from_wire(spec.pod_selector),
        node_name=spec.node_name,
        gpu_devices=tuple(spec.gpu_devices or ()),
        evict_pod=spec.evict_pod or "",
        evict_pod_uid=spec.evict_pod_uid or "",
        timeouts=Timeouts(
            hold=parse_span(limits.hold, default.hold),
            evict=parse_span(limits.evict, default.evict),
            start=parse_span(limits.start, default.start),
            pod=parse_span(limits.pod, default.pod),
        ),
        settle=parse_span(spec.settle, _DEFAULT.settle),
        ttl=parse_span(spec.ttl, _DEFAULT.ttl),
        suspend=bool(spec.suspend),
        handover=spec.handover or _DEFAULT.handover,
        alternatives=tuple(spec.alternatives or ()),
        group=spec.group or "",
        group_size=spec.group_size or 1,
    )


def _status(status: PlacementStatusWire) -> PlacementStatus:
    try:
        phase = Phase(status.phase) if status.phase else Phase.PENDING
        step = Step(status.step)
    except ValueError as err:
        raise BrokenObject(f"status was written by another version: {err}") from err
    held = status.hold_resources
    return PlacementStatus(
        phase=phase,
        step=step,
        observed_generation=status.observed_generation,
        reason=status.reason,
        message=status.message,
        devices=tuple(status.devices or ()),
        owner_uid=status.owner_uid,
        evicted_uid=status.evicted_uid,
        eviction_accepted=status.eviction_accepted,
        pod_name=status.pod_name,
        pod_uid=status.pod_uid,
        held_at=parse_time(status.held_at),
        evicting_at=parse_time(status.evicting_at),
        evicted_at=parse_time(status.evicted_at),
        pinned_at=parse_time(status.pinned_at),
        consumed_at=parse_time(status.consumed_at),
        ready_at=parse_time(status.ready_at),
        ended_at=parse_time(status.ended_at),
        recycled=status.recycled,
        claim=status.claim,
        claimed_at=parse_time(status.claimed_at),
        conditions=tuple(
            Condition(c.type, c.status, c.reason, c.message, parse_time(c.last_transition_time), c.observed_generation)
            for c in status.conditions or ()
        ),
        assignments=tuple(
            Assignment(a.pod_name, a.pod_uid, a.gpu_device, a.uuid) for a in status.assignment_details or ()
        ),
        hold=tuple(Allocation(h.slot, h.uuid, h.memory_mib, h.cores, h.vendor, h.init) for h in status.hold or ()),
        hold_resources=None
        if held is None
        else Resources(held.cpu_milli, held.memory_bytes, held.pods, held.ephemeral_bytes, held.extended),
        grace_seconds=status.grace_seconds,
    )


def spec_to_object(spec: PlacementSpec) -> dict[str, Any]:
    """Only what differs from the defaults is written."""
    out: dict[str, Any] = {
        "reqID": spec.req_id,
        "podSelector": selector_to_wire(spec.pod_selector),
        "nodeName": spec.node_name,
        "gpuDevices": list(spec.gpu_devices),
    }
    if spec.evict_pod:
        out["evictPod"] = spec.evict_pod
    if spec.evict_pod_uid:
        out["evictPodUID"] = spec.evict_pod_uid
    spans = {
        name: format_span(getattr(spec.timeouts, name))
        for name in ("hold", "evict", "start", "pod")
        if getattr(spec.timeouts, name) != getattr(_DEFAULT.timeouts, name)
    }
    if spans:
        out["timeouts"] = spans
    if spec.settle != _DEFAULT.settle:
        out["settle"] = format_span(spec.settle)
    if spec.ttl != _DEFAULT.ttl:
        out["ttl"] = format_span(spec.ttl)
    if spec.suspend:
        out["suspend"] = True
    if spec.handover != _DEFAULT.handover:
        out["handover"] = spec.handover
    if spec.alternatives:
        out["alternatives"] = list(spec.alternatives)
    if spec.group:
        out["group"] = spec.group
        out["groupSize"] = spec.group_size
    return out


def status_to_object(status: PlacementStatus) -> dict[str, Any]:
    """The whole status; conditions always carry a time, as their schema wants."""
    held = status.hold_resources
    wire = PlacementStatusWire(
        phase=status.phase.value,
        step=status.step.value,
        observed_generation=status.observed_generation,
        reason=str(status.reason),
        message=status.message[:4096],
        devices=list(status.devices) or None,
        owner_uid=status.owner_uid,
        evicted_uid=status.evicted_uid,
        eviction_accepted=status.eviction_accepted,
        pod_name=status.pod_name,
        pod_uid=status.pod_uid,
        held_at=format_time(status.held_at),
        evicting_at=format_time(status.evicting_at),
        evicted_at=format_time(status.evicted_at),
        pinned_at=format_time(status.pinned_at),
        consumed_at=format_time(status.consumed_at),
        ready_at=format_time(status.ready_at),
        ended_at=format_time(status.ended_at),
        recycled=status.recycled,
        claim=status.claim,
        claimed_at=format_time(status.claimed_at),
        conditions=[
            ConditionWire(
                c.type,
                c.status,
                str(c.reason) or "Unknown",
                c.message,
                format_time(c.last_transition or _EPOCH),
                c.observed_generation,
            )
            for c in status.conditions
        ]
        or None,
        assignment_details=[AssignmentWire(a.pod_name, a.pod_uid, a.gpu_device, a.uuid) for a in status.assignments]
        or None,
        hold=[HeldWire(a.slot, a.uuid, a.memory_mib, a.cores, a.vendor, a.init) for a in status.hold] or None,
        hold_resources=None
        if held is None
        else HeldResourcesWire(held.cpu_milli, held.memory_bytes, held.pods, held.ephemeral_bytes, dict(held.extended)),
        grace_seconds=status.grace_seconds,
    )
    built: dict[str, Any] = msgspec.to_builtins(wire)
    return built


def placement_to_object(placement: Placement) -> dict[str, Any]:
    """A new object to create: identity, labels, annotations, finalizers and spec; never status."""
    meta: dict[str, Any] = {"namespace": placement.namespace, "name": placement.name}
    if placement.labels:
        meta["labels"] = dict(placement.labels)
    if placement.annotations:
        meta["annotations"] = dict(placement.annotations)
    if placement.finalizers:
        meta["finalizers"] = list(placement.finalizers)
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec_to_object(placement.spec)}
