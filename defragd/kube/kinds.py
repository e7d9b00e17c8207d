"""What is read from the API server: one table row per kind, and what stays unknown without the right to read it."""

from __future__ import annotations

from typing import Any

from defragd.core.placement import KIND as PLACEMENT_KIND
from defragd.core.placement import PLURAL as PLACEMENTS
from defragd.kube import wire
from defragd.kube.compact import PodCompactor
from defragd.kube.placements import PATH, path_of
from defragd.kube.reflector import Kind
from defragd.kube.runs import KIND as RUN_KIND
from defragd.kube.runs import PLURAL as RUNS
from defragd.kube.wire_custom import PlacementWire, RunWire

NODES = Kind("nodes", "Node", "/api/v1/nodes", wire.Node)
PODS = Kind(
    "pods",
    "Pod",
    "/api/v1/pods",
    wire.Pod,
    {"fieldSelector": "status.phase!=Succeeded"},
    compact=PodCompactor,
)
"""Succeeded pods hold nothing and can be many; Failed ones stay, because a move must see that its pod failed."""

WORKLOADS: tuple[Kind[Any], ...] = tuple(
    Kind(f"{title.lower()}s", title, path, wire.WorkloadObject, optional=True)
    for title, path in (
        ("ReplicaSet", "/apis/apps/v1/replicasets"),
        ("StatefulSet", "/apis/apps/v1/statefulsets"),
        ("Deployment", "/apis/apps/v1/deployments"),
        ("Job", "/apis/batch/v1/jobs"),
    )
)
PDBS = Kind(
    "poddisruptionbudgets",
    "PodDisruptionBudget",
    "/apis/policy/v1/poddisruptionbudgets",
    wire.PodDisruptionBudget,
    optional=True,
)
QUOTAS = Kind("resourcequotas", "ResourceQuota", "/api/v1/resourcequotas", wire.ResourceQuota, optional=True)
NAMESPACES = Kind("namespaces", "Namespace", "/api/v1/namespaces", wire.Namespace, optional=True)
CLAIMS = Kind(
    "persistentvolumeclaims",
    "PersistentVolumeClaim",
    "/api/v1/persistentvolumeclaims",
    wire.PersistentVolumeClaim,
    optional=True,
)
VOLUMES = Kind(
    "persistentvolumes", "PersistentVolume", "/api/v1/persistentvolumes", wire.PersistentVolume, optional=True
)

KNOWN: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("pdbs", (PDBS.name,)),
    ("workloads", tuple(kind.name for kind in WORKLOADS)),
    ("quotas", (QUOTAS.name,)),
    ("namespaces", (NAMESPACES.name,)),
    ("volumes", (CLAIMS.name, VOLUMES.name)),
    ("placements", (PLACEMENTS,)),
)
"""Word of ``Snapshot.known`` -> the kinds that must all be readable for it."""


def placements_kind(*, optional: bool) -> Kind[PlacementWire]:
    """Optional for one-shot reads of a cluster where defragd is not installed."""
    return Kind(PLACEMENTS, PLACEMENT_KIND, f"{PATH}/{PLACEMENTS}", PlacementWire, optional=optional)


def runs_kind(namespace: str) -> Kind[RunWire]:
    """Runs live in the daemon's own namespace only."""
    return Kind(RUNS, RUN_KIND, path_of(namespace, plural=RUNS), RunWire)


def world_kinds() -> tuple[Kind[Any], ...]:
    """Everything a plan needs, without our own kinds."""
    return (NODES, PODS, PDBS, *WORKLOADS, QUOTAS, NAMESPACES, CLAIMS, VOLUMES)


def same_node(old: wire.Node, new: wire.Node) -> bool:
    """Only revision or the time in HAMi's handshake changed, which is renewed every 30 s on every node."""
    return (
        old.spec == new.spec
        and old.status == new.status
        and old.metadata.uid == new.metadata.uid
        and old.metadata.labels == new.metadata.labels
        and old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
        and _told(old.metadata.annotations) == _told(new.metadata.annotations)
    )


def _told(annotations: dict[str, str] | None) -> dict[str, str]:
    return {
        key: value.partition("_")[0] if key.startswith("hami.io/node-handshake") else value
        for key, value in (annotations or {}).items()
    }
