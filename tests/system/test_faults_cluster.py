"""What the rest of the cluster does in the middle of a move, and how each move then ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.ground import objects
from tests.ground.cluster import Cluster, devices_of, is_ready
from tests.ground.daemon import Daemon
from tests.system.faults import clean, ended, move, pair, status_of
from tests.system.watchers import Sampler, gated

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(240)]
Act = Callable[[Cluster, dict[str, Any]], None]
PLACEMENTS = objects.COLLECTIONS["HamiPodPlacement"].format(ns="default")


def _node_lost(cluster: Cluster, pod: dict[str, Any]) -> None:
    cluster.api.patch("/api/v1/nodes/n1/status", {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}})


def _thief(cluster: Cluster, pod: dict[str, Any]) -> None:
    """Somebody who goes past both webhooks and HAMi's filter takes all of the device."""
    body = objects.pod("thief", mem=24576, labels={"app": "thief", "hami.io/webhook": "ignore"})
    record = "GPU-n1-1,NVIDIA,24576,100:;"
    body["metadata"]["annotations"] = {"hami.io/vgpu-node": "n1", "hami.io/vgpu-devices-allocated": record}
    body["spec"] |= {"schedulerName": "default-scheduler", "nodeSelector": {"kubernetes.io/hostname": "n1"}}
    body["spec"]["containers"][0]["resources"] = {}
    cluster.create(body)


def _rollout(cluster: Cluster, pod: dict[str, Any]) -> None:
    change = {"spec": {"template": {"metadata": {"annotations": {"release": "2"}}}}}
    cluster.api.patch(objects.COLLECTIONS["Deployment"].format(ns="default") + "/web", change)


def _paused_at_zero(cluster: Cluster, pod: dict[str, Any]) -> None:
    cluster.scale("Deployment", "web", 0)


def _deleted(cluster: Cluster, pod: dict[str, Any]) -> None:
    cluster.api.delete(f"{PLACEMENTS}/move")


def _scaled_up(cluster: Cluster, pod: dict[str, Any]) -> None:
    cluster.scale("Deployment", "web", 4)


def _unhealthy(cluster: Cluster, pod: dict[str, Any]) -> None:
    entries = objects.node("n1", 2)["metadata"]["annotations"][objects.REGISTER]
    cluster.annotate("Node", "n1", {objects.REGISTER: entries.replace('"GPU-n1-1"', '"GPU-n1-x"')})


def _hami_restarted(cluster: Cluster, pod: dict[str, Any]) -> None:
    cluster.plane.restart("hami")


def _apiserver_restarted(cluster: Cluster, pod: dict[str, Any]) -> None:
    cluster.plane.restart("apiserver")


def _etcd_restarted(cluster: Cluster, pod: dict[str, Any]) -> None:
    cluster.plane.restart("etcd")


MIDDLE: dict[str, tuple[Act, set[str], int]] = {
    "node lost": (_node_lost, {"NodeNotReady", "StartTimeout"}, 1),
    "place stolen": (_thief, {"PlaceStolen"}, 1),
    "rollout replaces the ReplicaSet": (_rollout, {"ReplacementMissing", "Completed", "PodDeleted"}, 1),
    "owner scaled to zero": (_paused_at_zero, {"ReplacementMissing", "PodDeleted"}, 0),
    "placement deleted": (_deleted, set(), 1),
    "autoscaler adds three": (_scaled_up, {"Completed"}, 4),
    "device vanishes": (_unhealthy, {"DeviceUnknown"}, 1),
    "HAMi restarted": (_hami_restarted, {"Completed"}, 1),
    "API server restarted": (_apiserver_restarted, {"Completed", "Unpinned"}, 1),
    "etcd restarted": (_etcd_restarted, {"Completed", "Unpinned"}, 1),
}
"""Name -> what happens while the replacement waits at the gate, how the move may end, pods Ready afterwards."""


def sample(names: Iterable[str], *quick: str) -> list[Any]:
    """All of them; only ``quick`` ones are not slow."""
    return [pytest.param(name, marks=[] if name in quick else [pytest.mark.slow]) for name in names]


@pytest.mark.parametrize(
    "name", sample(MIDDLE, "place stolen", "placement deleted", "device vanishes", "rollout replaces the ReplicaSet")
)
def test_in_the_middle_of_a_move(cluster: Cluster, start_daemon: Callable[..., Daemon], name: str) -> None:
    act, ends, ready = MIDDLE[name]
    pod = pair(cluster)
    cluster.emulator.behave("web", delete=2.0)
    daemon = start_daemon(replicas=1)
    since = daemon.plane.audit.mark()
    move(cluster, pod, timeouts={"start": "15s"})
    cluster.wait(lambda: any(gated(p) for p in cluster.pods(app="web")), 20, "a replacement at the gate")
    act(cluster, pod)
    if ends:
        (status,) = ended(cluster, "move", seconds=60)
        print(f"{name}: {status['reason']}: {status['message']}")
        assert status["reason"] in ends, status
        if status["phase"] == "Completed" and name != "rollout replaces the ReplicaSet":
            assert [d for p in cluster.pods(app="web") for d in devices_of(p)].count("GPU-n1-1") == 1
    clean(cluster, daemon, since)

    def settled() -> bool:
        alive = [p for p in cluster.pods(app="web") if not p["metadata"].get("deletionTimestamp")]
        return len(alive) == ready and all(is_ready(p) for p in alive)

    cluster.wait(settled, 60, f"{ready} pods Ready again")


def _refused(pods: int = 1, **spec: Any) -> Callable[[Cluster], dict[str, Any]]:
    def make(cluster: Cluster) -> dict[str, Any]:
        return pair(cluster, replicas=pods, **spec)

    return make


def _bare(cluster: Cluster) -> dict[str, Any]:
    cluster.add_node("n0", 2)
    cluster.create(objects.pod("solo", mem=8000, labels={"app": "solo"}))
    (pod,) = cluster.wait_ready(1)
    cluster.add_node("n1", 2)
    return pod


def _job(cluster: Cluster) -> dict[str, Any]:
    cluster.add_node("n0", 2)
    cluster.create(objects.job("batch", mem=8000))
    (pod,) = cluster.wait_ready(1)
    cluster.add_node("n1", 2)
    return pod


def _two_budgets(cluster: Cluster) -> dict[str, Any]:
    pod = pair(cluster, replicas=2)
    for name in ("one", "two"):
        cluster.create(objects.pdb(name, {"app": "web"}, maxUnavailable=1))
    return pod


def _full(cluster: Cluster) -> dict[str, Any]:
    pod = pair(cluster)
    cluster.create(
        objects.deployment("big", 1, mem=24000, extra={"nodeSelector": {"kubernetes.io/hostname": "n1"}},
                           annotations={"nvidia.com/use-gpuuuid": "GPU-n1-1"})
    )  # fmt: skip
    cluster.wait_ready(2)
    return pod


def _opted_out(cluster: Cluster) -> dict[str, Any]:
    return pair(cluster, annotations={"defragd.io/do-not-move": "true"})


REFUSED: dict[str, tuple[Callable[[Cluster], dict[str, Any]], str]] = {
    "bare pod": (_bare, "NotRecreated"),
    "job": (_job, "OwnerExcluded"),
    "two budgets": (_two_budgets, "SeveralPDBs"),
    "no room": (_full, "HoldTimeout"),
    "opted out": (_opted_out, "OptedOut"),
}


@pytest.mark.parametrize("name", sample(REFUSED, "bare pod", "two budgets"))
def test_refused_before_anything_is_evicted(cluster: Cluster, start_daemon: Callable[..., Daemon], name: str) -> None:
    make, reason = REFUSED[name]
    pod = make(cluster)
    daemon = start_daemon(replicas=1)
    since = daemon.plane.audit.mark()
    move(cluster, pod, timeouts={"hold": "3s"})
    (status,) = ended(cluster, "move", seconds=20)
    print(f"{name}: {status['reason']}: {status['message']}")
    assert status["reason"] == reason, status
    assert cluster.pod(pod["metadata"]["name"])["metadata"]["uid"] == pod["metadata"]["uid"]
    requests = daemon.plane.audit.requests(daemon.user.name, since)
    assert not [r for r in requests if r.subresource == "eviction" and not r.dry_run]


def test_fifty_pods_at_once_and_one_placement(cluster: Cluster, start_daemon: Callable[..., Daemon]) -> None:
    """Scaled by 49 while the old pod leaves: one pod is pinned, none is held up for long."""
    pod = pair(cluster, mem=500)
    for number in range(2, 8):
        cluster.add_node(f"n{number}", 4)
    cluster.emulator.behave(lambda ref: ref.name == pod["metadata"]["name"], delete=2.0)
    daemon = start_daemon(replicas=2)
    since = daemon.plane.audit.mark()
    with Sampler(cluster, {}) as sampler:
        move(cluster, pod)
        cluster.wait(lambda: status_of(cluster, "move").get("step") == "Evicting", 20, "evicting")
        cluster.scale("Deployment", "web", 50)
        (status,) = ended(cluster, "move", seconds=60)
        assert status["phase"] == "Completed", status
        cluster.wait(lambda: not [p for p in cluster.pods() if gated(p)], 10, "no pod gated")
    pinned = [p for p in cluster.pods() if "nvidia.com/use-gpuuuid" in (p["metadata"].get("annotations") or {})]
    assert [devices_of(p) for p in pinned] == [["GPU-n1-1"]]
    others = [s for uid, s in sampler.longest_gate.items() if uid != status["podUID"]]
    print(f"{sampler.most_gated} gated at most, the others for {max(others, default=0):.1f} s at most")
    assert max(others, default=0) < 8
    clean(cluster, daemon, since)


def test_a_stateful_pod_returns_under_its_name(cluster: Cluster, start_daemon: Callable[..., Daemon]) -> None:
    cluster.add_node("n0", 2)
    cluster.create(objects.stateful_set("db", 2, mem=8000))
    cluster.wait_ready(2)
    cluster.add_node("n1", 2)
    daemon = start_daemon(replicas=1)
    since = daemon.plane.audit.mark()
    old = cluster.pod("db-1")
    move(cluster, old)
    (status,) = ended(cluster, "move")
    assert status["phase"] == "Completed", status
    new = cluster.pod("db-1")
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    assert devices_of(new) == ["GPU-n1-1"]
    clean(cluster, daemon, since)


def test_a_budget_that_shrinks_meanwhile_is_never_overdrawn(
    cluster: Cluster, start_daemon: Callable[..., Daemon]
) -> None:
    pod = pair(cluster, replicas=3, mem=4000)
    cluster.create(objects.pdb("web", {"app": "web"}, minAvailable=2))
    daemon = start_daemon(replicas=1)
    since = daemon.plane.audit.mark()
    names = [p["metadata"]["name"] for p in cluster.pods(app="web")]
    with Sampler(cluster, {"web": 2}) as sampler:
        for number, name in enumerate(names):
            spec = {"settle": "0s", "timeouts": {"hold": "20s"}}
            cluster.create(objects.placement(f"m{number}", "n1", [f"gpu-{number}"], {"app": "web"}, evict=name, **spec))
        cluster.wait(lambda: any(gated(p) for p in cluster.pods()), 20, "the first is on its way")
        cluster.api.patch("/apis/policy/v1/namespaces/default/poddisruptionbudgets/web", {"spec": {"minAvailable": 3}})
        time.sleep(4)
        moved = sum(status_of(cluster, f"m{i}").get("phase") == "Completed" for i in range(3))
        assert moved <= 1, "nothing is evicted under a budget of none"
        cluster.api.patch("/apis/policy/v1/namespaces/default/poddisruptionbudgets/web", {"spec": {"minAvailable": 2}})
        found = ended(cluster, "m0", "m1", "m2", seconds=60)
    assert {s["phase"] for s in found} == {"Completed"}, found
    assert not sampler.overdrawn, sampler.overdrawn
    assert sampler.rate() >= 3
    assert pod["metadata"]["name"] in names
    clean(cluster, daemon, since)


def test_a_quota_for_one_pod_only_delays(cluster: Cluster, start_daemon: Callable[..., Daemon]) -> None:
    """The replacement is refused until the old pod's object is gone; each refused creation passes our webhook."""
    pod = pair(cluster)
    cluster.create(objects.quota("one", {"pods": "1"}))
    cluster.emulator.behave("web", delete=2.0)
    daemon = start_daemon(replicas=1)
    since = daemon.plane.audit.mark()
    move(cluster, pod)
    (status,) = ended(cluster, "move", seconds=60)
    assert status["phase"] == "Completed", status
    assert devices_of(cluster.wait_ready(1)[0]) == ["GPU-n1-1"]
    clean(cluster, daemon, since)
