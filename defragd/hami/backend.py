"""What one HAMi backend is made of: the facts for the core, its annotations, and how a container's request is resolved.

The tables themselves are in `hami.vendors`; this module owns their shape and the resolution rules that several share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from defragd.core.model import Device
from defragd.core.vendor import Vendor
from defragd.hami.config import HamiConfig, Names
from defragd.hami.quantity import parse, whole

Amounts = Mapping[str, "str | int | float"]
"""Resource name -> quantity, limits or requests of one container."""


class Resolved(NamedTuple):
    """One container's request of one backend. ``pct`` is used only where ``memory_mib`` is 0."""

    number: int
    memory_mib: int
    pct: int
    cores: int


class Host(NamedTuple):
    """The parts of a Node object from which a backend without register annotation builds its inventory."""

    name: str
    annotations: Mapping[str, str]
    amounts: Amounts


Resolver = Callable[[Amounts, Amounts, "Backend", HamiConfig], "Resolved | None"]
Inventory = Callable[[Host, "Backend"], tuple[Device, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Backend:
    """One row of the vendor table. ``register`` "" = the inventory is synthetic (from node capacity).

    ``form`` names the register format: json, text, either, or "" when ``inventory`` builds the devices.
    ``health`` is the count resource whose allocatable 0 takes the devices away.
    """

    facts: Vendor
    names: Names
    allocated: str
    to_allocate: str = ""
    register: str = ""
    form: str = ""
    handshake: str = ""
    health: str = ""
    resolve: Resolver = None  # type: ignore[assignment]
    inventory: Inventory | None = None
    entry_is_model: bool = False
    """The second field of an allocation entry is the device's model instead of the vendor word."""
    unit: int = 1
    """MiB per unit of the memory resource; HAMi multiplies namespace quotas by it too."""
    first: str = "2.5"
    """First HAMi release with this backend."""

    @property
    def word(self) -> str:
        return self.facts.word


def pick(limits: Amounts, requests: Amounts, name: str) -> str | int | float | None:
    """HAMi reads the limit and, where there is none, the request."""
    if not name:
        return None
    found = limits.get(name)
    return requests.get(name) if found is None else found


def _int32(value: int) -> int:
    """Go's conversion to int32 (wraps)."""
    return (value + 2**31) % 2**32 - 2**31


def resolver(
    *, unit: int = 1, cores: int = 100, per_count: bool = False, strict: bool = True, strict_cores: bool = False
) -> Resolver:
    """The rule most backends share: memory in ``unit`` MiB (absent = all of the device), cores absent = ``cores``.

    ``per_count``: both are totals over the devices of the container and are divided by their number. ``strict``: a
    memory that is no whole number drops the request (else it counts as absent); too large or negative always does.
    ``strict_cores``: so do cores out of range.
    """

    def resolve(limits: Amounts, requests: Amounts, backend: Backend, config: HamiConfig) -> Resolved | None:
        del config
        names = backend.names
        count = whole(pick(limits, requests, names.count))
        if count is None or count <= 0:
            return None
        asked = pick(limits, requests, names.memory)
        memory = whole(asked)
        if asked is not None and memory is None and (strict or (parse(asked) or 0) < 0):
            return None
        if memory is not None and not 0 <= memory <= (2**31 - 1) // max(unit, 1):
            return None
        wanted = whole(pick(limits, requests, names.cores))
        if strict_cores and wanted is not None and not 0 <= wanted < 2**31:
            return None
        mib = (memory or 0) * max(unit, 1)
        core = cores if wanted is None else _int32(wanted)
        pct = 0 if mib else 100
        if per_count:
            mib, core = mib // count, int(core / count)
        return Resolved(_int32(count), mib, pct, core)

    return resolve


def resolve_nvidia(limits: Amounts, requests: Amounts, backend: Backend, config: HamiConfig) -> Resolved | None:
    """Reference section 2.1: an unreadable or too large memory drops the whole request; memory wins over percent."""
    names = backend.names
    count = whole(pick(limits, requests, names.count))
    if count is None or count <= 0:
        return None
    memory = 0
    asked = pick(limits, requests, names.memory)
    if asked is not None:
        number = whole(asked)
        factor = max(config.memory_factor, 1)
        if number is None or number < 0 or number > (2**31 - 1) // factor:
            return None
        memory = number * config.memory_factor
    percent = whole(pick(limits, requests, names.percent))
    pct = 101 if percent is None or percent <= 0 else min(percent, 101)
    if percent is not None and percent > 100:
        pct = 100
    if pct == 101 and memory == 0:
        if config.default_memory:
            memory = config.default_memory
        else:
            pct = 100
    cores = whole(pick(limits, requests, names.cores))
    return Resolved(
        _int32(count), memory, 0 if memory else pct, config.default_cores if cores is None else _int32(cores)
    )
