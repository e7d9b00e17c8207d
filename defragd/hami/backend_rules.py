"""How the less common backends resolve a container's request (reference section 2.1)."""

from __future__ import annotations

from defragd.hami.backend import Amounts, Backend, Resolved, Resolver, pick
from defragd.hami.config import HamiConfig
from defragd.hami.quantity import parse, whole

_MIB = 1024 * 1024
_XPU_SLICES = (24576, 49152, 98304)


def resolve_whole(*, cores: int) -> Resolver:
    """Count only: all memory of each device."""

    def resolve(limits: Amounts, requests: Amounts, backend: Backend, config: HamiConfig) -> Resolved | None:
        del config
        count = whole(pick(limits, requests, backend.names.count))
        return None if count is None or count <= 0 else Resolved(count, 0, 100, cores)

    return resolve


def resolve_xpu(limits: Amounts, requests: Amounts, backend: Backend, config: HamiConfig) -> Resolved | None:
    """Memory is rounded up to a quarter, half or whole device; cores follow memory."""
    del config
    count = whole(pick(limits, requests, backend.names.count))
    if count is None or count <= 0:
        return None
    memory = whole(pick(limits, requests, backend.names.memory))
    if not memory:
        return Resolved(count, 0, 100, 100)
    mib = next((size for size in _XPU_SLICES if memory <= size), memory)
    return Resolved(count, mib, 0, mib * 100 // 98304)


def resolve_amd(limits: Amounts, requests: Amounts, backend: Backend, config: HamiConfig) -> Resolved | None:
    """Limits only; cores are percent of the compute units."""
    del requests, config
    count = whole(limits.get(backend.names.count))
    if count is None or count <= 0:
        return None
    memory = whole(limits.get(backend.names.memory)) or 0
    cores = whole(limits.get(backend.names.cores))
    return Resolved(count, memory, 0 if memory else 100, 100 if cores is None else cores)


def resolve_metax_shared(limits: Amounts, requests: Amounts, backend: Backend, config: HamiConfig) -> Resolved | None:
    """Limits only; a bare memory number is GiB, one with a unit is bytes."""
    del requests, config
    count = whole(limits.get(backend.names.count))
    if count is None or count <= 0:
        return None
    asked = limits.get(backend.names.memory)
    value = parse(asked)
    mib = 0
    if value is not None:
        mib = int(value * 1024) if str(asked).isdigit() else int(value / _MIB)
    cores = whole(limits.get(backend.names.cores))
    return Resolved(count, mib, 0 if mib else 100, 100 if cores is None else cores)


def resolve_neuron(limits: Amounts, requests: Amounts, backend: Backend, config: HamiConfig) -> Resolved | None:
    """Chips, or cores (1, or a multiple of a chip's cores; how many a chip has is the node's business)."""
    del config
    chips = whole(pick(limits, requests, backend.names.count))
    if chips and chips > 0:
        return Resolved(chips, 0, 0, 0)
    cores = whole(pick(limits, requests, backend.names.cores))
    if not cores or cores <= 0:
        return None
    return Resolved(1, 0, 0, cores)
