"""Which pods belong together: gangs of the schedulers and operators in use, told by labels and annotations.

A gang stands still when one member is missing, so it is moved whole or not at all unless its minimum is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from defragd.core.model import Pod

GANG_KEYS: tuple[tuple[str, str], ...] = (
    ("scheduling.k8s.io/group-name", "Volcano PodGroup"),
    ("volcano.sh/job-name", "Volcano Job"),
    ("pod-group.scheduling.sigs.k8s.io", "PodGroup"),
    ("pod-group.scheduling.sigs.k8s.io/name", "PodGroup"),
    ("scheduling.x-k8s.io/pod-group", "PodGroup"),
    ("pod-group-name", "KAI PodGroup"),
    ("kueue.x-k8s.io/pod-group-name", "Kueue pod group"),
    ("gang.scheduling.koordinator.sh/name", "Koordinator gang"),
    ("leaderworkerset.sigs.k8s.io/name", "LeaderWorkerSet"),
    ("jobset.sigs.k8s.io/jobset-name", "JobSet"),
    ("training.kubeflow.org/job-name", "Kubeflow job"),
    ("ray.io/cluster", "RayCluster"),
)
"""Label or annotation keys on a pod and what they mean; the first that is present names the gang."""

MINIMUM_KEYS = (
    "pod-group.scheduling.sigs.k8s.io/min-available",
    "gang.scheduling.koordinator.sh/min-available",
)
LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
POD_KEYS: frozenset[str] = frozenset({*(key for key, _ in GANG_KEYS), *MINIMUM_KEYS, LWS_GROUP})
"""Everything this module reads of a pod; translation keeps these labels and annotations."""


@dataclass(frozen=True, slots=True)
class Gang:
    """``key`` is equal for all members; ``minimum`` is None where no label tells it."""

    key: str
    kind: str
    name: str
    minimum: int | None = None


def gang_of(pod: Pod) -> Gang | None:
    """The gang of a pod, or None."""
    if not pod.labels and not pod.annotations:
        return None
    for key, kind in GANG_KEYS:
        name = pod.labels.get(key) or pod.annotations.get(key)
        if name:
            group = pod.labels.get(LWS_GROUP, "") if kind == "LeaderWorkerSet" else ""
            full = f"{name}-{group}" if group else name
            return Gang(f"{kind}/{pod.namespace}/{full}", kind, full, _minimum(pod))
    return None


def _minimum(pod: Pod) -> int | None:
    for key in MINIMUM_KEYS:
        text = pod.labels.get(key) or pod.annotations.get(key) or ""
        if text.isascii() and text.isdigit():
            return int(text)
    return None


def members(pods: Mapping[str, Pod]) -> dict[str, tuple[Pod, ...]]:
    """Live members by gang key."""
    found: dict[str, list[Pod]] = {}
    for pod in pods.values():
        if pod.live:
            gang = gang_of(pod)
            if gang is not None:
                found.setdefault(gang.key, []).append(pod)
    return {key: tuple(pods) for key, pods in found.items()}
