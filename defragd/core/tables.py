"""The what-if state of a planning run: where each movable pod is, and what adding one anywhere would change.

Device states (kind and use) are numbered once and carry their row of offers, so that adding a pod to a device is a
look-up and a node's features a sum of rows. Only touched nodes are computed again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from defragd.core.aims import Aim
from defragd.core.arrays import Arena, Bools, Floats, Ints
from defragd.core.shapes import Shapes

REMEMBER = 200_000
"""Node states whose features are remembered."""
UNKNOWN = -2
UNFIT = -1


class DeviceStates:
    """Numbered device states with their rows of offers and the state each part would make of them."""

    def __init__(self, arena: Arena, aim: Aim, shapes: Shapes) -> None:
        self.fleet, self.aim = arena.fleet, aim
        parts = {part: None for shape in shapes.shapes for part in shape.parts}
        self.parts = {part: position for position, part in enumerate(parts)}
        kinds = len(self.fleet.kinds)
        self.part_need = np.array([p.need for p in parts], dtype=np.int64).reshape(len(parts), kinds)
        self.part_slots = _column((p.slots for p in parts), np.int64)
        self.part_cores = _column((p.cores for p in parts), np.int64)
        self.part_whole = _column((p.whole for p in parts), np.bool_)
        self.part_zero = _column((p.zero for p in parts), np.bool_)
        self.part_alone = np.zeros(len(parts), dtype=np.bool_)
        self.kind_slots = _column((k.slots for k in self.fleet.kinds), np.int64)
        self.kind_memory = _column((k.memory_mib for k in self.fleet.kinds), np.int64)
        self.kind_cores = _column((k.cores for k in self.fleet.kinds), np.int64)
        self.slots_of, self.memory_of, self.cores_of = (
            [getattr(k, name) for k in self.fleet.kinds] for name in ("slots", "memory_mib", "cores")
        )
        """By kind, as plain numbers."""
        self.index: dict[tuple[int, int, int, int], int] = {}
        self.keys: list[tuple[int, int, int, int]] = []
        self.table = np.zeros((0, 4), dtype=np.int64)
        """``keys`` as an array."""
        self.rows = np.zeros((0, 1 + aim.classes * (2 if aim.shares else 1)))
        self.next = np.zeros((0, len(parts)), dtype=np.int32)
        self.known = np.zeros(0, dtype=np.bool_)

    def ids(self, keys: list[tuple[int, int, int, int]]) -> list[int]:
        """Numbers of states (kind, slots, MiB, cores in use); new ones are given rows in one go."""
        index = self.index
        fresh = [key for key in dict.fromkeys(keys) if key not in index]
        if fresh:
            for key in fresh:
                index[key] = len(self.keys)
                self.keys.append(key)
            self._grow(len(self.keys))
            table = np.array(fresh, dtype=np.int64)
            rows = self.aim.rows(self.fleet, table[:, 0], table[:, 1], table[:, 2], table[:, 3])
            start = len(self.keys) - len(fresh)
            self.table[start : len(self.keys)] = table
            self.rows[start : len(self.keys)] = rows
        return [index[key] for key in keys]

    def _grow(self, size: int) -> None:
        have = len(self.known)
        if size <= have:
            return
        more = max(size, 2 * have, 256)
        table = np.zeros((more, 4), dtype=np.int64)
        table[:have] = self.table
        rows = np.zeros((more, self.rows.shape[1]))
        rows[:have] = self.rows
        following = np.full((more, self.next.shape[1]), UNKNOWN, dtype=np.int32)
        following[:have] = self.next
        known = np.zeros(more, dtype=np.bool_)
        known[:have] = self.known
        self.table, self.rows, self.next, self.known = table, rows, following, known

    def following(self, ids: Ints) -> None:
        """Makes sure that the successors (by every part) of these states are known."""
        known = self.known[ids]
        if known.all():
            return
        todo = np.unique(ids[~known])
        now = self.table[todo]
        kind = now[:, 0]
        need = self.part_need[:, kind].T
        slots = now[:, 1][:, None] + self.part_slots
        memory = now[:, 2][:, None] + need
        cores = now[:, 3][:, None] + self.part_cores
        unused = (now[:, 1] == 0)[:, None]
        full = self.kind_cores[kind][:, None]
        fits = (
            (need >= 0)
            & (slots <= self.kind_slots[kind][:, None])
            & (memory <= self.kind_memory[kind][:, None])
            & (cores <= full)
            & ~(self.part_whole & (full == 100) & ~unused)
            & ~(self.part_zero & (now[:, 3][:, None] >= full) & (full > 0))
            & ~(self.part_alone & ~unused)
        )
        at, part = np.nonzero(fits)
        keys = list(
            zip(
                kind[at].tolist(),
                slots[at, part].tolist(),
                memory[at, part].tolist(),
                cores[at, part].tolist(),
                strict=True,
            )
        )
        numbers = self.ids(keys)
        table = np.full((len(todo), len(self.parts)), UNFIT, dtype=np.int32)
        table[at, part] = numbers
        self.next[todo] = table
        self.known[todo] = True


def _column(values: Iterable[object], kind: type) -> npt.NDArray[Any]:
    return np.array(list(values), dtype=kind)


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in array terms: node and the device of each part."""

    node: int
    devices: tuple[int, ...]


class World:
    """Books, device states and positions of the movable pods; `lift` and `put` change them."""

    def __init__(self, arena: Arena, aim: Aim, shapes: Shapes, *, barred_nodes: Bools, barred_devices: Bools) -> None:
        self.fleet, self.aim, self.shapes = arena.fleet, aim, shapes
        self.arena = arena
        fleet, books = arena.fleet, arena.books
        self.states = DeviceStates(arena, aim, shapes)
        self.part_of: list[tuple[int, ...]] = [
            tuple(self.states.parts[part] for part in shape.parts) for shape in shapes.shapes
        ]
        for parts, shape in zip(self.part_of, shapes.shapes, strict=True):
            if shape.alone:
                self.states.part_alone[list(parts)] = True
        keys = list(
            zip(fleet.kind.tolist(), books.slots.tolist(), books.memory.tolist(), books.cores.tolist(), strict=True)
        )
        self.use: list[tuple[int, int, int, int]] = keys
        self.id = np.array(self.states.ids(keys), dtype=np.int64)
        self._ids: list[int] = self.id.tolist()
        self._counts: list[bool] = fleet.device_open.tolist()
        self._spans = [(int(fleet.first[n]), int(fleet.first[n + 1])) for n in range(len(fleet.names))]
        self._remembered: dict[tuple[int, tuple[int, ...], float, float, int], tuple[int, Floats]] = {}
        self._numbered = len(fleet.names)
        self.state = np.arange(len(fleet.names), dtype=np.int64)
        """N: number of the state each node is in; a node that comes back to a state gets its number back."""
        self.cpu = (fleet.cpu - books.cpu).astype(np.float64)
        self.host = (fleet.host_memory - books.host_memory).astype(np.float64)
        self.room = fleet.pods - books.pods
        self.open_device = fleet.device_open & ~barred_devices
        self.open_node = fleet.node_open & ~barred_nodes
        """May receive; what is barred still counts in the features."""
        self.home = [Spot(int(n), h.devices) for n, h in zip(shapes.node, shapes.held, strict=True)]
        self.spot: list[Spot | None] = list(self.home)
        self.held_now: list[tuple[tuple[int, int, int], ...]] = [h.use for h in shapes.held]
        self.on_node: list[set[int]] = [set() for _ in fleet.names]
        for pod, spot in enumerate(self.home):
            self.on_node[spot.node].add(pod)
        count_pods = len(self.home)
        self.pod_node = np.array([s.node for s in self.home], dtype=np.int64)
        """P: node of each pod, -1 while lifted; ``pod_device``, ``pod_memory``, ``pod_cores``: of its first device."""
        self.pod_device = np.array([s.devices[0] for s in self.home], dtype=np.int64)
        self.pod_memory = np.array([h.use[0][1] for h in shapes.held], dtype=np.int64)
        self.pod_cores = np.array([h.use[0][2] for h in shapes.held], dtype=np.int64)
        self.pod_parts = np.array([len(s.devices) for s in self.home], dtype=np.int64).reshape(count_pods)
        self.cpu_of = [float(s.cpu) for s in shapes.shapes]
        self.host_of = [float(s.host_memory) for s in shapes.shapes]
        weights = self.states.rows[self.id] * fleet.device_open[:, None]
        count = len(fleet.names)
        self.sums = np.add.reduceat(weights, fleet.first[:-1], axis=0) if count else np.zeros((0, weights.shape[1]))
        self.features = aim.finish(self.sums, np.arange(count), self.cpu, self.host)
        self.total = self.features.sum(axis=0) if count else np.zeros(aim.features)
        for node, (low, high) in enumerate(self._spans):
            where = (
                node,
                tuple(self._ids[low:high]),
                float(self.cpu[node]),
                float(self.host[node]),
                int(self.room[node]),
            )
            self._remembered[where] = (node, self.features[node].copy())

    @property
    def used(self) -> Ints:
        """D x 4: ``use`` as an array."""
        return np.asarray(self.states.table[self.id])

    @property
    def value(self) -> float:
        return self.aim.value(self.total)

    def lift(self, pod: int) -> None:
        """Takes a pod off its devices and its node."""
        spot = self.spot[pod]
        assert spot is not None
        self._shift(spot, self.held_now[pod], -1, int(self.shapes.shape[pod]))
        self.on_node[spot.node].discard(pod)
        self.spot[pod] = None
        self.pod_node[pod] = -1

    def put(self, pod: int, spot: Spot) -> None:
        """Places a lifted pod; the caller has checked that it fits."""
        use = self.use_at(pod, spot)
        self._shift(spot, use, 1, int(self.shapes.shape[pod]))
        self.on_node[spot.node].add(pod)
        self.spot[pod] = spot
        self.held_now[pod] = use
        self.pod_node[pod] = spot.node
        self.pod_device[pod] = spot.devices[0]
        self.pod_memory[pod] = use[0][1]
        self.pod_cores[pod] = use[0][2]

    def hold(self, shape: int, spot: Spot, sign: int = 1) -> None:
        """Books room for a pod of this shape that is not one of the movable (-1 = gives it back)."""
        self._shift(spot, self._use_of(shape, spot), sign, shape)

    def _use_of(self, shape: int, spot: Spot) -> tuple[tuple[int, int, int], ...]:
        parts = self.shapes.shapes[shape].parts
        kind = self.fleet.kind
        return tuple((p.slots, p.need[int(kind[d])], p.cores) for p, d in zip(parts, spot.devices, strict=True))

    def use_at(self, pod: int, spot: Spot) -> tuple[tuple[int, int, int], ...]:
        """What the pod holds there: as booked at home, as a new pod elsewhere."""
        if spot == self.home[pod]:
            return self.shapes.held[pod].use
        return self._use_of(int(self.shapes.shape[pod]), spot)

    def _shift(self, spot: Spot, use: tuple[tuple[int, int, int], ...], sign: int, shape: int) -> None:
        node = spot.node
        before: list[int] = []
        after: list[int] = []
        for device, (slots, memory, cores) in zip(spot.devices, use, strict=True):
            kind, s, m, c = self.use[device]
            key = (kind, s + sign * slots, m + sign * memory, c + sign * cores)
            number = self.states.index.get(key)
            if number is None:
                number = self.states.ids([key])[0]
            if self._counts[device]:
                before.append(self._ids[device])
                after.append(number)
            self.use[device] = key
            self.id[device] = number
            self._ids[device] = number
        rows, sums = self.states.rows, self.sums[node]
        if len(before) == 1:
            sums += rows[after[0]]
            sums -= rows[before[0]]
        elif before:
            sums += rows[after].sum(axis=0)
            sums -= rows[before].sum(axis=0)
        self.cpu[node] -= sign * self.cpu_of[shape]
        self.host[node] -= sign * self.host_of[shape]
        self.room[node] -= sign
        low, high = self._spans[node]
        where = (node, tuple(self._ids[low:high]), float(self.cpu[node]), float(self.host[node]), int(self.room[node]))
        known = self._remembered.get(where)
        if known is None:
            one = slice(node, node + 1)
            fresh = self.aim.finish(self.sums[one], np.array([node]), self.cpu[one], self.host[one])[0]
            if len(self._remembered) > REMEMBER:
                self._remembered.clear()
            self._numbered += 1
            known = self._remembered[where] = (self._numbered, fresh)
        self.state[node], fresh = known
        self.total = self.total + (fresh - self.features[node])
        self.features[node] = fresh

    # -- places ------------------------------------------------------------------------------------------------------

    def ids_of(self, node: int) -> tuple[int, ...]:
        """Device states of a node, in device order."""
        low, high = self._spans[node]
        return tuple(self._ids[low:high])

    def allowed(self, shape: int, node: int) -> bool:
        """Host constraints the tables know: open, selectors and taints, CPU, memory, pod count."""
        what = self.shapes.shapes[shape]
        return bool(
            self.open_node[node]
            and self.shapes.node_masks[what.nodes][node]
            and (self.cpu[node] >= what.cpu or not what.cpu)
            and (self.host[node] >= what.host_memory or not what.host_memory)
            and self.room[node] >= 1
        )

    def device_allowed(self, shape: int, device: int) -> bool:
        what = self.shapes.shapes[shape]
        if not self.open_device[device]:
            return False
        return what.devices < 0 or bool(self.shapes.device_masks[what.devices][device])

    def choose(self, shape: int, node: int, *, avoid: int = -1) -> Spot | None:
        """Devices for all parts of a shape on a node, tightest first; None when they do not fit there.

        ``avoid``: a device not to use. Largest parts choose first; equal devices go in HAMi's order.
        """
        if not self.allowed(shape, node):
            return None
        devices = [d for d in self.fleet.devices_of(node) if d != avoid and self.device_allowed(shape, d)]
        parts = self.part_of[shape]
        if len(devices) < len(parts):
            return None
        what = self.shapes.shapes[shape]
        groups: list[list[int]] = [devices]
        if what.numa_bind and len(parts) > 1:
            by_numa: dict[int, list[int]] = {}
            for d in devices:
                by_numa.setdefault(int(self.fleet.numa[d]), []).append(d)
            groups = list(by_numa.values())
        for group in groups:
            found = self._assign(parts, what.parts, group)
            if found is not None:
                return Spot(node, found)
        return None

    def _assign(self, parts: tuple[int, ...], wants: tuple[object, ...], devices: list[int]) -> tuple[int, ...] | None:
        self.states.following(self.id[devices])
        use, kinds = self.use, self.states.kind_memory
        tight = sorted(devices, key=lambda d: (-use[d][3], kinds[use[d][0]] - use[d][2], d))
        order = sorted(
            range(len(parts)),
            key=lambda i: (-self.states.part_cores[parts[i]], -max(self.states.part_need[parts[i]]), i),
        )
        taken: dict[int, int] = {}
        for position in order:
            for device in tight:
                if device not in taken.values() and self.states.next[self.id[device], parts[position]] >= 0:
                    taken[position] = device
                    break
            else:
                return None
        return tuple(taken[i] for i in range(len(parts)))
