"""The single checks behind `core.eligibility`, by who wins: first what never changes, then what time changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from defragd.core.annotations import Wishes
from defragd.core.duration import format_duration
from defragd.core.gangs import gang_of
from defragd.core.model import EMPTY, Pod, Workload
from defragd.core.pdb import budgets_of
from defragd.core.reasons import Reason
from defragd.core.rules import Rules
from defragd.core.selectors import matches
from defragd.core.snapshot import Snapshot
from defragd.core.vendor import Vendor
from defragd.core.workloads import replicas_of, workload_key

NEVER = "never"
NOT_NOW = "notNow"
HAMI_SCHEDULER = "hami-scheduler"
RECREATING_KINDS = frozenset({"ReplicaSet", "StatefulSet", "ReplicationController", "Job"})
"""Built-in owners whose absence from a list that has others of their kind means that they are gone."""
LOCAL_KINDS = frozenset({"emptyDir", "hostPath", "ephemeral"})
VIRT_LABEL = "kubevirt.io"
WEBHOOK_LABEL = "hami.io/webhook"
"""On a pod or namespace; "ignore" keeps HAMi's webhook and ours away."""
SYSTEM_NAMESPACE = "kube-system"
MIRROR = "kubernetes.io/config.mirror"
"""Annotation of the API server's image of a static pod."""
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
"""A wide-spread annotation: "false" is obeyed like an opt-out of ours, "true" gives up the data of local volumes."""


@dataclass(frozen=True, slots=True)
class Eligibility:
    """``kind`` is "never", "notNow" or "" (ok); ``until`` the first time at which the answer may differ."""

    ok: bool
    reason: Reason | None = None
    detail: str = ""
    kind: str = ""
    until: datetime | None = None


MOVABLE = Eligibility(True)


def _never(reason: Reason, detail: str) -> Eligibility:
    return Eligibility(False, reason, detail, NEVER)


def _not_now(reason: Reason, detail: str, until: datetime | None = None) -> Eligibility:
    return Eligibility(False, reason, detail, NOT_NOW, until)


@dataclass(frozen=True, slots=True)
class Case:
    """Everything the checks look at for one pod."""

    snapshot: Snapshot
    pod: Pod
    rules: Rules
    now: datetime
    drain: bool
    wishes: Wishes
    owner: Workload | None
    top: Workload | None
    history: Mapping[str, int]
    last_moved: Mapping[str, datetime]
    vendors: Mapping[str, Vendor]
    whole_gangs: bool
    arrivals: Mapping[str, datetime]


# -- checks: never ----------------------------------------------------------------------------------------------------


def _state(case: Case) -> Eligibility | None:
    pod = case.pod
    if not pod.live:
        return _never(Reason.FINISHED, f"the pod has ended ({pod.phase})")
    if not pod.requests and not pod.allocations and not pod.mig and not pod.problem:
        return _never(Reason.NOT_HAMI, "the pod holds no device")
    if pod.deleting:
        return _not_now(Reason.TERMINATING, "the pod is being deleted already", pod.deletion_deadline)
    return None


def _owner(case: Case) -> Eligibility | None:
    pod = case.pod
    if pod.owner is None and MIRROR not in pod.annotations:
        return _never(Reason.BARE_POD, "the pod has no controller that would recreate it")
    if pod.owner is None or pod.owner.kind == "Node" or MIRROR in pod.annotations:
        return _never(Reason.STATIC_POD, "a static pod belongs to its node")
    if pod.owner.kind == "DaemonSet":
        return _never(Reason.DAEMONSET_POD, f"DaemonSet {pod.owner.name} recreates it on the same node")
    if pod.owner.kind in ("VirtualMachineInstance", "VirtualMachine") or pod.labels.get(VIRT_LABEL) == "virt-launcher":
        return _never(Reason.VIRT_LAUNCHER, "eviction would stop a virtual machine; migrate it with KubeVirt")
    return None


def _unseen(case: Case) -> Eligibility | None:
    """Pods whose replacement our webhook would never see, so that nothing could pin it."""
    pod = case.pod
    if pod.labels.get(WEBHOOK_LABEL) == "ignore":
        return _never(Reason.NOT_HAMI, f"label {WEBHOOK_LABEL}: ignore keeps webhooks away, so nothing could pin it")
    if case.snapshot.namespace_labels.get(pod.namespace, EMPTY).get(WEBHOOK_LABEL) == "ignore":
        return _never(Reason.NOT_HAMI, f"namespace {pod.namespace} has label {WEBHOOK_LABEL}: ignore")
    if pod.namespace == SYSTEM_NAMESPACE:
        return _never(Reason.NAMESPACE_EXCLUDED, f"webhooks never see pods of {SYSTEM_NAMESPACE}")
    return None


def _books(case: Case) -> Eligibility | None:
    pod = case.pod
    if pod.scheduler and pod.scheduler != HAMI_SCHEDULER:
        if pod.node and not (pod.allocations or pod.mig or pod.problem):
            return _never(Reason.IN_USE_OUTSIDE_HAMI, "it uses devices of the node outside HAMi's books")
        return _never(
            Reason.NOT_HAMI_SCHEDULER, f"its scheduler is {pod.scheduler}, so nothing could pin it to a device"
        )
    if pod.problem:
        return _never(Reason.UNREADABLE_ALLOCATION, pod.problem)
    if not pod.node:
        return _not_now(Reason.NOT_BOUND, "the pod is not bound to a node yet")
    if pod.bind_phase == "failed":
        return _not_now(Reason.NOT_BOUND, "HAMi says that binding the pod to its devices has failed")
    if pod.bind_phase == "allocating" and (
        pod.phase == "Pending" or any(a.vendor == "NVIDIA" for a in pod.allocations)
    ):
        return _not_now(Reason.NOT_BOUND, "HAMi is binding the pod at this moment")
    if not pod.allocations and not pod.mig:
        return _never(Reason.UNREADABLE_ALLOCATION, "the pod asks for devices, but no allocation is recorded on it")
    if pod.booked_node and pod.booked_node != pod.node:
        return _never(Reason.UNREADABLE_ALLOCATION, f"it runs on {pod.node}, but is booked on {pod.booked_node}")
    node = case.snapshot.nodes.get(pod.node)
    if node is not None:
        missing = [uuid for uuid in pod.devices if all(device.uuid != uuid for device in node.devices)]
        if missing:
            return _never(Reason.UNREADABLE_ALLOCATION, f"it holds {missing[0]}, which {node.name} does not register")
        doubt = case.snapshot.doubt_about(pod)
        if doubt:
            return _not_now(Reason.DEVICE_DISTRUSTED, doubt)
    return None


def _devices(case: Case) -> Eligibility | None:
    pod = case.pod
    for word in dict.fromkeys(allocation.vendor for allocation in pod.allocations):
        vendor = case.vendors.get(word)
        if case.vendors and (vendor is None or not vendor.pinnable):
            return _never(Reason.VENDOR_NOT_PINNABLE, f"a pod cannot be pinned to a given device of vendor {word}")
    known = case.snapshot.devices
    if pod.mig or any(known[uuid].mode == "mig" for uuid in pod.devices if uuid in known):
        return _never(Reason.MIG_FIXED, "MIG instances cannot be moved; they are reported only")
    return None


def _scope(case: Case) -> Eligibility | None:
    pod, scope = case.pod, case.rules.scope
    if pod.namespace in scope.namespaces_exclude:
        return _never(Reason.NAMESPACE_EXCLUDED, f"the policy leaves out namespace {pod.namespace}")
    if scope.namespaces_include and pod.namespace not in scope.namespaces_include:
        return _never(Reason.NAMESPACE_EXCLUDED, f"namespace {pod.namespace} is not among those of the policy")
    node = case.snapshot.nodes.get(pod.node)
    if scope.node_selector.expressions and not matches(scope.node_selector, node.labels if node else {}):
        return _never(Reason.OUT_OF_SCOPE, f"node {pod.node} is not selected by the policy")
    if scope.pod_selector.expressions and not matches(scope.pod_selector, pod.labels):
        return _never(Reason.OUT_OF_SCOPE, "the policy's pod selector does not match")
    vendors = {allocation.vendor for allocation in pod.allocations}
    if scope.vendors and not vendors <= set(scope.vendors):
        return _never(Reason.OUT_OF_SCOPE, f"vendor {', '.join(sorted(vendors))} is not in the policy's scope")
    known = case.snapshot.devices
    models = {known[uuid].model for uuid in pod.devices if uuid in known}
    if scope.device_types and not all(_type_in(model, scope.device_types) for model in models):
        return _never(Reason.OUT_OF_SCOPE, f"device type {', '.join(sorted(models))} is not in the policy's scope")
    return None


def _type_in(model: str, wanted: tuple[str, ...]) -> bool:
    """HAMi's comparison of types: a part of the name, in any case."""
    return any(word.lower() in model.lower() for word in wanted)


def _said(case: Case) -> Eligibility | None:
    said = case.wishes
    if said.broken:
        first = said.broken[0]
        return _never(Reason.MALFORMED_ANNOTATION, f"{first.where}: {first.detail}; until mended the pod stays")
    if case.pod.annotations.get(SAFE_TO_EVICT, "").strip().lower() == "false":
        return _never(Reason.OPTED_OUT, f"{SAFE_TO_EVICT} is false")
    if said.do_not_move and said.until is None:
        return _never(Reason.OPTED_OUT, f"defragd.io/do-not-move on {said.opted_out_by}")
    return None


def _owner_rules(case: Case) -> Eligibility | None:
    pod, protect = case.pod, case.rules.protect
    assert pod.owner is not None
    kinds = [pod.owner.kind]
    if case.owner is not None and case.owner.top is not None:
        kinds.append(case.owner.top.kind)
    for kind in kinds:
        if kind in protect.owner_kinds_exclude:
            return _never(Reason.OWNER_EXCLUDED, f"the policy leaves out pods of a {kind}")
    if protect.owner_kinds_include and not set(kinds) & set(protect.owner_kinds_include):
        return _never(Reason.OWNER_EXCLUDED, f"{kinds[-1]} is not among the owner kinds of the policy")
    if case.owner is None and pod.owner.kind in RECREATING_KINDS and pod.owner.kind in case.snapshot.workload_kinds:
        return _never(Reason.OWNER_UNKNOWN, f"{pod.owner.kind} {pod.owner.name} does not exist (any more)")
    for workload in (case.owner, case.top):
        if workload is not None and workload.deleting:
            return _never(Reason.NOT_RECREATED, f"{workload.kind} {workload.name} is being deleted")
    if case.owner is not None and case.owner.replicas == 0:
        return _never(Reason.NOT_RECREATED, f"{case.owner.kind} {case.owner.name} is scaled to 0")
    return None


def _gang(case: Case) -> Eligibility | None:
    gang = gang_of(case.pod)
    if gang is None:
        return None
    mode = case.rules.protect.gangs
    name = f"{gang.kind} {gang.name}"
    if mode == "Never":
        return _never(Reason.PART_OF_GANG, f"member of {name}, and the policy never moves gangs")
    if mode == "Members":
        if gang.minimum is None:
            return _never(Reason.GANG_AT_MINIMUM, f"the minimum of {name} is not known, so none of it may be missing")
        up = sum(
            1
            for other in case.snapshot.pods.values()
            if other.live and other.ready and not other.deleting and gang_of(other) == gang
        )
        if up - 1 < gang.minimum:
            return _not_now(Reason.GANG_AT_MINIMUM, f"{name} has {up} of at least {gang.minimum} members running")
        return None
    if case.whole_gangs:
        return None
    return _never(Reason.PART_OF_GANG, f"member of {name}, which is moved whole or not at all")


def _priority(case: Case) -> Eligibility | None:
    limit = case.rules.protect.priority_at_most
    if limit is not None and case.pod.priority > limit:
        return _never(Reason.PRIORITY_TOO_HIGH, f"priority {case.pod.priority} is above the policy's {limit}")
    return None


def _replicas(case: Case) -> Eligibility | None:
    minimum = case.rules.protect.min_replicas
    if minimum <= 1 or case.wishes.allow:
        return None
    count, known = replicas_of(case.snapshot, case.pod)
    if count >= minimum:
        return None
    said = "has" if known else "seems to have"
    noun = "replica" if count == 1 else "replicas"
    return _never(
        Reason.TOO_FEW_REPLICAS,
        f"{workload_key(case.snapshot, case.pod)} {said} {count} {noun}, the policy asks for {minimum} or more",
    )


def _budget(case: Case) -> Eligibility | None:
    if not case.rules.protect.require_pdb:
        return None
    if "pdbs" not in case.snapshot.known and not case.snapshot.budgets:
        return _never(Reason.PDB_UNKNOWN, "the policy requires a PDB, and PDBs could not be read")
    if not budgets_of(case.snapshot, case.pod):
        return _never(Reason.NO_PDB, "no PDB covers the pod, and the policy requires one")
    return None


def _storage(case: Case) -> Eligibility | None:
    if case.wishes.allow:
        return None
    volumes, protect = case.pod.scheduling.volumes, case.rules.protect
    consent = case.pod.annotations.get(SAFE_TO_EVICT, "").strip().lower() == "true"
    if not protect.local_storage and not consent:
        local = next((volume.kind for volume in volumes if volume.kind in LOCAL_KINDS), "")
        if local:
            return _never(Reason.LOCAL_STORAGE, f"it has a local volume ({local}) whose data would be lost")
    if not protect.volumes:
        claim = next((volume.claim or volume.kind for volume in volumes if volume.kind == "claim"), "")
        if claim:
            return _never(Reason.VOLUME_BOUND, f"it uses claim {claim}, and the policy leaves such pods alone")
    return None


# -- checks: not now --------------------------------------------------------------------------------------------------


def _paused(case: Case) -> Eligibility | None:
    for workload in (case.owner, case.top):
        if workload is not None and workload.paused:
            return _not_now(Reason.OWNER_PAUSED, f"{workload.kind} {workload.name} is paused")
    return None


def _ready(case: Case) -> Eligibility | None:
    if case.pod.ready or case.drain or case.rules.protect.not_ready:
        return None
    return _not_now(Reason.NOT_READY, "the pod is not Ready; only drains move such pods")


def _age(case: Case) -> Eligibility | None:
    minimum, created = case.rules.protect.min_pod_age, case.pod.created
    if minimum <= timedelta(0) or case.wishes.allow:
        return None
    if created is None:
        return _not_now(Reason.TOO_YOUNG, "the age of the pod is not known")
    age = case.now - created
    if age >= minimum:
        return None
    shown = format_duration(timedelta(seconds=max(0, int(age.total_seconds()))))
    return _not_now(
        Reason.TOO_YOUNG, f"it is {shown} old, the policy asks for {format_duration(minimum)}", created + minimum
    )


def _opt_out_ends(case: Case) -> Eligibility | None:
    said = case.wishes
    if said.do_not_move and said.until is not None:
        return _not_now(
            Reason.OPTED_OUT, f"defragd.io/do-not-move on {said.opted_out_by} until {_iso(said.until)}", said.until
        )
    return None


def _hours(case: Case) -> Eligibility | None:
    hours = case.wishes.hours
    if hours is None or hours.contains(case.now):
        return None
    opens = hours.next_open(case.now)
    return _not_now(
        Reason.OUTSIDE_ALLOWED_HOURS, f"it may be moved in {hours.text} only, next from {_iso(opens)}", opens
    )


def _recent(case: Case) -> Eligibility | None:
    key = ""
    limit = case.rules.budgets.per_workload.per_day
    if limit is not None and case.history:
        key = workload_key(case.snapshot, case.pod)
        done = case.history.get(key, 0)
        if done >= limit:
            return _not_now(Reason.DAILY_LIMIT, f"{key} was moved {done} times in 24 h, the limit is {limit}")
    cooldown = case.rules.execution.cooldown
    if case.last_moved and cooldown > timedelta(0) and not case.drain:
        key = key or workload_key(case.snapshot, case.pod)
        last = case.last_moved.get(key)
        if last is not None and case.now < last + cooldown:
            until = last + cooldown
            return _not_now(
                Reason.COOLING_DOWN, f"{key} was moved at {_iso(last)} and rests until {_iso(until)}", until
            )
    came = case.arrivals.get(case.pod.node) if case.arrivals and not case.drain else None
    if came is not None and case.now < came + case.rules.execution.node_cooldown:
        until = came + case.rules.execution.node_cooldown
        text = f"node {case.pod.node} received a moved pod at {_iso(came)} and rests until {_iso(until)}"
        return _not_now(Reason.COOLING_DOWN, text, until)
    return None


def _iso(when: datetime) -> str:
    return when.isoformat(timespec="seconds").replace("+00:00", "Z")


CHECKS = (
    _state,
    _owner,
    _unseen,
    _books,
    _said,
    _scope,
    _devices,
    _owner_rules,
    _gang,
    _priority,
    _replicas,
    _budget,
    _storage,
    _opt_out_ends,
    _paused,
    _ready,
    _age,
    _hours,
    _recent,
)
