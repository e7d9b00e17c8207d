"""A quick stand-in for kube-scheduler and HAMi on flat arrays: places tens of thousands of pods in seconds.

Fit by free memory, cores, slots, device type, host resources, taints and selectors; HAMi's scores for nodes and
devices; ties by seeded dice. Left out: whatever depends on other pods (spread, anti-affinity), volumes, scores for
topology. The planner's own rules are exact all the same: every move is planned on a full snapshot.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from defragd.core.arrays import Bools, Floats, Ints, build_arena
from defragd.core.fit import fit_pod
from defragd.core.kube_fit import kube_fit
from defragd.core.model import Allocation, Node, Pod
from defragd.core.snapshot import Snapshot, collapse
from defragd.core.vendor import Vendor

HOSTNAME = "kubernetes.io/hostname"
TIE = 1e-6


@dataclass(frozen=True)
class _Shape:
    """What a template asks, in array terms."""

    nodes: Bools
    devices: Bools
    need: Ints
    count: int
    cores: int
    cpu: int
    memory: int


class Packing:
    """Free capacity of every device and node; ``place`` and ``free`` keep it."""

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        vendors: Mapping[str, Vendor],
        node_policy: str = "binpack",
        device_policy: str = "spread",
        seed: int = 0,
    ) -> None:
        arena = build_arena(snapshot)
        self.fleet, self.books = arena.fleet, arena.books
        self._nodes = snapshot.nodes
        self._empty = replace(snapshot, pods={}, holds=(), quotas=())
        self._vendors = vendors
        self._spread_nodes = node_policy == "spread"
        self._spread_devices = device_policy == "spread"
        self._dice = random.Random(seed)
        self._shapes: dict[object, _Shape] = {}
        self._verdicts: dict[tuple[object, object], bool] = {}
        self._sums = np.maximum(self._per_node(self.fleet.memory), 1), np.maximum(self._per_node(self.fleet.cores), 1)
        self._slots = np.maximum(self._per_node(self.fleet.slots), 1)

    def _per_node(self, values: Ints) -> Ints:
        total: Ints = np.add.reduceat(values, self.fleet.first[:-1])
        return total

    # -- choosing ---------------------------------------------------------------------------------------------------

    def choose(self, pod: Pod) -> tuple[int, Sequence[int]] | None:
        """Node and devices the pod would get, or None."""
        shape = self._shape(pod)
        fleet, books = self.fleet, self.books
        if not len(fleet.names):
            return None
        fits = self._fitting(shape)
        counts = self._per_node(fits.astype(np.int64))
        able = (
            shape.nodes
            & (counts >= shape.count)
            & (fleet.cpu - books.cpu >= shape.cpu)
            & (fleet.host_memory - books.host_memory >= shape.memory)
            & (fleet.pods - books.pods >= 1)
        )
        if not able.any():
            return None
        memory, cores = self._sums
        score: Floats = (
            self._per_node(books.slots) / self._slots
            + self._per_node(books.cores) / cores
            + self._per_node(books.memory) / memory
        )
        score = np.where(able, -score if self._spread_nodes else score, -np.inf)
        best = np.flatnonzero(score >= score.max() - TIE)
        node = int(best[self._dice.randrange(len(best))])
        return node, self._devices(shape, node, fits)

    def fits_at(self, pod: Pod, devices: Sequence[int]) -> bool:
        """Whether the pod could stand on exactly these devices now."""
        shape = self._shape(pod)
        node = int(self.fleet.node_of[devices[0]])
        host = (
            self.fleet.cpu[node] - self.books.cpu[node] >= shape.cpu
            and self.fleet.host_memory[node] - self.books.host_memory[node] >= shape.memory
        )
        return bool(host and self._fitting(shape)[list(devices)].all())

    def _fitting(self, shape: _Shape) -> Bools:
        fleet, books = self.fleet, self.books
        fits: Bools = (
            shape.devices
            & fleet.device_open
            & (fleet.memory - books.memory >= shape.need)
            & (fleet.cores - books.cores >= shape.cores)
            & (fleet.slots > books.slots)
        )
        if shape.cores >= 100:
            fits &= books.slots == 0
        elif shape.cores == 0:
            fits &= books.cores < fleet.cores
        return fits

    def _devices(self, shape: _Shape, node: int, fits: Bools) -> list[int]:
        fleet, books = self.fleet, self.books
        here = [d for d in fleet.devices_of(node) if fits[d]]
        used = {
            d: books.slots[d] / max(1, fleet.slots[d])
            + books.cores[d] / max(1, fleet.cores[d])
            + books.memory[d] / max(1, fleet.memory[d])
            for d in here
        }
        here.sort(key=lambda d: (used[d] if self._spread_devices else -used[d], d))
        return here[: shape.count]

    # -- shapes -----------------------------------------------------------------------------------------------------

    def _shape(self, pod: Pod) -> _Shape:
        key = (id(pod.scheduling), pod.requests, id(pod.selection))
        found = self._shapes.get(key)
        if found is None:
            found = self._shapes[key] = self._make(pod)
        return found

    def _make(self, pod: Pod) -> _Shape:
        request = pod.requests[0]
        fleet = self.fleet
        new = replace(pod, node="", booked_node="", allocations=(), phase="Pending")
        nodes = np.array([self._admits(new, self._nodes[name]) for name in fleet.names], dtype=np.bool_)
        by_kind = {
            index: request.memory_mib or kind.memory_mib * request.memory_pct // 100
            for index, kind in enumerate(fleet.kinds)
        }
        need = np.array([by_kind[int(k)] for k in fleet.kind], dtype=np.int64)
        devices = np.array([kind.vendor == request.vendor for kind in fleet.kinds], dtype=np.bool_)[fleet.kind]
        wants = pod.scheduling.resources
        return _Shape(nodes, devices, need, request.count, request.cores, wants.cpu_milli, wants.memory_bytes)

    def _admits(self, pod: Pod, node: Node) -> bool:
        """By the exact rules on the empty cluster; nodes that differ in nothing but their names are asked once."""
        labels = tuple(sorted((k, v) for k, v in node.labels.items() if k != HOSTNAME))
        kind = (labels, node.taints, node.usable, len(node.devices), node.devices[0].model, node.allocatable.cpu_milli)
        request = pod.requests[0]
        key = ((id(pod.scheduling), id(pod.selection), request), kind)
        known = self._verdicts.get(key)
        if known is None:
            known = self._verdicts[key] = (
                kube_fit(self._empty, pod, node.name).ok
                and fit_pod(self._empty, pod, node.name, vendors=self._vendors).ok
            )
        return known

    # -- books ------------------------------------------------------------------------------------------------------

    def landed(self, pod: Pod, devices: Sequence[int]) -> Pod:
        """The pod as it stands on these devices."""
        request, fleet = pod.requests[0], self.fleet
        chosen = [fleet.devices[d] for d in devices]
        held = tuple(Allocation(0, d.uuid, request.memory_on(d), request.cores, d.vendor) for d in chosen)
        node = chosen[0].node
        return replace(pod, node=node, booked_node=node, bind_phase="success", phase="Running", allocations=held)

    def book(self, pod: Pod, sign: int) -> None:
        """Count a pod in (1) or out (-1)."""
        node = self.fleet.node_index.get(pod.booked_node or pod.node)
        if node is None:
            return
        wants, books = pod.scheduling.resources, self.books
        books.cpu[node] += sign * wants.cpu_milli
        books.host_memory[node] += sign * wants.memory_bytes
        books.pods[node] += sign
        for uuid, (slots, memory, cores) in collapse(pod.allocations, init_done=pod.init_done).items():
            at = self.fleet.device_index.get(uuid)
            if at is not None:
                books.slots[at] += sign * slots
                books.memory[at] += sign * memory
                books.cores[at] += sign * cores

    def indexes(self, uuids: Sequence[str]) -> list[int]:
        return [self.fleet.device_index[uuid] for uuid in uuids if uuid in self.fleet.device_index]
