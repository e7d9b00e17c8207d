"""What the fault tests share: a pair of nodes, a move, and what must hold after every fault."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from tests.ground import objects
from tests.ground.cluster import Cluster, is_ready
from tests.ground.daemon import LEASES, Daemon
from tests.ground.emulator import Behaviour
from tests.ground.faultproxy import FaultProxy
from tests.system.watchers import gated

MARKS = ("steered", "deadline")
PREFIX = "scheduling.hami.placement.com/"


def status_of(cluster: Cluster, name: str) -> dict[str, Any]:
    return cluster.placement(name).get("status") or {}


def ended(cluster: Cluster, *names: str, seconds: float = 60) -> list[dict[str, Any]]:
    """The statuses of placements once all have ended."""
    last = {"Completed", "Failed", "Expired"}

    def done() -> list[dict[str, Any]]:
        found = [status_of(cluster, name) for name in names]
        return found if all(status.get("phase") in last for status in found) else []

    found: list[dict[str, Any]] = cluster.wait(done, seconds, f"{names} ended")
    return found


def clean(cluster: Cluster, daemon: Daemon, since: int, *, user: str = "") -> None:
    """What holds after every fault: no gate, no steering on pods that run, no pod evicted twice, none deleted by us."""
    cluster.wait(lambda: not [p for p in cluster.pods() if gated(p)], 20, "no pod gated")

    def marked() -> list[str]:
        return [
            p["metadata"]["name"]
            for p in cluster.pods()
            if is_ready(p) and any(PREFIX + mark in (p["metadata"].get("annotations") or {}) for mark in MARKS)
        ]

    cluster.wait(lambda: not marked(), 10, "no mark left on a running pod")
    requests = daemon.plane.audit.requests(user or daemon.user.name, since)
    accepted = Counter(
        r.precondition_uid for r in requests if r.subresource == "eviction" and r.code == 201 and not r.dry_run
    )
    assert all(count == 1 for count in accepted.values()), accepted
    assert not [r for r in requests if r.resource == "pods" and r.verb.startswith("delete")]


def pair(cluster: Cluster, *, replicas: int = 1, **pod: Any) -> dict[str, Any]:
    """A Deployment's pods on n0; n1 is empty. Returns one pod."""
    cluster.emulator.defaults = Behaviour(allocate=0.05, ready=0.1, delete=0.3)
    cluster.add_node("n0", max(2, replicas))
    cluster.create(objects.deployment("web", replicas, **{"mem": 8000, **pod}))
    found = cluster.wait_ready(replicas)
    cluster.add_node("n1", max(2, replicas))
    return found[0]


def move(cluster: Cluster, pod: dict[str, Any], name: str = "move", **spec: Any) -> None:
    """A placement that sends the pod to a device of n1."""
    app = pod["metadata"]["labels"]["app"]
    spec = {"settle": "0s", **spec}
    devices = spec.pop("devices", ["gpu-1"])
    node = spec.pop("node", "n1")
    cluster.create(objects.placement(name, node, devices, {"app": app}, evict=pod["metadata"]["name"], **spec))


def bury(cluster: Cluster) -> None:
    """The leases of dead processes go at once, so that a test need not wait until they have run out."""
    for lease in cluster.api.items(LEASES):
        if lease["metadata"]["name"].startswith("gpu-descheduler"):
            cluster.api.delete(f"{LEASES}/{lease['metadata']['name']}")


@contextlib.contextmanager
def behind_a_proxy(
    cluster: Cluster, *, replicas: int = 1, config: Mapping[str, Any] | None = None
) -> Iterator[tuple[Daemon, FaultProxy]]:
    """The daemon under its own account, every request of it through a fault proxy."""
    with FaultProxy(cluster.plane) as proxy:
        daemon = Daemon(cluster.plane, replicas=replicas, config=config)
        faulty = cluster.plane.write_kubeconfig("kubeconfig-faulty", daemon.user.token, proxy.url)
        for replica in daemon.replicas:
            command = replica.process.command
            replica.process.command = [
                f"--kubeconfig={faulty}" if str(part).startswith("--kubeconfig=") else part for part in command
            ]
        with daemon:
            yield daemon, proxy
