"""Where a lifted pod could go right now, and what each place would be worth, for all places at once."""

from __future__ import annotations

import numpy as np

from defragd.core.arrays import Bools, Floats, Ints
from defragd.core.tables import Spot, World


class Places:
    """Questions about one world; answers are for the state it is in when asked."""

    def __init__(self, world: World) -> None:
        self.world = world
        shapes = world.shapes
        self._mask = [shapes.node_masks[s.nodes] for s in shapes.shapes]

    def nodes_ok(self, shape: int) -> Bools:
        """N: nodes whose host constraints admit one more pod of this shape."""
        world = self.world
        what = world.shapes.shapes[shape]
        ok = world.open_node & self._mask[shape] & (world.room >= 1)
        if what.cpu:
            ok = ok & (world.cpu >= what.cpu)
        if what.host_memory:
            ok = ok & (world.host >= what.host_memory)
        return np.asarray(ok)

    def single(self, shape: int, *, distinct: bool = True) -> Ints:
        """Devices that take a one-device shape; with ``distinct`` one of several equal devices of a node."""
        world = self.world
        ok = self.nodes_ok(shape)
        devices = np.nonzero(world.open_device & ok[world.fleet.node_of])[0]
        what = world.shapes.shapes[shape]
        if what.devices >= 0:
            devices = devices[world.shapes.device_masks[what.devices][devices]]
        if not len(devices):
            return devices
        ids = world.id[devices]
        world.states.following(ids)
        keep = world.states.next[ids, world.part_of[shape][0]] >= 0
        devices, ids = devices[keep], ids[keep]
        if distinct and what.devices < 0 and len(devices):
            _, first = np.unique(world.fleet.node_of[devices] * len(world.states.keys) + ids, return_index=True)
            devices = devices[first]
        return np.asarray(devices)

    def any(self, shape: int) -> bool:
        """Some place takes the shape."""
        if len(self.world.part_of[shape]) == 1:
            return len(self.single(shape, distinct=False)) > 0
        return any(self.world.choose(shape, node) is not None for node in self._roomy(shape))

    def worth(self, shape: int, devices: Ints) -> Floats:
        """Objective after adding a one-device shape to each of these devices."""
        world = self.world
        node = world.fleet.node_of[devices]
        ids = world.id[devices]
        rows = world.states.rows
        after = rows[world.states.next[ids, world.part_of[shape][0]]]
        sums = world.sums[node] + after - rows[ids]
        fresh = world.aim.finish(
            sums, node, world.cpu[node] - world.cpu_of[shape], world.host[node] - world.host_of[shape]
        )
        totals = world.total + fresh - world.features[node]
        return np.asarray(np.minimum(totals, world.aim.cap) @ world.aim.coef)

    def spots(self, shape: int, *, first: int = -1, limit: int = 64) -> list[Spot]:
        """Places for a shape, best for the objective first; those on node ``first`` before all others."""
        world = self.world
        if len(world.part_of[shape]) == 1:
            devices = self.single(shape)
            if not len(devices):
                return []
            worth = np.round(self.worth(shape, devices), 12)
            node = world.fleet.node_of[devices]
            now = world.states.table[world.id[devices]]
            order = np.lexsort((devices, -(now[:, 3] + now[:, 1]), -worth, node != first))[:limit]
            return [Spot(int(node[i]), (int(devices[i]),)) for i in order]
        found: list[tuple[bool, float, int, Spot]] = []
        for n in self._roomy(shape):
            spot = world.choose(shape, n)
            if spot is not None:
                found.append((n != first, -self._several_worth(shape, spot), n, spot))
        found.sort(key=lambda item: item[:3])
        return [item[3] for item in found[:limit]]

    def _roomy(self, shape: int) -> list[int]:
        """Nodes with enough devices that take some part of a shape of several."""
        world = self.world
        parts = list(world.part_of[shape])
        devices = np.nonzero(world.open_device & self.nodes_ok(shape)[world.fleet.node_of])[0]
        ids = world.id[devices]
        world.states.following(ids)
        takes = (world.states.next[ids][:, parts] >= 0).any(axis=1)
        counts = np.bincount(world.fleet.node_of[devices[takes]], minlength=len(world.fleet.names))
        return [int(n) for n in np.nonzero(counts >= len(parts))[0]]

    def _several_worth(self, shape: int, spot: Spot) -> float:
        world = self.world
        rows, ids = world.states.rows, world.id
        sums = world.sums[spot.node].copy()
        for part, d in zip(world.part_of[shape], spot.devices, strict=True):
            sums += rows[world.states.next[ids[d], part]] - rows[ids[d]]
        node = np.array([spot.node])
        fresh = world.aim.finish(
            sums[None, :], node, world.cpu[node] - world.cpu_of[shape], world.host[node] - world.host_of[shape]
        )[0]
        return round(world.aim.value(world.total + fresh - world.features[spot.node]), 12)
