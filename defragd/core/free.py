"""Defragmentation that costs nothing: which replica should go first when its workload shrinks anyway.

Kubernetes deletes the pod with the lowest ``controller.kubernetes.io/pod-deletion-cost`` first when a ReplicaSet scales
in. Replicas are alike, so letting the one go whose place helps most disturbs nobody more than was going to happen.
"""

from __future__ import annotations

from collections.abc import Mapping

from defragd.core.model import Pod
from defragd.core.snapshot import DeviceUsage, Snapshot
from defragd.core.workloads import workload_key

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
OURS = "defragd.io/deletion-cost"
"""Says that the cost is ours (the same value); any other cost belongs to somebody else."""
KINDS = frozenset({"ReplicaSet"})
"""Owners whose controller reads the annotation."""
LOWEST = -1000


def deletion_costs(snapshot: Snapshot, *, nodes: frozenset[str] | None = None) -> dict[str, int]:
    """Pod key -> cost (negative), for workloads of two or more replicas that differ in what their going frees.

    The best replica of a workload gets the lowest cost; replicas whose going frees no whole device get none. ``nodes``:
    only pods there.
    """
    found: dict[str, int] = {}
    groups: dict[str, list[Pod]] = {}
    for pod in snapshot.pods.values():
        if pod.owner is not None and pod.owner.kind in KINDS and pod.live and not pod.deleting and pod.allocations:
            groups.setdefault(workload_key(snapshot, pod), []).append(pod)
    usage: dict[str, dict[str, DeviceUsage]] = {}
    for pods in groups.values():
        if len(pods) < 2:
            continue
        worth = {pod.key: _worth(snapshot, pod, usage) for pod in pods}
        if len(set(worth.values())) == 1:
            continue
        for pod in pods:
            if worth[pod.key] > 0 and (nodes is None or pod.booked_node in nodes):
                found[pod.key] = max(LOWEST, -worth[pod.key])
    return found


def _worth(snapshot: Snapshot, pod: Pod, known: dict[str, dict[str, DeviceUsage]]) -> int:
    """What comes free with the pod: 100 per whole device, 200 more for a whole node; 0 when it frees only parts."""
    if pod.booked_node not in known:
        known[pod.booked_node] = snapshot.usage(pod.booked_node)
    usage: Mapping[str, DeviceUsage] = known[pod.booked_node]
    whole = sum(1 for uuid in pod.devices if uuid in usage and set(usage[uuid].holders) == {pod.key})
    others = any(set(use.holders) - {pod.key} for use in usage.values())
    return 100 * whole + (200 if whole and not others else 0)


def scatter_hints(snapshot: Snapshot, *, most: int = 5) -> tuple[str, ...]:
    """Which settings of which workloads scatter their slices, most devices first: for the owners, who alone can change
    them. Counts workloads whose pods ask for the emptiest place although few devices would hold them all."""
    groups: dict[str, list[Pod]] = {}
    for pod in snapshot.pods.values():
        if pod.live and pod.allocations and len(pod.devices) == 1 and _spreading(pod):
            groups.setdefault(workload_key(snapshot, pod), []).append(pod)
    found: list[tuple[int, str, str]] = []
    devices = snapshot.devices
    for key, pods in groups.items():
        on = {pod.devices[0] for pod in pods} & devices.keys()
        shares = sum(
            max(a.memory_mib / max(1, devices[a.uuid].memory_mib), a.cores / max(1, devices[a.uuid].cores))
            for pod in pods
            for a in pod.allocations[:1]
            if a.uuid in devices
        )
        saved = len(on) - max(1, -int(-shares // 1))
        if saved > 0:
            setting = _spreading(pods[0])
            text = f"{key}: {setting} scatters {len(pods)} pods over {len(on)} devices, {len(on) - saved} would do"
            found.append((-saved, key, text))
    return tuple(text for _, _, text in sorted(found)[:most])


def _spreading(pod: Pod) -> str:
    """The setting of the pod itself that asks for the emptiest place, "" = none."""
    if pod.selection.device_policy == "spread":
        return "hami.io/gpu-scheduler-policy: spread"
    if pod.selection.node_policy == "spread":
        return "hami.io/node-scheduler-policy: spread"
    return "topologySpreadConstraints" if pod.scheduling.spread else ""
