"""Between pods as values and the few bits of Kubernetes JSON that a webhook or a patch touches.

The simulated cluster keeps `core.model.Pod` values. What the admission and the engine write is JSON (RFC 6902 from the
webhook, RFC 7386 from the writer), so here a pod's metadata, gates and affinity become JSON and come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from defragd.core.model import EMPTY, Pod, Scheduling, Selection
from defragd.core.placement import GROUP
from defragd.core.placement_pin import unpinned, user_lists
from defragd.core.run_moves import VOLATILE
from defragd.hami.scheduling import node_terms, without_pin
from defragd.hami.selection import selection_of
from defragd.hami.vendors import VENDORS


class PatchRefused(ValueError):
    """The API server would answer 422; ``str()`` is its message."""


def admission_request(pod: Pod, *, named: bool) -> dict[str, Any]:
    """The AdmissionReview request for a pod being created. A ReplicaSet's pod has no name and no UID yet."""
    meta: dict[str, Any] = {"namespace": pod.namespace}
    if named:
        meta["name"] = pod.name
    else:
        meta["generateName"] = pod.name.rpartition("-")[0] + "-"
    if pod.labels:
        meta["labels"] = dict(pod.labels)
    if pod.annotations:
        meta["annotations"] = dict(pod.annotations)
    if pod.owner is not None:
        meta["ownerReferences"] = [
            {
                "kind": pod.owner.kind,
                "name": pod.owner.name,
                "uid": pod.owner.uid,
                "apiVersion": pod.owner.api_version,
                "controller": True,
            }
        ]
    spec: dict[str, Any] = {"schedulerName": pod.scheduler, "containers": []}
    if pod.gates:
        spec["schedulingGates"] = [{"name": gate} for gate in pod.gates]
    return {
        "operation": "CREATE",
        "namespace": pod.namespace,
        "kind": {"kind": "Pod"},
        "object": {"metadata": meta, "spec": spec},
    }


def admitted(pod: Pod, request: Mapping[str, Any], ops: Sequence[Mapping[str, Any]]) -> Pod:
    """The pod after the webhook's patch."""
    document = request["object"]
    for op in ops:
        _apply(document, op)
    meta, spec = document["metadata"], document["spec"]
    changed = replace(
        pod,
        labels=dict(meta.get("labels") or {}),
        annotations=dict(meta.get("annotations") or {}),
        gates=tuple(gate["name"] for gate in spec.get("schedulingGates") or ()),
    )
    return replace(changed, selection=read_selection(changed))


def _apply(document: dict[str, Any], op: Mapping[str, Any]) -> None:
    *path, last = [part.replace("~1", "/").replace("~0", "~") for part in op["path"].split("/")[1:]]
    target: Any = document
    for part in path:
        target = target[int(part)] if isinstance(target, list) else target[part]
    if isinstance(target, list):
        if op["op"] == "add":
            target.insert(len(target) if last == "-" else int(last), op["value"])
        elif op["op"] == "remove":
            del target[int(last)]
        else:
            target[int(last)] = op["value"]
    elif op["op"] == "remove":
        del target[last]
    else:
        target[last] = op["value"]


def read_selection(pod: Pod) -> Selection:
    """The selection that the pod's annotations say now (one vendor per pod is simulated)."""
    selection, _ = selection_of(pod.annotations, [r.vendor for r in pod.requests], VENDORS)
    return replace(selection, pin_node=pod.selection.pin_node) if selection.pinned_by_us else selection


def merged(pod: Pod, patch: Mapping[str, Any]) -> Pod:
    """The pod after an RFC 7386 patch of labels, annotations, gates and required node affinity."""
    meta, spec = patch.get("metadata") or {}, patch.get("spec") or {}
    gates = pod.gates
    if "schedulingGates" in spec:
        gates = tuple(gate["name"] for gate in spec["schedulingGates"] or ())
        if not set(gates) <= set(pod.gates):
            raise PatchRefused("spec.schedulingGates: only removing gates is allowed")
    scheduling, pin_node = pod.scheduling, pod.selection.pin_node
    if "affinity" in spec:
        if not pod.gates:
            raise PatchRefused("spec: Forbidden: pod updates may not change affinity of a pod without scheduling gates")
        scheduling, pin_node = _affinity(pod, spec["affinity"])
    changed = replace(
        pod,
        labels=_merge(pod.labels, meta.get("labels")),
        annotations=_merge(pod.annotations, meta.get("annotations")),
        gates=gates,
        scheduling=scheduling,
        selection=replace(pod.selection, pin_node=pin_node),
    )
    return replace(changed, selection=read_selection(changed))


def _affinity(pod: Pod, affinity: Mapping[str, Any]) -> tuple[Scheduling, str]:
    required = (affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = node_terms(_view(required)) if required else None
    user, node = without_pin(terms)
    return replace(pod.scheduling, node_terms=user), node


class _View(SimpleNamespace):
    """Attribute access in snake case, as the translators expect of wire objects; absent is None."""

    def __getattr__(self, name: str) -> None:
        return None


def _view(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _View(**{_snake(key): _view(item) for key, item in value.items()})
    if isinstance(value, list):
        return [_view(item) for item in value]
    return value


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)


def _merge(old: Mapping[str, str], change: Mapping[str, str | None] | None) -> Mapping[str, str]:
    if not change:
        return old
    out = dict(old)
    for key, value in change.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = value
    return out


def as_template(pod: Pod) -> Pod:
    """What the pod's owner would create again: nothing of what schedulers, kubelets and we have written on it."""
    clean = unpinned(pod)
    pins = {key for vendor in VENDORS.values() for key in vendor.use_keys} if pod.selection.pinned_by_us else set()
    annotations = {
        key: value
        for key, value in clean.annotations.items()
        if not key.startswith((f"{GROUP}/", "hami.io/")) and key not in pins
    } | (user_lists(pod.annotations) if pins else {})
    lasting = {
        key: value
        for key, value in clean.labels.items()
        if not key.startswith(tuple(v for v in VOLATILE if v != "pod-template-hash"))
    }
    template = replace(
        clean,
        uid="",
        node="",
        booked_node="",
        bind_phase="",
        phase="Pending",
        ready=False,
        ready_since=None,
        created=None,
        deleting=False,
        deletion_deadline=None,
        gates=(),
        allocations=(),
        mig=(),
        init_done=False,
        shrunk=False,
        unschedulable="",
        revision="",
        problem="",
        labels=lasting,
        annotations=annotations or EMPTY,
        selection=replace(clean.selection, pin_uuids=None, pin_node=""),
    )
    return replace(template, selection=read_selection(template))
