"""The working state of one node while HAMi's fit is replayed: what is used on each device, and in what order HAMi tries
the devices. Scores are float32, because equal scores decide which device is tried first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from defragd.core.model import Allocation, Device, DeviceRequest, MigReservation, Node, Pod, Selection
from defragd.core.snapshot import Snapshot, collapse
from defragd.core.vendor import Vendor

f32 = np.float32
TEN = f32(10)
CHAIN_KEYS = ("binpack", "spread", "numa")
REPORTED_QUALITY = "QosPolicy"
"""Key of a device's own data in the register: the quality of service that its plugin has set."""


@dataclass(slots=True)
class Spot:
    """One device of the node in the working copy."""

    device: Device
    used: int = 0
    memory_mib: int = 0
    cores: int = 0
    healthy: bool = True
    score: np.float32 = field(default_factory=lambda: f32(0))
    taken: list[tuple[int, int]] = field(default_factory=list)
    """(start, size) of MIG instances on the device."""
    classes: tuple[int, int] = (0, 0)
    """Numbers of online and offline pods on it, for backends with classes of pods."""
    unsettled: bool = False
    """Its quality of service is about to change to that of a pod on it, or was: HAMi remembers which, nobody else."""

    @property
    def wishes(self) -> frozenset[str]:
        """The classes present."""
        return frozenset(word for word, count in zip(("online", "offline"), self.classes, strict=True) if count)

    def copy(self) -> Spot:
        return Spot(
            self.device,
            self.used,
            self.memory_mib,
            self.cores,
            self.healthy,
            self.score,
            list(self.taken),
            self.classes,
            self.unsettled,
        )

    def add(self, memory_mib: int, cores: int, slots: int = 1) -> None:
        self.used += slots
        self.memory_mib += memory_mib
        self.cores += cores


def hami_collapse(pod: Pod, entries: tuple[Allocation, ...] | None = None) -> dict[str, tuple[int, int, int]]:
    """{uuid: (slots, MiB, cores)} by HAMi's own books: init slots are told by their position among the packed slots.
    ``entries``: only these of the pod's allocations."""
    out: dict[str, tuple[int, int, int]] = {}
    held = pod.allocations if entries is None else entries
    for uuid in dict.fromkeys(a.uuid for a in held):
        app = [a for a in held if a.uuid == uuid and not a.hami_init]
        init = [a for a in held if a.uuid == uuid and a.hami_init]
        if pod.shrunk:
            if not app:
                continue
            init = []
        out[uuid] = (
            max(len(app), 1),
            max([sum(a.memory_mib for a in app), *(a.memory_mib for a in init)]),
            max([sum(a.cores for a in app), *(a.cores for a in init)]),
        )
    return out


def base_spots(
    snapshot: Snapshot,
    node: Node,
    vendors: Mapping[str, Vendor],
    *,
    without: frozenset[str],
    as_hami: bool,
    holds: bool,
) -> list[Spot]:
    """`spots_of`, kept in the snapshot's memo; callers copy what they change."""
    tags = [p.key for p in snapshot.booked_on.get(node.name, ())]
    tags += [f"hold:{h.placement}" for h in snapshot.holds_on.get(node.name, ())]
    key = ("spots", node.name, without.intersection(tags), as_hami, holds)
    known = snapshot.memo.get(key)
    if isinstance(known, tuple) and known[0] is node and known[1] is vendors:
        return known[2]  # type: ignore[no-any-return]
    spots = spots_of(snapshot, node, vendors, without=without, as_hami=as_hami, holds=holds)
    snapshot.memo[key] = (node, vendors, spots)
    return spots


def spots_of(
    snapshot: Snapshot,
    node: Node,
    vendors: Mapping[str, Vendor],
    *,
    without: frozenset[str],
    as_hami: bool,
    holds: bool,
) -> list[Spot]:
    """The node's devices with their present use, in HAMi's initial order."""
    spots = [Spot(device=d, healthy=d.healthy) for d in node.devices if d.registered]
    by_uuid = {spot.device.uuid: spot for spot in spots}
    if as_hami:
        for pod in snapshot.booked_on.get(node.name, ()):
            if pod.key in without:
                continue
            for uuid, (slots, memory, cores) in hami_collapse(pod).items():
                if uuid in by_uuid:
                    by_uuid[uuid].add(memory, cores, slots)
    else:
        for uuid, use in snapshot.usage(node.name, without=without, holds=holds).items():
            if uuid in by_uuid:
                by_uuid[uuid].add(use.memory_mib, use.cores, use.slots)
    if any(d.mode == "mig" for d in node.devices) or any(p.mig for p in snapshot.booked_on.get(node.name, ())):
        _reserve(snapshot, node, by_uuid, without, as_hami)
    keys = {vendors[d.vendor].class_key for d in node.devices if d.vendor in vendors} - {""}
    for key in keys:
        _count_classes(snapshot, node, by_uuid, without, key)
    if any(vendors[d.vendor].quality_key for d in node.devices if d.vendor in vendors):
        _mark_unsettled(snapshot, node, by_uuid, vendors, without)
    return spots


def _mark_unsettled(
    snapshot: Snapshot, node: Node, by_uuid: Mapping[str, Spot], vendors: Mapping[str, Vendor], without: frozenset[str]
) -> None:
    """Devices whose reported quality of service is not that of a pod on them: until the plugin reports the pod's, HAMi
    goes by its own memory, which a restart empties."""
    for pod in snapshot.booked_on.get(node.name, ()):
        for entry in pod.allocations if pod.key not in without else ():
            spot, facts = by_uuid.get(entry.uuid), vendors.get(entry.vendor)
            own = spot.device.custom.get(REPORTED_QUALITY) if spot is not None else None
            if spot is None or facts is None or own is None or pod.annotations.get(facts.class_key) == "online":
                continue
            expected = "" if entry.cores == 100 else pod.annotations.get(facts.quality_key, "")
            spot.unsettled = spot.unsettled or expected != own


def _count_classes(
    snapshot: Snapshot, node: Node, by_uuid: Mapping[str, Spot], without: frozenset[str], key: str
) -> None:
    for pod in snapshot.booked_on.get(node.name, ()):
        word = pod.annotations.get(key)
        if pod.key in without or word not in ("online", "offline"):
            continue
        for uuid in pod.devices:
            spot = by_uuid.get(uuid)
            if spot is not None:
                online, offline = spot.classes
                spot.classes = (online + (word == "online"), offline + (word == "offline"))


def _reserve(
    snapshot: Snapshot, node: Node, by_uuid: Mapping[str, Spot], without: frozenset[str], as_hami: bool
) -> None:
    """MIG instances in use. HAMi calls a device unhealthy when its reservations contradict the pods on it."""
    for pod in snapshot.booked_on.get(node.name, ()):
        if pod.key in without:
            continue
        left: dict[str, list[MigReservation]] = {}
        for entry in pod.mig:
            left.setdefault(entry.uuid, []).append(entry)
        held = hami_collapse(pod) if as_hami else collapse(pod.allocations, init_done=pod.init_done)
        for uuid in held:
            spot = by_uuid.get(uuid)
            if spot is None:
                continue
            entries = left.get(uuid)
            if not entries:
                spot.healthy = spot.healthy and spot.device.mode != "mig"
            elif spot.device.mode == "hami-core":
                spot.healthy = False
            else:
                first = entries.pop(0)
                spot.taken.append((first.start, first.size))
        for uuid, entries in left.items():
            if entries:
                _restore(uuid, entries, by_uuid)


def _restore(uuid: str, entries: Iterable[MigReservation], by_uuid: Mapping[str, Spot]) -> None:
    """Reservations beyond the first of a device: counted on a MIG device, a contradiction anywhere else."""
    spot = by_uuid.get(uuid)
    if spot is None:
        for other in by_uuid.values():
            other.healthy = other.healthy and other.device.mode != "mig"
    elif spot.device.mode != "mig":
        spot.healthy = False
    else:
        spot.taken += [(e.start, e.size) for e in entries]


def node_score(spots: Sequence[Spot]) -> np.float32:
    """How full the node is before the pod comes: 10 * (slots + cores + memory), each as a share of its total."""
    slots, cores, memory = (
        sum(s.device.slots for s in spots),
        sum(s.device.cores for s in spots),
        sum(s.device.memory_mib for s in spots),
    )
    if not slots or not cores or not memory:
        return f32(0)
    return TEN * (
        f32(sum(s.used for s in spots)) / f32(slots)
        + f32(sum(s.cores for s in spots)) / f32(cores)
        + f32(sum(s.memory_mib for s in spots)) / f32(memory)
    )


def rate(spots: Iterable[Spot], requests: Iterable[DeviceRequest], weights: tuple[int, int, int]) -> None:
    """Score every device for one container. The container's own demand counts only on devices whose model is exactly
    the vendor word (so never for NVIDIA)."""
    asked = {r.vendor: r for r in requests}
    w_slot, w_core, w_memory = (f32(w) for w in weights)
    for spot in spots:
        device = spot.device
        if not device.slots or not device.cores or not device.memory_mib:
            spot.score = f32(0)
            continue
        own = asked.get(device.model)
        count, core, memory = (1, own.cores, own.memory_on(device)) if own else (0, 0, 0)
        spot.score = TEN * (
            w_slot * (f32(count + spot.used) / f32(device.slots))
            + w_core * (f32(core + spot.cores) / f32(device.cores))
            + w_memory * (f32(memory + spot.memory_mib) / f32(device.memory_mib))
        )


@dataclass(frozen=True, slots=True)
class Order:
    """A device policy, taken apart once: ``keys`` for chains, ``kind`` for single words."""

    kind: str
    keys: tuple[str, ...] = ()
    mutex: bool = False
    topology: bool = False

    @classmethod
    def of(cls, policy: str) -> Order:
        """By HAMi's reading: a comma (or the word numa) makes a chain, whose members are trimmed; a single word sorts
        only when it has no blanks around it (mutex and topology-aware act as filters even then); unknown = spread."""
        if "," in policy or policy == "numa":
            words = [word.strip() for word in policy.split(",")]
            keys = tuple(dict.fromkeys(word for word in words if word in CHAIN_KEYS)) or ("spread",)
            return cls("chain", keys, "mutex" in words, "topology-aware" in words)
        word = policy.strip()
        return cls(policy, (), word == "mutex", word == "topology-aware")


def arrange(spots: list[Spot], order: Order, numa_bind: bool) -> None:
    """Sort in place; HAMi then tries the devices from the end of the list to its beginning."""
    if order.kind == "chain":
        keys = order.keys
        if numa_bind:
            keys = ("numa", *(k for k in keys if k != "numa"))

        def by_chain(spot: Spot) -> tuple[float, ...]:
            values = {"binpack": float(spot.score), "spread": -float(spot.score), "numa": float(spot.device.numa)}
            return (*(values[k] for k in keys), float(spot.device.index))

        spots.sort(key=by_chain)
    elif order.kind == "mutex":  # the one policy whose order a NUMA bind does not change
        spots.sort(key=lambda s: (-s.used, s.device.numa))
    elif numa_bind and order.kind == "binpack":
        spots.sort(key=lambda s: (-s.device.numa, float(s.score)))
    elif numa_bind:
        spots.sort(key=lambda s: (s.device.numa, -float(s.score)))
    elif order.kind == "binpack":
        spots.sort(key=lambda s: (float(s.score), s.device.numa))
    else:
        spots.sort(key=lambda s: (-float(s.score), s.device.numa))


@dataclass(slots=True)
class Pick:
    """One device given to one container."""

    spot: Spot
    memory_mib: int
    cores: int
    mig: tuple[str, int, int] | None = None
    """(profile, start, size)."""
    asked: tuple[int, int] = (0, 0)
    """MiB and cores as asked, where a MIG profile replaces them."""
    slots: int = 1
    """Slots it takes while the rest of the pod is placed (HAMi's books count one afterwards)."""


@dataclass(slots=True)
class Slot:
    """One entry of HAMi's list of containers per backend; without ``request`` it only fills a place."""

    request: DeviceRequest | None
    picks: list[Pick]


@dataclass(slots=True)
class Task:
    """What one container's search needs to know beside the devices."""

    pod: Pod
    node: Node
    facts: Vendor
    request: DeviceRequest
    selection: Selection
    order: Order
    pin: frozenset[str] | None
    obey_pin: bool
    slots: list[Slot]
    """HAMi's list for this vendor in the running stage: what earlier containers got, with the places it fills."""
    quota: tuple[int | None, int | None, int, int]
    """(memory limit, core limit, memory used, cores used) in the namespace, without this pod."""
    soft_slicing: bool = False
    total_cores: int | None = None
    """Count cores up to this instead of the device's own total."""
    collect: bool = False
    """All passing devices are wanted, whatever the number asked."""
    asking: str = ""
    """UUID of the device under test."""


def to_allocations(slots: Mapping[str, list[Slot]], init_count: int) -> tuple[Allocation, ...]:
    """Allocations in the order HAMi writes them. ``hami_init`` goes by the place in the list, as HAMi's books do."""
    out: list[Allocation] = []
    for word, entries in slots.items():
        order = 0
        for place, entry in enumerate(entries):
            if entry.request is None or not entry.picks:
                continue
            request = entry.request
            out += [
                Allocation(
                    slot=order,
                    uuid=pick.spot.device.uuid,
                    memory_mib=pick.memory_mib,
                    cores=pick.cores,
                    vendor=word,
                    init=request.init and not request.sidecar,
                    hami_init=place < init_count,
                )
                for pick in entry.picks
            ]
            order += 1
    return tuple(out)
