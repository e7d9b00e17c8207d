"""Objectives as one form: features that add up over nodes, each worth something up to a cap.

Every objective is ``sum(coef * min(cap, total))`` over F features whose totals are sums over nodes, so one set of
tables serves all of them. Features of a node come from the sum of its devices' rows (what each device state offers)
and from its idle host CPU and memory.

- ``loss``: copies K of each class, worth w / K* up to K* (minus L, up to a constant);
- ``fgd``: usable idle share U, worth w / min(R, C) (minus phi);
- ``devices``: idle devices; ``nodes``: idle nodes, each counted by its share of the largest node's devices, nodes of
  fewer than `GUARDED` devices left out where there are larger ones;
- ``empty``: idle devices, and a pull towards few full devices instead of many half full ones, for searches that would
  see no way from one idle device to the next;
- ``auto``: loss; among equal losses more idle devices; among equal numbers of those more idle nodes, larger ones first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from defragd.core.arrays import Bools, Fleet, Floats, Ints
from defragd.core.yardstick import Yardstick, idle_share

GUARDED = 4
"""Idle nodes of at least this many devices are not refilled unless asked, and are what whole-node goals count."""
TIE_DEVICE, DEVICES_PER_COPY = 5e-8, 20
"""Worth of an idle device under ``auto``, in points of L, and how many of them weigh as one copy of any class."""
NODES_PER_DEVICE, LARGEST = 8, 0.01
"""So many idle nodes weigh as much as an idle device; what the largest node counts more than others do."""
PULL = 0.1
"""What emptiness of a device in use counts at most, in idle devices, under ``empty``."""
UNLIMITED = 1e15
NOTHING = 0.25
"""Added to idle CPU and memory (whole numbers) so that a class asking for none is not limited by an idle 0."""

SCORE_NAMES = {"auto": "L", "loss": "L", "fgd": "phi", "devices": "devices", "nodes": "nodes"}
"""How a plan names the objective it was made for."""


@dataclass(frozen=True)
class Aim:
    """One objective. ``rows`` columns: M copies (or fits, for classes of several devices), 1 idle flag, and for
    ``fgd`` M usable shares. Features: M classes (none for devices and nodes), then idle devices and nodes."""

    name: str
    yardstick: Yardstick
    coef: Floats
    cap: Floats
    node_worth: Floats
    """N: what the node being idle counts."""
    size: Ints
    classes: int
    shares: bool
    extras: int
    """0, 1 (idle devices or nodes alone) or 2 (both)."""
    pull: float = 0.0
    """Worth of a device in use that is nearly empty, in idle devices."""
    cpu_divisor: Floats = field(init=False)
    host_divisor: Floats = field(init=False)
    several: Ints = field(init=False)
    """Classes of more than one device."""

    def __post_init__(self) -> None:
        yard = self.yardstick
        put = object.__setattr__
        put(self, "cpu_divisor", np.where(yard.cpu > 0, yard.cpu, 1.0 / UNLIMITED))
        put(self, "host_divisor", np.where(yard.host_memory > 0, yard.host_memory, 1.0 / UNLIMITED))
        put(self, "several", np.nonzero(yard.gpus > 1)[0])

    @property
    def features(self) -> int:
        return self.classes + self.extras

    def rows(self, fleet: Fleet, kind: Ints, slots: Ints, memory: Ints, cores: Ints) -> Floats:
        """X x R: what each device state (use so far) offers."""
        yard = self.yardstick
        kinds = fleet.kinds
        all_slots = np.array([k.slots for k in kinds], dtype=np.int64)[kind]
        all_memory = np.array([k.memory_mib for k in kinds], dtype=np.int64)[kind]
        all_cores = np.array([k.cores for k in kinds], dtype=np.int64)[kind]
        idle: Floats = (slots == 0).astype(np.float64)[:, None]
        if not self.classes:
            if not self.pull:
                return idle
            use = np.maximum(memory / np.maximum(all_memory, 1), cores / np.maximum(all_cores, 1))
            return idle + self.pull * np.square(np.clip(1.0 - use, 0.0, 1.0))[:, None]
        free = (all_slots - slots, all_memory - memory, all_cores - cores)
        copies = yard.copies(kind, *free, slots > 0)
        fits = copies > 0
        base = np.where(yard.gpus > 1, fits, copies).astype(np.float64)
        if not self.shares:
            return np.concatenate([base, idle], axis=1)
        share = idle_share(*free, all_memory, all_cores)
        return np.concatenate([base, idle, np.where(fits, share[:, None], 0.0)], axis=1)

    def finish(self, sums: Floats, nodes: Ints, cpu: Floats, host: Floats) -> Floats:
        """X x F: features of nodes from their row sums and idle host CPU and memory."""
        count = self.classes
        out = np.empty((len(sums), self.features))
        if count:
            yard = self.yardstick
            limit = host_limit(self, cpu, host)
            if self.shares:
                enough = sums[:, :count] >= np.maximum(yard.gpus, 1)
                out[:, :count] = np.where(enough & (limit > 0), sums[:, count + 1 :], 0.0)
            else:
                have = sums[:, :count]
                if len(self.several):
                    have = have.copy()
                    have[:, self.several] = np.floor(have[:, self.several] / yard.gpus[self.several])
                np.minimum(have, limit, out=out[:, :count])
        if self.extras:
            idle = sums[:, count]
            whole = np.where(idle >= self.size[nodes], self.node_worth[nodes], 0.0)
            if self.name == "devices":
                out[:, count] = idle
            elif self.name == "nodes":
                out[:, count] = whole
            else:
                out[:, count] = idle
                out[:, count + 1] = whole
        return out

    def value(self, total: Floats) -> float:
        """The objective (more is better) of feature totals."""
        return float((self.coef * np.minimum(self.cap, total)).sum())

    def slope(self, total: Floats) -> Floats:
        """Worth of one more of each feature at these totals; 0 where the cap is reached."""
        return np.where(total < self.cap, self.coef, 0.0)

    def unit_gain(self, gain: float) -> float:
        """Gain without the tie-breaking parts, in the objective's own unit."""
        return gain


def host_limit(aim: Aim, cpu: Floats, host: Floats) -> Floats:
    """X x M copies by idle CPU and memory; true division of integers below 2^53 rounds down exactly.

    A class that asks for none of a resource has a divisor so small that the quotient is no limit.
    """
    by_cpu = np.floor((cpu + NOTHING)[:, None] / aim.cpu_divisor)
    by_host = np.floor((host + NOTHING)[:, None] / aim.host_divisor)
    limit: Floats = np.minimum(by_cpu, by_host)
    short = (cpu < 0) | (host < 0)
    if short.any():
        limit[short] = 0.0
    return limit


def make_aim(name: str, yardstick: Yardstick, fleet: Fleet) -> Aim:
    """The objective ``name`` (auto, loss, fgd, devices or nodes) for this cluster."""
    size = fleet.size
    nodes = len(size)
    largest = int(size.max(initial=0))
    able_coef = np.where(yardstick.pooled > 0, yardstick.weight / np.maximum(yardstick.pooled, 1), 0.0)
    able_cap = yardstick.pooled.astype(np.float64)
    classes = len(yardstick.keys)
    # a closed device neither offers anything nor, while nobody holds it, keeps its node from being idle
    open_devices = np.bincount(fleet.node_of[fleet.device_open], minlength=nodes)
    share = size / max(largest, 1)
    if name == "auto":
        device = min([TIE_DEVICE, *(able_coef[able_coef > 0] / DEVICES_PER_COPY).tolist()])
        worth = np.where(open_devices > 0, 1.0 + LARGEST * share, 0.0)
        coef = np.concatenate([able_coef, [device, device / NODES_PER_DEVICE]])
        cap = np.concatenate([able_cap, [UNLIMITED, UNLIMITED]])
        return Aim(name, yardstick, coef, cap, worth, open_devices, classes, False, 2)
    least = GUARDED if largest >= GUARDED else 1
    counted: Bools = fleet.node_open & (open_devices == size) & (size >= least)
    worth = np.where(counted, share, 0.0)
    if name == "fgd":
        reach = yardstick.reach
        coef = np.where(reach > 0, yardstick.weight / np.where(reach > 0, reach, 1.0), 0.0)
        return Aim(name, yardstick, coef, reach.copy(), worth, size, classes, True, 0)
    if name in ("devices", "empty", "nodes"):
        one, cap, pull = np.ones(1), np.full(1, UNLIMITED), PULL if name == "empty" else 0.0
        return Aim("nodes" if name == "nodes" else "devices", yardstick, one, cap, worth, size, 0, False, 1, pull)
    if name == "loss":
        return Aim(name, yardstick, able_coef, able_cap, worth, size, classes, False, 0)
    raise ValueError(f"objective {name!r}: one of auto, loss, fgd, devices, nodes")
