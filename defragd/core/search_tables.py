"""What adding a pod of any shape to any device would change, kept up to date for touched nodes only.

For each shape a D x F block of feature changes; a node's rows are computed again only when the node has changed since
the shape was asked for last, and are remembered by the node's state, because a search returns to the same states over
and over. One question ("what is each place worth to this pod?") is then a few vector operations over all devices.
"""

from __future__ import annotations

import numpy as np

from defragd.core.arrays import Bools, Floats, Ints
from defragd.core.tables import Spot, World

_Key = tuple[int, int]
"""Shape and number of the node's state."""
_Entry = tuple[list[int], tuple[int, ...], Floats]
"""First devices of the choices on a node, the chosen set (shapes of several devices), feature changes."""


class Additions:
    """Tables over one world; they follow its changes by the numbers of its nodes' states."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._single = [len(p) == 1 for p in world.part_of]
        self._blocks: dict[int, Floats] = {}
        self._valid: dict[int, Bools] = {}
        self._seen: dict[int, Ints] = {}
        self._memo: dict[_Key, _Entry] = {}
        self._chosen: dict[tuple[int, int], tuple[int, ...]] = {}
        self._spans = [
            (int(world.fleet.first[n]), int(world.fleet.first[n + 1])) for n in range(len(world.fleet.names))
        ]

    def worth(self, shape: int) -> Floats:
        """D: the objective with one more pod of this shape on each device, -inf where it does not fit.

        Shapes of several devices: one choice per node, under its first device (`spot` gives all of them).
        """
        self._refresh(shape)
        world = self.world
        totals = self._blocks[shape] + world.total
        np.minimum(totals, world.aim.cap, out=totals)
        value: Floats = totals @ world.aim.coef
        value[~self._valid[shape]] = -np.inf
        return value

    def spot(self, shape: int, device: int) -> Spot:
        node = int(self.world.fleet.node_of[device])
        if self._single[shape]:
            return Spot(node, (device,))
        return Spot(node, self._chosen[shape, node])

    def _refresh(self, shape: int) -> None:
        world, memo = self.world, self._memo
        block = self._blocks.get(shape)
        if block is None:
            size = len(world.fleet.devices)
            block = self._blocks[shape] = np.zeros((size, world.aim.features))
            self._valid[shape] = np.zeros(size, dtype=np.bool_)
            self._seen[shape] = np.full(len(self._spans), -1, dtype=np.int64)
        seen = self._seen[shape]
        changed = np.nonzero(seen != world.state)[0]
        if not len(changed):
            return
        states = world.state[changed].tolist()
        seen[changed] = world.state[changed]
        valid = self._valid[shape]
        single = self._single[shape]
        missing: list[tuple[int, _Key]] = []
        for node, state in zip(changed.tolist(), states, strict=True):
            low, high = self._spans[node]
            valid[low:high] = False
            key = (shape, state)
            found = memo.get(key)
            if found is None:
                missing.append((node, key))
                continue
            at, devices, change = found
            if devices:
                block[at] = change
                valid[at] = True
                if not single:
                    self._chosen[shape, node] = devices
        if missing:
            self._compute(shape, missing, block, valid)

    def _compute(self, shape: int, missing: list[tuple[int, _Key]], block: Floats, valid: Bools) -> None:
        """Entries of several nodes in one go."""
        world = self.world
        if len(self._memo) > MEMO:
            self._memo.clear()
        nodes: list[int] = []
        sums: list[Floats] = []
        spans: list[tuple[int, int, _Key, list[int], tuple[int, ...]]] = []
        for node, key in missing:
            chosen, totals, several = self._choices(shape, node) if world.allowed(shape, node) else ([], [], ())
            spans.append((len(nodes), node, key, chosen, several or tuple(chosen)))
            nodes += [node] * len(chosen)
            sums += totals
        if not nodes:
            for _, _, key, _, _ in spans:
                self._memo[key] = ([], (), _EMPTY)
            return
        at = np.array(nodes)
        fresh = world.aim.finish(
            np.array(sums), at, world.cpu[at] - world.cpu_of[shape], world.host[at] - world.host_of[shape]
        )
        change = fresh - world.features[at]
        for start, node, key, chosen, devices in spans:
            part = change[start : start + len(chosen)]
            self._memo[key] = (chosen, devices, part)
            if chosen:
                block[chosen] = part
                valid[chosen] = True
                if not self._single[shape]:
                    self._chosen[shape, node] = devices

    def _choices(self, shape: int, node: int) -> tuple[list[int], list[Floats], tuple[int, ...]]:
        """First devices, row sums, and for shapes of several devices the chosen set."""
        world = self.world
        low, high = self._spans[node]
        if not self._single[shape]:
            spot = world.choose(shape, node)
            if spot is None:
                return [], [], ()
            total = world.sums[node].copy()
            rows = world.states.rows
            for part, device in zip(world.part_of[shape], spot.devices, strict=True):
                number = int(world.id[device])
                total += rows[world.states.next[number, part]] - rows[number]
            return [spot.devices[0]], [total], spot.devices
        ids = world.id[low:high]
        world.states.following(ids)
        rows = world.states.rows
        following = world.states.next[ids, world.part_of[shape][0]].tolist()
        plain = world.shapes.shapes[shape].devices < 0
        chosen: list[int] = []
        sums: list[Floats] = []
        seen: set[int] = set()
        for device, number, after in zip(range(low, high), ids.tolist(), following, strict=True):
            if after < 0 or (plain and number in seen) or not world.device_allowed(shape, device):
                continue
            seen.add(number)
            chosen.append(device)
            sums.append(world.sums[node] + rows[after] - rows[number])
        return chosen, sums, ()


MEMO = 200_000
_EMPTY = np.zeros((0, 0))
