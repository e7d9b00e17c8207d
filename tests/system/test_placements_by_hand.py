"""HamiPodPlacements that a person writes: with and without an eviction."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.ground import objects
from tests.ground.cluster import Cluster, devices_of
from tests.ground.daemon import Daemon
from tests.ground.emulator import Behaviour
from tests.system.watchers import gated

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(240)]


def completed(cluster: Cluster, name: str, seconds: float = 40) -> dict[str, object]:
    """The placement once it is Completed; fails at once when it ended otherwise."""

    def done() -> dict[str, object] | None:
        status = cluster.placement(name).get("status") or {}
        assert status.get("phase") not in ("Failed", "Expired"), status
        return status if status.get("phase") == "Completed" else None

    found: dict[str, object] = cluster.wait(done, seconds, f"{name} completed")
    return found


def test_evicts_and_lands_on_exactly_the_device(cluster: Cluster, start_daemon: Callable[..., Daemon]) -> None:
    cluster.emulator.defaults = Behaviour(allocate=0.1, ready=0.1, delete=0.5)
    cluster.add_node("n0", 2)
    cluster.add_node("n1", 2)
    cluster.create(objects.deployment("web", 2, mem=4000))
    old, other = cluster.wait_ready(2)
    start_daemon()
    target = "n1" if old["spec"]["nodeName"] == "n0" else "n0"

    cluster.create(
        objects.placement("by-hand", target, ["gpu-1"], {"app": "web"}, evict=old["metadata"]["name"], settle="1s")
    )

    status = completed(cluster, "by-hand")
    (details,) = status["assignmentDetails"]  # type: ignore[misc]
    pod = cluster.pod(details["podName"])
    assert pod["metadata"]["uid"] == details["podUID"] != old["metadata"]["uid"]
    assert (pod["spec"]["nodeName"], devices_of(pod)) == (target, [objects.uuid(target, 1)])
    names = {p["metadata"]["name"] for p in cluster.wait_ready(2)}
    assert names == {pod["metadata"]["name"], other["metadata"]["name"]}, "only that pod moved"


def test_pins_exactly_one_of_ten_created_at_once(cluster: Cluster, start_daemon: Callable[..., Daemon]) -> None:
    for number in range(3):
        cluster.add_node(f"n{number}", 4)
    start_daemon()
    cluster.create(objects.placement("one-of-ten", "n2", ["gpu-3"], {"app": "many"}, settle="1s"))
    cluster.wait(lambda: (cluster.placement("one-of-ten").get("status") or {}).get("phase") == "AwaitingPod")

    cluster.create(objects.deployment("many", 10, mem=2000))

    status = completed(cluster, "one-of-ten")
    pods = cluster.wait_ready(10, seconds=60)
    pinned = [p for p in pods if "nvidia.com/use-gpuuuid" in (p["metadata"].get("annotations") or {})]
    assert [p["metadata"]["uid"] for p in pinned] == [status["assignmentDetails"][0]["podUID"]]  # type: ignore[index]
    assert devices_of(pinned[0]) == ["GPU-n2-3"]
    assert not [p for p in pods if gated(p)]


def test_stateful_set_pod_returns_under_its_name_elsewhere(
    cluster: Cluster, start_daemon: Callable[..., Daemon]
) -> None:
    cluster.add_node("n0", 1)
    cluster.create(objects.stateful_set("db", 1, mem=4000))
    (old,) = cluster.wait_ready(1)
    cluster.add_node("n1", 1)
    start_daemon()

    cluster.create(objects.placement("db", "n1", ["GPU-n1-0"], {"app": "db"}, evict="db-0", settle="1s"))

    completed(cluster, "db")
    pod = cluster.pod("db-0")
    assert pod["metadata"]["uid"] != old["metadata"]["uid"]
    assert devices_of(pod) == ["GPU-n1-0"]
