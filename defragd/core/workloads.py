"""What can be known of the owner of a pod: its name for ledgers and limits, its replicas."""

from __future__ import annotations

from defragd.core.model import Pod
from defragd.core.snapshot import Snapshot


def workload_key(snapshot: Snapshot, pod: Pod) -> str:
    """``Kind/namespace/name`` of the root owner; of the pod itself when it has none.

    A ReplicaSet that could not be read but carries the pod's template hash in its name was made by a Deployment.
    """
    owner = snapshot.workload_of(pod)
    if owner is not None:
        return f"{owner.top.kind}/{pod.namespace}/{owner.top.name}" if owner.top else owner.key
    if pod.owner is None:
        return f"Pod/{pod.namespace}/{pod.name}"
    suffix = f"-{pod.labels.get('pod-template-hash', '')}"
    if pod.owner.kind == "ReplicaSet" and len(suffix) > 1 and pod.owner.name.endswith(suffix):
        return f"Deployment/{pod.namespace}/{pod.owner.name.removesuffix(suffix)}"
    return f"{pod.owner.kind}/{pod.namespace}/{pod.owner.name}"


def replicas_of(snapshot: Snapshot, pod: Pod) -> tuple[int, bool]:
    """(replicas of the root owner, whether its object was read). Unread owners count their pods in the snapshot."""
    owner = snapshot.workload_of(pod)
    if owner is not None:
        top = snapshot.workloads.get(owner.top.uid) if owner.top else None
        for workload in (top, owner):
            if workload is not None and workload.replicas is not None:
                return workload.replicas, True
    return (snapshot.owned.get(pod.owner.uid, 0), False) if pod.owner else (0, False)
