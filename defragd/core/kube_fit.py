"""Would kube-scheduler's own filters let this pod onto this node? (HAMi's part is in `core.fit`.)

Follows the default plugins: unschedulable, taints, node selector and affinity, host ports, resources, volumes, topology
spread, inter-pod affinity in both directions. On purpose stricter in three points: a node that is not Ready offers
nothing, a volume of one node at a time is not shared with a pod elsewhere, and what the data cannot tell is refused as
Unjudged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from defragd.core import kube_topology as topology
from defragd.core.model import HostPort, Node, NodeTerm, Pod, Resources, Taint, Toleration, Volume
from defragd.core.reasons import Reason
from defragd.core.selectors import holds
from defragd.core.snapshot import Snapshot

UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


@dataclass(frozen=True, slots=True)
class Verdict:
    """``reason`` and ``detail`` (a sentence for people) are set when it is not ok."""

    ok: bool
    reason: Reason | None = None
    detail: str = ""


YES = Verdict(True)


def _no(reason: Reason, detail: str) -> Verdict:
    return Verdict(False, reason, detail)


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    """Whether any toleration matches: an empty effect or (with Exists) key matches every one."""
    for t in tolerations:
        if t.effect and t.effect != taint.effect:
            continue
        if t.key and t.key != taint.key:
            continue
        if t.operator == "Exists" or (t.key and t.operator in ("", "Equal") and t.value == taint.value):
            return True
    return False


def untolerated(pod: Pod, node: Node) -> Taint | None:
    """The first taint that keeps the pod away."""
    return next(
        (
            taint
            for taint in node.taints
            if taint.effect in ("NoSchedule", "NoExecute") and not tolerates(pod.scheduling.tolerations, taint)
        ),
        None,
    )


def term_holds(term: NodeTerm, node: Node) -> bool:
    """One node selector term; an empty term matches nothing, and the only field is metadata.name."""
    if not term.expressions and not term.fields:
        return False
    name = {"metadata.name": node.name}
    return all(holds(e, node.labels) for e in term.expressions) and all(
        f.operator in ("In", "NotIn") and holds(f, name) for f in term.fields
    )


def selects(pod: Pod, node: Node) -> bool:
    """Node selector and required node affinity."""
    wish = pod.scheduling
    if any(node.labels.get(key) != value for key, value in wish.node_selector.items()):
        return False
    return wish.node_terms is None or any(term_holds(term, node) for term in wish.node_terms)


def _node(pod: Pod, node: Node) -> Verdict:
    if not node.schedulable and not tolerates(pod.scheduling.tolerations, UNSCHEDULABLE):
        return _no(Reason.NODE_UNSCHEDULABLE, f"node {node.name} is cordoned")
    if not node.ready:
        return _no(Reason.NODE_NOT_READY, f"node {node.name} is not Ready")
    taint = untolerated(pod, node)
    if taint is not None:
        return _no(Reason.NODE_UNFIT, f"taint {taint.key}={taint.value}:{taint.effect} is not tolerated")
    if not selects(pod, node):
        return _no(Reason.NODE_UNFIT, f"node {node.name} does not match the pod's node selector or affinity")
    return YES


def capacity(want: Resources, have: Resources, used: Resources) -> str:
    """The first host resource that is short, in words; "" when all fit. What is not asked is not checked."""
    if used.pods + want.pods > have.pods:
        return f"pods: {used.pods} of {have.pods} there"
    for name, ask, total, taken in (
        ("cpu", want.cpu_milli, have.cpu_milli, used.cpu_milli),
        ("memory", want.memory_bytes, have.memory_bytes, used.memory_bytes),
        ("ephemeral-storage", want.ephemeral_bytes, have.ephemeral_bytes, used.ephemeral_bytes),
    ):
        if ask > 0 and taken + ask > total:
            unit = "m" if name == "cpu" else " bytes"
            return f"{name}: {ask}{unit} asked, {total - taken}{unit} free"
    for name, ask in want.extended.items():
        free = have.extended.get(name, 0) - used.extended.get(name, 0)
        if ask > 0 and ask > free:
            return f"{name}: {ask} asked, {free} free"
    return ""


def _clash(a: HostPort, b: HostPort) -> bool:
    same_ip = a.ip == b.ip or "0.0.0.0" in (a.ip, b.ip)
    return a.port == b.port and a.protocol == b.protocol and same_ip


def _ports(snapshot: Snapshot, pod: Pod, node: Node, without: frozenset[str]) -> Verdict:
    wanted = pod.scheduling.host_ports
    if not wanted:
        return YES
    for other in snapshot.pods_on.get(node.name, ()):
        if other.key in without:
            continue
        for port in other.scheduling.host_ports:
            if any(_clash(port, mine) for mine in wanted):
                return _no(Reason.NODE_UNFIT, f"host port {port.port}/{port.protocol} is taken by {other.key}")
    return YES


def _zone_fits(volume: Volume, labels: Mapping[str, str]) -> bool:
    """PV zone labels; a node without any zone label is let through, as kube-scheduler does."""
    if not any(key in labels for key in topology.ZONE_LABELS):
        return True
    for key, value in volume.zones:
        have = labels.get(key, labels.get(topology.ZONE_TWIN.get(key, "")))
        if have is None or have not in value.split("__"):
            return False
    return True


def _volumes(snapshot: Snapshot, pod: Pod, node: Node, without: frozenset[str]) -> Verdict:
    for volume in pod.scheduling.volumes:
        if not volume.known and pod.node != node.name:
            what = f"claim {volume.claim}" if volume.claim else f"{volume.kind} volume"
            return _no(Reason.UNJUDGED, f"where {what} can be used is not known")
        if not volume.claim:
            continue
        if volume.node_terms is not None and not any(term_holds(term, node) for term in volume.node_terms):
            return _no(Reason.VOLUME_BOUND, f"the volume of claim {volume.claim} cannot be used on {node.name}")
        if not _zone_fits(volume, node.labels):
            return _no(Reason.VOLUME_BOUND, f"the volume of claim {volume.claim} is in another zone")
        users = snapshot.claim_users.get(f"{pod.namespace}/{volume.claim}", ())
        others = [p for p in users if p.key not in without and p.key != pod.key]
        modes = volume.access_modes
        if "ReadWriteOncePod" in modes and others:
            return _no(Reason.VOLUME_BOUND, f"claim {volume.claim} is for one pod, and {others[0].key} uses it")
        if modes and not {"ReadWriteMany", "ReadOnlyMany"} & set(modes):
            away = next((p for p in others if (p.node or p.booked_node) != node.name), None)
            if away is not None:
                return _no(Reason.VOLUME_BOUND, f"claim {volume.claim} is in use by {away.key} on another node")
    return YES


def kube_fit(
    snapshot: Snapshot, pod: Pod, node: str, *, without: frozenset[str] = frozenset(), obey_pin: bool = False
) -> Verdict:
    """kube-scheduler's answer for ``pod`` on ``node``. ``without``: pods ("ns/name") and holds ("hold:NAME") to leave
    out; an unbound pod never counts against itself. ``obey_pin``: the node of our own pin counts."""
    here = snapshot.nodes.get(node)
    if here is None:
        return _no(Reason.NODE_UNKNOWN, f"node {node} is not known")
    if pod.scheduling.unjudged:
        return _no(Reason.UNJUDGED, f"{', '.join(pod.scheduling.unjudged)}: where they fit cannot be told")
    if obey_pin and pod.selection.pin_node and pod.selection.pin_node != node:
        return _no(Reason.NODE_UNFIT, f"the pod is pinned to {pod.selection.pin_node}")
    if not pod.node:
        without = without | {pod.key}
    verdict = _node(pod, here)
    if not verdict.ok:
        return verdict
    short = capacity(pod.scheduling.resources, here.allocatable, snapshot.load(node, without=without))
    if short:
        return _no(Reason.NODE_FULL, f"node {node}: {short}")
    for check in (_ports, _volumes):
        verdict = check(snapshot, pod, here, without)
        if not verdict.ok:
            return verdict
    detail = topology.spread_refuses(
        snapshot, pod, here, without, lambda n: selects(pod, n), lambda n: _untainted(pod, n)
    )
    detail = detail or topology.affinity_refuses(snapshot, pod, here, without)
    return _no(Reason.NODE_UNFIT, detail) if detail else YES


def _untainted(pod: Pod, node: Node) -> bool:
    return untolerated(pod, node) is None
