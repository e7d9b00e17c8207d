"""Device inventories of backends without a register annotation: built from node capacity or a vendor's own annotation.

The IDs built here are what HAMi builds, and what pinning annotations must contain (reference section 1.3).
"""

from __future__ import annotations

from typing import Any

from defragd.core.model import Device
from defragd.errors import CodecError
from defragd.hami.backend import Backend, Host
from defragd.hami.codec import excerpt, load_json
from defragd.hami.quantity import whole

ENFLAME_CAPACITY = "enflame.com/gcu-drs-capacity"
METAX_DEVICES = "metax-tech.com/node-gpu-devices"
_MOST = 4096
"""No node has more devices than this; a larger capacity is a broken one."""


def _count(host: Host, name: str) -> int:
    found = whole(host.amounts.get(name)) or 0
    if found > _MOST * 4096:
        raise CodecError(name, "capacity is too large to be true", excerpt=str(host.amounts.get(name)))
    return max(found, 0)


def _devices(host: Host, backend: Backend, middle: str, number: int, **facts: Any) -> tuple[Device, ...]:
    if number > _MOST:
        raise CodecError(backend.names.count, "capacity is too large to be true", excerpt=str(number))
    return tuple(
        Device(
            uuid=f"{host.name}-{middle}-{i}",
            node=host.name,
            vendor=backend.word,
            model=backend.word,
            index=i,
            position=i,
            **facts,
        )
        for i in range(number)
    )


def cambricon(host: Host, backend: Backend) -> tuple[Device, ...]:
    """Devices = vcore capacity / 100; memory = vmemory * 256 * 100 / vcore each."""
    cores = _count(host, backend.names.cores)
    number = cores // 100
    if not number:
        return ()
    memory = _count(host, backend.names.memory) * 256 * 100 // cores
    return _devices(host, backend, "cambricon-mlu", number, slots=100, memory_mib=memory, cores=100)


def mthreads(host: Host, backend: Backend) -> tuple[Device, ...]:
    """Devices = sgpu-core capacity / 16, each with its share of sgpu-memory * 512 MiB and 16 cores."""
    number = _count(host, backend.names.cores) // 16
    if not number:
        return ()
    memory = _count(host, backend.names.memory) * 512 // number
    return _devices(host, backend, "mthreads", number, slots=100, memory_mib=memory, cores=16)


def metax(host: Host, backend: Backend) -> tuple[Device, ...]:
    """Whole devices of 65536 MiB."""
    number = _count(host, backend.names.count)
    return _devices(host, backend, "metax", number, slots=1, memory_mib=65536, cores=100)


def gcu(host: Host, backend: Backend) -> tuple[Device, ...]:
    """Whole devices; memory is in percent."""
    number = _count(host, backend.names.count)
    return _devices(host, backend, "GCU", number, slots=1, memory_mib=100, cores=100)


def kunlun(host: Host, backend: Backend) -> tuple[Device, ...]:
    """Whole devices in two wings; NUMA node 0 for the first half."""
    number = _count(host, backend.names.count)
    plain = _devices(host, backend, "kunlun", number, slots=100, memory_mib=98304, cores=100)
    return tuple(
        Device(
            uuid=d.uuid,
            node=d.node,
            vendor=d.vendor,
            model=d.model,
            index=d.index,
            position=d.position,
            slots=d.slots,
            memory_mib=d.memory_mib,
            cores=d.cores,
            numa=0 if d.index < number / 2 else 1,
        )
        for d in plain
    )


def neuron(host: Host, backend: Backend) -> tuple[Device, ...]:
    """Chips with a bit mask of cores."""
    number = _count(host, backend.names.count)
    if not number:
        return ()
    per_chip = _count(host, backend.names.cores) // number
    mask = (1 << min(per_chip, 30)) - 1
    return _devices(host, backend, "AWSNeuron", number, slots=per_chip, memory_mib=0, cores=mask)


def _profile(name: str) -> tuple[int, int]:
    """(slices, GB) of a profile name such as ``1g.6gb``; zeros where it is none."""
    parts = name.strip().lower().split(".")
    size = parts[0].strip().removesuffix("g")
    memory = parts[1].strip().removesuffix("gb") if len(parts) > 1 else ""
    return (int(size) if size.isdigit() else 0, int(memory) if memory.isdigit() else 0)


def enflame(host: Host, backend: Backend) -> tuple[Device, ...]:
    """DRS slices: ``{"devices": [{"index", "minor", "capacity"}], "profiles": {"1g.6gb": "<id>"}}``."""
    text = host.annotations.get(ENFLAME_CAPACITY)
    if not text:
        return ()
    value = load_json(ENFLAME_CAPACITY, text)
    try:
        pairs = sorted(_profile(name) for name in value["profiles"] or {})
        found = []
        for place, item in enumerate(value["devices"] or ()):
            index = str(item.get("index", ""))
            found.append((int(index) if index.isdigit() else place, int(str(item.get("capacity", 0)).strip())))
    except (TypeError, KeyError, ValueError, AttributeError):
        raise CodecError(ENFLAME_CAPACITY, "not a DRS capacity object", excerpt=excerpt(text)) from None
    largest = max((gb for _, gb in pairs), default=0) or max((size for size, _ in pairs), default=0)
    if not largest or any(capacity <= 0 for _, capacity in found):
        raise CodecError(ENFLAME_CAPACITY, "no valid profile, or a capacity of 0", excerpt=excerpt(text))
    return tuple(
        Device(
            uuid=f"{host.name}-enflame-drs-{index}",
            node=host.name,
            vendor=backend.word,
            model=backend.word,
            index=index,
            position=place,
            slots=capacity,
            memory_mib=largest * 1024,
            cores=100,
            custom={"profiles": tuple(p for p in pairs if p[0] > 0 and p[1] > 0)},
        )
        for place, (index, capacity) in enumerate(found)
    )


def metax_shared(host: Host, backend: Backend) -> tuple[Device, ...]:
    """Metax' own JSON list of devices that can be sliced; their index is the place in the list."""
    text = host.annotations.get(METAX_DEVICES)
    if not text:
        return ()
    value = load_json(METAX_DEVICES, text)
    try:
        return tuple(
            Device(
                uuid=str(item["uuid"]),
                node=host.name,
                vendor=backend.word,
                model=backend.word,
                index=place,
                position=place,
                slots=int(item.get("totalDevCount", 0)),
                memory_mib=int(item.get("totalVRam", 0)),
                cores=int(item.get("totalCompute", 0)),
                numa=int(item.get("numa", 0)),
                healthy=item.get("healthy") is True,
                custom={
                    "Model": str(item.get("model", "")),
                    "QosPolicy": str(item.get("qosPolicy", "")),
                    "LinkZone": int(item.get("linkZone", 0)),
                },
            )
            for place, item in enumerate(value or ())
        )
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
        raise CodecError(METAX_DEVICES, "not a list of devices", excerpt=excerpt(text)) from None
