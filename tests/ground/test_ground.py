"""The test ground itself: the faults that tests ask for do happen, as they were measured on the real scheduler."""

from __future__ import annotations

import threading
import time

import pytest

from tests.ground import objects
from tests.ground.cluster import Cluster, devices_of
from tests.ground.commands import real_hami
from tests.ground.emulator import Behaviour

pytestmark = pytest.mark.controlplane
stand_in = pytest.mark.skipif(bool(real_hami()), reason="switches a habit of the stand-in")


def pinned(node: str, index: int, **more: object) -> dict[str, object]:
    return {"annotations": {"nvidia.com/use-gpuuuid": objects.uuid(node, index)}, **more}


def test_deployment_becomes_ready_on_the_pinned_device(cluster: Cluster) -> None:
    cluster.add_node("n0")
    cluster.create(objects.deployment("web", mem=4000, cores=10, **pinned("n0", 2)))

    (pod,) = cluster.wait_ready(1)

    assert (pod["spec"]["nodeName"], devices_of(pod)) == ("n0", ["GPU-n0-2"])
    assert pod["metadata"]["annotations"]["hami.io/bind-phase"] == "success"
    assert cluster.emulator.errors == []


def test_hami_webhook_completes_a_whole_device_request(cluster: Cluster) -> None:
    cluster.add_node("n0", 1)
    cluster.create(objects.deployment("whole", scheduler="default-scheduler"))

    (pod,) = cluster.wait_ready(1)

    assert pod["spec"]["schedulerName"] == "hami-scheduler"
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpucores"] == "100"


def test_two_pods_at_once_on_one_node_wait_for_its_lock(cluster: Cluster) -> None:
    cluster.emulator.defaults = Behaviour(allocate=0.5)
    cluster.add_node("n0")
    cluster.create(objects.deployment("pair", 2, mem=1000))

    cluster.wait_ready(2)

    bound = sorted(line.at("bound") for line in cluster.emulator.timelines.values() if "bound" in line.marks)
    assert bound[1] - bound[0] > 0.5


@stand_in
def test_a_late_view_of_deletions_loses_the_wake_up(cluster: Cluster) -> None:
    cluster.add_node("n0", 1)
    cluster.create(objects.deployment("old", mem=20000))
    (old,) = cluster.wait_ready(1)
    cluster.habits(deletion_lag=0.5)
    cluster.create(objects.deployment("waiting", mem=20000))
    cluster.wait(lambda: "FilteringFailed" in str(cluster.events(cluster.pods(app="waiting")[0]["metadata"]["name"])))

    cluster.scale("Deployment", "old", 0)
    cluster.wait(lambda: not cluster.pods(app="old"))
    time.sleep(2)

    (pod,) = cluster.pods(app="waiting")
    assert not pod["spec"].get("nodeName"), "the device is free, yet nothing woke the pod"
    cluster.annotate("Pod", pod["metadata"]["name"], {"touched": "yes"})
    cluster.wait_ready(1, seconds=5, app="waiting")
    assert old["metadata"]["uid"] != pod["metadata"]["uid"]


def test_faults_of_the_emulated_kubelet(cluster: Cluster) -> None:
    cluster.add_node("n0")
    cluster.emulator.behave("crash", crash_after=0.2)
    cluster.emulator.behave("mute", never_ready=True)
    cluster.emulator.behave("strays", wrong_device="GPU-n0-3")
    cluster.emulator.behave("stuck", delete=None)
    cluster.create(
        *(objects.pod(name, mem=1000, **pinned("n0", i)) for i, name in enumerate(("crash", "mute", "strays", "stuck")))
    )

    cluster.wait(lambda: len(cluster.placed()) == 4)
    cluster.wait(lambda: cluster.pod("crash")["status"]["containerStatuses"][0]["restartCount"] == 3)
    cluster.wait(lambda: devices_of(cluster.pod("strays")) == ["GPU-n0-3"])
    assert cluster.evict("stuck")[0] == 201
    time.sleep(0.5)
    assert cluster.pod("stuck")["metadata"]["deletionTimestamp"]
    assert cluster.pod("mute")["status"]["phase"] == "Pending"


def test_failed_allocate_ends_the_pod_and_frees_its_device(cluster: Cluster) -> None:
    cluster.add_node("n0", 1)
    cluster.emulator.behave("bad", allocate_fails=True)
    cluster.create(objects.pod("bad", mem=20000))
    cluster.wait(lambda: cluster.pod("bad")["status"].get("reason") == "UnexpectedAdmissionError")

    cluster.create(objects.pod("good", mem=20000))

    cluster.wait(lambda: cluster.ready_pods())
    assert list(cluster.placed()) == ["bad", "good"]


@stand_in
def test_cordoned_device_is_seen_after_a_reset_of_the_handshake(cluster: Cluster) -> None:
    cluster.habits(tick=0.3)
    cluster.add_node("n0", 1)
    cluster.annotate("Node", "n0", {objects.CORDON: "GPU-n0-0", "hami.io/node-handshake": None})
    time.sleep(1)

    cluster.create(objects.pod("late", mem=1000))

    cluster.wait(lambda: "CardCordoned" in str(cluster.pod("late")["status"].get("conditions")))


def test_requests_are_counted_per_user_and_limited_by_rbac(cluster: Cluster) -> None:
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    user = cluster.plane.service_account("narrow", [rule])
    mine = cluster.api.as_user(user.token)
    since = cluster.plane.audit.mark()

    assert mine.items("/api/v1/pods") == []
    assert mine.request("GET", "/api/v1/nodes")[0] == 403

    assert cluster.plane.audit.count(user.name, since) == {"list pods": 1, "list nodes": 1}


@stand_in
def test_restarted_hami_forgets_terminating_pods(cluster: Cluster) -> None:
    cluster.add_node("n0", 1)
    cluster.emulator.defaults = Behaviour(delete=None)
    cluster.create(objects.pod("old", mem=20000))
    cluster.wait(lambda: cluster.ready_pods())
    assert cluster.evict("old")[0] == 201
    assert cluster.plane.hami("/ground/books")[1]

    cluster.plane.restart("hami")
    cluster.wait_known("n0")

    assert cluster.plane.hami("/ground/books")[1] == {}


def test_fault_proxy_breaks_single_requests(cluster: Cluster) -> None:
    from tests.ground.api import Api
    from tests.ground.faultproxy import FaultProxy

    with FaultProxy(cluster.plane) as proxy:
        client = Api(proxy.url, "ground-admin", str(cluster.plane.ca.path), timeout=2)
        proxy.fail("GET", "/pods$", status=429, headers={"Retry-After": "1"}, times=1)
        proxy.fail("POST", "/configmaps$", lose_answer=True, times=1)

        assert client.request("GET", "/api/v1/pods")[0] == 429
        assert client.request("GET", "/api/v1/pods")[0] == 200
        client.request("POST", "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "lost"}})
        assert cluster.api.find("/api/v1/namespaces/default/configmaps/lost"), "the server did it all the same"

        stop = threading.Event()
        seen = []
        for event in client.watch("/api/v1/nodes", stop):
            seen.append(event["type"])
            if len(seen) == 1:
                cluster.add_node("n0", 1)
            else:
                stop.set()
        assert seen[:2] == ["SYNC", "ADDED"]

        proxy.cut()
        assert client.request("GET", "/api/v1/pods")[0] == 0
        proxy.heal()
        assert client.request("GET", "/api/v1/pods")[0] == 200
    cluster.api.delete("/api/v1/namespaces/default/configmaps/lost")


def test_balancer_turns_to_the_replica_that_lives(cluster: Cluster) -> None:
    from tests.ground.api import Api
    from tests.ground.balancer import Balancer
    from tests.ground.process import free_port

    with Balancer([free_port(), cluster.plane.ports["api"]]) as balancer:
        client = Api(f"https://127.0.0.1:{balancer.port}", "ground-admin", str(cluster.plane.ca.path), timeout=1)
        for _ in range(3):
            assert client.request("GET", "/api/v1/namespaces/default")[0] == 200
            balancer.drop()
        balancer.break_with("hang")
        assert client.request("GET", "/api/v1/namespaces/default")[0] == 0
