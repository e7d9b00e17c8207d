"""Proposed moves as values and numbers: what each pod will hold, what it takes and gives where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from defragd.core.arrays import Arena
from defragd.core.budget import Claim
from defragd.core.graph import Room, Step, Yard
from defragd.core.model import Allocation, Device, Pod
from defragd.core.plan import Place
from defragd.core.snapshot import Snapshot, collapse


def landed(pod: Pod, place: Place, devices: Mapping[str, Device]) -> Pod:
    """The pod as its replacement will stand on ``place``: one UUID there per distinct device it holds now, or one per
    allocation. MiB and percentages are those of the new devices; whole-device requests take all of their memory."""
    old = pod.devices
    if len(place.devices) == len(old):
        mapped = dict(zip(old, place.devices, strict=True))
        uuids = [mapped[a.uuid] for a in pod.allocations]
    else:
        uuids = list(place.devices)
    entries = tuple(
        Allocation(
            slot=a.slot,
            uuid=uuid,
            memory_mib=pod.requests[a.slot].memory_on(devices[uuid]),
            cores=pod.requests[a.slot].cores,
            vendor=a.vendor,
            init=a.init,
        )
        for a, uuid in zip(pod.allocations, uuids, strict=True)
    )
    return replace(pod, node=place.node, booked_node=place.node, allocations=entries, init_done=False, mig=())


def expand(pod: Pod, place: Place) -> Place:
    """One UUID per allocation entry (the plan's form) from one per distinct device."""
    old = pod.devices
    if len(place.devices) != len(old):
        return place
    mapped = dict(zip(old, place.devices, strict=True))
    return Place(place.node, tuple(mapped[a.uuid] for a in pod.allocations))


def make_step(
    index: int, pod: Pod, after: Pod, arena: Arena, claim: Claim, *, gain: float, cost: float, alone: bool
) -> Step:
    """One move in numbers, for the graph and the waves."""
    fleet = arena.fleet
    leaves: dict[Room, int] = {}
    arrives: dict[Room, int] = {}
    sources = _devices(pod, pod.init_done, arena, leaves)
    targets = _devices(after, False, arena, arrives)
    wants = pod.scheduling.resources
    for room, node in ((leaves, pod.node or pod.booked_node), (arrives, after.node)):
        at = fleet.node_index.get(node)
        if at is not None:
            room[("cpu", at)] = wants.cpu_milli
            room[("host", at)] = wants.memory_bytes
            room[("pods", at)] = 1
    entries: dict[int, list[int]] = {}
    for a in after.allocations:
        entries.setdefault(fleet.device_index[a.uuid], []).append(a.cores)
    return Step(
        index=index,
        pod=pod,
        claim=claim,
        leaves=leaves,
        arrives=arrives,
        whole=frozenset(d for d, cores in entries.items() if max(cores) >= 100 and fleet.cores[d] == 100),
        zero=frozenset(d for d, cores in entries.items() if min(cores) == 0 and fleet.cores[d] > 0),
        alone=frozenset(entries) if alone else frozenset(),
        source_devices=frozenset(sources),
        target_devices=frozenset(targets),
        gain=gain,
        cost=cost,
    )


def _devices(pod: Pod, init_done: bool, arena: Arena, rooms: dict[Room, int]) -> list[int]:
    fleet = arena.fleet
    found = []
    for uuid, (slots, memory, cores) in collapse(pod.allocations, init_done=init_done).items():
        at = fleet.device_index.get(uuid)
        if at is None or fleet.names[int(fleet.node_of[at])] != pod.booked_node:
            continue
        found.append(at)
        rooms[("slots", at)] = slots
        rooms[("memory", at)] = memory
        rooms[("cores", at)] = cores
    return found


def make_yard(snapshot: Snapshot, arena: Arena, steps: Iterable[Step]) -> Yard:
    """Idle room and holders of every place the steps touch, as the snapshot has them."""
    fleet, books = arena.fleet, arena.books
    yard = Yard()
    devices: set[int] = set()
    nodes: set[int] = set()
    for step in steps:
        devices |= step.source_devices | step.target_devices
        nodes |= {at for kind, at in (*step.leaves, *step.arrives) if kind == "cpu"}
    for d in devices:
        yard.free[("slots", d)] = int(fleet.slots[d] - books.slots[d])
        yard.free[("memory", d)] = int(fleet.memory[d] - books.memory[d])
        yard.free[("cores", d)] = int(fleet.cores[d] - books.cores[d])
        yard.holders[d] = set()
    for n in nodes:
        yard.free[("cpu", n)] = int(fleet.cpu[n] - books.cpu[n])
        yard.free[("host", n)] = int(fleet.host_memory[n] - books.host_memory[n])
        yard.free[("pods", n)] = int(fleet.pods[n] - books.pods[n])
    for n in {int(fleet.node_of[d]) for d in devices}:
        name = fleet.names[n]
        for pod in snapshot.booked_on.get(name, ()):
            for uuid in collapse(pod.allocations, init_done=pod.init_done):
                at = fleet.device_index.get(uuid)
                if at in yard.holders:
                    yard.holders[at].add(pod.key)
        for hold in snapshot.holds_on.get(name, ()):
            for a in hold.allocations:
                at = fleet.device_index.get(a.uuid)
                if at in yard.holders:
                    yard.holders[at].add(f"hold:{hold.placement}")
    return yard
