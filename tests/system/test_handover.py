"""Make before break, and pinning at admission, on the real control plane."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.ground import chart, objects
from tests.ground.cluster import Cluster, devices_of
from tests.ground.daemon import Daemon
from tests.support.effort import FULL
from tests.system.faults import behind_a_proxy, bury, clean, ended, move, pair, status_of
from tests.system.watchers import Sampler, gated

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(240)]
DEPLOYMENT = "/apis/apps/v1/namespaces/default/deployments/web"
COST = "controller.kubernetes.io/pod-deletion-cost"
SCALES = {
    "up": ("PATCH", "/deployments/web/scale", 0),
    "pin": ("PATCH", "/namespaces/default/pods/[^/]+$", 0),
    "cost": ("PATCH", "/namespaces/default/pods/[^/]+$", 1),
    "down": ("PATCH", "/deployments/web/scale", 1),
}


def settled(cluster: Cluster, replicas: int) -> None:
    """As before: the count, who is there, no mark of ours."""

    def done() -> bool:
        web = cluster.api.get(DEPLOYMENT)
        pods = [p for p in cluster.pods() if not p["metadata"].get("deletionTimestamp")]
        marks = [p for p in pods if COST in (p["metadata"].get("annotations") or {})]
        owned = [e for e in web["metadata"]["managedFields"] if e["manager"].startswith("defragd-surge")]
        return web["spec"]["replicas"] == replicas and len(pods) == replicas and not marks and not owned

    cluster.wait(done, 30, "the Deployment is as before")


def surge(cluster: Cluster, pod: dict[str, Any], name: str = "move", **spec: Any) -> None:
    move(cluster, pod, name, handover="SurgeFirst", **spec)


def test_the_old_pod_goes_when_its_successor_is_ready(cluster: Cluster) -> None:
    """Refused without the right to scale. With it: two replicas whose budget allows no eviction; then a kill -9."""
    pod = pair(cluster, replicas=2)
    cluster.create(objects.pdb("web", {"app": "web"}, minAvailable=2))
    with behind_a_proxy(cluster) as (daemon, proxy), Sampler(cluster, floors={"web": 2}) as sampler:
        since = daemon.plane.audit.mark()
        (replica,) = daemon.replicas
        surge(cluster, pod, "not-granted")
        (status,) = ended(cluster, "not-granted", seconds=30)
        assert status["reason"] == "SurgeUnsupported", status
        assert "surge.enabled" in status["message"]

        chart.apply(cluster.plane, chart.ACCESS, "surge.enabled=true")
        surge(cluster, pod)
        (status,) = ended(cluster, "move", seconds=40)
        assert status["phase"] == "Completed", status
        settled(cluster, 2)
        moved = cluster.pod(status["podName"])
        assert (moved["spec"]["nodeName"], devices_of(moved)) == ("n1", ["GPU-n1-1"])

        kills = [(w, k) for w in SCALES for k in ("before", "after")]
        for number, (write, when) in enumerate(kills if FULL else [("down", "after")]):
            pod = cluster.wait_ready(2)[0]
            target = "n1" if pod["spec"]["nodeName"] == "n0" else "n0"
            method, path, skip = SCALES[write]
            proxy.heal()
            how = {"drop": True} if when == "before" else {"lose_answer": True}
            fault = proxy.fail(
                method, path, skip=skip, times=1, then=lambda: os.kill(replica.process.pid, signal.SIGKILL), **how
            )
            surge(cluster, pod, f"killed-{number}", node=target)
            cluster.wait(lambda fault=fault: fault.hits, 20, f"the fault {when} {write}")
            cluster.wait(lambda: not replica.process.running, 5, "the process is dead")
            bury(cluster)
            begin = time.monotonic()
            replica.process.start()
            (ending,) = ended(cluster, f"killed-{number}", seconds=60)
            print(write, when, ending["phase"], ending["reason"], round(time.monotonic() - begin, 1))
            settled(cluster, 2)
            if ending["phase"] != "Completed":  # while no replica ran, the second pod passed no webhook
                assert (ending["reason"], write, when) == ("Unpinned", "up", "after"), ending
        assert not sampler.overdrawn, sampler.overdrawn
        evictions = [r for r in daemon.plane.audit.requests(daemon.user.name, since) if r.subresource == "eviction"]
        assert not evictions
        clean(cluster, daemon, since)


def test_pinning_at_admission(cluster: Cluster, start_daemon: Callable[..., Daemon]) -> None:
    """As on an API server without scheduling gates: many created at once, a quota that refuses."""
    pod = pair(cluster, mem=2000)
    cluster.emulator.behave("web", delete=2.0)
    daemon = start_daemon(replicas=2, config={"webhook": {"mode": "pin"}})
    since = daemon.plane.audit.mark()
    move(cluster, pod)
    cluster.wait(lambda: status_of(cluster, "move").get("claim"), 20, "a claim")
    cluster.api.patch(DEPLOYMENT, {"spec": {"replicas": 12}})
    (status,) = ended(cluster, "move", seconds=40)
    assert status["phase"] == "Completed", status
    pods = cluster.wait_ready(12, seconds=60)
    pinned = [p for p in pods if "scheduling.hami.placement.com/pinned" in (p["metadata"].get("annotations") or {})]
    assert [p["metadata"]["uid"] for p in pinned] == [status["podUID"]]
    assert devices_of(pinned[0]) == ["GPU-n1-1"]
    assert not [p for p in pods if gated(p)]
    clean(cluster, daemon, since)

    # creations that are refused use up nothing: the quota lets the replacement in only when the old object is gone
    cluster.api.patch(DEPLOYMENT, {"spec": {"replicas": 1}})
    cluster.wait(lambda: len(cluster.pods()) == 1, 30, "one pod")
    (pod,) = cluster.wait_ready(1)
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "one"}, "spec": {"hard": {"pods": "1"}}}
    quotas = "/api/v1/namespaces/default/resourcequotas"
    cluster.api.create(quotas, quota)
    try:
        cluster.wait(lambda: (cluster.api.get(f"{quotas}/one").get("status") or {}).get("used"), 10, "quota counted")
        target = "n1" if pod["spec"]["nodeName"] == "n0" else "n0"
        move(cluster, pod, "quota", node=target)
        (status,) = ended(cluster, "quota", seconds=60)
        assert status["phase"] == "Completed", status
    finally:
        cluster.api.delete(f"{quotas}/one")
    (pod,) = cluster.wait_ready(1)
    assert devices_of(pod) == [f"GPU-{target}-1"]
    clean(cluster, daemon, since)
