"""KubeCluster over the in-process API: snapshots that only re-translate what changed, own writes visible at once."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from defragd.core.model import Allocation, Expression, Selector
from defragd.core.placement import PINNED, PLACEMENT, Phase, Placement, PlacementSpec, Step
from defragd.core.run import MoveState, Run, RunMove, RunPhase
from defragd.errors import Forbidden, NotLeader, Unreachable
from defragd.kube import cluster as cluster_module
from defragd.kube.cluster import KubeCluster, read_snapshot
from defragd.ports import Outcome
from tests.support.fake_api import FakeApi

PODS, NODES, PDBS = "/api/v1/pods", "/api/v1/nodes", "/apis/policy/v1/poddisruptionbudgets"
HPP = "/apis/scheduling.hami.placement.com/v1/hamipodplacements"


def node(name: str, devices: int = 1) -> dict:
    register = [
        {"id": f"GPU-{name}-{i}", "index": i, "count": 10, "devmem": 24576, "devcore": 100, "type": "NVIDIA A10"}
        | {"mode": "hami-core", "health": True}
        for i in range(devices)
    ]
    return {
        "metadata": {"name": name, "annotations": {"hami.io/node-nvidia-register": json.dumps(register)}},
        "status": {
            "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(name: str, device: str, *, claim: str = "", **labels: str) -> dict:
    return {
        "metadata": {
            "namespace": "a",
            "name": name,
            "labels": {"app": name, **labels},
            "annotations": {
                "hami.io/vgpu-node": "n1",
                "hami.io/vgpu-devices-allocated": f"{device},NVIDIA,4096,25:;",
            },
        },
        "spec": {
            "schedulerName": "hami-scheduler",
            "nodeName": "n1",
            "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
            **({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]} if claim else {}),
        },
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


class Leader:
    identity = "me"
    leads = True

    def is_leader(self) -> bool:
        return self.leads

    def holder(self) -> str:
        return "somebody"


@pytest.fixture
def api():
    with FakeApi() as fake:
        fake.put(NODES, node("n1", 2))
        fake.put(PODS, pod("x", "GPU-n1-0"))
        yield fake


@pytest.fixture
def kube(api, tmp_path):
    made = KubeCluster(api.client(tmp_path), namespace="gpu")
    made.start()
    made.wait_synced(5)
    yield made
    made.stop()


def until(kube: KubeCluster, condition) -> None:
    version = -1
    for _ in range(100):
        if condition():
            return
        version = kube.wait(version, 0.1)
    raise AssertionError("not reached")


def test_the_snapshot_has_the_cluster(kube):
    snapshot = kube.snapshot()
    assert [d.uuid for d in snapshot.nodes["n1"].devices] == ["GPU-n1-0", "GPU-n1-1"]
    assert snapshot.usage("n1")["GPU-n1-0"].memory_mib == 4096
    assert snapshot.known == {"pdbs", "workloads", "quotas", "namespaces", "volumes", "placements"}
    assert kube.synced() and kube.age_seconds() < 5


def test_nothing_changed_means_the_same_snapshot_and_one_change_only_its_object(kube, api):
    before = kube.snapshot()
    assert kube.snapshot() is before
    api.put(PODS, pod("y", "GPU-n1-1"))
    until(kube, lambda: "a/y" in kube.snapshot().pods)
    after = kube.snapshot()
    assert after.pods["a/x"] is before.pods["a/x"] and after.nodes["n1"] is before.nodes["n1"]
    assert "a/y" not in before.pods, "a snapshot that was given out never changes"


def test_no_lists_in_steady_state(kube, api):
    lists = lambda: sum("watch" not in query and verb == "GET" for verb, _, query, _ in api.requests)
    before = lists()
    for n in range(30):
        api.put(PODS, pod(f"p{n}", "GPU-n1-1"))
    until(kube, lambda: len(kube.snapshot().pods) == 31)
    assert lists() == before


def test_a_claim_that_becomes_known_changes_its_pods(kube, api):
    api.put(PODS, pod("db", "GPU-n1-1", claim="data"))
    until(kube, lambda: "a/db" in kube.snapshot().pods)
    assert kube.snapshot().pods["a/db"].scheduling.volumes[0].known is False
    api.put("/api/v1/persistentvolumes", {"metadata": {"name": "pv1"}, "spec": {"accessModes": ["ReadWriteMany"]}})
    api.put(
        "/api/v1/persistentvolumeclaims",
        {
            "metadata": {"namespace": "a", "name": "data"},
            "spec": {"volumeName": "pv1", "accessModes": ["ReadWriteMany"]},
        },
    )
    until(kube, lambda: kube.snapshot().pods["a/db"].scheduling.volumes[0].known)


def test_without_a_right_the_kind_is_unknown_and_said(api, tmp_path):
    events = []
    api.forbidden.add(PDBS)
    kube = KubeCluster(api.client(tmp_path), namespace="gpu", hook=lambda e, f: events.append((e, f)))
    kube.start()
    try:
        kube.wait_synced(5)
        assert "pdbs" not in kube.snapshot().known and "workloads" in kube.snapshot().known
        assert list(kube.unknown_kinds()) == ["poddisruptionbudgets"]
        assert [f["kind"] for e, f in events if e == "watch.unavailable"] == ["poddisruptionbudgets"]
        assert kube.age_seconds() < 5
    finally:
        kube.stop()


def test_without_the_right_to_read_pods_the_cause_is_raised(api, tmp_path):
    api.forbidden.add(PODS)
    kube = KubeCluster(api.client(tmp_path), namespace="gpu")
    kube.start()
    try:
        with pytest.raises(Forbidden, match="cannot list"):
            kube.wait_synced(0.5)
        assert kube.age_seconds() == float("inf")
    finally:
        kube.stop()


def test_a_server_that_hangs_is_unreachable(api, tmp_path):
    api.delay = 1.0
    kube = KubeCluster(api.client(tmp_path, timeout=0.1), namespace="gpu")
    kube.start()
    try:
        with pytest.raises(Unreachable):
            kube.wait_synced(0.4)
    finally:
        kube.stop()
        api.delay = 0.0


def placement(name: str = "p1", **spec) -> Placement:
    fields = {"req_id": f"r-{name}", "pod_selector": Selector((Expression("app", "In", ("x",)),))}
    return Placement("a", name, PlacementSpec(**fields, node_name="n1", gpu_devices=("gpu-1",), **spec))


def test_own_writes_are_there_before_the_watch_and_stale_ones_conflict(kube, api):
    api.break_watches(HPP)
    assert kube.placements.create(placement()).ok
    first = kube.placements.get("a", "p1")
    assert first is not None and first.spec == placement().spec and first.open
    held = replace(
        first.status, step=Step.HELD, phase=Phase.HELD, hold=(Allocation(0, "GPU-n1-1", 4096, 25),), pod_uid=""
    )
    assert kube.placements.write_status(first, held).ok
    assert kube.placements.get("a", "p1").status == held
    assert [h.allocations[0].uuid for h in kube.snapshot().holds] == ["GPU-n1-1"]
    assert kube.snapshot().usage("n1")["GPU-n1-1"].memory_mib == 4096
    stale = kube.placements.write_status(first, held)
    assert stale.outcome is Outcome.CONFLICT
    assert kube.placements.create(placement()).outcome is Outcome.CONFLICT
    assert kube.placements.delete(kube.placements.get("a", "p1")).ok
    until(kube, lambda: kube.placements.list() == ())
    assert kube.snapshot().holds == ()


def test_a_broken_placement_is_named_and_the_others_are_there(kube, api):
    api.put(HPP, {"metadata": {"namespace": "a", "name": "odd"}, "spec": {"reqID": "r", "settle": "soon"}})
    assert kube.placements.create(placement("good")).ok
    until(kube, lambda: [p.name for p in kube.placements.list()] == ["good"] and kube.snapshot().problems)
    assert "HamiPodPlacement/a/odd" in [p.object for p in kube.snapshot().problems]


def test_seen_follows_the_watch(kube, api):
    api.put(HPP, {"metadata": {"namespace": "a", "name": "p"}, "spec": {"reqID": "r"}})
    revision = api.revision
    until(kube, lambda: kube.placements.seen() >= revision)


def test_runs(kube):
    run = Run("gpu", "r1", "nightly", "Auto", "best-fit", phase=RunPhase.RUNNING, moves=(RunMove("m1"),))
    assert kube.runs.create(run).ok
    stored = kube.runs.get("r1")
    assert stored.phase is RunPhase.RUNNING and stored.moves == run.moves
    assert kube.runs.write_desired("r1", "Paused", "ada").ok
    assert (kube.runs.get("r1").desired, kube.runs.get("r1").desired_by) == ("Paused", "ada")
    assert kube.runs.write_status(stored).outcome is Outcome.CONFLICT, "it was read before the command"
    fresh = replace(kube.runs.get("r1"), moves=(RunMove("m1", MoveState.DONE),), phase=RunPhase.COMPLETED)
    assert kube.runs.write_status(fresh).ok
    assert [r.ended for r in kube.runs.list()] == [True]
    assert kube.runs.delete(kube.runs.get("r1")).ok
    until(kube, lambda: kube.runs.get("r1") is None)
    assert kube.runs.delete(fresh).ok, "what is gone is gone"


def test_pods_are_patched_and_evicted(kube, api):
    result = kube.pods.patch_pod("a", "x", {"metadata": {"annotations": {"k": "v"}}})
    assert result.ok and kube.snapshot().pods["a/x"].revision == result.revision
    assert api.requests[-1][3] == {"metadata": {"annotations": {"k": "v"}}}
    target = kube.snapshot().pods["a/x"]
    assert kube.pods.evict(target, dry_run=True).ok
    assert kube.pods.evict(replace(target, uid="other")).outcome is Outcome.CONFLICT
    assert kube.pods.evict(replace(target, name="none")).outcome is Outcome.GONE
    kube.pods.evict(target, check_revision=True)
    assert api.requests[-1][3]["deleteOptions"] == {
        "preconditions": {"uid": target.uid, "resourceVersion": target.revision}
    }


def test_the_fence_stops_every_write_of_a_leader_and_only_those(kube, api):
    assert kube.placements.create(placement()).ok
    leader = Leader()
    kube.lead(leader)
    mine, target = kube.placements.get("a", "p1"), kube.snapshot().pods["a/x"]
    run = Run("gpu", "r1", "nightly", "DryRun", "best-fit")
    leader.leads = False
    before = len(api.requests)
    for write in (
        lambda: kube.pods.evict(target),
        lambda: kube.pods.evict(target, dry_run=True),
        lambda: kube.pods.patch_pod("a", "x", {"metadata": {"annotations": {PINNED: "p1"}}}),
        lambda: kube.placements.create(placement("p2")),
        lambda: kube.placements.write_status(mine, mine.status),
        lambda: kube.placements.delete(mine),
        lambda: kube.runs.write_status(run),
        lambda: kube.runs.delete(run),
    ):
        with pytest.raises(NotLeader, match="somebody"):
            write()
    assert len([r for r in api.requests[before:] if r[0] != "GET"]) == 0
    assert kube.pods.patch_pod("a", "x", {"spec": {"schedulingGates": None}}).ok, "any replica may let a pod go"
    assert kube.pods.patch_pod("a", "x", {"metadata": {"annotations": {PINNED: None}}}).ok
    assert kube.runs.create(run).ok and kube.runs.write_desired("r1", "Cancelled", "ada").ok


def test_a_pod_of_ours_that_succeeded_is_still_seen_for_a_while(kube, api, monkeypatch):
    api.put(PODS, pod("job", "GPU-n1-1", **{PLACEMENT: "p1"}))
    until(kube, lambda: "a/job" in kube.snapshot().pods)
    done = json.loads(json.dumps(api.objects[PODS]["a/job"]))
    done["status"]["phase"] = "Succeeded"
    api.put(NODES, node("n2"))
    done["metadata"]["resourceVersion"] = str(api.revision)
    api.answer("GET", "/api/v1/namespaces/a/pods/job", 200, done)
    api.delete(PODS, "a/job")  # how a field selector shows it: DELETED with the state before
    until(kube, lambda: "a/job" in kube.snapshot().pods and kube.snapshot().pods["a/job"].phase == "Succeeded")
    monkeypatch.setattr(cluster_module, "FINISHED_KEPT", 0.0)
    api.put(NODES, node("n3"))
    until(kube, lambda: "a/job" not in kube.snapshot().pods)


def test_one_look_without_our_resources_installed(api, tmp_path):
    for _ in range(2):
        api.answer("GET", HPP, 404, {"message": "404 page not found"})
    snapshot = read_snapshot(api.client(tmp_path), now=datetime(2026, 9, 1, tzinfo=UTC))
    assert "a/x" in snapshot.pods and "placements" not in snapshot.known
    assert snapshot.taken_at == datetime(2026, 9, 1, tzinfo=UTC)
    api.forbidden.add(NODES)
    with pytest.raises(Forbidden):
        read_snapshot(api.client(tmp_path))
