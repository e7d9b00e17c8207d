"""Processes that die, freeze or are cut off in the middle of a move: the next goes on, and nothing happens twice."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.ground.cluster import Cluster, devices_of
from tests.ground.daemon import Daemon
from tests.support.effort import FULL
from tests.system.faults import behind_a_proxy, bury, clean, ended, move, pair, status_of
from tests.system.watchers import gated

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(240)]

WRITES = {
    "Held": ("PUT", "/hamipodplacements/{name}/status", 0),
    "Evicting": ("PUT", "/hamipodplacements/{name}/status", 1),
    "eviction": ("POST", "/pods/[^/]+/eviction", 0),
    "pin": ("PATCH", "/namespaces/default/pods/[^/]+$", 0),
    "Pinned": ("PUT", "/hamipodplacements/{name}/status", 2),
    "Completed": ("PUT", "/hamipodplacements/{name}/status", 3),
}
"""Every write of a move in order: method, path, and how many alike come before it."""
WITHOUT_GATES = {
    **WRITES,
    "claim": ("PUT", "/hamipodplacements/{name}/status", 2),
    "Pinned": ("PUT", "/hamipodplacements/{name}/status", 3),
    "Completed": ("PUT", "/hamipodplacements/{name}/status", 4),
}
del WITHOUT_GATES["pin"]
WHEN = ("before", "after")
SAMPLE = [("eviction", "after"), ("pin", "after"), ("Evicting", "before"), ("Pinned", "before")]


@pytest.mark.parametrize("mode", ["gate", "pin"] if FULL else ["gate"])
def test_kill_around_every_write(cluster: Cluster, mode: str) -> None:
    """kill -9 right before the API server sees a write, and right after it, while nobody was told."""
    pod = pair(cluster)
    writes = WRITES if mode == "gate" else WITHOUT_GATES
    with behind_a_proxy(cluster, config={"webhook": {"mode": mode}}) as (daemon, proxy):
        since = daemon.plane.audit.mark()
        (replica,) = daemon.replicas
        seen = []
        for number, (write, when) in enumerate([(w, k) for w in writes for k in WHEN] if FULL else SAMPLE):
            method, path, skip = writes[write]
            name = f"move-{number}"
            proxy.heal()
            how = {"drop": True} if when == "before" else {"lose_answer": True}
            fault = proxy.fail(
                method, path.format(name=name), skip=skip, times=1,
                then=lambda: os.kill(replica.process.pid, signal.SIGKILL), **how,
            )  # fmt: skip
            target = "n1" if pod["spec"]["nodeName"] == "n0" else "n0"
            move(cluster, pod, name, node=target)
            cluster.wait(lambda fault=fault: fault.hits, 20, f"the fault {when} {write}")
            cluster.wait(lambda: not replica.process.running, 5, "the process is dead")
            bury(cluster)
            begin = time.monotonic()
            replica.process.start()
            (status,) = ended(cluster, name, seconds=60)
            seen.append((write, when, status["phase"], status["reason"], round(time.monotonic() - begin, 1)))
            print(*seen[-1])
            (pod,) = cluster.wait_ready(1)
            # the replacement comes while nobody is there to gate or pin it
            excused = {("eviction", "after"), ("claim", "before"), ("claim", "after")}
            if (write, when) not in excused:
                assert status["phase"] == "Completed", (write, when, status)
            if status["phase"] == "Completed":
                assert (pod["spec"]["nodeName"], devices_of(pod)) == (target, [f"GPU-{target}-1"])
        clean(cluster, daemon, since)


def test_a_frozen_leader_wakes_up_behind_the_fence(cluster: Cluster, start_daemon: Callable[..., Daemon]) -> None:
    """SIGSTOP past the lease: the other replica takes over and finishes; SIGCONT: the old one writes nothing."""
    pod = pair(cluster)
    cluster.emulator.behave("web", delete=1.0)
    daemon = start_daemon(replicas=2)
    since = daemon.plane.audit.mark()
    old = daemon.leader()
    move(cluster, pod)
    cluster.wait(lambda: status_of(cluster, "move").get("step") == "Evicting", 20, "evicting")
    old.process.freeze()
    daemon.balancer.backends.remove(old.webhook_port)  # its readiness probe fails
    daemon.balancer.drop()
    try:
        cluster.wait(lambda: not daemon.leader_name().startswith(old.name), 30, "another leader")
        (status,) = ended(cluster, "move", seconds=40)
        assert status["phase"] == "Completed", status
        again = cluster.wait_ready(1)[0]
        mark = daemon.plane.audit.mark()
    finally:
        old.process.thaw()
    move(cluster, again, "back", node="n0")
    (status,) = ended(cluster, "back", seconds=40)
    assert status["phase"] == "Completed", status
    time.sleep(1)
    writes = [r for r in daemon.plane.audit.requests(daemon.user.name, mark) if r.verb in ("update", "patch", "create")]
    conflicts = [r for r in writes if r.code == 409 and r.resource != "leases"]
    assert not conflicts, "the thawed replica wrote on what it knew before"
    clean(cluster, daemon, since)


def test_a_leader_that_is_cut_off_stops_and_the_other_finishes(
    cluster: Cluster, start_daemon: Callable[..., Daemon]
) -> None:
    pod = pair(cluster)
    with behind_a_proxy(cluster) as (daemon, proxy):
        since = daemon.plane.audit.mark()
        cluster.emulator.behave("web", delete=2.0)
        move(cluster, pod)
        cluster.wait(lambda: any(gated(p) for p in cluster.pods()), 20, "a replacement at the gate")
        proxy.cut()
        other = start_daemon(replicas=1)
        (status,) = ended(cluster, "move", seconds=60)
        assert status["phase"] == "Completed", status
        proxy.heal()
        clean(cluster, other, since, user=daemon.user.name)
        cluster.wait_ready(1)


def test_a_pod_at_the_gate_goes_at_its_deadline_without_any_leader(
    cluster: Cluster, start_daemon: Callable[..., Daemon]
) -> None:
    """Both replicas die; the one that comes back cannot lead (somebody holds the lease), yet the pod starts in time."""
    pod = pair(cluster)
    cluster.emulator.behave("web", delete=1.0)
    daemon = start_daemon(replicas=2)
    since = daemon.plane.audit.mark()
    move(cluster, pod, timeouts={"start": "5m"})
    cluster.wait(lambda: any(gated(p) for p in cluster.pods()), 20, "a replacement at the gate")
    for replica in daemon.replicas:
        replica.process.kill()
    (held,) = [p for p in cluster.pods() if gated(p)]
    past = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 1))
    cluster.annotate("Pod", held["metadata"]["name"], {"scheduling.hami.placement.com/deadline": past})
    lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/gpu-descheduler"
    cluster.api.patch(lease, {"spec": {"holderIdentity": "a-ghost", "leaseDurationSeconds": 600}})
    follower = daemon.replicas[0]
    follower.process.start()
    begin = time.monotonic()
    cluster.wait(lambda: not [p for p in cluster.pods() if gated(p)], 30, "the gate is gone")
    print(f"gone {time.monotonic() - begin:.1f} s after the start of a follower")
    assert daemon.leader_name() == "a-ghost"
    (again,) = cluster.wait_ready(1)
    assert "nvidia.com/use-gpuuuid" not in (again["metadata"].get("annotations") or {})
    clean(cluster, daemon, since)
