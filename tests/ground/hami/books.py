"""HAMi's books: devices from register annotations, bookings from pod annotations, and the encoding of both."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

REGISTER, SCORES = "hami.io/node-nvidia-register", "hami.io/node-nvidia-score"
CORDON, HANDSHAKE, LOCK = "hami.io/device-cordon", "hami.io/node-handshake", "hami.io/mutex.lock"
NODE, TIME = "hami.io/vgpu-node", "hami.io/vgpu-time"
TO_ALLOCATE, ALLOCATED = "hami.io/vgpu-devices-to-allocate", "hami.io/vgpu-devices-allocated"
MIG = "hami.io/vgpu-mig-allocations"
BIND_PHASE, BIND_TIME = "hami.io/bind-phase", "hami.io/bind-time"
WORD = "NVIDIA"
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1

Pair = tuple[int, int]
"""A MIG placement: (start, size)."""


@dataclass
class Card:
    """One registered device and what is in use of it."""

    uuid: str
    index: int
    slots: int
    memory: int
    cores: int
    model: str
    numa: int
    mode: str
    healthy: bool
    profiles: list[dict[str, Any]] = field(default_factory=list)
    used: int = 0
    used_memory: int = 0
    used_cores: int = 0
    occupied: list[Pair] = field(default_factory=list)

    def copy(self) -> Card:
        return Card(
            self.uuid, self.index, self.slots, self.memory, self.cores, self.model, self.numa, self.mode, self.healthy,
            self.profiles, self.used, self.used_memory, self.used_cores, list(self.occupied),
        )  # fmt: skip


@dataclass(frozen=True)
class Piece:
    """One device entry of an allocation record."""

    uuid: str
    memory: int
    cores: int


@dataclass(frozen=True)
class Reservation:
    """A MIG instance that a pod holds."""

    container: int
    device: int
    uuid: str
    profile: str
    placement: Pair


@dataclass(frozen=True)
class Inventory:
    """What HAMi remembers of a node: cards in register order, the node's annotations, pair scores."""

    name: str
    cards: tuple[Card, ...]
    annotations: Mapping[str, str]
    scores: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Booking:
    """A pod in HAMi's cache: per UUID (slots, MiB, cores), and its MIG reservations."""

    uid: str
    namespace: str
    node: str
    use: Mapping[str, tuple[int, int, int]]
    reservations: tuple[Reservation, ...] = ()
    name: str = ""


def inventory(node: Mapping[str, Any]) -> Inventory:
    """Raises ValueError (or KeyError) for an annotation that HAMi cannot decode; it then keeps what it had."""
    annotations = node["metadata"].get("annotations") or {}
    entries = json.loads(annotations[REGISTER])
    cards = tuple(
        Card(
            uuid=entry.get("id", ""), index=entry.get("index", 0), slots=entry.get("count", 0),
            memory=entry.get("devmem", 0), cores=entry.get("devcore", 0), model=entry.get("type", ""),
            numa=entry.get("numa", 0), mode=entry.get("mode", ""), healthy=bool(entry.get("health", False)),
            profiles=entry.get("migProfiles") or [],
        )
        for entry in entries
    )  # fmt: skip
    scores: dict[str, dict[str, int]] = {}
    if SCORES in annotations:
        scores = {entry["uuid"]: dict(entry["score"]) for entry in json.loads(annotations[SCORES])}
    return Inventory(node["metadata"]["name"], cards, dict(annotations), scores)


def encode(slots: Sequence[Sequence[Piece]]) -> str:
    """The record as v2.10.0 writes it: containers without a request have no slot of their own."""
    return "".join("".join(f"{p.uuid},{WORD},{p.memory},{p.cores}:" for p in slot) + ";" for slot in slots)


def decode(value: str) -> list[list[Piece]]:
    """Raises ValueError when one item is broken: the whole pod then counts as nothing."""
    slots: list[list[Piece]] = []
    for part in value.split(";"):
        slot = []
        for item in part.split(":"):
            if "," not in item:
                continue
            fields = item.split(",")
            if len(fields) < 4:
                raise ValueError(f"{item!r} has {len(fields)} fields")
            numbers = [int(fields[2]), int(fields[3])]
            if any(not INT32_MIN <= n <= INT32_MAX for n in numbers):
                raise ValueError(f"{item!r} is out of range")
            slot.append(Piece(fields[0], numbers[0], numbers[1]))
        slots.append(slot)
    return slots[:-1] if value.endswith(";") else slots


def reservations(value: str) -> tuple[Reservation, ...]:
    """The MIG list; anything odd makes the whole list absent."""
    try:
        found = []
        for entry in json.loads(value):
            place = entry["placement"]
            given = [bool(entry.get(key)) for key in ("migUUID", "gpuInstanceID", "computeInstanceID")]
            if not entry["gpuUUID"] or not entry["profile"] or not place.get("size") or (any(given) and not all(given)):
                return ()
            found.append(
                Reservation(
                    entry.get("containerIndex", 0), entry.get("deviceIndex", 0), entry["gpuUUID"], entry["profile"],
                    (place.get("start", 0), place["size"]),
                )
            )  # fmt: skip
        if len({(r.container, r.device) for r in found}) != len(found):
            return ()
        return tuple(found)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()


def collapse(slots: Sequence[Sequence[Piece]], inits: int) -> dict[str, tuple[int, int, int]]:
    """Per UUID (slots, MiB, cores): the greatest single entry of the init slots, or what app slots need together."""
    total: dict[str, tuple[int, int, int]] = {}
    for uuid in dict.fromkeys(piece.uuid for slot in slots for piece in slot):
        init, app = [0, 0, 0], [0, 0, 0]
        for position, slot in enumerate(slots):
            mine = [piece for piece in slot if piece.uuid == uuid]
            if not mine:
                continue
            memory, cores = sum(p.memory for p in mine), sum(p.cores for p in mine)
            if position < inits:
                init = [1, max(init[1], *(p.memory for p in mine)), max(init[2], *(p.cores for p in mine))]
            else:
                app = [app[0] + 1, app[1] + memory, app[2] + cores]
        total[uuid] = (max(init[0], app[0], 1), max(init[1], app[1]), max(init[2], app[2]))
    return total


def inits_done(pod: Mapping[str, Any]) -> bool:
    """All init containers that have a status have ended well. A sidecar never does."""
    states = (pod.get("status") or {}).get("initContainerStatuses") or []
    ended = [s for s in states if ((s.get("state") or {}).get("terminated") or {"exitCode": 1}).get("exitCode", 0) == 0]
    return bool(states) and len(ended) == len(states)


def booking(pod: Mapping[str, Any]) -> Booking | None:
    """What HAMi books for a pod as stored; None when it does not count."""
    annotations = pod["metadata"].get("annotations") or {}
    node = annotations.get(NODE)
    if not node or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return None
    try:
        slots = decode(annotations.get(ALLOCATED, ""))
    except ValueError:
        slots = []
    inits = len(pod["spec"].get("initContainers") or [])
    if inits_done(pod):
        slots, inits = slots[inits:], 0
    return Booking(
        pod["metadata"].get("uid", ""), pod["metadata"].get("namespace", "default"), node, collapse(slots, inits),
        reservations(annotations[MIG]) if MIG in annotations else (), pod["metadata"].get("name", ""),
    )  # fmt: skip


def used_cards(known: Inventory, bookings: Sequence[Booking]) -> list[Card]:
    """Fresh cards of a node with every booking of that node added."""
    cards = [card.copy() for card in known.cards]
    by_uuid = {card.uuid: card for card in cards}
    for booked in bookings:
        if booked.node != known.name:
            continue
        for uuid, (slots, memory, cores) in booked.use.items():
            card = by_uuid.get(uuid)
            if card is None:
                continue  # the device is not there any more: silently not counted
            card.used += slots
            card.used_memory += memory
            card.used_cores += cores
            if card.mode == "mig" and not any(r.uuid == uuid for r in booked.reservations):
                card.healthy = False
        for reserved in booked.reservations:
            card = by_uuid.get(reserved.uuid)
            if card is None:
                for other in cards:
                    other.healthy = other.healthy and other.mode != "mig"
            elif card.mode != "mig":
                card.healthy = False
            else:
                card.occupied.append(reserved.placement)
    return cards
