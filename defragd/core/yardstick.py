"""How many copies of each request class fit, and how many would if the idle capacity were in one piece.

The tables behind the score and behind every search (definitions: states/README sections 3.3 and 3.4). A `Yardstick`
is made once per planning round: pools (K*, R, C) are those of the state before the plan and stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from defragd.core.arrays import Books, Bools, DeviceKind, Fleet, Floats, Ints
from defragd.core.mix import ClassKey, Mix, accepts_type

TINY = 1e-9
"""Added before rounding pools down: they are sums of fractions."""
PLENTY = 1 << 40
"""Stands for "no limit" where a class asks for nothing of a resource."""


@dataclass(frozen=True)
class Yardstick:
    """M classes as columns, and the pools of the first state.

    ``need``: kinds x M, MiB a class takes on a device of that kind, -1 where the type is not acceptable.
    """

    name: str
    keys: tuple[ClassKey, ...]
    weight: Floats
    cpu: Ints
    host_memory: Ints
    gpus: Ints
    cores: Ints
    need: Ints
    exclusive: Bools
    """kinds x M: the class takes the whole device (100 cores of 100)."""
    pooled: Ints
    """M: K*."""
    reach: Floats
    """M: min(R, C), the idle devices the class could use at best."""
    idle_gpus: float

    def copies(self, kind: Ints, slots: Ints, memory: Ints, cores: Ints, used: Bools) -> Ints:
        """X x M: copies on each of X device states, given what is idle (slots, MiB, cores) and whether it is used."""
        need = self.need[kind]
        free_cores = cores[:, None]
        out = np.minimum(slots[:, None], free_cores // np.maximum(self.cores, 1) + PLENTY * (self.cores == 0))
        out = np.minimum(out, memory[:, None] // np.maximum(need, 1) + PLENTY * (need == 0))
        exclusive = self.exclusive[kind]
        out = np.where(exclusive, np.minimum(out, 1), out)
        barred = (need < 0) | (exclusive & used[:, None]) | ((self.cores == 0) & (free_cores <= 0))
        out[barred] = 0
        return np.asarray(np.maximum(out, 0))

    def host_limit(self, cpu: Ints, host_memory: Ints) -> Ints:
        """N x M: copies the idle host CPU and memory of each node allow."""
        by_cpu = np.maximum(cpu, 0)[:, None] // np.maximum(self.cpu, 1) + PLENTY * (self.cpu == 0)
        by_memory = np.maximum(host_memory, 0)[:, None] // np.maximum(self.host_memory, 1) + PLENTY * (
            self.host_memory == 0
        )
        overdrawn = ((cpu < 0)[:, None] & (self.cpu >= 0)) | ((host_memory < 0)[:, None] & (self.host_memory >= 0))
        limit: Ints = np.minimum(by_cpu, by_memory)
        limit[overdrawn] = 0
        return limit


def idle_share(slots: Ints, memory: Ints, cores: Ints, all_memory: Ints, all_cores: Ints) -> Floats:
    """r of README 3.1: the scarcer idle share of a device, 0 without a free slot."""
    share = np.minimum(cores / np.maximum(all_cores, 1), memory / np.maximum(all_memory, 1))
    usable = (slots > 0) & (all_cores > 0) & (all_memory > 0)
    return np.where(usable, np.clip(share, 0.0, 1.0), 0.0)


def make_yardstick(mix: Mix, fleet: Fleet, books: Books) -> Yardstick:
    """Columns from the mix, pools from the books as they are now."""
    keys = tuple(key for key, _ in mix.classes)
    cpu = _column(k.cpu_milli for k in keys)
    host = _column(k.memory_bytes for k in keys)
    gpus = _column(k.gpus for k in keys)
    cores = _column(k.cores for k in keys)
    shape = (len(fleet.kinds), len(keys))
    need = np.array([[_need(key, kind) for key in keys] for kind in fleet.kinds], dtype=np.int64).reshape(shape)
    exclusive = np.array(
        [[key.cores == 100 and kind.cores == 100 for key in keys] for kind in fleet.kinds], dtype=np.bool_
    ).reshape(shape)
    idle = _pooled_gpus(fleet, books)
    pooled, reach = _pools(keys, fleet, books, need, idle)
    weight = np.array([w for _, w in mix.classes], dtype=np.float64)
    return Yardstick(mix.name, keys, weight, cpu, host, gpus, cores, need, exclusive, pooled, reach, idle)


def _column(values: Iterable[int]) -> Ints:
    return np.array(list(values), dtype=np.int64)


def _need(key: ClassKey, kind: DeviceKind) -> int:
    if key.vendor and key.vendor != kind.vendor:
        return -1
    if not accepts_type(key.use_types, key.nouse_types, kind.model):
        return -1
    return key.memory_mib or kind.memory_mib * key.memory_pct // 100


def _pooled_gpus(fleet: Fleet, books: Books) -> float:
    """R: the scarcer of all idle cores and all idle memory, in devices."""
    counts = fleet.device_open & (fleet.cores > 0) & (fleet.memory > 0)
    if not counts.any():
        return 0.0
    idle_cores = (fleet.cores - books.cores)[counts] / fleet.cores[counts]
    idle_memory = (fleet.memory - books.memory)[counts] / fleet.memory[counts]
    return float(min(idle_cores.sum(), idle_memory.sum()))


def _pools(keys: tuple[ClassKey, ...], fleet: Fleet, books: Books, need: Ints, idle: float) -> tuple[Ints, Floats]:
    """K* and min(R, C) per class (README 3.4)."""
    with_devices = fleet.node_open & (fleet.size > 0)
    all_cpu = int(np.maximum(fleet.cpu - books.cpu, 0)[with_devices].sum())
    all_host = int(np.maximum(fleet.host_memory - books.host_memory, 0)[with_devices].sum())
    pooled: list[int] = []
    reach: list[float] = []
    nodes = len(fleet.names)
    for column, key in enumerate(keys):
        right = fleet.device_open & (need[fleet.kind, column] >= 0) & (fleet.memory >= key.memory_mib)
        per_node = np.bincount(fleet.node_of[right], minlength=nodes)
        able = (
            with_devices
            & (per_node >= key.gpus)
            & (fleet.cpu >= key.cpu_milli)
            & (fleet.host_memory >= key.memory_bytes)
        )
        right &= able[fleet.node_of]
        count = int(right.sum())
        pool = min(idle, float(count))
        share = max(key.cores, key.memory_pct, 1)
        if key.gpus > 1:
            best = int(np.floor(pool / key.gpus + TINY))
        else:
            slots = int(fleet.slots[right].max(initial=0))
            per = 1 if key.cores == 100 else min(slots, 100 // share)
            whole = int(np.floor(pool + TINY))
            best = whole * per + int(np.floor(max(0.0, pool - whole) / (share / 100.0) + TINY))
        if key.cpu_milli:
            best = min(best, all_cpu // key.cpu_milli)
        if key.memory_bytes:
            best = min(best, all_host // key.memory_bytes)
        if key.memory_mib:
            spare = int((fleet.memory - books.memory)[right].sum())
            best = min(best, spare // (key.gpus * key.memory_mib))
        pooled.append(max(best, 0))
        reach.append(pool)
    return np.array(pooled, dtype=np.int64), np.array(reach, dtype=np.float64)
