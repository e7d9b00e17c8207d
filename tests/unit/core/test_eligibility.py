"""One main reason per pod, by small worlds: every rule has a pod that it stops and one that it lets go."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from defragd.core.eligibility import NEVER, NOT_NOW, eligible, warnings, workload_key
from defragd.core.gangs import GANG_KEYS
from defragd.core.model import (
    Allocation,
    Device,
    DeviceRequest,
    DisruptionBudget,
    MigReservation,
    Node,
    Owner,
    Pod,
    Resources,
    Scheduling,
    Volume,
    Workload,
)
from defragd.core.reasons import Reason
from defragd.core.rules import Budgets, Cap, Execution, Protection, Rules, Scope, equals
from defragd.core.snapshot import Snapshot
from defragd.core.vendor import Vendor

NOW = datetime(2026, 12, 1, 20, 0, tzinfo=UTC)
DEVICE = Device("GPU-1", "n1", "NVIDIA", "NVIDIA-Tesla T4", slots=10, memory_mib=15360, cores=100)
POD = Pod(
    "team",
    "a",
    "u1",
    labels={"app": "a"},
    owner=Owner("ReplicaSet", "a-1", "rs"),
    scheduler="hami-scheduler",
    node="n1",
    booked_node="n1",
    created=NOW - timedelta(days=1),
    requests=(DeviceRequest(0, False, False, "NVIDIA", 1, 1024),),
    allocations=(Allocation(0, "GPU-1", 1024, 0),),
)
SET = Workload("ReplicaSet", "team", "a-1", "rs", 2, 2, top=Owner("Deployment", "a", "d"))
TOP = Workload("Deployment", "team", "a", "d", 2, 2)
VENDORS = {"NVIDIA": Vendor("NVIDIA"), "Odd": Vendor("Odd", pinnable=False)}


def judge(pod=POD, rules=None, owner=SET, top=TOP, now=NOW, snapshot=None, device=DEVICE, **options):
    world = Snapshot(
        nodes={"n1": Node("n1", labels={"pool": "x"}, devices=(device,))},
        pods={pod.key: pod},
        workloads={w.uid: w for w in (owner, top) if w},
        known=frozenset({"pdbs", "workloads"}),
    )
    if snapshot:
        world = replace(world, **snapshot)
    return eligible(world, pod, rules or Rules(), now, **{"vendors": VENDORS, **options})


def test_the_usual_pod_may_move():
    assert judge().ok


def with_volumes(*volumes):
    return replace(POD, scheduling=Scheduling(resources=Resources(), volumes=volumes))


STOPPED = [
    ("finished", {"pod": replace(POD, phase="Succeeded")}, Reason.FINISHED, NEVER),
    ("terminating", {"pod": replace(POD, deleting=True)}, Reason.TERMINATING, NOT_NOW),
    ("no device", {"pod": replace(POD, requests=(), allocations=())}, Reason.NOT_HAMI, NEVER),
    ("bare", {"pod": replace(POD, owner=None)}, Reason.BARE_POD, NEVER),
    ("static", {"pod": replace(POD, owner=Owner("Node", "n1", "n"))}, Reason.STATIC_POD, NEVER),
    (
        "mirror",
        {"pod": replace(POD, owner=None, annotations={"kubernetes.io/config.mirror": "x"})},
        Reason.STATIC_POD,
        NEVER,
    ),
    (
        "safe-to-evict false",
        {"pod": replace(POD, annotations={"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"})},
        Reason.OPTED_OUT,
        NEVER,
    ),
    ("daemonset", {"pod": replace(POD, owner=Owner("DaemonSet", "x", "n"))}, Reason.DAEMONSET_POD, NEVER),
    ("vm", {"pod": replace(POD, labels={"kubevirt.io": "virt-launcher"})}, Reason.VIRT_LAUNCHER, NEVER),
    ("volcano", {"pod": replace(POD, scheduler="volcano")}, Reason.NOT_HAMI_SCHEDULER, NEVER),
    ("native", {"pod": replace(POD, scheduler="default-scheduler", allocations=())}, Reason.IN_USE_OUTSIDE_HAMI, NEVER),
    ("broken", {"pod": replace(POD, problem="garbage in annotation")}, Reason.UNREADABLE_ALLOCATION, NEVER),
    ("no record", {"pod": replace(POD, allocations=())}, Reason.UNREADABLE_ALLOCATION, NEVER),
    ("elsewhere", {"pod": replace(POD, booked_node="n2")}, Reason.UNREADABLE_ALLOCATION, NEVER),
    (
        "unknown uuid",
        {"pod": replace(POD, allocations=(Allocation(0, "GPU-9", 1, 0),))},
        Reason.UNREADABLE_ALLOCATION,
        NEVER,
    ),
    ("binding", {"pod": replace(POD, phase="Pending", bind_phase="allocating")}, Reason.NOT_BOUND, NOT_NOW),
    ("Running, yet never bound", {"pod": replace(POD, bind_phase="allocating")}, Reason.NOT_BOUND, NOT_NOW),
    ("bind failed", {"pod": replace(POD, bind_phase="failed")}, Reason.NOT_BOUND, NOT_NOW),
    ("no webhook", {"pod": replace(POD, labels={"hami.io/webhook": "ignore"})}, Reason.NOT_HAMI, NEVER),
    (
        "no webhook in its namespace",
        {"snapshot": {"namespace_labels": {"team": {"hami.io/webhook": "ignore"}}}},
        Reason.NOT_HAMI,
        NEVER,
    ),
    (
        "system",
        {"pod": replace(POD, namespace="kube-system"), "rules": Rules(scope=Scope(namespaces_exclude=()))},
        Reason.NAMESPACE_EXCLUDED,
        NEVER,
    ),
    ("unbound", {"pod": replace(POD, node="")}, Reason.NOT_BOUND, NOT_NOW),
    ("opt-out", {"pod": replace(POD, annotations={"defragd.io/do-not-move": "true"})}, Reason.OPTED_OUT, NEVER),
    (
        "malformed",
        {"pod": replace(POD, annotations={"defragd.io/allowed-hours": "x"})},
        Reason.MALFORMED_ANNOTATION,
        NEVER,
    ),
    (
        "malformed opt-in",
        {"pod": replace(POD, annotations={"defragd.io/move": "yes"})},
        Reason.MALFORMED_ANNOTATION,
        NEVER,
    ),
    ("namespace", {"rules": Rules(scope=Scope(namespaces_exclude=("team",)))}, Reason.NAMESPACE_EXCLUDED, NEVER),
    ("not included", {"rules": Rules(scope=Scope(namespaces_include=("other",)))}, Reason.NAMESPACE_EXCLUDED, NEVER),
    ("node scope", {"rules": Rules(scope=Scope(node_selector=equals({"pool": "y"})))}, Reason.OUT_OF_SCOPE, NEVER),
    ("pod scope", {"rules": Rules(scope=Scope(pod_selector=equals({"app": "y"})))}, Reason.OUT_OF_SCOPE, NEVER),
    ("vendor scope", {"rules": Rules(scope=Scope(vendors=("Odd",)))}, Reason.OUT_OF_SCOPE, NEVER),
    ("type scope", {"rules": Rules(scope=Scope(device_types=("A100",)))}, Reason.OUT_OF_SCOPE, NEVER),
    ("not pinnable", {"vendors": {"NVIDIA": Vendor("NVIDIA", pinnable=False)}}, Reason.VENDOR_NOT_PINNABLE, NEVER),
    ("mig device", {"device": replace(DEVICE, mode="mig")}, Reason.MIG_FIXED, NEVER),
    ("mig pod", {"pod": replace(POD, mig=(MigReservation("GPU-1", "1g", 0, 1),))}, Reason.MIG_FIXED, NEVER),
    ("job", {"pod": replace(POD, owner=Owner("Job", "j", "j"))}, Reason.OWNER_EXCLUDED, NEVER),
    (
        "top kind",
        {"rules": Rules(protect=Protection(owner_kinds_exclude=("Deployment",)))},
        Reason.OWNER_EXCLUDED,
        NEVER,
    ),
    (
        "kind not in",
        {"rules": Rules(protect=Protection(owner_kinds_include=("StatefulSet",)))},
        Reason.OWNER_EXCLUDED,
        NEVER,
    ),
    ("owner gone", {"pod": replace(POD, owner=Owner("ReplicaSet", "b", "zz"))}, Reason.OWNER_UNKNOWN, NEVER),
    ("owner leaves", {"top": replace(TOP, deleting=True)}, Reason.NOT_RECREATED, NEVER),
    ("scaled away", {"owner": replace(SET, replicas=0)}, Reason.NOT_RECREATED, NEVER),
    ("priority", {"pod": replace(POD, priority=100_001)}, Reason.PRIORITY_TOO_HIGH, NEVER),
    ("one replica", {"top": replace(TOP, replicas=1)}, Reason.TOO_FEW_REPLICAS, NEVER),
    ("one replica, no top", {"top": None, "owner": replace(SET, replicas=1)}, Reason.TOO_FEW_REPLICAS, NEVER),
    ("no pdb", {"rules": Rules(protect=Protection(require_pdb=True))}, Reason.NO_PDB, NEVER),
    (
        "pdbs unread",
        {"rules": Rules(protect=Protection(require_pdb=True)), "snapshot": {"known": frozenset()}},
        Reason.PDB_UNKNOWN,
        NEVER,
    ),
    ("emptyDir", {"pod": with_volumes(Volume("emptyDir"))}, Reason.LOCAL_STORAGE, NEVER),
    (
        "claims",
        {"pod": with_volumes(Volume("claim", "data")), "rules": Rules(protect=Protection(volumes=False))},
        Reason.VOLUME_BOUND,
        NEVER,
    ),
    (
        "opt-out ends",
        {"pod": replace(POD, annotations={"defragd.io/do-not-move": "2026-12-24T00:00:00Z"})},
        Reason.OPTED_OUT,
        NOT_NOW,
    ),
    ("paused", {"top": replace(TOP, paused=True)}, Reason.OWNER_PAUSED, NOT_NOW),
    ("not ready", {"pod": replace(POD, ready=False)}, Reason.NOT_READY, NOT_NOW),
    ("young", {"pod": replace(POD, created=NOW - timedelta(minutes=29))}, Reason.TOO_YOUNG, NOT_NOW),
    ("age unknown", {"pod": replace(POD, created=None)}, Reason.TOO_YOUNG, NOT_NOW),
    (
        "hours",
        {"pod": replace(POD, annotations={"defragd.io/allowed-hours": "01:00-05:00"})},
        Reason.OUTSIDE_ALLOWED_HOURS,
        NOT_NOW,
    ),
    (
        "daily",
        {"rules": Rules(budgets=Budgets(per_workload=Cap(per_day=2))), "history": {"Deployment/team/a": 2}},
        Reason.DAILY_LIMIT,
        NOT_NOW,
    ),
    ("a node that received rests", {"arrivals": {"n1": NOW - timedelta(minutes=59)}}, Reason.COOLING_DOWN, NOT_NOW),
    ("cooldown", {"last_moved": {"Deployment/team/a": NOW - timedelta(hours=5)}}, Reason.COOLING_DOWN, NOT_NOW),
]


@pytest.mark.parametrize(("world", "reason", "kind"), [c[1:] for c in STOPPED], ids=[c[0] for c in STOPPED])
def test_stopped(world, reason, kind):
    found = judge(**world)
    assert (found.ok, found.reason, found.kind) == (False, reason, kind)
    assert found.detail and not found.detail.endswith(".")


LET_GO = [
    (
        "opt-in beats replicas",
        {"pod": replace(POD, annotations={"defragd.io/move": "allow"}), "top": replace(TOP, replicas=1)},
    ),
    ("opt-in beats age", {"pod": replace(POD, annotations={"defragd.io/move": "allow"}, created=NOW)}),
    (
        "opt-in beats storage",
        {"pod": replace(with_volumes(Volume("emptyDir")), annotations={"defragd.io/move": "allow"})},
    ),
    (
        "storage by policy",
        {"pod": with_volumes(Volume("hostPath")), "rules": Rules(protect=Protection(local_storage=True))},
    ),
    (
        "local data given up",
        {
            "pod": replace(
                with_volumes(Volume("emptyDir")), annotations={"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
            )
        },
    ),
    ("claim by default", {"pod": with_volumes(Volume("claim", "data"))}),
    ("not ready in a drain", {"pod": replace(POD, ready=False), "drain": True}),
    ("a node that received another pod long ago", {"arrivals": {"n1": NOW - timedelta(hours=1)}}),
    ("a node that received, in a drain", {"arrivals": {"n1": NOW}, "drain": True}),
    ("another node received", {"arrivals": {"n2": NOW}}),
    ("cooldown in a drain", {"last_moved": {"Deployment/team/a": NOW}, "drain": True}),
    ("cooldown over", {"last_moved": {"Deployment/team/a": NOW - timedelta(hours=6)}}),
    (
        "no cooldown",
        {"last_moved": {"Deployment/team/a": NOW}, "rules": Rules(execution=Execution(cooldown=timedelta(0)))},
    ),
    (
        "priority unlimited",
        {"pod": replace(POD, priority=2**31 - 1), "rules": Rules(protect=Protection(priority_at_most=None))},
    ),
    ("in hours", {"pod": replace(POD, annotations={"defragd.io/allowed-hours": "19:00-21:00"})}),
    ("old enough", {"pod": replace(POD, created=NOW - timedelta(minutes=30))}),
    (
        "under the daily limit",
        {"rules": Rules(budgets=Budgets(per_workload=Cap(per_day=2))), "history": {"Deployment/team/a": 1}},
    ),
    (
        "covered",
        {
            "rules": Rules(protect=Protection(require_pdb=True)),
            "snapshot": {"budgets": (DisruptionBudget("team", "p", equals({"app": "a"}), 1),)},
        },
    ),
    ("type by part of the name", {"rules": Rules(scope=Scope(device_types=("tesla",)))}),
]


@pytest.mark.parametrize("world", [c[1] for c in LET_GO], ids=[c[0] for c in LET_GO])
def test_let_go(world):
    found = judge(**world)
    assert found.ok, found


def test_until_says_when_to_ask_again():
    found = judge(replace(POD, annotations={"defragd.io/allowed-hours": "01:00-05:00"}))
    assert found.until == datetime(2026, 12, 2, 1, 0, tzinfo=UTC)
    young = judge(replace(POD, created=NOW - timedelta(minutes=10)))
    assert young.until == NOW + timedelta(minutes=20)


def test_the_end_of_time_stands_for_an_unknown_present():
    hours = replace(POD, annotations={"defragd.io/allowed-hours": "00:00-24:00 Asia/Shanghai"})
    assert judge(hours, now=datetime.max.replace(tzinfo=UTC)).ok


def test_opt_in_never_beats_an_opt_out_or_a_required_pdb():
    both = {"defragd.io/move": "allow", "defragd.io/do-not-move": "true"}
    assert judge(replace(POD, annotations=both)).reason is Reason.OPTED_OUT
    needs = Rules(protect=Protection(require_pdb=True))
    assert judge(replace(POD, annotations={"defragd.io/move": "allow"}), needs).reason is Reason.NO_PDB


def test_replicas_of_an_unread_owner_are_counted_among_the_pods():
    other = replace(POD, name="b", uid="u2")
    alone = judge(owner=None, top=None)
    assert alone.reason is Reason.TOO_FEW_REPLICAS and "seems to have 1 replica," in alone.detail
    assert judge(owner=None, top=None, snapshot={"pods": {POD.key: POD, other.key: other}}).ok


@pytest.mark.parametrize("key", [key for key, _ in GANG_KEYS])
def test_members_of_gangs_stay_unless_the_whole_gang_goes(key):
    member = replace(POD, labels={key: "g"})
    assert judge(member).reason is Reason.PART_OF_GANG
    assert judge(member, whole_gangs=True).ok
    never = Rules(protect=Protection(gangs="Never"))
    assert judge(member, never, whole_gangs=True).reason is Reason.PART_OF_GANG


def test_members_go_one_by_one_above_the_known_minimum_only():
    rules = Rules(protect=Protection(gangs="Members"))
    unknown = replace(POD, labels={"scheduling.x-k8s.io/pod-group": "g"})
    assert judge(unknown, rules).reason is Reason.GANG_AT_MINIMUM
    labels = {"gang.scheduling.koordinator.sh/name": "g", "gang.scheduling.koordinator.sh/min-available": "1"}
    one, two = replace(POD, labels=labels), replace(POD, name="b", uid="u2", labels=labels)
    assert judge(one, rules).kind == NOT_NOW
    assert judge(one, rules, snapshot={"pods": {one.key: one, two.key: two}}).ok
    down = replace(two, ready=False)
    assert judge(one, rules, snapshot={"pods": {one.key: one, down.key: down}}).reason is Reason.GANG_AT_MINIMUM


@pytest.mark.parametrize(
    ("pod", "workloads", "key"),
    [
        (POD, (SET, TOP), "Deployment/team/a"),
        (POD, (replace(SET, top=None),), "ReplicaSet/team/a-1"),
        (POD, (), "ReplicaSet/team/a-1"),
        (replace(POD, labels={"pod-template-hash": "1"}), (), "Deployment/team/a"),
        (replace(POD, owner=Owner("StatefulSet", "s", "s")), (), "StatefulSet/team/s"),
        (replace(POD, owner=None), (), "Pod/team/a"),
    ],
)
def test_workload_key(pod, workloads, key):
    assert workload_key(Snapshot({}, {pod.key: pod}, workloads={w.uid: w for w in workloads}), pod) == key


def test_warnings_name_every_object_with_an_unreadable_annotation():
    bad = {"defragd.io/do-not-move": "?"}
    world = Snapshot(
        nodes={"n1": Node("n1", annotations=bad)},
        pods={POD.key: replace(POD, annotations=bad)},
        workloads={"rs": replace(SET, annotations=bad)},
        namespace_annotations={"team": bad},
    )
    found = warnings(world)
    assert [w.object for w in found] == ["Namespace/team", "Node/n1", "ReplicaSet/team/a-1", "team/a"]
    assert {w.reason for w in found} == {Reason.MALFORMED_ANNOTATION}
