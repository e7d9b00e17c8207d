"""May this pod be moved at all, and if not, why: one main reason per pod, the same for plan, engine and explanations.

Three classes of refusal: ``never`` (nothing changes by waiting), ``notNow`` (``until`` says when, where that is known)
and, from the search itself, no place. Reasons that never change are looked for first, so that a pod shows the reason
that its owner has to do something about. Disruption budgets are arithmetic over a whole plan and live in `core.pdb`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from defragd.core.annotations import unread, wishes
from defragd.core.eligibility_checks import CHECKS, MOVABLE, NEVER, NOT_NOW, Case, Eligibility
from defragd.core.model import EMPTY, Pod
from defragd.core.plan import Refusal
from defragd.core.reasons import Reason
from defragd.core.rules import Rules
from defragd.core.snapshot import Snapshot
from defragd.core.vendor import Vendor
from defragd.core.workloads import replicas_of, workload_key

__all__ = ["MOVABLE", "NEVER", "NOT_NOW", "Eligibility", "eligible", "replicas_of", "warnings", "workload_key"]

_LATEST = datetime(9998, 1, 1, tzinfo=UTC)


def eligible(
    snapshot: Snapshot,
    pod: Pod,
    rules: Rules,
    now: datetime,
    *,
    drain: bool = False,
    history: Mapping[str, int] | None = None,
    last_moved: Mapping[str, datetime] | None = None,
    arrivals: Mapping[str, datetime] | None = None,
    vendors: Mapping[str, Vendor] | None = None,
    whole_gangs: bool = False,
) -> Eligibility:
    """Whether the policy's rules and the owner's wishes let ``pod`` be moved at ``now``.

    ``drain``: the strategy empties a place, so pods that are not Ready may go and cooldown does not count.
    ``history``: moves of the last 24 h per `workload_key`; ``last_moved``: end of the latest move, for the cooldown;
    ``arrivals``: when a moved pod last came to a node, for the rest of nodes.
    ``whole_gangs``: the caller moves all members of a gang together (see `core.gangs`); without that promise members
    of gangs are refused unless the rules let them go one by one.
    """
    if now > _LATEST:
        # "The end of time" stands for "unknown" with some callers; local time must still exist for it.
        now = _LATEST
    owner = snapshot.workload_of(pod)
    top = snapshot.workloads.get(owner.top.uid) if owner and owner.top else None
    case = Case(
        snapshot,
        pod,
        rules,
        now,
        drain,
        wishes(snapshot, pod, now),
        owner,
        top or owner,
        history or EMPTY,
        last_moved or EMPTY,
        vendors or EMPTY,
        whole_gangs,
        arrivals or EMPTY,
    )
    for check in CHECKS:
        found = check(case)
        if found is not None:
            return found
    return MOVABLE


def warnings(snapshot: Snapshot) -> list[Refusal]:
    """Annotations of ours that cannot be read, one entry per object and annotation, in a stable order."""
    found = [broken for pod in snapshot.pods.values() if pod.annotations for broken in unread(pod.key, pod.annotations)]
    for workload in snapshot.workloads.values():
        if workload.annotations:
            found += unread(f"{workload.kind}/{workload.namespace}/{workload.name}", workload.annotations)
    for namespace, said in snapshot.namespace_annotations.items():
        found += unread(f"Namespace/{namespace}", said)
    for node in snapshot.nodes.values():
        if node.annotations:
            found += unread(f"Node/{node.name}", node.annotations)
    return [
        Refusal(broken.where, Reason.MALFORMED_ANNOTATION, broken.detail)
        for broken in sorted(found, key=lambda b: (b.where, b.detail))
    ]
