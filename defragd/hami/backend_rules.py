"""How the less common backends resolve a container's request (reference section 2.1)."""

from __future__ import annotations

from defragd.hami.backend import Amounts, Backend, Resolved, Resolver, pick
from defragd.hami.config import HamiConfig
from defragd.hami.quantity import canonical, units, whole

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
    """Memory is rounded up to a quarter, half or whole device; cores follow memory; without memory the whole device."""
    del config
    count = whole(pick(limits, requests, backend.names.count))
    if count is None or count <= 0:
        return None
    memory = whole(pick(limits, requests, backend.names.memory))
    mib = _XPU_SLICES[-1] if memory is None else next((s for s in _XPU_SLICES if memory <= s), _XPU_SLICES[-1])
    return Resolved(count, mib, 0, mib * 100 // _XPU_SLICES[-1])


def resolve_amd(limits: Amounts, requests: Amounts, backend: Backend, config: HamiConfig) -> Resolved | None:
    """Limits only; cores are percent of the compute units, 1 to 100."""
    del requests, config
    count = whole(limits.get(backend.names.count))
    if count is None or count <= 0:
        return None
    asked, wanted = limits.get(backend.names.memory), limits.get(backend.names.cores)
    memory, cores = whole(asked), whole(wanted)
    if asked is not None and (memory is None or not 0 <= memory < 2**31):
        return None
    if wanted is not None and (cores is None or not 1 <= cores <= 100):
        return None
    return Resolved(count, memory or 0, 0 if memory else 100, 100 if cores is None else cores)


def resolve_profiles(limits: Amounts, requests: Amounts, backend: Backend, config: HamiConfig) -> Resolved | None:
    """One slice: by number of slices (then cores is -1 and memory that number), or by memory and cores."""
    del config
    names = backend.names
    slices = whole(pick(limits, requests, names.count))
    if slices is not None and 0 < slices < 2**31:
        return Resolved(1, slices, 0, -1)
    memory, cores = pick(limits, requests, names.memory), pick(limits, requests, names.cores)
    if memory is None and cores is None:
        return None
    mib, percent = units(memory), units(cores)
    return Resolved(1, mib, 0, percent) if mib < 2**31 and percent < 2**31 else None


def resolve_metax_shared(limits: Amounts, requests: Amounts, backend: Backend, config: HamiConfig) -> Resolved | None:
    """Limits only; a bare memory number is GiB, one with a unit is bytes."""
    del requests, config
    names = backend.names
    count = whole(limits.get(names.count))
    if count is None or not 0 < count < 2**31:
        return None
    cores = whole(limits.get(names.cores))
    if cores is not None and not 0 <= cores < 2**31:
        return None
    asked = limits.get(names.memory)
    value, mib = whole(asked), 0
    if value is not None and asked is not None:
        bare = not any(c.isalpha() for c in canonical(asked))
        mib = value * 1024 if bare else value // _MIB
        if not 0 <= mib < 2**31:
            return None
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
