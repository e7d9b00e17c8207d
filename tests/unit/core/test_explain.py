"""Why not, per pod, node and device: one main reason with its class, and targets counted per class."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from defragd.core.explain import MOVABLE, NO_PLACE, Explainer
from defragd.core.model import (
    Allocation,
    Device,
    DeviceRequest,
    DisruptionBudget,
    Node,
    Owner,
    Pod,
    Resources,
    Scheduling,
    Workload,
)
from defragd.core.rules import Rules, equals
from defragd.core.snapshot import Snapshot
from defragd.core.vendor import Vendor

NOW = datetime(2026, 12, 1, tzinfo=UTC)
VENDORS = {"NVIDIA": Vendor("NVIDIA", use_keys=("nvidia.com/use-gpuuuid",))}


def device(node, index, *, gib=24, **facts):
    return Device(
        f"{node}-g{index}",
        node,
        "NVIDIA",
        facts.pop("model", "NVIDIA A10"),
        index=index,
        position=index,
        slots=10,
        memory_mib=gib * 1024,
        cores=100,
        **facts,
    )


def pod(name, node, uuid, gib, **facts):
    return Pod(
        "t",
        name,
        f"u-{name}",
        labels={"app": name},
        owner=Owner("ReplicaSet", name, f"rs-{name}"),
        scheduler="hami-scheduler",
        node=node,
        booked_node=node,
        created=NOW - timedelta(days=1),
        requests=(DeviceRequest(0, False, False, "NVIDIA", 1, gib * 1024),),
        allocations=(Allocation(0, uuid, gib * 1024, 0),),
        scheduling=Scheduling(resources=Resources(cpu_milli=100)),
        **facts,
    )


def world(nodes, pods, **more):
    host = Resources(cpu_milli=64_000, memory_bytes=2**38, pods=110)
    return Snapshot(
        nodes={name: Node(name, devices=tuple(devices), allocatable=host) for name, devices in nodes.items()},
        pods={p.key: p for p in pods},
        workloads={p.owner.uid: Workload("ReplicaSet", "t", p.name, p.owner.uid, 2, 2) for p in pods if p.owner},
        known=frozenset({"pdbs", "workloads"}),
        **more,
    )


def explainer(snapshot, **options):
    return Explainer(snapshot, Rules(), NOW, vendors=VENDORS, **options)


def test_why_is_this_node_not_consolidated():
    others = {f"m{i}": [device(f"m{i}", 0), device(f"m{i}", 1)] for i in range(6)}
    others["m6"] = [
        device("m6", 0, healthy=False),
        device("m6", 1, healthy=False),
        device("m6", 2, model="NVIDIA-Tesla T4"),
    ]
    full = [pod(f"f{i}-{k}", f"m{i}", f"m{i}-g{k}", 20) for i in range(6) for k in range(2)]
    a = pod("a", "n1", "n1-g0", 8, annotations={"defragd.io/do-not-move": "true"})
    b = pod("b", "n1", "n1-g1", 8)
    c = pod("c", "n1", "n1-g2", 8)
    c = replace(c, selection=replace(c.selection, nouse_types=("T4",)))
    state = world(
        {"n1": [device("n1", 0), device("n1", 1), device("n1", 2)], **others},
        [a, b, c, *full],
        budgets=(DisruptionBudget("t", "b", equals({"app": "b"}), 0, healthy=2, desired=2),),
    )
    found = explainer(state).node("n1")
    assert found["verdict"] == "blocked"
    by_name = {item["name"]: item for item in found["pods"]}
    assert (by_name["t/a"]["verdict"], by_name["t/a"]["reason"]) == ("never", "OptedOut")
    assert (by_name["t/b"]["verdict"], by_name["t/b"]["reason"]) == ("notNow", "PDBBlocks")
    assert (by_name["t/c"]["verdict"], by_name["t/c"]["reason"]) == (NO_PLACE, "NoPlace")
    assert by_name["t/c"]["detail"] == "12 devices: memory; 2: unhealthy; 1: type"


def test_a_pod_that_may_go_names_places():
    state = world({"n1": [device("n1", 0), device("n1", 1)], "n2": [device("n2", 0)]}, [pod("a", "n1", "n1-g0", 8)])
    found = explainer(state).pod("t/a")
    assert found["verdict"] == MOVABLE and found["targets"]["nodes"] == 2
    assert found["targets"]["examples"][0] == {"node": "n1", "devices": ["n1-g1"]}
    assert found["workload"] == "ReplicaSet/t/a"


def test_the_devices_it_is_on_do_not_count_as_places():
    state = world({"n1": [device("n1", 0)]}, [pod("a", "n1", "n1-g0", 8)])
    assert explainer(state).pod("t/a")["verdict"] == NO_PLACE


def test_emptying_a_device_may_use_the_rest_of_its_node_but_emptying_the_node_may_not():
    state = world({"n1": [device("n1", 0), device("n1", 1)]}, [pod("a", "n1", "n1-g0", 8)])
    assert explainer(state).device("n1-g0")["verdict"] == "drainable"
    assert explainer(state).device("n1/gpu-0")["name"] == "n1-g0"
    assert explainer(state).device("n1/n1-g0")["name"] == "n1-g0"
    assert explainer(state).device("n2/n1-g0") is None
    assert explainer(state).node("n1")["verdict"] == "blocked"
    for odd in ("n1/gpu-²", "n1/gpu-", "n1/gpu--1", "n1/gpu-9999999999"):
        assert explainer(state).device(odd) is None


def test_a_pod_outside_of_hami_blocks_its_node_by_name():
    native = replace(pod("native", "n1", "n1-g0", 8), allocations=(), booked_node="", scheduler="default-scheduler")
    state = world(
        {"n1": [device("n1", 0), device("n1", 1)], "n2": [device("n2", 0)]}, [native, pod("a", "n1", "n1-g1", 6)]
    )
    found = explainer(state).node("n1")
    assert found["detail"] == "1 of 2 pods cannot leave, first t/native: InUseOutsideHAMi"


def test_targets():
    state = world(
        {
            "n1": [
                device("n1", 0, healthy=False),
                device("n1", 1, cordoned=True),
                device("n1", 2, distrusted="two nodes register it"),
            ]
        },
        [],
    )
    answers = [explainer(state).device(f"n1-g{i}")["asTarget"] for i in range(3)]
    assert [a["reason"] for a in answers] == ["DeviceUnhealthy", "DeviceCordoned", "DeviceDistrusted"]
    state = world({"n1": [device("n1", 0)]}, [pod("a", "n1", "n1-g0", 24)])
    assert explainer(state).device("n1-g0")["asTarget"]["reason"] == "DeviceFull"
    down = replace(state, nodes={"n1": replace(state.nodes["n1"], ready=False)})
    assert explainer(down).node("n1")["asTarget"]["reason"] == "NodeNotReady"
    assert explainer(down).device("n1-g0")["asTarget"]["reason"] == "NodeNotReady"


def test_what_does_not_exist_is_none():
    state = explainer(world({"n1": [device("n1", 0)]}, []))
    assert state.pod("t/x") is state.node("x") is state.device("x") is None
    assert state.device("n1/gpu-9") is state.device("n1/gpu-x") is state.device("/") is None


def test_drains_may_move_pods_that_are_not_ready():
    state = world({"n1": [device("n1", 0), device("n1", 1)]}, [replace(pod("a", "n1", "n1-g0", 8), ready=False)])
    assert explainer(state).pod("t/a")["reason"] == "NotReady"
    assert explainer(state, drain=True).pod("t/a")["verdict"] == MOVABLE
