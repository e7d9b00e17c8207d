"""Topology spread and inter-pod affinity, as kube-scheduler's filters judge them.

Counts per topology domain depend on the snapshot, not on the node asked for, so they are kept in the snapshot's memo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from defragd.core.model import Node, Pod, PodTerm
from defragd.core.selectors import matches
from defragd.core.snapshot import Snapshot

ZONE_TWIN = {
    "topology.kubernetes.io/zone": "failure-domain.beta.kubernetes.io/zone",
    "topology.kubernetes.io/region": "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
ZONE_LABELS = tuple(ZONE_TWIN)

Domain = tuple[str, str]
"""(topology key, value)."""


# -- spread -----------------------------------------------------------------------------------------------------------


def _spread_counts(
    snapshot: Snapshot,
    pod: Pod,
    without: frozenset[str],
    selects: Callable[[Node], bool],
    untainted: Callable[[Node], bool],
) -> list[dict[str, int]]:
    """Per constraint: matching pods by domain value, over the nodes that count for it (0 where there is none)."""
    key = ("spread", pod.namespace, id(pod.scheduling), without)
    found = snapshot.memo.get(key)
    if found is not None and isinstance(found, tuple) and found[0] is pod.scheduling:
        return found[1]  # type: ignore[no-any-return]
    constraints = pod.scheduling.spread
    keys = [c.topology_key for c in constraints]
    counts: list[dict[str, int]] = [{} for _ in constraints]
    counting: list[set[str]] = [set() for _ in constraints]
    for node in snapshot.nodes.values():
        if any(k not in node.labels for k in keys):
            continue
        for place, constraint in enumerate(constraints):
            if constraint.honor_affinity and not selects(node):
                continue
            if constraint.honor_taints and not untainted(node):
                continue
            counting[place].add(node.name)
            counts[place].setdefault(node.labels[constraint.topology_key], 0)
    for other in snapshot.bound_in.get(pod.namespace, ()):
        if other.key in without or other.deleting:
            continue
        for place, constraint in enumerate(constraints):
            if other.node in counting[place] and matches(constraint.selector, other.labels):
                counts[place][snapshot.nodes[other.node].labels[constraint.topology_key]] += 1
    snapshot.memo[key] = (pod.scheduling, counts)
    return counts


def spread_refuses(
    snapshot: Snapshot,
    pod: Pod,
    node: Node,
    without: frozenset[str],
    selects: Callable[[Node], bool],
    untainted: Callable[[Node], bool],
) -> str:
    """Why a spread constraint refuses the node, "" when none does."""
    if not pod.scheduling.spread:
        return ""
    counts = _spread_counts(snapshot, pod, without, selects, untainted)
    for constraint, by_domain in zip(pod.scheduling.spread, counts, strict=True):
        domain = node.labels.get(constraint.topology_key)
        if domain is None:
            return f"node {node.name} has no label {constraint.topology_key}, which the pod's topology spread needs"
        lowest = min(by_domain.values(), default=0)
        if constraint.min_domains is not None and len(by_domain) < constraint.min_domains:
            lowest = 0
        own = 1 if matches(constraint.selector, pod.labels) else 0
        skew = by_domain.get(domain, 0) + own - lowest
        if skew > constraint.max_skew:
            return (
                f"topology spread over {constraint.topology_key}: skew would be {skew}, {constraint.max_skew} allowed"
            )
    return ""


# -- inter-pod affinity -----------------------------------------------------------------------------------------------


def _in_namespace(snapshot: Snapshot, term: PodTerm, owner: Pod, namespace: str, unknown: bool) -> bool:
    """Whether the term of ``owner`` looks at ``namespace``; ``unknown`` where the namespace's labels decide and are not
    known."""
    if namespace in term.namespaces:
        return True
    if term.namespace_selector is None:
        return not term.namespaces and namespace == owner.namespace
    if not term.namespace_selector.expressions:
        return True
    labels = snapshot.namespace_labels.get(namespace)
    return unknown if labels is None else matches(term.namespace_selector, labels)


def _hits(snapshot: Snapshot, term: PodTerm, owner: Pod, target: Pod, unknown: bool) -> bool:
    return _in_namespace(snapshot, term, owner, target.namespace, unknown) and matches(term.selector, target.labels)


def _domain(snapshot: Snapshot, term: PodTerm, node: str) -> Domain | None:
    known = snapshot.nodes.get(node)
    value = known.labels.get(term.topology_key) if known else None
    return None if value is None else (term.topology_key, value)


def _others(snapshot: Snapshot, without: frozenset[str], terms: Iterable[PodTerm], pod: Pod) -> Iterable[Pod]:
    """Bound pods the terms can look at."""
    own = all(not t.namespaces and t.namespace_selector is None for t in terms)
    groups = [snapshot.bound_in.get(pod.namespace, ())] if own else list(snapshot.bound_in.values())
    return (p for group in groups for p in group if p.key not in without)


def affinity_refuses(snapshot: Snapshot, pod: Pod, node: Node, without: frozenset[str]) -> str:
    """Why inter-pod (anti-)affinity, the pod's own or that of pods there, refuses the node; "" when none does."""
    for other in snapshot.anti_affine:
        if other.key in without or (other.key == pod.key and not pod.node):
            continue
        for term in other.scheduling.anti_affinity:
            domain = _domain(snapshot, term, other.node)
            if (
                domain is not None
                and node.labels.get(domain[0]) == domain[1]
                and _hits(snapshot, term, other, pod, unknown=True)
            ):
                return f"{other.key} keeps such pods away from its {term.topology_key}"
    for term in pod.scheduling.anti_affinity:
        mine = node.labels.get(term.topology_key)
        if mine is None:
            continue
        for other in _others(snapshot, without, (term,), pod):
            if _domain(snapshot, term, other.node) == (term.topology_key, mine) and _hits(
                snapshot, term, pod, other, unknown=True
            ):
                return f"the pod's anti-affinity refuses the {term.topology_key} of {other.key}"
    return _attraction(snapshot, pod, node, without)


def _attraction(snapshot: Snapshot, pod: Pod, node: Node, without: frozenset[str]) -> str:
    """Required affinity: pods that match all terms, in the node's domain for every term. The first pod of a group that
    refers to itself is let through where no such pod exists anywhere."""
    terms = pod.scheduling.affinity
    if not terms:
        return ""
    if any(term.topology_key not in node.labels for term in terms):
        return f"node {node.name} lacks a label that the pod's affinity needs"
    found: set[Domain] = set()
    for other in _others(snapshot, without, terms, pod):
        if all(_hits(snapshot, term, pod, other, unknown=False) for term in terms):
            found |= {d for term in terms if (d := _domain(snapshot, term, other.node)) is not None}
    if all((term.topology_key, node.labels[term.topology_key]) in found for term in terms):
        return ""
    if not found and all(_hits(snapshot, term, pod, pod, unknown=False) for term in terms):
        return ""
    return "the pod's affinity asks for other pods that are not there"
