"""Kubernetes objects into core values, and the values into one snapshot with its cross checks.

One function per object kind, so a watch event costs one object; `assemble` adds what only all objects together show.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from defragd.core.model import (
    EMPTY,
    DisruptionBudget,
    Hold,
    Node,
    Owner,
    Pod,
    Problem,
    Quota,
    Workload,
)
from defragd.core.placement import SURGE_MANAGER
from defragd.core.snapshot import Snapshot
from defragd.hami.config import HamiConfig
from defragd.hami.cross_checks import CrossChecks
from defragd.hami.quantity import whole
from defragd.hami.scheduling import claim_table, selector
from defragd.hami.translate_node import translate_node
from defragd.hami.translate_pod import translate_pod
from defragd.hami.vendors import backends

__all__ = [
    "CrossChecks",
    "assemble",
    "claim_table",
    "translate_budget",
    "translate_node",
    "translate_pod",
    "translate_quota",
    "translate_workload",
]

_CHART = HamiConfig()
SEVERAL_QUOTAS = "SeveralQuotas"
BUDGET_WITHOUT_STATUS = "BudgetWithoutStatus"


def translate_budget(obj: Any) -> DisruptionBudget:
    """A PodDisruptionBudget. Without a status nothing is allowed and ``observed`` is False."""
    meta, status = obj.metadata, obj.status
    known = status is not None and status.disruptions_allowed is not None
    current = known and (status.observed_generation is None or status.observed_generation >= meta.generation)
    return DisruptionBudget(
        namespace=meta.namespace or "default",
        name=meta.name,
        selector=selector(obj.spec.selector),
        allowed=max(status.disruptions_allowed, 0) if known else 0,
        healthy=status.current_healthy if known else 0,
        desired=status.desired_healthy if known else 0,
        observed=bool(current),
        always_allow_unhealthy=obj.spec.unhealthy_pod_eviction_policy == "AlwaysAllow",
        expected=status.expected_pods if known else 0,
    )


def translate_workload(obj: Any, kind: str) -> Workload:
    """An owner of pods; ``top`` is its own controller where it has one (a ReplicaSet's Deployment)."""
    meta, spec, status = obj.metadata, obj.spec, obj.status
    ref = next((r for r in meta.owner_references or () if r.controller), None)
    jobs = kind == "Job"
    ready = status.ready if jobs else status.ready_replicas
    if ready is None and status.replicas is not None:
        ready = 0  # the API server leaves out a zero
    return Workload(
        kind=kind,
        namespace=meta.namespace or "default",
        name=meta.name,
        uid=meta.uid,
        replicas=spec.parallelism if jobs else spec.replicas,
        ready=ready,
        paused=bool(spec.paused or spec.suspend),
        annotations={k: v for k, v in (meta.annotations or EMPTY).items() if k.startswith("defragd.io/")} or EMPTY,
        top=Owner(ref.kind, ref.name, ref.uid, ref.api_version) if ref else None,
        deleting=meta.deletion_timestamp is not None,
        recreate=kind == "Deployment" and getattr(spec.strategy, "type", "") == "Recreate",
        surged_by=_surged_by(meta) if kind == "Deployment" else "",
        revision=meta.resource_version,
    )


def _surged_by(meta: Any) -> str:
    """The scale sub-resource writes nothing but the replica count, so an entry there is its last writer."""
    for entry in meta.managed_fields or ():
        if entry.manager.startswith(SURGE_MANAGER) and entry.subresource == "scale":
            return str(entry.manager.removeprefix(SURGE_MANAGER))
    return ""


def translate_quota(obj: Any, config: HamiConfig) -> tuple[Quota, ...]:
    """HAMi's limits in a ResourceQuota, one per vendor that it names. HAMi reads only ``limits.<resource>`` of memory
    and cores, and only whole numbers; memory is multiplied by the vendor's factor."""
    hard = obj.spec.hard or EMPTY
    found = []
    for word, backend in backends(config).items():
        names = backend.names
        memory = whole(hard.get(f"limits.{names.memory}")) if names.memory else None
        cores = whole(hard.get(f"limits.{names.cores}")) if names.cores else None
        if memory is None and cores is None:
            continue
        found.append(
            Quota(
                namespace=obj.metadata.namespace or "default",
                name=obj.metadata.name,
                vendor=word,
                memory_mib=None if memory is None else memory * backend.unit,
                cores=cores,
            )
        )
    return tuple(found)


def _check_quotas(quotas: Iterable[Quota]) -> list[Problem]:
    seen: set[tuple[str, str, str]] = set()
    problems = []
    for quota in quotas:
        for part in ("memory_mib", "cores"):
            if getattr(quota, part) is None:
                continue
            spot = (quota.namespace, quota.vendor, part)
            if spot in seen:
                problems.append(
                    Problem(
                        f"ResourceQuota/{quota.namespace}/{quota.name}",
                        SEVERAL_QUOTAS,
                        "another quota of the namespace limits the same; HAMi obeys only the one it read last",
                    )
                )
            seen.add(spot)
    return problems


def assemble(
    *,
    nodes: Mapping[str, Node],
    pods: Mapping[str, Pod],
    budgets: Iterable[DisruptionBudget] = (),
    workloads: Mapping[str, Workload] | Iterable[Workload] = (),
    quotas: Iterable[Quota] = (),
    holds: Iterable[Hold] = (),
    namespace_annotations: Mapping[str, Mapping[str, str]] = EMPTY,
    namespace_labels: Mapping[str, Mapping[str, str]] = EMPTY,
    known: Iterable[str] = (),
    problems: Iterable[Problem] = (),
    taken_at: datetime | None = None,
    checks: CrossChecks | None = None,
    config: HamiConfig | None = None,
    moving: Mapping[str, str] = EMPTY,
) -> Snapshot:
    """One snapshot from translated objects. Adds the checks that need all of them: duplicate UUIDs (distrusted on every
    node) or used outside the books, bookings of unknown devices or on another node, budgets without status, quotas that
    overlap. ``checks`` of
    the snapshots before spares looking at everything again.
    ``config``: whose policies by flag the snapshot carries."""
    checks = checks if checks is not None else CrossChecks()
    checked, found = checks.nodes(nodes)
    found = [*problems, *found, *checks.pods(pods)]
    checked = checks.outside(checked)
    limits, allowed = tuple(quotas), tuple(budgets)
    found += _check_quotas(limits)
    found += [
        Problem(f"PodDisruptionBudget/{b.key}", BUDGET_WITHOUT_STATUS, "no current status; it allows nothing for now")
        for b in allowed
        if not b.observed
    ]
    by_uid = workloads if isinstance(workloads, Mapping) else {w.uid: w for w in workloads}
    return Snapshot(
        nodes=checked,
        pods=pods,
        budgets=allowed,
        workloads=by_uid,
        quotas=limits,
        holds=tuple(holds),
        namespace_annotations=namespace_annotations,
        namespace_labels=namespace_labels,
        known=frozenset(known),
        problems=tuple(found),
        taken_at=taken_at,
        node_policy=(config or _CHART).node_policy,
        device_policy=(config or _CHART).device_policy,
        moving=moving,
    )
