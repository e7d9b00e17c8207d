"""Node objects into core values: inventory of every backend, cordon, pair scores, lock, taints, readiness.

A broken annotation is set aside as a `Problem`; the rest of the node goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from defragd.core.model import EMPTY, PLUGIN_GONE, Device, Node, Problem, Taint
from defragd.errors import CodecError
from defragd.hami.backend import Backend, Host
from defragd.hami.codec import (
    Registered,
    read_lock,
    read_pair_scores,
    read_register,
    read_register_json,
    read_register_text,
)
from defragd.hami.config import HamiConfig
from defragd.hami.keys import (
    DEVICE_CORDON,
    METAX_LOSSES,
    METAX_SCORES,
    NODE_LOCK,
    NVIDIA_PAIR_SCORES,
    VNPU_CORE_NODE,
)
from defragd.hami.quantity import whole
from defragd.hami.scheduling import node_resources
from defragd.hami.selection import members
from defragd.hami.vendors import backends, managed_resources
from defragd.hami.version import version_of

UNREADABLE_REGISTER = "UnreadableRegister"
UNKNOWN_REGISTER = "UnknownDeviceType"
MODEL_WITHOUT_WORD = "ModelWithoutVendorWord"
DUPLICATE_UUID = "DuplicateDevice"
OLD_REGISTER = "RegisterOfOldPlugin"

_KEEP_PREFIX = ("defragd.io/", "scheduling.hami.placement.com/")
_KEEP = frozenset({VNPU_CORE_NODE, METAX_LOSSES, METAX_SCORES})
_READERS: Mapping[str, Callable[[str, str], tuple[Registered, ...]]] = {
    "json": read_register_json,
    "text": read_register_text,
    "either": read_register,
}


def _device(item: Registered, node: str, word: str, position: int) -> Device:
    return Device(
        uuid=item.uuid,
        node=node,
        vendor=word,
        model=item.model,
        index=item.index,
        position=position,
        slots=item.slots,
        memory_mib=item.memory_mib,
        cores=item.cores,
        numa=item.numa,
        mode=item.mode,
        healthy=item.healthy,
        mig_profiles=item.mig_profiles,
        custom=item.custom,
    )


@lru_cache(maxsize=8192)
def _from_register(text: str, node: str, backend: Backend) -> tuple[Device, ...]:
    """Devices of one register annotation, the same object while the text stays the same."""
    items = _READERS[backend.form](backend.register, text)
    cores = 100 if backend.facts.family == "dies" else 0
    devices = []
    for position, item in enumerate(items):
        device = _device(item, node, backend.word, position)
        devices.append(replace(device, cores=cores) if cores else device)
    return tuple(devices)


def _plugin_gone(
    backend: Backend, amounts: Mapping[str, Any], annotations: Mapping[str, str], devices: tuple[Device, ...]
) -> tuple[Device, ...]:
    """HAMi drops the devices when the count resource is 0 (or missing) and it has asked the plugin in vain; before it
    has asked, it still takes them for good, and we do not."""
    if not backend.health:
        return devices
    count = amounts.get(backend.health)
    asked = bool(backend.handshake) and "Requesting" in annotations.get(backend.handshake, "")
    if asked and not whole(count):
        return tuple(replace(d, registered=False) for d in devices)
    if count is not None and not whole(count):
        return tuple(replace(d, distrusted=f"{PLUGIN_GONE}: allocatable {backend.health} is 0") for d in devices)
    return devices


def _unread(backend: Backend, text: str, config: HamiConfig) -> bool:
    """The form of the annotation is one that this HAMi version does not read (NVIDIA: text up to 2.7, JSON after)."""
    return backend.form == "either" and not text.lstrip().startswith("[") and version_of(config.version) >= (2, 8)


def _inventory(
    name: str,
    annotations: Mapping[str, str],
    amounts: Mapping[str, Any],
    capacity: Mapping[str, Any],
    config: HamiConfig,
) -> tuple[list[Device], list[Problem]]:
    devices: list[Device] = []
    problems: list[Problem] = []
    host = Host(name, annotations, capacity)
    for backend in backends(config).values():
        try:
            if backend.register:
                text = annotations.get(backend.register)
                if not text:
                    continue
                found = _from_register(text, name, backend)
            elif backend.inventory is not None:
                found = backend.inventory(host, backend)
            else:
                continue
        except CodecError as error:
            problems.append(Problem(f"Node/{name}", UNREADABLE_REGISTER, f"{error}; its devices are left out"))
            continue
        found = _plugin_gone(backend, amounts, annotations, found)
        if backend.register and _unread(backend, annotations[backend.register], config):
            found = tuple(replace(d, registered=False) for d in found)
            problems.append(
                Problem(
                    f"Node/{name}",
                    OLD_REGISTER,
                    f"{backend.register} has the form of HAMi 2.7 or older; HAMi {config.version} does not read it",
                )
            )
        base = len(devices)
        for device in found:
            problem = _doubt(device, backend)
            if problem:
                problems.append(Problem(f"Node/{name}", problem[0], problem[1]))
            devices.append(replace(device, position=device.position + base) if base else device)
    return devices, problems


def _doubt(device: Device, backend: Backend) -> tuple[str, str] | None:
    if not device.uuid:
        return UNREADABLE_REGISTER, f"device {device.position} of {backend.register} has no UUID"
    if backend.register and backend.word.lower() not in device.model.lower() and not backend.entry_is_model:
        return (
            MODEL_WITHOUT_WORD,
            f"device {device.uuid}: HAMi never chooses a device whose model {device.model!r} lacks {backend.word!r}",
        )
    return None


def _unknown_registers(name: str, annotations: Mapping[str, str], config: HamiConfig) -> list[Problem]:
    known = {b.register for b in backends(config).values()}
    known |= {b.handshake for b in backends(config).values()} | {NVIDIA_PAIR_SCORES}
    return [
        Problem(f"Node/{name}", UNKNOWN_REGISTER, f"annotation {key}: no backend of this name is known; left out")
        for key in annotations
        if key.startswith("hami.io/node-") and "register" in key and key not in known
    ]


def translate_node(obj: Any, config: HamiConfig) -> tuple[Node, tuple[Problem, ...]]:
    """A Node object (attributes as in kube.wire) and what was set aside on it. Never raises for odd content."""
    meta, name = obj.metadata, obj.metadata.name
    annotations: Mapping[str, str] = meta.annotations or EMPTY
    amounts: Mapping[str, Any] = obj.status.allocatable or EMPTY
    devices, problems = _inventory(name, annotations, amounts, obj.status.capacity or amounts, config)
    problems += _unknown_registers(name, annotations, config)
    pairs: Mapping[str, Mapping[str, int]] = EMPTY
    if NVIDIA_PAIR_SCORES in annotations:
        try:
            pairs = read_pair_scores(annotations[NVIDIA_PAIR_SCORES])
        except CodecError as error:
            # HAMi cannot decode the node's inventory then; what its cache still holds is not known
            problems.append(Problem(f"Node/{name}", UNREADABLE_REGISTER, f"{error}; its devices are distrusted"))
            devices = [replace(d, distrusted="unreadable pair scores") for d in devices]
    cordoned = frozenset(members(annotations.get(DEVICE_CORDON)))
    if cordoned:
        facts = {word: b.facts.cordon for word, b in backends(config).items()}
        devices = [replace(d, cordoned=True) if facts[d.vendor] and d.uuid in cordoned else d for d in devices]
    doubles = _twice(devices)
    if doubles:
        problems += [Problem(f"Node/{name}", DUPLICATE_UUID, f"device {u} is registered twice") for u in doubles]
        devices = [replace(d, distrusted="duplicate UUID") if d.uuid in doubles else d for d in devices]
    devices = [d for d in devices if d.uuid]
    conditions = obj.status.conditions or ()
    ready = next((c.status == "True" for c in conditions if c.type == "Ready"), True)
    return (
        Node(
            name=name,
            labels=meta.labels or EMPTY,
            annotations={k: v for k, v in annotations.items() if k in _KEEP or k.startswith(_KEEP_PREFIX)} or EMPTY,
            taints=tuple(Taint(t.key, t.value, t.effect) for t in obj.spec.taints or ()),
            ready=ready,
            schedulable=not obj.spec.unschedulable,
            allocatable=node_resources(amounts, managed_resources(config)),
            devices=tuple(devices),
            pair_scores=pairs,
            lock=read_lock(annotations.get(NODE_LOCK)),
        ),
        tuple(problems),
    )


def _twice(devices: list[Device]) -> list[str]:
    seen: set[str] = set()
    return sorted({d.uuid for d in devices if d.uuid and (d.uuid in seen or seen.add(d.uuid))})  # type: ignore[func-returns-value]
