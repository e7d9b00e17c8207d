"""How many pods of a shape could still be placed at all: an upper bound, so that hopeless attempts are not made.

A place that is to be emptied needs room elsewhere for all its pods. Counting copies per shape (each by itself, and all
whole-device pods together) costs a look-up where trying costs milliseconds; in crowded clusters nearly all attempts
fail on the count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from defragd.core.arrays import Bools, Ints
from defragd.core.tables import World

PLENTY = 1 << 40


class Outlook:
    """Bounds for the world as it is; `forget` when a pod has moved or a place was closed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._known: dict[int, tuple[int, Ints, Ints, Bools]] = {}

    def forget(self) -> None:
        self._known.clear()

    def missing(self, pods: Sequence[int], devices: Collection[int]) -> int:
        """At least so many of the ``pods``, all of one node, find no place when their ``devices`` are to be emptied;
        other devices of that node count as if its host had room. 0 says nothing."""
        world = self.world
        node = int(world.fleet.node_of[next(iter(devices))])
        others = [d for d in world.fleet.devices_of(node) if d not in devices]
        shapes = Counter(int(world.shapes.shape[pod]) for pod in pods)
        worst, whole = 0, []
        for t, count in shapes.items():
            total, per_node, copies, _ = self._supply(t)
            here = sum(int(copies[d]) for d in others) // len(world.part_of[t])
            worst = max(worst, count - (total - int(per_node[node]) + here))
            if all(part.whole for part in world.shapes.shapes[t].parts):
                whole.append(t)
        if len(whole) < 2 or worst > 0:
            return worst
        fits: Bools = np.logical_or.reduce([self._supply(t)[3] for t in whole])
        fits[others] = [any(self._supply(t)[2][d] for t in whole) for d in others]
        fits[list(devices)] = False
        wanted = sum(shapes[t] * len(world.part_of[t]) for t in whole)
        return wanted - int(fits.sum())

    def _supply(self, t: int) -> tuple[int, Ints, Ints, Bools]:
        """Copies in all; N: by devices and host; D: by the device alone; D: takes at least one, host included."""
        known = self._known.get(t)
        if known is not None:
            return known
        world = self.world
        fleet, what, parts = world.fleet, world.shapes.shapes[t], world.part_of[t]
        open_to = world.open_node & world.shapes.node_masks[what.nodes]
        able = world.open_device & open_to[fleet.node_of]
        if what.devices >= 0:
            able = able & world.shapes.device_masks[what.devices]
        at = np.nonzero(able)[0]
        world.states.following(world.id[at])
        takes = (world.states.next[world.id[at]][:, list(parts)] >= 0).any(axis=1)
        at = at[takes]
        copies = np.zeros(len(fleet.devices), dtype=np.int64)
        copies[at] = self._copies(t, at) if len(parts) == 1 else 1
        host = np.minimum(_times(world.cpu, what.cpu), _times(world.host, what.host_memory))
        host = np.minimum(host, np.maximum(world.room, 0))
        count = np.bincount(fleet.node_of, weights=copies, minlength=len(fleet.names)).astype(np.int64) // len(parts)
        per_node = np.minimum(count, host)
        found = (int(per_node.sum()), per_node, copies, (copies > 0) & (host > 0)[fleet.node_of])
        self._known[t] = found
        return found

    def _copies(self, t: int, at: Ints) -> Ints:
        world = self.world
        fleet, part = world.fleet, world.shapes.shapes[t].parts[0]
        if part.whole:
            return np.ones(len(at), dtype=np.int64)
        use = world.states.table[world.id[at]]
        need = np.array(part.need, dtype=np.int64)[fleet.kind[at]]
        by_slots = (fleet.slots[at] - use[:, 1]) // max(part.slots, 1)
        by_memory = (fleet.memory[at] - use[:, 2]) // np.maximum(need, 1)
        by_cores = (fleet.cores[at] - use[:, 3]) // part.cores if part.cores else np.full(len(at), PLENTY)
        return np.asarray(np.maximum(np.minimum(np.minimum(by_slots, by_memory), by_cores), 1))


def _times(free: np.ndarray, each: int) -> Ints:
    """N: how often ``each`` goes into what is free."""
    if not each:
        return np.full(len(free), PLENTY, dtype=np.int64)
    return np.asarray(np.maximum(free // each, 0), dtype=np.int64)
