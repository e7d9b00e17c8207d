"""UC-57 on a cluster: a device is cordoned while it is drained, beside what a person cordoned, killed or not."""

from __future__ import annotations

import pytest

from tests.ground import chart, objects
from tests.ground.cluster import Cluster, devices_of
from tests.ground.daemon import Daemon
from tests.ground.emulator import Behaviour
from tests.system import worlds
from tests.system.faults import bury, clean
from tests.system.test_main_job import ended_run

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(300)]
LIST, MARK = objects.CORDON, "scheduling.hami.placement.com/cordoned"


def cordons(cluster: Cluster) -> tuple[str | None, str | None]:
    """HAMi's list and our mark on n1."""
    found = cluster.api.get("/api/v1/nodes/n1")["metadata"].get("annotations") or {}
    return found.get(LIST), found.get(MARK)


def test_uc57_as_before_after_a_kill_in_the_middle(cluster: Cluster) -> None:
    cluster.emulator.defaults = Behaviour(allocate=0.05, ready=0.1, delete=8.0)
    cluster.add_node("n1", 3)
    cluster.create(objects.deployment("web", 1, mem=8000))
    (pod,) = cluster.wait_ready(1)
    (drained,) = devices_of(pod)
    foreign = next(uuid for uuid in (objects.uuid("n1", i) for i in range(3)) if uuid != drained)
    cluster.annotate("Node", "n1", {LIST: f" {foreign}"})
    policy = worlds.policy("empty", strategy={"name": "gpu-drain", "args": {"device": drained}})
    daemon = Daemon(cluster.plane, [policy], replicas=2)
    chart.apply(cluster.plane, ["ClusterRole"], "rbac.cordonDevices=true")
    since = daemon.plane.audit.mark()
    with daemon:
        cluster.wait(lambda: cordons(cluster)[0] == f" {foreign},{drained}", 100, "both are in the list")
        assert (cordons(cluster)[1] or "").startswith(f"{drained}=empty-")
        cluster.wait(lambda: any(p["metadata"].get("deletionTimestamp") for p in cluster.pods()), 30, "the eviction")
        daemon.leader().process.kill()
        bury(cluster)
        run = ended_run(daemon, 0, cluster)
        assert run["status"]["counts"]["done"] == 1, run["status"]
        cluster.wait(lambda: cordons(cluster) == (f" {foreign}", None), 20, "the list is as it was")
        (moved,) = cluster.wait_ready(1)
        assert drained not in devices_of(moved) and foreign not in devices_of(moved)
        clean(cluster, daemon, since)
        writes = [r for r in daemon.plane.audit.requests(daemon.user.name, since) if r.what == "patch nodes"]
        assert [r.code for r in writes] == [200, 200]
