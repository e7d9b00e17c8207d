"""The stores' wire objects -> one `core.snapshot.Snapshot`, re-translating only what changed since the last one."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec

from defragd.core.model import Pod, Problem, Quota, Workload
from defragd.core.model import Volume as CoreVolume
from defragd.core.placement import PLURAL as PLACEMENTS
from defragd.core.placement import Placement
from defragd.core.placement_holds import moving_pods, open_holds
from defragd.core.snapshot import Snapshot
from defragd.hami import translate
from defragd.hami.config import HamiConfig
from defragd.hami.scheduler_books import Place, doubted
from defragd.hami.scheduling import claim_table
from defragd.hami.translate_pod import translate_pod
from defragd.hami.version import guess_version
from defragd.kube import kinds, wire
from defragd.kube.store import Store
from defragd.kube.view import View, identity


class Translation:
    """Owns the views of all world stores. ``placements`` is read by others too, so it is handed in."""

    def __init__(
        self,
        stores: Mapping[str, Store[Any]],
        placements: View[Any, Placement] | None,
        config: HamiConfig,
    ) -> None:
        self._stores, self._placements, self._config = stores, placements, config
        self._lock = threading.Lock()
        self._checks = translate.CrossChecks()
        self.doubts: Mapping[Place, str] = {}
        """Devices whose books HAMi's own metrics contradict -> why."""
        self._claims: dict[str, CoreVolume] = {}
        self._claims_of: dict[str, tuple[str, ...]] = {}
        self._nodes = View(stores[kinds.NODES.name], self._node, "Node")
        self._pods = View(stores[kinds.PODS.name], self._pod, "Pod")
        self._budgets = View(stores[kinds.PDBS.name], translate.translate_budget, kinds.PDBS.title)
        self._workloads = [
            (kind, View(stores[kind.name], _workload_reader(kind.title), kind.title)) for kind in kinds.WORKLOADS
        ]
        self._quotas = View(stores[kinds.QUOTAS.name], self._quota, kinds.QUOTAS.title)
        self._namespaces = View(stores[kinds.NAMESPACES.name], identity, kinds.NAMESPACES.title)
        self._pvcs = View(stores[kinds.CLAIMS.name], identity, kinds.CLAIMS.title)
        self._pvs = View(stores[kinds.VOLUMES.name], identity, kinds.VOLUMES.title)
        self._claims_at = (-1, -1)
        self._workloads_at: tuple[int, ...] = ()
        self._by_uid: dict[str, Workload] = {}
        self._namespaces_at = -1
        self._version_at, self._guess = -1, ""
        self._annotations: dict[str, Mapping[str, str]] = {}
        self._labels: dict[str, Mapping[str, str]] = {}

    def snapshot(self, now: datetime) -> Snapshot:
        with self._lock:
            self._refresh_claims()
            nodes = self._nodes.read()
            pods = self._pods.read()
            self._refresh_workloads()
            self._refresh_namespaces()
            placements = self._placements.read() if self._placements is not None else {}
            found = translate.assemble(
                nodes={name: node for name, (node, _) in nodes.items()},
                pods=pods,
                budgets=tuple(self._budgets.read().values()),
                workloads=self._by_uid,
                quotas=tuple(quota for found in self._quotas.read().values() for quota in found),
                holds=open_holds(placements.values()),
                moving=moving_pods(placements.values()),
                namespace_annotations=self._annotations,
                namespace_labels=self._labels,
                known=self.known(),
                problems=tuple(self._all_problems(problem for _, found in nodes.values() for problem in found)),
                taken_at=now,
                checks=self._checks,
                config=self._config,
            )
            return doubted(replace(found, hami_version=self._version()), self.doubts)

    def _version(self) -> str:
        """HAMi's version: its scheduler's image says it, else what it has written on the nodes."""
        if self._nodes.generation != self._version_at:
            self._version_at = self._nodes.generation
            nodes = self._stores[kinds.NODES.name].items().values()
            guess = guess_version(node.metadata.annotations or {} for node in nodes)
            self._guess = self._config.version if self._config.version_told else guess
        return self._guess

    def known(self) -> frozenset[str]:
        """Words of ``Snapshot.known``: every kind behind the word has been read and still can be."""
        return frozenset(
            word
            for word, names in kinds.KNOWN
            if all(name in self._stores and self._readable(self._stores[name]) for name in names)
        )

    @staticmethod
    def _readable(store: Store[Any]) -> bool:
        return store.synced and not store.unavailable

    def _node(self, obj: wire.Node) -> tuple[Any, tuple[Problem, ...]]:
        return translate.translate_node(obj, self._config)

    def _pod(self, obj: wire.Pod) -> Any:
        meta, volumes = obj.metadata, obj.spec.volumes
        key = f"{meta.namespace}/{meta.name}"
        claims = tuple(
            f"{meta.namespace}/{volume.persistent_volume_claim.claim_name}"
            for volume in volumes or ()
            if volume.persistent_volume_claim is not None
        )
        if claims:
            self._claims_of[key] = claims
        else:
            self._claims_of.pop(key, None)
        return translate.translate_pod(obj, self._config, claims=self._claims)

    def _quota(self, obj: wire.ResourceQuota) -> tuple[Quota, ...]:
        return tuple(translate.translate_quota(obj, self._config))

    def _refresh_claims(self) -> None:
        """A claim that was bound, or a volume that became known, changes what its pods may do."""
        pvcs, pvs = self._pvcs.read(), self._pvs.read()
        at = (self._pvcs.generation, self._pvs.generation)
        if at == self._claims_at:
            return
        self._claims_at = at
        fresh = claim_table(pvcs.values(), pvs.values())
        changed = {key for key in fresh.keys() | self._claims.keys() if fresh.get(key) != self._claims.get(key)}
        self._claims = fresh
        self._stores[kinds.PODS.name].touch(
            key for key, claims in self._claims_of.items() if not changed.isdisjoint(claims)
        )

    def _refresh_workloads(self) -> None:
        found = [view.read() for _, view in self._workloads]
        at = tuple(view.generation for _, view in self._workloads)
        if at != self._workloads_at:
            self._workloads_at = at
            self._by_uid = {workload.uid: workload for values in found for workload in values.values()}

    def _refresh_namespaces(self) -> None:
        namespaces = self._namespaces.read()
        if self._namespaces.generation == self._namespaces_at:
            return
        self._namespaces_at = self._namespaces.generation
        self._annotations = {name: obj.metadata.annotations or {} for name, obj in namespaces.items()}
        self._labels = {name: obj.metadata.labels or {} for name, obj in namespaces.items()}

    def _all_problems(self, of_nodes: Iterable[Problem]) -> list[Problem]:
        views = [self._nodes, self._pods, self._budgets, self._quotas, *(view for _, view in self._workloads)]
        if self._placements is not None:
            views.append(self._placements)
        found = list(of_nodes)
        for view in views:
            found += view.problems()
        for name, store in self._stores.items():
            if name != PLACEMENTS or self._placements is not None:
                found += store.problems()
        return found


def _workload_reader(kind: str) -> Any:
    return lambda obj: translate.translate_workload(obj, kind)


def pod_being_created(raw: Mapping[str, Any], config: HamiConfig) -> Pod:
    """The pod of an admission request as a value (no UID yet, often no name). Raises msgspec.ValidationError."""
    return translate_pod(msgspec.convert({"metadata": {}, **raw}, wire.Pod), config)
