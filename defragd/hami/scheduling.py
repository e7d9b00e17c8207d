"""What kube-scheduler looks at, from a pod's spec. Replicas of one template share one frozen `Scheduling`.

The shared value is found by the parts of the spec that go into it, so two pods with equal parts get the same object;
that also keeps the translation of 20,000 pods well under a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from defragd.core.model import (
    EMPTY,
    Expression,
    HostPort,
    NodeTerm,
    PodTerm,
    Resources,
    Scheduling,
    Selector,
    Spread,
    Toleration,
    Volume,
)
from defragd.hami.quantity import milli, units

_MEMO: dict[Any, Scheduling] = {}
_MEMO_SIZE = 16384
_NO_VOLUMES: tuple[Volume, ...] = ()
_HARMLESS = ("projected", "config_map", "secret", "downward_api")


def expressions(items: Iterable[Any] | None) -> tuple[Expression, ...]:
    """Requirements of a selector or a node selector term."""
    return tuple(Expression(e.key, e.operator, tuple(e.values or ())) for e in items or ())


def selector(obj: Any) -> Selector | None:
    """A label selector; None stays None (it selects nothing)."""
    if obj is None:
        return None
    equal = tuple(Expression(k, "In", (v,)) for k, v in sorted((obj.match_labels or {}).items()))
    return Selector(equal + expressions(obj.match_expressions))


def node_terms(required: Any) -> tuple[NodeTerm, ...] | None:
    """Terms of a required node affinity, None where there is none."""
    if required is None:
        return None
    return tuple(
        NodeTerm(expressions(t.match_expressions), expressions(t.match_fields))
        for t in required.node_selector_terms or ()
    )


def without_pin(terms: tuple[NodeTerm, ...] | None) -> tuple[tuple[NodeTerm, ...] | None, str]:
    """The user's own terms and the node that our pin names: the one metadata.name requirement that every term has."""
    if not terms:
        return terms, ""
    names = [
        {f.values[0] for f in t.fields if f.key == "metadata.name" and f.operator == "In" and len(f.values) == 1}
        for t in terms
    ]
    common = set.intersection(*names)
    if len(common) != 1:
        return terms, ""
    node = next(iter(common))
    ours = Expression("metadata.name", "In", (node,))
    left = tuple(NodeTerm(t.expressions, tuple(f for f in t.fields if f != ours)) for t in terms)
    if any(not t.expressions and not t.fields for t in left):
        return None, node
    return left, node


def _more(
    base: Selector | None, keys: Iterable[str] | None, labels: Mapping[str, str], operator: str
) -> Selector | None:
    """``matchLabelKeys``: the pod's own values of these labels, unless the selector names them already."""
    if base is None or not keys:
        return base
    extra = tuple(Expression(k, operator, (labels[k],)) for k in keys if k in labels)
    return Selector(base.expressions + tuple(e for e in extra if e not in base.expressions))


def _pod_terms(block: Any, labels: Mapping[str, str]) -> tuple[PodTerm, ...]:
    if block is None:
        return ()
    terms = []
    for term in block.required_during_scheduling_ignored_during_execution or ():
        base = _more(selector(term.label_selector), term.match_label_keys, labels, "In")
        terms.append(
            PodTerm(
                topology_key=term.topology_key,
                selector=_more(base, term.mismatch_label_keys, labels, "NotIn"),
                namespaces=tuple(sorted(term.namespaces or ())),
                namespace_selector=selector(term.namespace_selector),
            )
        )
    return tuple(terms)


def _spreads(items: Iterable[Any] | None, labels: Mapping[str, str]) -> tuple[Spread, ...]:
    return tuple(
        Spread(
            topology_key=c.topology_key,
            max_skew=c.max_skew,
            selector=_more(selector(c.label_selector), c.match_label_keys, labels, "In"),
            min_domains=c.min_domains,
            honor_affinity=c.node_affinity_policy != "Ignore",
            honor_taints=c.node_taints_policy == "Honor",
        )
        for c in items or ()
        if c.when_unsatisfiable == "DoNotSchedule"
    )


def _amounts(container: Any) -> Mapping[str, Any]:
    """Requests of a container; a limit without request counts as its request (the API server fills it in so)."""
    res = container.resources
    if res is None:
        return EMPTY
    limits: Mapping[str, Any] = res.limits or EMPTY
    requests: Mapping[str, Any] = res.requests or EMPTY
    if not limits:
        return requests
    if not requests:
        return limits
    return {**limits, **requests}


def _number(name: str, value: Any) -> int:
    return milli(value) if name == "cpu" else units(value)


def pod_resources(spec: Any, managed: frozenset[str]) -> Resources:
    """Effective requests as kube-scheduler adds them: the larger of the sum of the app containers (and sidecars) and
    the largest init step, plus overhead; pod-level requests replace cpu and memory. HAMi's resources are left out."""
    total: dict[str, int] = {}
    for container in spec.containers:
        for name, value in _amounts(container).items():
            total[name] = total.get(name, 0) + _number(name, value)
    if spec.init_containers:
        running: dict[str, int] = {}
        peak: dict[str, int] = {}
        for container in spec.init_containers:
            need = {name: _number(name, value) for name, value in _amounts(container).items()}
            sidecar = container.restart_policy == "Always"
            for name in {*need, *running}:
                step = need.get(name, 0) + running.get(name, 0)
                peak[name] = max(peak.get(name, 0), step)
                if sidecar:
                    running[name] = step
        for name in {*total, *running, *peak}:
            total[name] = max(total.get(name, 0) + running.get(name, 0), peak.get(name, 0))
    if spec.resources is not None:
        for name, value in _amounts(spec).items():
            total[name] = _number(name, value)
    for name, value in (spec.overhead or {}).items():
        total[name] = total.get(name, 0) + _number(name, value)
    extended = {
        name: count
        for name, count in total.items()
        if count and name not in ("cpu", "memory", "ephemeral-storage") and name not in managed
    }
    return Resources(
        cpu_milli=total.get("cpu", 0),
        memory_bytes=total.get("memory", 0),
        pods=1,
        ephemeral_bytes=total.get("ephemeral-storage", 0),
        extended=extended or EMPTY,
    )


def node_resources(amounts: Mapping[str, Any] | None, managed: frozenset[str]) -> Resources:
    """A node's allocatable."""
    amounts = amounts or {}
    return Resources(
        cpu_milli=milli(amounts.get("cpu")),
        memory_bytes=units(amounts.get("memory")),
        pods=units(amounts.get("pods")),
        ephemeral_bytes=units(amounts.get("ephemeral-storage")),
        extended={
            name: units(value)
            for name, value in amounts.items()
            if name not in ("cpu", "memory", "pods", "ephemeral-storage") and name not in managed
        }
        or EMPTY,
    )


def _volumes(namespace: str, spec: Any, claims: Mapping[str, Volume] | None) -> tuple[Volume, ...]:
    found = []
    for volume in spec.volumes or ():
        if volume.persistent_volume_claim is not None:
            name = volume.persistent_volume_claim.claim_name
            known = claims.get(f"{namespace}/{name}") if claims is not None else None
            found.append(known or Volume(kind="claim", claim=name, known=False))
        elif volume.empty_dir is not None:
            if getattr(volume.empty_dir, "medium", "") == "Memory":
                continue  # /dev/shm of nearly every device pod: no data that would outlive the process
            found.append(Volume(kind="emptyDir"))
        elif volume.host_path is not None:
            found.append(Volume(kind="hostPath"))
        elif volume.ephemeral is not None:
            found.append(Volume(kind="ephemeral", known=False))
        elif any(getattr(volume, kind) is not None for kind in _HARMLESS):
            continue
        else:
            found.append(Volume(kind="csi" if volume.csi is not None else "other"))
    return tuple(dict.fromkeys(found)) if found else _NO_VOLUMES


def _container_key(container: Any) -> tuple[Any, ...]:
    res = container.resources
    limits = tuple(res.limits.items()) if res and res.limits else ()
    requests = tuple(res.requests.items()) if res and res.requests else ()
    ports = tuple((p.host_port, p.protocol, p.host_ip) for p in container.ports or () if p.host_port)
    return limits, requests, ports, container.restart_policy


def _claims_asked(spec: Any) -> bool:
    containers = (*spec.containers, *(spec.init_containers or ()))
    return bool(spec.resource_claims) or any(c.resources is not None and c.resources.claims for c in containers)


def scheduling_of(
    obj: Any, managed: frozenset[str], *, pinned: bool, claims: Mapping[str, Volume] | None
) -> tuple[Scheduling, str]:
    """(the shared Scheduling of the pod, the node that our own pin names or "")."""
    spec, labels = obj.spec, obj.metadata.labels or EMPTY
    volumes = _volumes(obj.metadata.namespace, spec, claims) if spec.volumes else _NO_VOLUMES
    special = spec.affinity is not None or bool(spec.topology_spread_constraints)
    key = (
        tuple(map(_container_key, spec.containers)),
        tuple(map(_container_key, spec.init_containers)) if spec.init_containers else (),
        tuple(spec.node_selector.items()) if spec.node_selector else (),
        repr(spec.tolerations) if spec.tolerations else "",
        repr((spec.affinity, spec.topology_spread_constraints)) if special else "",
        _label_values(spec, labels) if special else (),
        repr((spec.overhead, spec.resources)) if spec.overhead or spec.resources else "",
        volumes,
        pinned,
        _claims_asked(spec),
        spec.host_network,
        managed,
    )
    found = _MEMO.get(key)
    if found is None:
        if len(_MEMO) >= _MEMO_SIZE:
            _MEMO.clear()
        found = _MEMO[key] = _build(spec, labels, volumes, managed, pinned)
    if not pinned or spec.affinity is None or spec.affinity.node_affinity is None:
        return found, ""
    required = spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    return found, without_pin(node_terms(required))[1]


def _label_values(spec: Any, labels: Mapping[str, str]) -> tuple[Any, ...]:
    """Values of the labels that matchLabelKeys and mismatchLabelKeys name."""
    keys: list[str] = []
    for constraint in spec.topology_spread_constraints or ():
        keys += constraint.match_label_keys or ()
    if spec.affinity is not None:
        for block in (spec.affinity.pod_affinity, spec.affinity.pod_anti_affinity):
            for term in (block.required_during_scheduling_ignored_during_execution or ()) if block else ():
                keys += [*(term.match_label_keys or ()), *(term.mismatch_label_keys or ())]
    return tuple((k, labels.get(k)) for k in keys)


def _build(
    spec: Any, labels: Mapping[str, str], volumes: tuple[Volume, ...], managed: frozenset[str], pinned: bool
) -> Scheduling:
    affinity = spec.affinity
    node = affinity.node_affinity if affinity else None
    terms = node_terms(node.required_during_scheduling_ignored_during_execution) if node else None
    if pinned:
        terms = without_pin(terms)[0]
    ports = [p for c in (*spec.containers, *(spec.init_containers or ())) for p in c.ports or () if p.host_port]
    return Scheduling(
        node_selector=dict(spec.node_selector) if spec.node_selector else EMPTY,
        node_terms=terms,
        tolerations=tuple(Toleration(t.key, t.operator or "Equal", t.value, t.effect) for t in spec.tolerations or ()),
        affinity=_pod_terms(affinity.pod_affinity, labels) if affinity else (),
        anti_affinity=_pod_terms(affinity.pod_anti_affinity, labels) if affinity else (),
        spread=_spreads(spec.topology_spread_constraints, labels),
        host_ports=tuple(
            dict.fromkeys(HostPort(p.host_port, p.protocol or "TCP", p.host_ip or "0.0.0.0") for p in ports)
        ),
        volumes=volumes,
        resources=pod_resources(spec, managed),
        unjudged=("resource claims",) if _claims_asked(spec) else (),
    )


def claim_table(pvcs: Iterable[Any], pvs: Iterable[Any]) -> dict[str, Volume]:
    """Claims by "namespace/name" with what limits where they can be used; unbound claims are not known."""
    volumes = {pv.metadata.name: pv for pv in pvs}
    table = {}
    for pvc in pvcs:
        pv = volumes.get(pvc.spec.volume_name) if pvc.spec.volume_name else None
        labels = (pv.metadata.labels or {}) if pv else {}
        affinity = pv.spec.node_affinity if pv else None
        table[f"{pvc.metadata.namespace}/{pvc.metadata.name}"] = Volume(
            kind="claim",
            claim=pvc.metadata.name,
            known=pv is not None,
            access_modes=tuple(pvc.spec.access_modes or (pv.spec.access_modes if pv else None) or ()),
            node_terms=node_terms(affinity.required) if affinity else None,
            zones=tuple((k, labels[k]) for k in _ZONE_LABELS if k in labels),
        )
    return table


_ZONE_LABELS = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)
