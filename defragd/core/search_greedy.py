"""Steepest descent: one move after another, each the best gain for its cost, from tables of gains per shape and node.

The gain of a move to another node is the gain of leaving plus the gain of arriving (features add up over nodes), so the
best move of all is found from two small tables. Moves within a node are computed exactly. After each move only the two
touched nodes are computed again; a move is taken only when its exact gain is positive.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from defragd.core.arrays import Floats, Ints
from defragd.core.tables import Spot, World

LEAST = 1e-10
"""Smaller gains are rounding, not improvement."""
CHUNK = 16384
NOWHERE = -np.inf

Stop = Callable[[], bool]
Verify = Callable[[int, Spot], bool]
"""Exact rules for a lifted-in-thought pod at a spot; False bars that node for that pod."""


class Gains:
    """For every shape and node the best arrival, for every pod its leaving and its best move within its node."""

    def __init__(self, world: World) -> None:
        self.world = world
        shapes, nodes = len(world.shapes.shapes), len(world.fleet.names)
        self.arrive = np.full((shapes, nodes), NOWHERE)
        self.device = np.full((shapes, nodes), -1, dtype=np.int64)
        pods = len(world.shapes.pods)
        self.leave = np.full(pods, NOWHERE)
        self.inside = np.full(pods, NOWHERE)
        self.inside_device = np.full(pods, -1, dtype=np.int64)
        self._single = np.array([len(p) == 1 for p in world.part_of], dtype=np.bool_)
        self._part = np.array([p[0] for p in world.part_of], dtype=np.int64)
        self._cpu = np.array(world.cpu_of)
        self._host = np.array(world.host_of)
        masks = world.shapes.node_masks
        self._mask = np.array([masks[s.nodes] for s in world.shapes.shapes], dtype=np.bool_).reshape(shapes, nodes)
        self._selective = [t for t, s in enumerate(world.shapes.shapes) if s.devices >= 0]
        self._numa = [t for t, s in enumerate(world.shapes.shapes) if s.numa_bind]
        self.slope = world.aim.slope(world.total)
        self.refresh(np.arange(nodes))

    def settle(self) -> None:
        """Recomputes everything when a cap was reached or left (worth of classes changed)."""
        slope = self.world.aim.slope(self.world.total)
        if not np.array_equal(slope, self.slope):
            self.slope = slope
            self.refresh(np.arange(len(self.world.fleet.names)))

    def refresh(self, nodes: Ints) -> None:
        if len(nodes) and len(self.world.shapes.shapes):
            self._arrivals(nodes)
            self._departures(nodes)

    def _host_ok(self, nodes: Ints) -> np.ndarray:
        """nodes x T: open, selectors and taints, idle CPU, memory and pod count."""
        world = self.world
        ok = world.open_node[nodes][:, None] & self._mask[:, nodes].T & (world.room[nodes] >= 1)[:, None]
        ok &= (world.cpu[nodes][:, None] >= self._cpu) | (self._cpu == 0)
        ok &= (world.host[nodes][:, None] >= self._host) | (self._host == 0)
        return np.asarray(ok)

    def _arrivals(self, nodes: Ints) -> None:
        world = self.world
        self.arrive[:, nodes] = NOWHERE
        self.device[:, nodes] = -1
        ok = self._host_ok(nodes)
        if not ok.any():
            return
        devices = _devices_of(world, nodes[ok.any(axis=1)])
        devices = devices[world.open_device[devices]]
        if not len(devices):
            return
        ids = world.id[devices]
        node = world.fleet.node_of[devices]
        if not self._selective:
            _, first = np.unique(node * (len(world.states.keys) + 1) + ids, return_index=True)
            devices, ids, node = devices[first], ids[first], node[first]
        world.states.following(ids)
        place = np.full(len(world.fleet.names), -1, dtype=np.int64)
        place[nodes] = np.arange(len(nodes))
        fits = world.states.next[ids][:, self._part] >= 0
        fits &= ok[place[node]]
        several = fits[:, ~self._single] if not self._single.all() else None
        fits &= self._single
        for t in self._selective:
            mask = world.shapes.device_masks[world.shapes.shapes[t].devices]
            fits[:, t] &= mask[devices]
        at, shape = np.nonzero(fits)
        self._score(node[at], shape, devices[at], ids[at])
        if several is not None and several.any():
            self._several(nodes, ok)

    def _score(self, node: Ints, shape: Ints, device: Ints, ids: Ints) -> None:
        world = self.world
        gains = np.empty(len(node))
        for start in range(0, len(node), CHUNK):
            part = slice(start, start + CHUNK)
            n, t = node[part], shape[part]
            rows = world.states.rows
            after = rows[world.states.next[ids[part], self._part[t]]]
            sums = world.sums[n] + after - rows[ids[part]]
            fresh = world.aim.finish(sums, n, world.cpu[n] - self._cpu[t], world.host[n] - self._host[t])
            gains[part] = (fresh - world.features[n]) @ self.slope
        self._keep(node, shape, device, gains)

    def _keep(self, node: Ints, shape: Ints, device: Ints, gains: Floats) -> None:
        """The best per shape and node; the first device among equals."""
        order = np.lexsort((-device, np.round(gains, 13)))
        self.arrive[shape[order], node[order]] = gains[order]
        self.device[shape[order], node[order]] = device[order]

    def _several(self, nodes: Ints, ok: np.ndarray) -> None:
        """Shapes of more than one device: one chosen set per node."""
        world = self.world
        found: list[tuple[int, int, int]] = []
        delta: list[Floats] = []
        for t in np.nonzero(~self._single)[0].tolist():
            parts = world.part_of[t]
            for node in nodes[ok[:, t]].tolist():
                if world.fleet.size[node] < len(parts):
                    continue
                spot = world.choose(t, node)
                if spot is None:
                    continue
                rows, ids = world.states.rows, world.id
                change = np.zeros(rows.shape[1])
                for part, d in zip(parts, spot.devices, strict=True):
                    change += rows[world.states.next[ids[d], part]] - rows[ids[d]]
                found.append((node, t, spot.devices[0]))
                delta.append(change)
        if not found:
            return
        node, shape, device = (np.array(column, dtype=np.int64) for column in zip(*found, strict=True))
        cpu, host = world.cpu[node] - self._cpu[shape], world.host[node] - self._host[shape]
        fresh = world.aim.finish(world.sums[node] + np.array(delta), node, cpu, host)
        self._keep(node, shape, device, (fresh - world.features[node]) @ self.slope)

    def _departures(self, nodes: Ints) -> None:
        world = self.world
        pods = np.array(sorted(p for n in nodes.tolist() for p in world.on_node[n]), dtype=np.int64)
        if not len(pods):
            return
        node = np.array([world.spot[p].node for p in pods.tolist()], dtype=np.int64)
        shape = world.shapes.shape[pods]
        change = self._removal_rows(pods)
        for start in range(0, len(pods), CHUNK):
            part = slice(start, start + CHUNK)
            n, t = node[part], shape[part]
            fresh = world.aim.finish(
                world.sums[n] + change[part], n, world.cpu[n] + self._cpu[t], world.host[n] + self._host[t]
            )
            self.leave[pods[part]] = (fresh - world.features[n]) @ self.slope
        self._within(pods, node, shape, change)

    def _removal_rows(self, pods: Ints) -> Floats:
        world = self.world
        before: list[int] = []
        after: list[tuple[int, int, int, int]] = []
        owner: list[int] = []
        for position, pod in enumerate(pods.tolist()):
            spot = world.spot[pod]
            assert spot is not None
            for device, (slots, memory, cores) in zip(spot.devices, world.held_now[pod], strict=True):
                if not world.fleet.device_open[device]:
                    continue
                kind, s, m, c = world.use[device]
                before.append(device)
                after.append((kind, s - slots, m - memory, c - cores))
                owner.append(position)
        numbers = np.array(world.states.ids(after), dtype=np.int64)
        out = np.zeros((len(pods), world.states.rows.shape[1]))
        if owner:
            rows = world.states.rows
            np.add.at(out, np.array(owner), rows[numbers] - rows[world.id[np.array(before)]])
        return out

    def _within(self, pods: Ints, node: Ints, shape: Ints, change: Floats) -> None:
        """Best move of each single-device pod to another device of its node."""
        world = self.world
        self.inside[pods] = NOWHERE
        fleet = world.fleet
        may = self._single[shape] & (fleet.size[node] > 1) & world.open_node[node]
        may &= self._mask[shape, node] & (world.cpu[node] >= 0) & (world.host[node] >= 0)
        at = np.nonzero(may)[0]
        if not len(at):
            return
        counts = fleet.size[node[at]]
        who = np.repeat(at, counts)
        offset = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        device = fleet.first[node[who]] + offset
        own = np.array([world.spot[p].devices[0] for p in pods.tolist()], dtype=np.int64)
        keep = (device != own[who]) & world.open_device[device]
        who, device = who[keep], device[keep]
        if not len(who):
            return
        ids = world.id[device]
        world.states.following(ids)
        following = world.states.next[ids, self._part[shape[who]]]
        keep = following >= 0
        for t in self._selective:
            mask = world.shapes.device_masks[world.shapes.shapes[t].devices]
            keep &= (shape[who] != t) | mask[device]
        who, device, ids, following = who[keep], device[keep], ids[keep], following[keep]
        if not len(who):
            return
        gains = np.empty(len(who))
        for start in range(0, len(who), CHUNK):
            part = slice(start, start + CHUNK)
            n = node[who[part]]
            rows = world.states.rows
            sums = world.sums[n] + change[who[part]] + rows[following[part]] - rows[ids[part]]
            fresh = world.aim.finish(sums, n, world.cpu[n], world.host[n])
            gains[part] = (fresh - world.features[n]) @ self.slope
        order = np.lexsort((-device, np.round(gains, 13)))
        self.inside[pods[who[order]]] = gains[order]
        self.inside_device[pods[who[order]]] = device[order]


def _devices_of(world: World, nodes: Ints) -> Ints:
    first, size = world.fleet.first[nodes], world.fleet.size[nodes]
    offset = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
    return np.asarray(np.repeat(first, size) + offset)


class Greedy:
    """Takes moves while they gain. ``limit`` None = no limit on the number of moved pods."""

    def __init__(
        self,
        world: World,
        cost: Floats,
        *,
        limit: int | None,
        least: float,
        may_plan: Callable[[int, Spot], str],
        plan: Callable[[int, Spot | None], None],
        verify: Verify,
        should_stop: Stop,
    ) -> None:
        self.world, self.cost, self.limit, self.least = world, cost, limit, max(least, LEAST)
        self.may_plan, self.plan, self.verify, self.should_stop = may_plan, plan, verify, should_stop
        self.gains = Gains(world)
        self.moved: dict[int, None] = {}
        self.blocked = np.zeros(len(world.shapes.pods), dtype=np.bool_)
        self.barred: dict[int, set[int]] = {}
        self.stopped = "complete"

    def run(self) -> str:
        """Why it ended: complete, budget or time."""
        while True:
            if self.should_stop():
                return "time"
            full = self.limit is not None and len(self.moved) >= self.limit
            if not self._step(full):
                return "budget" if full else self.stopped

    def _step(self, full: bool) -> bool:
        gains, world = self.gains, self.world
        while True:
            score, spots = self._best(full)
            pod = int(np.argmax(score)) if len(score) else -1
            if pod < 0 or not score[pod] * self.cost[pod] > self.least:
                return False
            spot = spots(pod)
            if spot is None:
                self.blocked[pod] = True
                continue
            home = world.home[pod]
            if spot != home and pod not in self.moved:
                why = self.may_plan(pod, spot)
                if why:
                    self.stopped = "budget"
                    if why == "target":
                        self.barred.setdefault(pod, set()).add(spot.node)
                    else:
                        self.blocked[pod] = True
                    continue
            if not self.verify(pod, spot):
                self.barred.setdefault(pod, set()).add(spot.node)
                continue
            before, source = world.value, world.spot[pod]
            assert source is not None
            world.lift(pod)
            world.put(pod, spot)
            if world.value - before <= self.least:
                world.lift(pod)
                world.put(pod, source)
                self.barred.setdefault(pod, set()).add(spot.node)
                continue
            self.plan(pod, None if spot == home else spot)
            if spot == home:
                self.moved.pop(pod, None)
            else:
                self.moved[pod] = None
            gains.refresh(np.unique([source.node, spot.node]))
            gains.settle()
            return True

    def _best(self, full: bool) -> tuple[Floats, Callable[[int], Spot | None]]:
        """Gain per cost of every pod's best move, and how to find its place."""
        gains, world = self.gains, self.world
        shape = world.shapes.shape
        if not len(shape):
            return np.zeros(0), lambda pod: None
        arrive = gains.arrive
        top = arrive.argmax(axis=1)
        rows = np.arange(len(arrive))
        first = arrive[rows, top]
        arrive[rows, top] = NOWHERE
        second_at = arrive.argmax(axis=1)
        second = arrive[rows, second_at]
        arrive[rows, top] = first
        node = world.pod_node
        other = np.where(node == top[shape], second[shape], first[shape])
        across = gains.leave + other
        total = np.maximum(across, gains.inside)
        for pod, nodes in self.barred.items():
            own = arrive[shape[pod]].copy()
            own[[*nodes, node[pod]]] = NOWHERE
            across[pod] = gains.leave[pod] + own.max()
            inside = NOWHERE if int(node[pod]) in nodes else gains.inside[pod]
            total[pod] = max(across[pod], inside)
        total[self.blocked] = NOWHERE
        if full:
            stay = np.ones(len(total), dtype=np.bool_)
            stay[list(self.moved)] = False
            total[stay] = NOWHERE
        score = total / self.cost

        def place(pod: int) -> Spot | None:
            t, at = int(shape[pod]), int(node[pod])
            barred = self.barred.get(pod, set())
            if gains.inside[pod] >= across[pod] and at not in barred:
                return Spot(at, (int(gains.inside_device[pod]),))
            own = arrive[t].copy()
            own[[*barred, at]] = NOWHERE
            target = int(own.argmax())
            if len(world.part_of[t]) == 1:
                return Spot(target, (int(gains.device[t, target]),))
            return world.choose(t, target)

        return score, place
