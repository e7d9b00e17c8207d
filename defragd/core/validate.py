"""Whether a placement may go on, judged on one fresh snapshot: the target, the pod to be moved, its owner's wishes.

Every refusal is typed. What cannot change (unknown device, bare pod, opted out) ends the placement at once; what can
(no room yet, node not Ready, a disruption budget, the node's lock) is ``temporary`` and is asked again until the time
limit of the phase. Nothing here writes, so the same function serves the first look, the look right before the
eviction, and `explain`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from defragd.core.annotations import wishes
from defragd.core.fit import fit_pod
from defragd.core.kube_fit import kube_fit
from defragd.core.model import Allocation, Device, Node, Pod, Resources
from defragd.core.pdb import Ledger
from defragd.core.placement import RUN_LABEL, Placement, Step
from defragd.core.placement_holds import tag
from defragd.core.placement_pin import unpinned
from defragd.core.reasons import Reason
from defragd.core.selectors import matches
from defragd.core.snapshot import Snapshot
from defragd.core.vendor import Vendor

SCHEDULERS = frozenset({"hami-scheduler"})
LOCK_EXPIRY = timedelta(minutes=5)
"""HAMi takes over a node lock that is older (reference section 11.3)."""
LOCK_PATIENCE = timedelta(seconds=10)
"""A younger lock is a bind in progress and no reason to wait before anything is evicted."""

TEMPORARY = frozenset(
    {
        Reason.PDB_BLOCKS,
        Reason.NODE_NOT_READY,
        Reason.NODE_UNSCHEDULABLE,
        Reason.NODE_FULL,
        Reason.NODE_LOCKED,
        Reason.NODE_LOCK_MALFORMED,
        Reason.DEVICE_FULL,
        Reason.TARGET_HELD,
        Reason.QUOTA_EXCEEDED,
        Reason.OUTSIDE_ALLOWED_HOURS,
        Reason.NOT_BOUND,
        Reason.IN_USE_OUTSIDE_HAMI,
        Reason.NO_PLACE,
        Reason.WAITING_FOR_GROUP,
        Reason.WEBHOOK_NOT_SEEN,
        Reason.STALE_DATA,
    }
)


@dataclass(frozen=True, slots=True)
class Validation:
    """The answer. Filled in when ok: ``devices`` (UUIDs in the order asked for), ``allocations`` and ``resources`` to
    be held, and the pod to evict."""

    ok: bool
    reason: Reason | None = None
    detail: str = ""
    temporary: bool = False
    devices: tuple[Device, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    resources: Resources | None = None
    pod: Pod | None = None


def no(reason: Reason, detail: str) -> Validation:
    return Validation(False, reason, detail, temporary=reason in TEMPORARY)


def validate(
    snapshot: Snapshot,
    placement: Placement,
    *,
    vendors: Mapping[str, Vendor],
    now: datetime,
    ledger: Callable[[], Ledger] | None = None,
    others: Iterable[Placement] = (),
    schedulers: Collection[str] = SCHEDULERS,
) -> Validation:
    """All of the rule "validate, then evict". ``snapshot.holds`` must hold every open placement's promise (the own one
    is left out here); ``others`` are all placements known, for groups and for two that would evict one pod.
    ``ledger`` None: budgets of the snapshot as they are."""
    spec = placement.spec
    found = target(snapshot, placement, prefer=_vendors_of(snapshot, placement))
    if not found.ok:
        return found
    if not spec.evict_pod:
        return found
    pod = snapshot.pods.get(f"{placement.namespace}/{spec.evict_pod}")
    refusal = evictable(snapshot, placement, pod, now, vendors=vendors, others=others, schedulers=schedulers)
    if refusal is not None:
        return refusal
    assert pod is not None
    uuids = tuple(device.uuid for device in found.devices)
    if pod.node == spec.node_name and set(pod.devices) == set(uuids):
        return no(Reason.NO_GAIN, f"{pod.key} is on {spec.node_name} {', '.join(uuids)} already")
    # make before break: the old pod is still there when the new one starts
    stays = set() if placement.surges else {pod.key}
    without = frozenset(stays | {tag(placement)} | leaving(placement, others))
    fit = room(snapshot, placement, unpinned(pod), found.devices, vendors=vendors, without=without)
    if not fit.ok:
        return fit
    if placement.surges:
        return Validation(True, None, "", False, found.devices, fit.allocations, pod.scheduling.resources, pod)
    permit = (ledger() if ledger is not None else Ledger.of(snapshot)).may_evict(pod)
    if not permit.ok:
        return no(permit.reason or Reason.PDB_BLOCKS, permit.detail)
    return Validation(True, None, "", False, found.devices, fit.allocations, pod.scheduling.resources, pod)


def _vendors_of(snapshot: Snapshot, placement: Placement) -> tuple[str, ...]:
    pod = snapshot.pods.get(f"{placement.namespace}/{placement.spec.evict_pod}")
    return tuple(dict.fromkeys(request.vendor for request in pod.requests)) if pod else ()


def leaving(placement: Placement, others: Iterable[Placement]) -> set[str]:
    """Keys of pods that leave together with this placement's (its group)."""
    if not placement.spec.group:
        return set()
    return {f"{mate.namespace}/{mate.spec.evict_pod}" for mate in mates(placement, others) if mate.spec.evict_pod}


def mates(placement: Placement, others: Iterable[Placement]) -> list[Placement]:
    """The other placements of the group (same run, where one is named), ended ones too."""
    run = placement.labels.get(RUN_LABEL, "")
    return [
        other
        for other in others
        if other.spec.group == placement.spec.group
        and other.spec.group
        and other.key != placement.key
        and other.labels.get(RUN_LABEL, "") == run
    ]


# -- the target -----------------------------------------------------------------------------------------------------


def target(snapshot: Snapshot, placement: Placement, *, prefer: Collection[str] = ()) -> Validation:
    """The node and the devices by themselves: there, Ready, healthy, not cordoned, no device twice."""
    spec = placement.spec
    node = snapshot.nodes.get(spec.node_name)
    if node is None:
        return no(Reason.NODE_UNKNOWN, f"there is no node {spec.node_name}")
    if not node.ready:
        return no(Reason.NODE_NOT_READY, f"node {node.name} is not Ready")
    if not node.schedulable:
        return no(Reason.NODE_UNSCHEDULABLE, f"node {node.name} is cordoned")
    devices: list[Device] = []
    for wanted in promised(placement) or spec.gpu_devices:
        device = resolve(node, wanted, prefer)
        if device is None:
            return no(Reason.DEVICE_UNKNOWN, _unknown(snapshot, node, wanted))
        if any(device.uuid == other.uuid for other in devices):
            return no(Reason.DUPLICATE_DEVICE, f"{wanted} is {device.uuid}, which is listed already")
        devices.append(device)
    for device in devices:
        if not device.healthy or not device.registered:
            what = "is unhealthy" if not device.healthy else "is not known to HAMi any more"
            return no(Reason.DEVICE_UNHEALTHY, f"{device.uuid} on {node.name} {what}")
        if device.cordoned:
            return no(Reason.DEVICE_CORDONED, f"{device.uuid} on {node.name} is cordoned")
        if device.distrusted:
            return no(Reason.DEVICE_DISTRUSTED, f"{device.uuid} on {node.name}: {device.distrusted}")
    return Validation(True, devices=tuple(devices))


def promised(placement: Placement) -> tuple[str, ...]:
    """UUIDs that were proven for this pod. An index may mean another device by now (one was replaced), which nobody has
    proven or holds; without a pod to evict the vendor, and so the device, is settled by the pod that comes."""
    status = placement.status
    settled = bool(placement.spec.evict_pod) or status.step is Step.PINNED
    return status.devices if settled and status.step is not Step.NEW else ()


def resolve(node: Node, wanted: str, prefer: Collection[str] = ()) -> Device | None:
    """A device of the node by UUID or as ``gpu-<index>``. Nodes with several vendors have an index twice; then the
    vendor that the pod asks for decides."""
    for device in node.devices:
        if device.uuid == wanted:
            return device
    index = wanted.removeprefix("gpu-")
    if index == wanted or not index.isdecimal():
        return None
    same = [device for device in node.devices if device.index == int(index)]
    return next((device for device in same if device.vendor in prefer), same[0] if same else None)


def _unknown(snapshot: Snapshot, node: Node, wanted: str) -> str:
    elsewhere = snapshot.devices.get(wanted)
    if elsewhere is not None:
        return f"{wanted} is a device of node {elsewhere.node}, not of {node.name}"
    have = ", ".join(f"gpu-{device.index} = {device.uuid}" for device in node.devices[:8]) or "none"
    return f"node {node.name} has no device {wanted} (it registers: {have})"


def lock_in_the_way(snapshot: Snapshot, node: Node, now: datetime, *, mine: str = "") -> Validation | None:
    """HAMi's lock on the node, when a bind would fail on it. A lock that names a missing pod, is older than five
    minutes or is held by ``mine`` is taken over by HAMi at once; a malformed one stays until a person removes it."""
    lock = node.lock
    if lock is None:
        return None
    if lock.since is None:
        return no(
            Reason.NODE_LOCK_MALFORMED,
            f"HAMi's lock on node {node.name} is malformed ({lock.raw[:80]!r}); no pod can be bound there until the "
            "annotation hami.io/mutex.lock is removed by hand",
        )
    if now - lock.since >= LOCK_EXPIRY or not lock.holder or lock.holder == mine:
        return None
    if lock.holder not in snapshot.pods:
        return None
    return no(Reason.NODE_LOCKED, f"HAMi is binding {lock.holder} on node {node.name} since {lock.since:%H:%M:%S}")


# -- the pod --------------------------------------------------------------------------------------------------------


def evictable(
    snapshot: Snapshot,
    placement: Placement,
    pod: Pod | None,
    now: datetime,
    *,
    vendors: Mapping[str, Vendor],
    others: Iterable[Placement] = (),
    schedulers: Collection[str] = SCHEDULERS,
) -> Validation | None:
    """Why the pod must not be evicted for this placement; None = it may, budgets aside."""
    spec = placement.spec
    name = f"{placement.namespace}/{spec.evict_pod}"
    if pod is None:
        return no(Reason.POD_UNKNOWN, f"there is no pod {name}")
    wanted = placement.status.evicted_uid or spec.evict_pod_uid
    if wanted and pod.uid != wanted:
        return no(Reason.POD_CHANGED, f"{name} is another pod now (UID {pod.uid}, expected {wanted})")
    if not matches(spec.pod_selector, pod.labels):
        return no(Reason.SELECTOR_MISMATCH, f"podSelector does not select {name}, so it would not select a replacement")
    refusal = _is_ours(pod, vendors, schedulers) or _is_recreated(snapshot, placement, pod)
    if refusal is not None:
        return refusal
    for other in others:
        if (
            other.open
            and other.key != placement.key
            and other.namespace == placement.namespace
            and other.status.evicted_uid == pod.uid
        ):
            return no(Reason.ALREADY_MOVING, f"placement {other.key} moves {name} already")
    return _is_allowed(snapshot, placement, pod, now)


def _is_ours(pod: Pod, vendors: Mapping[str, Vendor], schedulers: Collection[str]) -> Validation | None:
    """The pod is alive on devices that HAMi counts and that can be pinned."""
    if not pod.live:
        return no(Reason.FINISHED, f"{pod.key} has ended ({pod.phase})")
    if pod.deleting:
        return no(Reason.TERMINATING, f"{pod.key} is being deleted already")
    if pod.scheduler not in schedulers:
        return no(Reason.NOT_HAMI_SCHEDULER, f"{pod.key} uses the scheduler {pod.scheduler or 'default-scheduler'}")
    if pod.problem:
        return no(Reason.UNREADABLE_ALLOCATION, f"{pod.key}: {pod.problem}")
    if not pod.requests:
        return no(Reason.NOT_HAMI, f"{pod.key} asks for no device")
    if not pod.node:
        return no(Reason.NOT_BOUND, f"{pod.key} is not bound to a node yet")
    if pod.mig:
        return no(Reason.MIG_FIXED, f"{pod.key} holds MIG instances, whose place cannot be chosen")
    for word in dict.fromkeys(request.vendor for request in pod.requests):
        if word not in vendors or not vendors[word].pinnable or not vendors[word].use_keys:
            return no(Reason.VENDOR_NOT_PINNABLE, f"{pod.key}: devices of {word} cannot be chosen by UUID")
    return None


def _is_recreated(snapshot: Snapshot, placement: Placement, pod: Pod) -> Validation | None:
    """A controller makes a new pod, and its new pod may run elsewhere."""
    owner = pod.owner
    if owner is None:
        return no(Reason.NOT_RECREATED, f"{pod.key} has no controller, so nothing would create it again")
    if owner.kind == "Node":
        return no(Reason.STATIC_POD, f"{pod.key} is a static pod of its node")
    if owner.kind == "DaemonSet":
        return no(Reason.DAEMONSET_POD, f"{pod.key} belongs to a DaemonSet and would come back on its node")
    workload = snapshot.workload_of(pod)
    if workload is not None:
        if workload.deleting:
            return no(Reason.NOT_RECREATED, f"{workload.key} is being deleted")
        if workload.kind != "Job" and workload.replicas == 0:
            return no(Reason.NOT_RECREATED, f"{workload.key} wants no pods")
        if workload.kind == "Job" and workload.paused:
            return no(Reason.NOT_RECREATED, f"{workload.key} is suspended")
    return None


def _is_allowed(snapshot: Snapshot, placement: Placement, pod: Pod, now: datetime) -> Validation | None:
    """What the owners of the pod say. A placement made by a person is bound by opt-outs, not by a policy's limits."""
    said = wishes(snapshot, pod, now)
    if said.broken:
        return no(Reason.MALFORMED_ANNOTATION, f"{said.broken[0].where}: {said.broken[0].detail}")
    if said.do_not_move:
        until = f" until {said.until:%Y-%m-%dT%H:%M:%SZ}" if said.until else ""
        return no(Reason.OPTED_OUT, f"{said.opted_out_by} says that {pod.key} must not be moved{until}")
    planned = RUN_LABEL in placement.labels
    if planned and (doubt := snapshot.doubt_about(pod)):
        return no(Reason.DEVICE_DISTRUSTED, doubt)
    if planned and said.hours is not None and not said.hours.contains(now):
        return no(Reason.OUTSIDE_ALLOWED_HOURS, f"{pod.key} may move at {said.hours.text} only")
    if not planned and pod.owner is not None and pod.owner.kind == "Job" and not said.allow:
        return no(
            Reason.OWNER_EXCLUDED,
            f"{pod.key} belongs to a Job, whose backoffLimit counts evictions; annotate it with defragd.io/move: allow "
            "if that is meant",
        )
    return None


# -- room -----------------------------------------------------------------------------------------------------------


def room(
    snapshot: Snapshot,
    placement: Placement,
    pod: Pod,
    devices: tuple[Device, ...],
    *,
    vendors: Mapping[str, Vendor],
    without: frozenset[str],
) -> Validation:
    """Whether ``pod`` can be scheduled on the target node (kube-scheduler's rules) and gets exactly ``devices``
    (HAMi's rules), everything bound, booked and held counted but ``without``."""
    name = placement.spec.node_name
    verdict = kube_fit(snapshot, pod, name, without=without)
    if not verdict.ok:
        return no(verdict.reason or Reason.NODE_UNFIT, f"{pod.key} cannot run on {name}: {verdict.detail}")
    uuids = tuple(device.uuid for device in devices)
    fit = fit_pod(snapshot, pod, name, vendors=vendors, devices=uuids, without=without)
    if not fit.ok:
        return no(fit.reason or Reason.DEVICE_FULL, f"{pod.key} does not fit on {', '.join(uuids)}: {fit.text}")
    used = {allocation.uuid for allocation in fit.allocations}
    if used != set(uuids):
        return no(
            Reason.DEVICE_COUNT,
            f"{pod.key} takes {len(used)} of the {len(uuids)} devices named; name exactly as many as it asks for",
        )
    return Validation(True, devices=devices, allocations=fit.allocations, resources=pod.scheduling.resources, pod=pod)
