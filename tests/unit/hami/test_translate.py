"""Objects into core values: what is read, what is set aside, and how init containers are told apart."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from defragd.core.model import Expression, NodeTerm
from defragd.errors import CodecError
from defragd.hami.codec import read_slots, split_mig_uuid
from defragd.hami.config import HamiConfig
from defragd.hami.cross_checks import CrossChecks
from defragd.hami.translate import (
    assemble,
    claim_table,
    translate_budget,
    translate_node,
    translate_pod,
    translate_quota,
)
from defragd.kube import wire
from tests.unit.hami.worlds import CONFIG, device, node, pod, world

GPU = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4k"}


def reasons(problems) -> list[str]:
    return [p.reason for p in problems]


# -- nodes ------------------------------------------------------------------------------------------------------------


def test_node_inventory_cordon_and_lock() -> None:
    obj = node(
        devices=[device("g0"), device("g1", index=1, numa=1, health=False)],
        **{"hami.io/device-cordon": " g0 ,,", "hami.io/mutex.lock": "2026-01-01T00:00:00Z,t,p"},
    )
    found, problems = translate_node(obj, CONFIG)
    assert problems == ()
    assert [(d.uuid, d.position, d.healthy, d.cordoned) for d in found.devices] == [
        ("g0", 0, True, True),
        ("g1", 1, False, False),
    ]
    assert found.lock is not None
    assert found.lock.holder == "t/p"
    assert found.allocatable.extended == {}, "HAMi's own resources are not kube-scheduler's business"


def test_broken_register_sets_aside_only_that_backend() -> None:
    obj = node(**{"hami.io/node-nvidia-register": "[{", "hami.io/node-dcu-register": "DCU-0,4,100,60,DCU-Z,0,true:"})
    found, problems = translate_node(obj, CONFIG)
    assert [d.uuid for d in found.devices] == ["DCU-0"]
    assert reasons(problems) == ["UnreadableRegister"]
    assert "hami.io/node-nvidia-register" in problems[0].detail
    assert problems[0].object == "Node/n1"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hami.io/node-future-register": "x"}, "UnknownDeviceType"),
        ({"hami.io/node-nvidia-score": "[1"}, "UnreadableRegister"),
        ({"hami.io/node-nvidia-register": json.dumps([device("g", type="Tesla T4")])}, "ModelWithoutVendorWord"),
        ({"hami.io/node-nvidia-register": json.dumps([device("g"), device("g")])}, "DuplicateDevice"),
        ({"hami.io/node-nvidia-register": json.dumps([device("")])}, "UnreadableRegister"),
        ({"hami.io/node-nvidia-register": "g,10,100,100,NVIDIA-T4,0,true:"}, "RegisterOfOldPlugin"),
    ],
)
def test_doubts_about_a_node_have_names(changes, reason) -> None:
    _, problems = translate_node(node(**changes), CONFIG)
    assert reason in reasons(problems)


def test_text_register_is_normal_for_an_old_hami() -> None:
    obj = node(**{"hami.io/node-nvidia-register": "g,10,100,100,NVIDIA-T4,0,true:"})
    found, problems = translate_node(obj, HamiConfig(version="2.7"))
    assert problems == ()
    assert found.devices[0].registered


def test_devices_whose_plugin_is_gone_are_not_used() -> None:
    obj = node()
    obj.status.allocatable["nvidia.com/gpu"] = "0"
    found, _ = translate_node(obj, CONFIG)
    assert not found.devices[0].usable
    obj.metadata.annotations["hami.io/node-handshake"] = "Requesting_2026-01-01 00:00:00"
    found, _ = translate_node(obj, CONFIG)
    assert not found.devices[0].registered


def test_same_uuid_on_two_nodes_is_distrusted_on_both() -> None:
    snapshot = world([node("n1", [device("same"), device("own")]), node("n2", [device("same")])], [])
    assert [d.distrusted for d in snapshot.nodes["n1"].devices] == ["duplicate UUID", ""]
    assert snapshot.nodes["n2"].devices[0].distrusted
    assert reasons(snapshot.problems) == ["DuplicateDevice", "DuplicateDevice"]


def test_synthetic_inventories() -> None:
    obj = node(devices=[])
    obj.status.allocatable |= {
        "mthreads.com/sgpu-core": "32",
        "mthreads.com/sgpu-memory": "192",
        "cambricon.com/mlu.smlu.vcore": "200",
        "cambricon.com/mlu.smlu.vmemory": "64",
        "enflame.com/gcu": "1",
    }
    found, problems = translate_node(obj, CONFIG)
    assert problems == ()
    assert {(d.uuid, d.memory_mib, d.cores) for d in found.devices} == {
        ("n1-cambricon-mlu-0", 8192, 100),
        ("n1-cambricon-mlu-1", 8192, 100),
        ("n1-mthreads-0", 49152, 16),
        ("n1-mthreads-1", 49152, 16),
        ("n1-GCU-0", 100, 100),
    }
    assert sorted(d.position for d in found.devices) == [0, 1, 2, 3, 4]


# -- pods -------------------------------------------------------------------------------------------------------------


def test_a_running_pod() -> None:
    found = translate_pod(pod(limits=[GPU], node="n1", held="n1-g0,NVIDIA,4000,0:;"), CONFIG)
    assert (found.node, found.booked_node, found.devices) == ("n1", "n1", ("n1-g0",))
    assert found.requests[0].memory_mib == 4000
    assert found.problem == ""


def test_replicas_share_their_scheduling() -> None:
    spec = {"tolerations": [{"key": "gpu", "operator": "Exists"}], "nodeSelector": {"pool": "a"}}
    first, second = (translate_pod(pod(name, [GPU], spec=spec), CONFIG) for name in ("a", "b"))
    other = translate_pod(pod("c", [GPU], spec={**spec, "nodeSelector": {"pool": "b"}}), CONFIG)
    assert first.scheduling is second.scheduling
    assert first.scheduling != other.scheduling


INIT = {"name": "i0", "resources": {"limits": {}}}
GPU_INIT = {"name": "i0", "resources": {"limits": GPU}}
SIDECAR = {**GPU_INIT, "restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("init", "held", "flags"),
    [
        ([INIT], "g,NVIDIA,1,0:;", [(False, True)]),
        ([INIT], ";g,NVIDIA,1,0:;", [(False, False)]),
        ([GPU_INIT], "g,NVIDIA,1,0:;h,NVIDIA,1,0:;", [(True, True), (False, False)]),
        ([SIDECAR], "g,NVIDIA,1,0:;h,NVIDIA,1,0:;", [(False, True), (False, False)]),
        ([], "g,NVIDIA,1,0:;", [(False, False)]),
    ],
    ids=["packed", "slot per container", "init asks too", "sidecar", "no init"],
)
def test_slots_of_init_containers(init, held, flags) -> None:
    """(init in truth, init for HAMi) of each slot."""
    found = translate_pod(pod(limits=[GPU], node="n1", held=held, init=init), CONFIG)
    assert [(a.init, a.hami_init) for a in found.allocations] == flags


def test_init_done_needs_every_init_container_ended_well() -> None:
    ended = {"name": "i0", "state": {"terminated": {"exitCode": 0}}}
    failed = {"name": "i0", "state": {"terminated": {"exitCode": 1}}}
    for statuses, done in (([ended], True), ([failed], False), ([], False), ([{"name": "i0"}], False)):
        status = {"phase": "Running", "initContainerStatuses": statuses}
        found = translate_pod(pod(limits=[GPU], init=[INIT], status=status), CONFIG)
        assert (found.init_done, found.shrunk) == (done, done)


def test_undecodable_allocation_is_a_problem_and_counts_nothing() -> None:
    found = translate_pod(pod(limits=[GPU], node="n1", held="n1-g0,NVIDIA,x,0:;"), CONFIG)
    assert found.allocations == ()
    assert "hami.io/vgpu-devices-allocated" in found.problem
    snapshot = world([node()], [pod(limits=[GPU], node="n1", held="n1-g0,NVIDIA,x,0:;")])
    assert [(p.object, p.reason) for p in snapshot.problems] == [("t/p1", "UnreadableAllocation")]


def test_other_backends_and_schedulers_are_named() -> None:
    unknown = translate_pod(pod(annotations={"hami.io/new-devices-allocated": "x"}), CONFIG)
    assert "unknown backend" in unknown.problem
    volcano = translate_pod(pod(limits=[{"volcano.sh/vgpu-number": "1"}]), CONFIG)
    assert "Volcano" in volcano.problem


def test_old_mig_suffix_is_taken_off_and_said() -> None:
    found = translate_pod(pod(limits=[GPU], node="n1", held="GPU-aa[1-0],NVIDIA,4000,0:;"), CONFIG)
    assert found.devices == ("GPU-aa",)
    assert "MIG" in found.problem


def test_books_that_disagree_with_the_cluster() -> None:
    pods = [
        pod("away", [GPU], node="n2", held="n1-g0,NVIDIA,1,0:;", annotations={}),
        pod("stranger", [GPU], node="n1", held="gone,NVIDIA,1,0:;"),
    ]
    pods[0].metadata.annotations["hami.io/vgpu-node"] = "n1"
    snapshot = world([node("n1"), node("n2")], pods)
    assert {(p.object, p.reason) for p in snapshot.problems} == {
        ("t/away", "BookedElsewhere"),
        ("t/stranger", "DeviceUnknown"),
    }
    assert snapshot.usage("n1")["n1-g0"].slots == 1


def test_devices_that_only_seem_idle_beside_a_pod_outside_the_books() -> None:
    """A native pod uses one device of n1, and nobody can tell which: not the one that HAMi has given away."""
    three = [node("n1", [device(f"n1-g{i}") for i in range(3)]), node("n2")]
    native = pod("native", [GPU], node="n1", spec={"schedulerName": "default-scheduler"})
    shared = pod("shared", [GPU], node="n1", held="n1-g1,NVIDIA,1,0:;")
    snapshot = world(three, [native, shared])
    doubted = {d.uuid: d.distrusted for n in snapshot.nodes.values() for d in n.devices if d.distrusted}
    assert set(doubted) == {"n1-g0", "n1-g2"} and "t/native" in doubted["n1-g0"]
    ended = pod("native", [GPU], node="n1", status={"phase": "Succeeded"})
    assert not any(d.distrusted for d in world(three, [ended, shared]).nodes["n1"].devices)


def test_doubt_ends_with_the_pod_outside_the_books() -> None:
    checks = CrossChecks()
    plain, _ = translate_node(node("n1"), CONFIG)
    native = translate_pod(pod("native", [GPU], node="n1"), CONFIG)
    for pods, doubted in (({}, False), ({native.key: native}, True), ({}, False)):
        snapshot = assemble(nodes={"n1": plain}, pods=pods, checks=checks)
        assert bool(snapshot.nodes["n1"].devices[0].distrusted) is doubted


def test_a_pod_without_a_scheduler_name_is_the_default_schedulers() -> None:
    assert translate_pod(pod("a", [GPU], spec={"schedulerName": ""}), CONFIG).scheduler == "default-scheduler"


# -- our own pin ------------------------------------------------------------------------------------------------------

PINNED = {"scheduling.hami.placement.com/pinned": "mv-1", "nvidia.com/use-gpuuuid": "n1-g0"}


def affinity(*terms: dict) -> dict:
    return {
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
        }
    }


OURS = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
POOL = {"key": "pool", "operator": "In", "values": ["a"]}


def test_our_pin_is_not_the_users_wish() -> None:
    found = translate_pod(pod(limits=[GPU], annotations=PINNED, spec=affinity({"matchFields": [OURS]})), CONFIG)
    assert found.selection.use_uuids is None
    assert found.selection.pinned_by_us
    assert found.selection.pin_uuids == {"n1-g0"}
    assert found.selection.pin_node == "n1"
    assert found.scheduling.node_terms is None


def test_the_users_terms_survive_our_pin() -> None:
    spec = affinity(
        {"matchFields": [OURS], "matchExpressions": [POOL]}, {"matchFields": [OURS], "matchExpressions": [POOL]}
    )
    found = translate_pod(pod(limits=[GPU], annotations=PINNED, spec=spec), CONFIG)
    assert found.scheduling.node_terms == (NodeTerm((Expression("pool", "In", ("a",)),)),) * 2


def test_the_users_devices_survive_our_pin() -> None:
    """The pin replaces the user's list; what he had set is kept in an annotation and holds for later plans."""
    key = "scheduling.hami.placement.com/user-uuids"
    notes = {**PINNED, key: "nvidia.com/use-gpuuuid=n1-g0, n1-g1;hygon.com/use-gpuuuid=d0"}
    found = translate_pod(pod(limits=[GPU], annotations=notes), CONFIG)
    assert found.selection.use_uuids == {"n1-g0", "n1-g1"}
    assert found.selection.pin_uuids == {"n1-g0"}

    spoilt = translate_pod(pod(limits=[GPU], annotations={**PINNED, key: ";x;=;nvidia.com/use-gpuuuid= "}), CONFIG)
    assert spoilt.selection.use_uuids is None


def test_a_pin_of_the_user_stays() -> None:
    found = translate_pod(
        pod(limits=[GPU], annotations={"nvidia.com/use-gpuuuid": "n1-g0"}, spec=affinity({"matchFields": [OURS]})),
        CONFIG,
    )
    assert found.selection.use_uuids == {"n1-g0"}
    assert found.scheduling.node_terms == (NodeTerm((), (Expression("metadata.name", "In", ("n1",)),)),)


def test_steering_is_marked() -> None:
    notes = {"nvidia.com/nouse-gpuuuid": "a,b", "scheduling.hami.placement.com/steered": "b,c"}
    found = translate_pod(pod(limits=[GPU], annotations=notes), CONFIG)
    assert found.selection.nouse_uuids == {"a", "b"}
    assert found.selection.steered_uuids == {"b"}


# -- host resources and volumes ---------------------------------------------------------------------------------------


def test_effective_requests_follow_init_steps_and_sidecars() -> None:
    def c(name: str, cpu: str, **more: str) -> dict:
        return {"name": name, "resources": {"requests": {"cpu": cpu}}, **more}

    init = [c("i0", "1"), c("side", "500m", restartPolicy="Always"), c("i1", "2")]
    found = translate_pod(
        pod(spec={"containers": [c("a", "1"), c("b", "700m")], "overhead": {"cpu": "100m"}}, init=init), CONFIG
    )
    assert found.scheduling.resources.cpu_milli == 2600, "i1 beside the sidecar needs 2500m, more than the app's 2200m"


def test_a_limit_is_a_request_and_hami_resources_are_left_out() -> None:
    found = translate_pod(pod(limits=[{"cpu": "2", "example.com/fpga": "1", **GPU}]), CONFIG)
    assert found.scheduling.resources.cpu_milli == 2000
    assert found.scheduling.resources.extended == {"example.com/fpga": 1}


def test_claims() -> None:
    pvc = msgspec.convert(
        {
            "metadata": {"name": "data", "namespace": "t"},
            "spec": {"volumeName": "pv1", "accessModes": ["ReadWriteOnce"]},
        },
        wire.PersistentVolumeClaim,
    )
    loose = msgspec.convert({"metadata": {"name": "loose", "namespace": "t"}}, wire.PersistentVolumeClaim)
    pv = msgspec.convert(
        {"metadata": {"name": "pv1", "labels": {"topology.kubernetes.io/zone": "z1"}}}, wire.PersistentVolume
    )
    claims = claim_table([pvc, loose], [pv])

    def volume(claim: str, known=claims):
        spec = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]}
        return translate_pod(pod(spec=spec), CONFIG, claims=known).scheduling.volumes[0]

    assert volume("data").zones == (("topology.kubernetes.io/zone", "z1"),)
    assert volume("data").known
    assert not volume("loose").known
    assert not volume("missing").known
    assert not volume("data", None).known


def test_resource_claims_cannot_be_judged() -> None:
    assert translate_pod(pod(spec={"resourceClaims": [{"name": "x"}]}), CONFIG).scheduling.unjudged == (
        "resource claims",
    )


# -- budgets and quotas -----------------------------------------------------------------------------------------------


def test_budget_without_current_status_allows_nothing_and_is_named() -> None:
    raw = {"metadata": {"name": "b", "namespace": "t", "generation": 2}, "spec": {"selector": {}}}
    fresh = translate_budget(msgspec.convert(raw, wire.PodDisruptionBudget))
    stale = translate_budget(
        msgspec.convert({**raw, "status": {"disruptionsAllowed": 1, "observedGeneration": 1}}, wire.PodDisruptionBudget)
    )
    assert (fresh.allowed, fresh.observed, stale.observed) == (0, False, False)
    assert reasons(assemble(nodes={}, pods={}, budgets=[fresh]).problems) == ["BudgetWithoutStatus"]


def test_quota_reads_only_what_hami_reads() -> None:
    hard = {"limits.nvidia.com/gpumem": "10k", "requests.nvidia.com/gpu": "4", "limits.nvidia.com/gpucores": "1.5"}
    raw = {"metadata": {"name": "q", "namespace": "t"}, "spec": {"hard": hard}}
    (quota,) = translate_quota(msgspec.convert(raw, wire.ResourceQuota), CONFIG)
    assert (quota.vendor, quota.memory_mib, quota.cores) == ("NVIDIA", 10000, None)
    assert reasons(assemble(nodes={}, pods={}, quotas=[quota, quota]).problems) == ["SeveralQuotas"]


@given(
    st.lists(
        st.sampled_from(["g", "g[1-0]", ",", ":", ";", "NVIDIA", "1", "4096", "-1", " 1", "99999999999"]), max_size=10
    )
    | st.tuples(st.just("g,NVIDIA,"), st.text("0123456789²٣- ", max_size=11), st.just(",7:;"))
)
def test_the_short_way_reads_what_the_long_way_reads(parts) -> None:
    text = "".join(parts)
    found = translate_pod(pod(limits=[GPU], node="n1", held=text), CONFIG) if text else None
    if found is None:
        return
    try:
        slots = read_slots("k", text)
    except CodecError:
        assert found.allocations == ()
        assert found.problem
        return
    assert [(a.uuid, a.memory_mib, a.cores) for a in found.allocations] == [
        (split_mig_uuid(e.uuid)[0], e.memory_mib, e.cores) for slot in slots for e in slot
    ]


@pytest.mark.parametrize(
    ("empty_dir", "kinds"),
    [({}, ["emptyDir"]), ({"medium": ""}, ["emptyDir"]), ({"medium": "Memory", "sizeLimit": "8Gi"}, [])],
)
def test_shared_memory_is_no_local_data(empty_dir: dict, kinds: list[str]) -> None:
    made = translate_pod(pod(spec={"volumes": [{"name": "dshm", "emptyDir": empty_dir}]}), CONFIG)
    assert [volume.kind for volume in made.scheduling.volumes] == kinds
