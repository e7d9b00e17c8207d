"""Reading and writing what HAMi keeps in annotations. Every reader raises `CodecError` (key, position, excerpt) or
returns values; nothing else, whatever the text.

Register annotation: JSON (zero values left out) or text. Allocation annotation: slots per container, packed to the
front by HAMi 2.10, with init containers first since 2.9. Lock: ``RFC3339,namespace,name``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from defragd.core.model import EMPTY, MigProfile, MigReservation, NodeLock
from defragd.errors import CodecError
from defragd.hami.keys import MIG_ALLOCATIONS, NODE_LOCK, NVIDIA_PAIR_SCORES

INT32 = 2**31


@dataclass(frozen=True, slots=True)
class Registered:
    """One device as a register annotation describes it; missing fields are HAMi's zero values."""

    uuid: str
    index: int = 0
    slots: int = 0
    memory_mib: int = 0
    cores: int = 0
    model: str = ""
    numa: int = 0
    mode: str = ""
    healthy: bool = False
    vendor: str = ""
    mig_profiles: tuple[MigProfile, ...] = ()
    custom: Mapping[str, Any] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True)
class Entry:
    """One device of one slot of an allocation annotation. ``kind`` is the vendor word (a model for some)."""

    uuid: str
    kind: str
    memory_mib: int
    cores: int


def excerpt(text: str, start: int = 0, length: int = 40) -> str:
    """A short, printable piece of an annotation for an error line."""
    piece = text[max(0, start - 5) : max(0, start - 5) + length]
    return "".join(c if c.isprintable() else "?" for c in piece)


def load_json(key: str, text: str) -> Any:
    """The JSON value of an annotation; numbers too large, nesting too deep and other oddities are CodecErrors."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise CodecError(
            key, f"no JSON ({error.msg})", position=f"character {error.pos}", excerpt=excerpt(text, error.pos)
        ) from None
    except (RecursionError, ValueError) as error:
        raise CodecError(key, f"no JSON ({type(error).__name__})", excerpt=excerpt(text)) from None


def _field(key: str, item: Mapping[str, Any], name: str, kind: type, place: str) -> Any:
    """One field of a JSON object with Go's zero value as default; names match in any letter case as in Go."""
    value = item.get(name)
    if value is None:
        value = next((v for k, v in item.items() if k.lower() == name.lower()), None)
    if value is None:
        return kind()
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        if -INT32 <= value < INT32:
            return value
    elif isinstance(value, kind) and kind is not int:
        return value
    raise CodecError(key, f"{name} is no {kind.__name__}", position=place, excerpt=excerpt(str(value)))


def _profiles(key: str, value: Any, place: str) -> tuple[MigProfile, ...]:
    profiles = []
    for number, item in enumerate(value):
        where = f"{place}, migProfiles[{number}]"
        if not isinstance(item, Mapping):
            raise CodecError(key, "profile is no object", position=where, excerpt=excerpt(str(item)))
        spots = []
        for spot in _field(key, item, "placements", list, where):
            if not isinstance(spot, Mapping):
                raise CodecError(key, "placement is no object", position=where, excerpt=excerpt(str(spot)))
            spots.append((_field(key, spot, "start", int, where), _field(key, spot, "size", int, where)))
        profiles.append(
            MigProfile(
                name=_field(key, item, "name", str, where),
                memory_mib=_field(key, item, "memoryMB", int, where),
                cores=_field(key, item, "core", int, where),
                slice_count=_field(key, item, "sliceCount", int, where),
                placements=tuple(spots),
            )
        )
    return tuple(profiles)


@lru_cache(maxsize=4096)
def read_register_json(key: str, text: str) -> tuple[Registered, ...]:
    """The JSON form: an array with one object per device, in the order that HAMi uses to break ties."""
    items = load_json(key, text)
    if items is None:
        return ()
    if not isinstance(items, list):
        raise CodecError(key, "expected an array of devices", excerpt=excerpt(text))
    devices = []
    for number, item in enumerate(items):
        place = f"item {number}"
        if not isinstance(item, Mapping):
            raise CodecError(key, "device is no object", position=place, excerpt=excerpt(str(item)))
        custom = _field(key, item, "custominfo", dict, place)
        profiles = _field(key, item, "migProfiles", list, place)
        devices.append(
            Registered(
                uuid=_field(key, item, "id", str, place),
                index=_field(key, item, "index", int, place),
                slots=_field(key, item, "count", int, place),
                memory_mib=_field(key, item, "devmem", int, place),
                cores=_field(key, item, "devcore", int, place),
                model=_field(key, item, "type", str, place),
                numa=_field(key, item, "numa", int, place),
                mode=_field(key, item, "mode", str, place),
                healthy=_field(key, item, "health", bool, place),
                vendor=_field(key, item, "devicevendor", str, place),
                mig_profiles=_profiles(key, profiles, place) if profiles else (),
                custom=custom or EMPTY,
            )
        )
    return tuple(devices)


def _int32(key: str, text: str, what: str, place: str) -> int:
    """A decimal number as Go's strconv reads it into int32."""
    body = text[1:] if text[:1] in "+-" and text else text
    if body.isascii() and body.isdigit() and len(body) < 20:
        value = int(text)
        if -INT32 <= value < INT32:
            return value
    raise CodecError(key, f"{what} is no 32-bit number", position=place, excerpt=excerpt(text))


_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


def go_bool(text: str) -> bool | None:
    """Go's strconv.ParseBool; None where that gives an error."""
    return True if text in _TRUE else False if text in _FALSE else None


@lru_cache(maxsize=4096)
def read_register_text(key: str, text: str) -> tuple[Registered, ...]:
    """The text form: ``ID,count,devmem,devcore,type,numa,health[,index,mode]`` per device, separated by ``:``."""
    if ":" not in text:
        raise CodecError(key, "no device separator ':'", excerpt=excerpt(text))
    devices = []
    for number, item in enumerate(text.split(":")):
        if not item:
            continue
        place = f"item {number}"
        parts = item.split(",")
        if len(parts) not in (7, 9):
            raise CodecError(key, f"{len(parts)} fields, expected 7 or 9", position=place, excerpt=excerpt(item))
        healthy = go_bool(parts[6])
        if healthy is None:
            raise CodecError(key, "health is no boolean", position=place, excerpt=excerpt(parts[6]))
        devices.append(
            Registered(
                uuid=parts[0],
                slots=_int32(key, parts[1], "count", place),
                memory_mib=_int32(key, parts[2], "devmem", place),
                cores=_int32(key, parts[3], "devcore", place),
                model=parts[4],
                numa=_int32(key, parts[5], "numa", place),
                healthy=healthy,
                index=_int32(key, parts[7], "index", place) if len(parts) == 9 else 0,
                mode=parts[8] if len(parts) == 9 else "hami-core",
            )
        )
    return tuple(devices)


def read_register(key: str, text: str) -> tuple[Registered, ...]:
    """Either form, told apart by the first character: HAMi up to 2.7 wrote text, from 2.8 on JSON."""
    return read_register_json(key, text) if text.lstrip()[:1] in ("[", "n", "{", "") else read_register_text(key, text)


def read_slots(key: str, text: str) -> tuple[tuple[Entry, ...], ...]:
    """The slots of an allocation annotation, empty ones included, without the empty tail that a final ``;`` leaves.

    Items without a comma are skipped as HAMi does; an item with fewer than four fields or a bad number spoils the
    whole pod (HAMi then does not count it at all). ``,,0,0`` is the empty container of HAMi up to 2.5.
    """
    slots: list[tuple[Entry, ...]] = []
    for number, part in enumerate(text.split(";")):
        entries = []
        for item in part.split(":"):
            if "," not in item:
                continue
            fields = item.split(",")
            if len(fields) < 4:
                raise CodecError(
                    key, f"{len(fields)} fields, expected 4", position=f"slot {number}", excerpt=excerpt(item)
                )
            memory, cores = fields[2], fields[3]
            # the plain case first: this runs for every device of every pod
            try:
                mem, core = int(memory), int(cores)
                plain = memory.isdigit() and cores.isdigit() and mem < INT32 and core < INT32
            except ValueError:
                plain = False
            if not plain:
                mem = _int32(key, memory, "memory", f"slot {number}")
                core = _int32(key, cores, "cores", f"slot {number}")
            if fields[0] or mem or core:
                entries.append(Entry(fields[0], fields[1], mem, core))
        slots.append(tuple(entries))
    if slots and not slots[-1]:
        slots.pop()
    return tuple(slots)


def write_slots(slots: Iterable[Iterable[Entry]], *, packed: bool = True) -> str:
    """The annotation text. ``packed`` leaves empty slots out, as HAMi 2.10 does."""
    return "".join(
        "".join(f"{e.uuid},{e.kind},{e.memory_mib},{e.cores}:" for e in slot) + ";"
        for slot in (tuple(s) for s in slots)
        if slot or not packed
    )


def split_mig_uuid(uuid: str) -> tuple[str, str]:
    """(UUID, "template-slot"): HAMi up to 2.9 wrote MIG devices as ``GPU-aa[1-0]``."""
    head, bracket, tail = uuid.partition("[")
    return (head, tail[:-1]) if bracket and tail.endswith("]") else (uuid, "")


def read_mig(text: str) -> tuple[MigReservation, ...]:
    """The MIG reservations of a pod. One bad entry makes the list undecodable, and HAMi treats it as absent."""
    key = MIG_ALLOCATIONS
    items = load_json(key, text)
    if not isinstance(items, list):
        raise CodecError(key, "expected an array", excerpt=excerpt(text))
    found: dict[tuple[int, int], MigReservation] = {}
    for number, item in enumerate(items):
        place = f"item {number}"
        if not isinstance(item, Mapping):
            raise CodecError(key, "entry is no object", position=place, excerpt=excerpt(str(item)))
        spot = _field(key, item, "placement", dict, place)
        entry = MigReservation(
            uuid=_field(key, item, "gpuUUID", str, place),
            profile=_field(key, item, "profile", str, place),
            start=_field(key, spot, "start", int, place),
            size=_field(key, spot, "size", int, place),
            container=_field(key, item, "containerIndex", int, place),
            device=_field(key, item, "deviceIndex", int, place),
        )
        instance = [item.get(name) is not None for name in ("migUUID", "gpuInstanceID", "computeInstanceID")]
        if not entry.uuid or not entry.profile or entry.size <= 0:
            raise CodecError(key, "entry without device, profile or size", position=place)
        if (entry.container, entry.device) in found:
            raise CodecError(key, "container and device index twice", position=place)
        if any(instance) and not all(instance):
            raise CodecError(key, "instance described in part", position=place)
        found[entry.container, entry.device] = entry
    return tuple(found.values())


def write_mig(entries: Sequence[MigReservation]) -> str:
    """The reservations as HAMi's filter writes them."""
    return json.dumps(
        [
            {
                "containerIndex": e.container,
                "deviceIndex": e.device,
                "gpuUUID": e.uuid,
                "profile": e.profile,
                "placement": {"start": e.start, "size": e.size},
            }
            for e in entries
        ],
        separators=(",", ":"),
    )


@lru_cache(maxsize=4096)
def read_pair_scores(text: str) -> Mapping[str, Mapping[str, int]]:
    """``hami.io/node-nvidia-score`` as {uuid: {uuid: score}}; a malformed value makes the node undecodable."""
    key = NVIDIA_PAIR_SCORES
    items = load_json(key, text)
    if items is None:
        return EMPTY
    if not isinstance(items, list):
        raise CodecError(key, "expected an array", excerpt=excerpt(text))
    scores: dict[str, dict[str, int]] = {}
    for number, item in enumerate(items):
        place = f"item {number}"
        if not isinstance(item, Mapping):
            raise CodecError(key, "entry is no object", position=place, excerpt=excerpt(str(item)))
        pairs = _field(key, item, "score", dict, place)
        if not all(isinstance(v, int) and not isinstance(v, bool) for v in pairs.values()):
            raise CodecError(key, "score is no number", position=place, excerpt=excerpt(str(pairs)))
        scores[_field(key, item, "uuid", str, place)] = dict(pairs)
    return scores


@lru_cache(maxsize=16384)
def read_time(text: str) -> datetime | None:
    """An RFC 3339 time as aware UTC, None for anything else."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    if found.tzinfo is None or "T" not in text.upper():
        return None
    try:
        return found.astimezone(UTC)
    except OverflowError:
        return None


def read_lock(text: str | None, key: str = NODE_LOCK) -> NodeLock | None:
    """The node lock. A bare time is the old form without holder; a malformed one has ``since`` None (never expires)."""
    del key
    if not text:
        return None
    parts = text.split(",")
    since = read_time(parts[0])
    if len(parts) == 1:
        return NodeLock(holder="", since=since, raw=text)
    if len(parts) != 3 or since is None:
        return NodeLock(holder="", since=None, raw=text)
    return NodeLock(holder=f"{parts[1]}/{parts[2]}", since=since, raw=text)
