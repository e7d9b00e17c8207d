"""The snapshot as flat arrays: what every sum, table and search runs on.

One `Fleet` (what never changes while a plan is made) and one `Books` (who holds how much, changed by what-if moves).
Devices of a node are neighbours, nodes are in name order, so the same snapshot always gives the same arrays. Memory
grows with devices and nodes, not with pods.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from defragd.core.model import Allocation, Device
from defragd.core.snapshot import Snapshot, collapse

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """What makes two devices interchangeable for fit rules (their place and their UUID apart)."""

    vendor: str
    model: str
    mode: str
    slots: int
    memory_mib: int
    cores: int


@dataclass(frozen=True)
class Fleet:
    """Nodes and devices, N and D of them. ``first[n]:first[n + 1]`` are the devices of node n, in HAMi's order."""

    names: tuple[str, ...]
    node_index: dict[str, int]
    first: Ints
    devices: tuple[Device, ...]
    device_index: dict[str, int]
    node_of: Ints
    """D: node of each device."""
    kinds: tuple[DeviceKind, ...]
    kind: Ints
    """D: index into ``kinds``."""
    slots: Ints
    memory: Ints
    cores: Ints
    """D: capacity in slots, MiB and core percent."""
    device_open: Bools
    """D: healthy, not cordoned, trusted, on a usable node: may receive a pod and counts in sums."""
    node_open: Bools
    cpu: Ints
    host_memory: Ints
    pods: Ints
    """N: allocatable milli-CPU, bytes, pods."""
    numa: Ints

    @cached_property
    def size(self) -> Ints:
        """N: devices registered per node."""
        return np.diff(self.first)

    def devices_of(self, node: int) -> range:
        return range(int(self.first[node]), int(self.first[node + 1]))


@dataclass
class Books:
    """Use by device (slots, MiB, cores; D) and by node (milli-CPU, bytes, pods; N)."""

    slots: Ints
    memory: Ints
    cores: Ints
    cpu: Ints
    host_memory: Ints
    pods: Ints

    def copy(self) -> Books:
        return Books(
            self.slots.copy(),
            self.memory.copy(),
            self.cores.copy(),
            self.cpu.copy(),
            self.host_memory.copy(),
            self.pods.copy(),
        )


@dataclass(frozen=True)
class Arena:
    """A fleet and its books, with the holds of open placements counted like allocations."""

    fleet: Fleet
    books: Books
    held: frozenset[str] = field(default_factory=frozenset)
    """UUIDs on which an open placement has a hold."""


def build_fleet(snapshot: Snapshot) -> Fleet:
    """Flat arrays of all nodes that register devices or hold pods (nodes without devices matter to no sum)."""
    names = tuple(sorted(name for name, node in snapshot.nodes.items() if node.devices))
    first = [0]
    devices: list[Device] = []
    kinds: dict[DeviceKind, int] = {}
    kind: list[int] = []
    node_of: list[int] = []
    for position, name in enumerate(names):
        for device in snapshot.nodes[name].devices:
            devices.append(device)
            node_of.append(position)
            key = DeviceKind(device.vendor, device.model, device.mode, device.slots, device.memory_mib, device.cores)
            kind.append(kinds.setdefault(key, len(kinds)))
        first.append(len(devices))
    nodes = [snapshot.nodes[name] for name in names]
    seen: dict[str, int] = {}
    for position, device in enumerate(devices):
        seen.setdefault(device.uuid, position)
    return Fleet(
        names=names,
        node_index={name: position for position, name in enumerate(names)},
        first=np.array(first, dtype=np.int64),
        devices=tuple(devices),
        device_index=seen,
        node_of=np.array(node_of, dtype=np.int64),
        kinds=tuple(kinds),
        kind=np.array(kind, dtype=np.int64),
        slots=np.array([d.slots for d in devices], dtype=np.int64),
        memory=np.array([d.memory_mib for d in devices], dtype=np.int64),
        cores=np.array([d.cores for d in devices], dtype=np.int64),
        device_open=np.array(
            [d.usable and nodes[n].usable for d, n in zip(devices, node_of, strict=True)], dtype=np.bool_
        ),
        node_open=np.array([n.usable for n in nodes], dtype=np.bool_),
        cpu=np.array([n.allocatable.cpu_milli for n in nodes], dtype=np.int64),
        host_memory=np.array([n.allocatable.memory_bytes for n in nodes], dtype=np.int64),
        pods=np.array([n.allocatable.pods for n in nodes], dtype=np.int64),
        numa=np.array([d.numa for d in devices], dtype=np.int64),
    )


def build_books(snapshot: Snapshot, fleet: Fleet) -> Books:
    """Use by HAMi's books (devices, by the booked node) and by the API server's (host, by the bound node)."""
    slots = [0] * len(fleet.devices)
    memory = [0] * len(fleet.devices)
    cores = [0] * len(fleet.devices)
    cpu = [0] * len(fleet.names)
    host = [0] * len(fleet.names)
    pods = [0] * len(fleet.names)
    place, where = fleet.device_index, fleet.node_index

    def book(node: int, allocations: tuple[Allocation, ...], init_done: bool) -> None:
        if len(allocations) == 1 and not allocations[0].init:
            only = allocations[0]
            at = place.get(only.uuid)
            if at is not None and fleet.node_of[at] == node:
                slots[at] += 1
                memory[at] += only.memory_mib
                cores[at] += only.cores
            return
        for uuid, (n, mib, percent) in collapse(allocations, init_done=init_done).items():
            at = place.get(uuid)
            if at is not None and fleet.node_of[at] == node:
                slots[at] += n
                memory[at] += mib
                cores[at] += percent

    def charge(node: int, cpu_milli: int, memory_bytes: int) -> None:
        cpu[node] += cpu_milli
        host[node] += memory_bytes
        pods[node] += 1

    for pod in snapshot.pods.values():
        if not pod.live:
            continue
        at = where.get(pod.node or pod.booked_node)
        if at is not None:
            wants = pod.scheduling.resources
            charge(at, wants.cpu_milli, wants.memory_bytes)
        if pod.booked_node and pod.allocations:
            booked = where.get(pod.booked_node)
            if booked is not None:
                book(booked, pod.allocations, pod.init_done)
    for hold in snapshot.holds:
        at = where.get(hold.node)
        if at is not None and not _claimed(snapshot, hold.node, hold.pod_uid):
            charge(at, hold.resources.cpu_milli, hold.resources.memory_bytes)
            book(at, hold.allocations, False)
    return Books(*(np.array(values, dtype=np.int64) for values in (slots, memory, cores, cpu, host, pods)))


def _claimed(snapshot: Snapshot, node: str, pod_uid: str) -> bool:
    return bool(pod_uid) and any(pod.uid == pod_uid for pod in snapshot.booked_on.get(node, ()))


def build_arena(snapshot: Snapshot) -> Arena:
    fleet = build_fleet(snapshot)
    held = frozenset(a.uuid for hold in snapshot.holds for a in hold.allocations)
    return Arena(fleet, build_books(snapshot, fleet), held)
