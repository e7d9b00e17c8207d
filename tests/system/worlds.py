"""The cluster of the main job: slices scattered over all devices, and the policy that gathers them."""

from __future__ import annotations

from typing import Any

from tests.ground import objects
from tests.ground.cluster import Cluster, devices_of
from tests.ground.emulator import Behaviour

SPREAD = {"hami.io/node-scheduler-policy": "spread", "hami.io/gpu-scheduler-policy": "spread"}
"""How the slices got scattered: the workloads' own wish for the emptiest node."""


def policy(name: str = "consolidate", *, cron: str | None = "* * * * *", **spec: Any) -> dict[str, Any]:
    """A best-fit policy that acts at once; ``spec`` overrides whole sections."""
    body: dict[str, Any] = {
        "strategy": {"name": "best-fit"},
        "mode": "Auto",
        "trigger": {"minFragmentation": 0.0},
        "protect": {"minPodAge": "0s", "minReplicas": 1},
        "budgets": {"total": 50, "concurrent": 5, "perSourceNode": 2, "spacing": "0s", "rate": None},
        "execution": {"settle": "1s", "cooldown": "0s"},
    }
    if cron:
        body["schedule"] = {"cron": cron, "timeZone": "Etc/UTC", "startingDeadline": "20s"}
    return {
        "apiVersion": "defragd/v1",
        "kind": "DefragPolicy",
        "metadata": {"name": name},
        "spec": {**body, **spec},
    }


def scattered(cluster: Cluster, *, nodes: int = 4, deployments: int = 12) -> list[dict[str, Any]]:
    """``nodes`` x 4 devices; a dozen Deployments, one with three replicas and a budget of one, and a StatefulSet.

    Every pod holds 6 of 24 GiB and lies on a device of its own as far as there are enough. Returns the pods.
    """
    cluster.emulator.defaults = Behaviour(allocate=0.05, ready=0.1, delete=0.3)
    for number in range(nodes):
        cluster.add_node(f"n{number}", 4)
    slice_of = {"mem": 6000, "cores": 20, "annotations": SPREAD}
    cluster.create(
        objects.deployment("guarded", 3, **slice_of),
        objects.pdb("guarded", {"app": "guarded"}, maxUnavailable=1),
        objects.stateful_set("db", 2, **slice_of),
        *(objects.deployment(f"app-{number}", 1, **slice_of) for number in range(deployments - 1)),
    )
    return cluster.wait_ready(3 + 2 + deployments - 1, seconds=90)


def devices_in_use(cluster: Cluster) -> set[str]:
    """UUIDs that at least one pod of the default namespace holds."""
    return {uuid for pod in cluster.pods() if pod["spec"].get("nodeName") for uuid in devices_of(pod)}
