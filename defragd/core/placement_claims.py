"""Pinning at admission, for API servers without scheduling gates: which place a coming pod may claim, and its pin.

The claim is a token in the placement's status, written under the revision as precondition; the pod carries the same
token. So of many creations at once one wins, a creation that is refused afterwards leaves a token that no pod carries,
and whoever comes next may take the place over. A pod whose token is no longer the placement's is nobody's pod.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from defragd.core.admission import Op, is_hami, names_of, set_map, waiting_placements
from defragd.core.model import Device, Pod, Workload
from defragd.core.placement import CLAIM, PINNED, PLACEMENT, Placement, PlacementStatus
from defragd.core.placement_holds import tag, with_holds
from defragd.core.placement_pin import NAME_FIELD, USER_UUIDS, label_value, pin_annotations
from defragd.core.snapshot import Snapshot
from defragd.core.validate import SCHEDULERS, leaving, room, target
from defragd.core.vendor import Vendor

UNSEEN_SECONDS = 0.6
"""A claim whose pod is not there so long after this replica learned of it was of a creation that was refused."""

LATE_SECONDS = 0.2
"""The replacement is created some 20 ms after the eviction; so long a cache may take to show that."""


@dataclass(frozen=True, slots=True)
class Ask:
    """``placement`` may be claimed for the pod, on ``devices``. ``wait``: not yet, but what decides it is about to
    show (the pod of an earlier claim, the deletion of the old pod) and worth so many seconds of waiting."""

    placement: Placement | None = None
    devices: tuple[Device, ...] = ()
    wait: float = 0.0


NOTHING = Ask()


def ask(
    request: Mapping[str, Any],
    placements: Collection[Placement],
    snapshot: Snapshot,
    *,
    pod: Pod | None,
    known_for: Callable[[str], float],
    vendors: Mapping[str, Vendor],
    schedulers: Collection[str] = SCHEDULERS,
    resources: Collection[str] = (),
) -> Ask:
    """What the pod that an AdmissionReview's ``request`` is about may claim now.

    ``pod``: the same as a value (None: unreadable, then nothing that needs judgement is claimed). ``known_for``:
    seconds since this replica first saw a claim's token. A dry run claims nothing.
    """
    raw = request.get("object")
    if request.get("operation", "CREATE") != "CREATE" or request.get("subResource") or not isinstance(raw, Mapping):
        return NOTHING
    meta, spec = raw.get("metadata") or {}, raw.get("spec") or {}
    if request.get("dryRun") or spec.get("nodeName") or PINNED in (meta.get("annotations") or {}):
        return NOTHING
    if spec.get("schedulerName") not in schedulers or not is_hami(spec, schedulers, resources):
        return NOTHING  # HAMi's webhook missed it: pinned it could never start
    undecided = 0.0
    alive = {token for p in snapshot.pods.values() if not p.deleting and (token := p.annotations.get(CLAIM))}
    for placement in waiting_placements(*names_of(request, meta), meta, placements):
        found = _claimable(placement, placements, snapshot, pod, alive, known_for, vendors)
        if found.placement is not None:
            return found
        undecided = max(undecided, found.wait)
    return Ask(wait=undecided)


def _claimable(
    placement: Placement,
    placements: Collection[Placement],
    snapshot: Snapshot,
    pod: Pod | None,
    alive: Collection[str],
    known_for: Callable[[str], float],
    vendors: Mapping[str, Vendor],
) -> Ask:
    claim = placement.status.claim
    if claim:
        if claim in alive:
            return NOTHING
        if known_for(claim) < UNSEEN_SECONDS:
            return Ask(wait=UNSEEN_SECONDS + 0.1)
    words = {request.vendor for request in pod.requests} if pod is not None else set()
    there = target(snapshot, placement, prefer=words)
    if not there.ok:
        return NOTHING
    if placement.spec.evict_pod:
        old = snapshot.pods.get(f"{placement.namespace}/{placement.spec.evict_pod}")
        stays = old is not None and old.uid == placement.status.evicted_uid and not old.deleting
        if placement.surges:
            stays = not raised_for(snapshot, placement)
        # a pod that comes before the eviction is some other new pod of the owner; right after it the cache may be late
        return Ask(wait=LATE_SECONDS) if stays else Ask(placement, there.devices)
    if pod is None:
        return NOTHING
    without = frozenset({pod.key, tag(placement)} | leaving(placement, placements))
    held = with_holds(snapshot, placements)
    fits = room(held, placement, pod, there.devices, vendors=vendors, without=without).ok
    return Ask(placement, there.devices) if fits else NOTHING


def deployment_of(snapshot: Snapshot, owner_uid: str) -> Workload | None:
    """The Deployment above a ReplicaSet's UID."""
    owner = snapshot.workloads.get(owner_uid)
    top = owner.top if owner is not None and owner.kind == "ReplicaSet" else None
    found = snapshot.workloads.get(top.uid) if top is not None else None
    return found if found is not None and found.kind == "Deployment" else None


def raised_for(snapshot: Snapshot, placement: Placement) -> bool:
    """The replica count is one more than it was, for this placement's surge."""
    above = deployment_of(snapshot, placement.status.owner_uid)
    return above is not None and bool(placement.uid) and above.surged_by == placement.uid


def claimed(placement: Placement, token: str, now: datetime) -> PlacementStatus:
    """The status with the claim in it."""
    return replace(placement.status, claim=token, claimed_at=now)


def holds_claim(pod: Pod, placement: Placement) -> bool:
    """The pod's pin is good for this placement: the leader's own, or that of the claim which counts."""
    token = pod.annotations.get(CLAIM)
    return token is None or token == placement.status.claim


def strayed(pod: Pod, placements: Iterable[Placement]) -> bool:
    """The pod was pinned at admission on a claim that somebody else has taken over meanwhile."""
    token = pod.annotations.get(CLAIM)
    return token is not None and not any(
        p.status.claim == token or p.status.pod_uid == pod.uid for p in placements if p.open
    )


def pin_ops(
    request: Mapping[str, Any],
    placement: Placement,
    devices: tuple[Device, ...],
    token: str,
    vendors: Mapping[str, Vendor],
) -> list[Op]:
    """The JSON patch that pins the pod as it is created; the same marks as a pin of the leader, and the token."""
    raw = request["object"]
    meta, spec = raw["metadata"], raw["spec"]
    old = meta.get("annotations") or {}
    pins = pin_annotations(devices, vendors)
    changes = {**pins, PINNED: placement.name, CLAIM: token}
    before = {key: old[key] for key in pins if str(old.get(key) or "").strip()}
    if before:
        changes[USER_UUIDS] = ";".join(f"{key}={value}" for key, value in sorted(before.items()))
    labels = {PLACEMENT: label_value(placement.name)}
    return [
        *set_map("/metadata/annotations", old, changes, "annotations" in meta),
        *set_map("/metadata/labels", meta.get("labels") or {}, labels, "labels" in meta),
        {"op": "add", "path": "/spec/affinity", "value": _tightened(spec.get("affinity") or {}, placement)},
    ]


def _tightened(affinity: Mapping[str, Any], placement: Placement) -> dict[str, Any]:
    """Every term (they are alternatives) gets the node; an empty one matches nothing and stays so."""
    kind = "requiredDuringSchedulingIgnoredDuringExecution"
    at = {"key": NAME_FIELD, "operator": "In", "values": [placement.spec.node_name]}
    node = affinity.get("nodeAffinity") or {}
    terms = (node.get(kind) or {}).get("nodeSelectorTerms") or []
    rebuilt = [
        {**term, "matchFields": [*(term.get("matchFields") or ()), at]}
        if term.get("matchExpressions") or term.get("matchFields")
        else dict(term)
        for term in terms
    ] or [{"matchFields": [at]}]
    return {**affinity, "nodeAffinity": {**node, kind: {"nodeSelectorTerms": rebuilt}}}
