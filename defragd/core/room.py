"""Making room: the fewest moves after which a pod that has no place fits.

For one wanted shape, the number of moves is tried from one upwards. On every node that could host it, the sets of pods
whose leaving opens enough devices (and host CPU and memory) are tried, cheapest first; each needs proven places for the
pods of the set, if need be by pushing one more pod further on. The first that works has the fewest moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice

import numpy as np

from defragd.core.desk import Desk
from defragd.core.places import Places
from defragd.core.relocate import Relocator
from defragd.core.tables import Spot

MOST = 12
"""Moves for one wanted pod, at most."""
EXACT = 3
"""For shapes of one device, up to this many leavers all sets of a node are tried."""
NEVER = 1 << 30
MANY = 24
COMBINATIONS = 200
"""Choices of devices tried per node."""
PUSHED_NODES = 24
"""Nodes tried per number of moves when other pods have to be pushed on."""
SMALL = 400
TRIES, WORK = 1500, 3000
"""Sets tried and places looked at for one wanted pod, ..."""
SHARE = 4
"""... and so many times as much for all of them together; a pod of a long queue gets `LEAST_TRIES` at least."""
LEAST_TRIES = 150


@dataclass
class Room:
    """Where a wanted shape would stand and the moves it takes; ``spot`` None = no room can be made."""

    spot: Spot | None = None
    moves: dict[int, Spot] = field(default_factory=dict)
    tried: int = 0


class RoomMaker:
    """Makes room for one wanted shape after another; what was granted stays booked in the desk's world."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.places = Places(desk.world)
        self.fixed: set[int] = set()
        """Pods that have moved already."""
        self.tries, self.work = TRIES, WORK
        self.left = SHARE * TRIES
        self._least: dict[int, dict[int, int]] = {}
        """By shape: `_bounds` of the nodes that did not change since."""
        self._vain: dict[int, tuple[int, int]] = {}
        """Shapes for which no room was found -> how many pods had moved then, sets tried."""

    def make(self, shape: int, *, most: int = MOST) -> Room:
        """Fits the shape with the fewest moves and books it. ``most``: moves left in the budget."""
        world = self.desk.world
        free = self.places.spots(shape, limit=1)
        if free:
            self._book(shape, free[0])
            return Room(free[0])
        for other, (moved, tried) in self._vain.items():
            if moved == len(self.fixed) and world.shapes.shapes[shape].asks_all_of(world.shapes.shapes[other]):
                return Room(tried=tried)
        self.tries = most_tries = max(min(TRIES, self.left), LEAST_TRIES)
        self.work = WORK * most_tries // TRIES
        room = self._search(shape, min(most, MOST))
        room.tried = most_tries - self.tries
        self.left -= room.tried
        if room.spot is None:
            self._vain[shape] = len(self.fixed), room.tried
        return room

    def _search(self, shape: int, most: int) -> Room:
        """Moves that make room, fewest first."""
        bounds = self._bounds(shape)
        nodes = sorted(bounds, key=lambda n: (bounds[n], n))
        self._placeable: dict[int, bool] = {}
        for moves in range(1, most + 1):
            for pushes in range(min(moves, 3)):
                pushed = 0
                for node in nodes:
                    if bounds[node] > moves - pushes:
                        break
                    found = self._on_node(shape, node, moves - pushes, pushes)
                    if found is not None:
                        return found
                    pushed += pushes > 0
                    if self.tries <= 0 or self.work <= 0 or self.desk.scene.should_stop():
                        return Room()
                    if pushed >= PUSHED_NODES:
                        break
        return Room()

    def _book(self, shape: int, spot: Spot, sign: int = 1) -> None:
        self.desk.world.hold(shape, spot, sign)
        self._changed(spot.node)

    def _changed(self, node: int) -> None:
        for bounds in self._least.values():
            bounds.pop(node, None)

    def _homeless(self, pods: tuple[int, ...]) -> bool:
        """Some pod of the set has no place anywhere, whatever leaves here (asked in large worlds only, where the room
        that the set itself makes hardly ever is the only one)."""
        world = self.desk.world
        if len(world.fleet.devices) <= SMALL:
            return False
        for t in {int(world.shapes.shape[p]) for p in pods}:
            if t not in self._placeable:
                self._placeable[t] = self.places.any(t)
            if not self._placeable[t]:
                return True
        return False

    def _on_node(self, shape: int, node: int, leavers: int, pushes: int) -> Room | None:
        desk, world = self.desk, self.desk.world
        for leave in self._sets(shape, node, leavers):
            if self.tries <= 0 or self.work <= 0 or desk.scene.should_stop():
                return None
            if pushes == 0 and self._homeless(leave):
                continue
            self.tries -= 1
            home = {pod: world.spot[pod] for pod in leave}
            for pod in leave:
                world.lift(pod)
            spot = world.choose(shape, node)
            if spot is not None:
                world.hold(shape, spot)
                relocator = Relocator(
                    world,
                    verify=desk.verify,
                    should_stop=desk.scene.should_stop,
                    fixed=self.fixed | set(leave),
                    budget=80,
                )
                found = relocator.relocate(list(leave), extra=pushes, least=pushes, first=lambda pod: node)
                self.work -= 1 + relocator.spent
                if found.stuck is None and self._charge(found.moves):
                    self.fixed |= found.moves.keys()
                    for pod, there in found.moves.items():
                        self._changed(world.home[pod].node)
                        self._changed(there.node)
                    self._changed(node)
                    return Room(spot, found.moves)
                for pod in found.moves:
                    world.lift(pod)
                for pod in found.moves:
                    if pod not in home:
                        world.put(pod, world.home[pod])
                world.hold(shape, spot, -1)
            for pod, was in home.items():
                assert was is not None
                world.put(pod, was)
        return None

    def _charge(self, moves: dict[int, Spot]) -> bool:
        done: list[int] = []
        for pod, spot in moves.items():
            if self.desk.may_plan(pod, spot):
                for other in done:
                    self.desk.plan(other, None)
                return False
            self.desk.plan(pod, spot)
            done.append(pod)
        return True

    def _sets(self, shape: int, node: int, size: int) -> Iterator[tuple[int, ...]]:
        """Sets of movable pods of the node whose leaving could do, cheapest first."""
        world, cost = self.desk.world, self.desk.cost
        what = world.shapes.shapes[shape]
        pods = sorted((p for p in world.on_node[node] if p not in self.fixed), key=lambda p: (float(cost[p]), p))
        whole = all(part.whole for part in what.parts)
        if size <= EXACT and len(pods) <= MANY and (len(what.parts) == 1 or not whole):
            useful = [p for p in pods if self._helps(shape, node, p)]
            yield from sorted(combinations(useful, size), key=lambda s: (sum(float(cost[p]) for p in s), s))
            return
        seen: set[tuple[int, ...]] = set()
        for chosen in self._openings(shape, node):
            if len(chosen) == size and chosen not in seen:
                seen.add(chosen)
                yield chosen

    def _helps(self, shape: int, node: int, pod: int) -> bool:
        """The pod stands on a device the shape could use, or takes host room that is short."""
        world = self.desk.world
        what = world.shapes.shapes[shape]
        t = int(world.shapes.shape[pod])
        if world.cpu[node] < what.cpu and world.cpu_of[t] > 0:
            return True
        if world.host[node] < what.host_memory and world.host_of[t] > 0:
            return True
        if world.room[node] < 1:
            return True
        spot = world.spot[pod]
        assert spot is not None
        kinds = world.fleet.kind
        return any(
            world.device_allowed(shape, d) and any(p.need[int(kinds[d])] >= 0 for p in what.parts) for d in spot.devices
        )

    def _openings(self, shape: int, node: int) -> Iterator[tuple[int, ...]]:
        """Small sets that open devices for all parts, by choice of devices; then the host room is made up."""
        world, cost = self.desk.world, self.desk.cost
        parts = len(world.shapes.shapes[shape].parts)
        options = []
        holders = self._holders(node)
        for device in world.fleet.devices_of(node):
            removal = self._removals(shape, device, holders.get(device, ()))
            if removal is not None:
                options.append((len(removal), sum(float(cost[p]) for p in removal), device, removal))
        options.sort(key=lambda o: o[:3])
        unions: list[tuple[int, float, tuple[int, ...]]] = []
        for chosen in islice(combinations(options, parts), COMBINATIONS):
            pods = frozenset(p for option in chosen for p in option[3])
            full = self._with_host(shape, node, set(pods))
            if full is not None:
                unions.append((len(full), sum(float(cost[p]) for p in full), full))
        unions.sort()
        yield from (pods for _, _, pods in unions)

    def _holders(self, node: int) -> dict[int, list[tuple[tuple[int, int, int], int]]]:
        """Movable pods by device, with what each holds there, largest first."""
        world = self.desk.world
        found: dict[int, list[tuple[tuple[int, int, int], int]]] = {}
        for pod in world.on_node[node]:
            spot = world.spot[pod]
            if spot is not None and pod not in self.fixed:
                for device, held in zip(spot.devices, world.held_now[pod], strict=True):
                    found.setdefault(device, []).append((held, pod))
        for here in found.values():
            here.sort(key=lambda item: (-item[0][2], -item[0][1], item[1]))
        return found

    def _removals(
        self, shape: int, device: int, here: Sequence[tuple[tuple[int, int, int], int]]
    ) -> tuple[int, ...] | None:
        """Fewest movable pods of ``here`` whose leaving lets a part of the shape onto the device; None = never."""
        world = self.desk.world
        what = world.shapes.shapes[shape]
        kind, slots, memory, cores = world.use[device]
        part = max(what.parts, key=lambda p: (p.cores, p.need[kind])) if len(what.parts) > 1 else what.parts[0]
        need = part.need[kind]
        if need < 0 or not world.device_allowed(shape, device):
            return None
        states = world.states
        all_slots, all_memory, all_cores = states.slots_of[kind], states.memory_of[kind], states.cores_of[kind]
        gone: list[int] = []
        rest = iter(here)
        while (
            (part.whole and slots > 0)
            or (part.zero and cores >= all_cores > 0)
            or slots + part.slots > all_slots
            or memory + need > all_memory
            or cores + part.cores > all_cores
        ):
            item = next(rest, None)
            if item is None:
                return None
            (s, m, c), pod = item
            slots, memory, cores = slots - s, memory - m, cores - c
            gone.append(pod)
        return tuple(gone)

    def _with_host(self, shape: int, node: int, chosen: set[int]) -> tuple[int, ...] | None:
        """The set, with the fewest further pods that make up for missing host CPU, memory or pod slots."""
        world = self.desk.world
        what = world.shapes.shapes[shape]
        cpu = world.cpu[node] + sum(world.cpu_of[int(world.shapes.shape[p])] for p in chosen)
        host = world.host[node] + sum(world.host_of[int(world.shapes.shape[p])] for p in chosen)
        others = sorted(
            (p for p in world.on_node[node] if p not in chosen and p not in self.fixed),
            key=lambda p: (-world.cpu_of[int(world.shapes.shape[p])], p),
        )
        while cpu < what.cpu or host < what.host_memory:
            if not others:
                return None
            pod = others.pop(0)
            chosen.add(pod)
            cpu += world.cpu_of[int(world.shapes.shape[pod])]
            host += world.host_of[int(world.shapes.shape[pod])]
        return tuple(sorted(chosen))

    def _bounds(self, shape: int) -> dict[int, int]:
        """Least number of leavers per node that could host the shape at all. Nodes that did not change are known."""
        world = self.desk.world
        what = world.shapes.shapes[shape]
        known = self._least.setdefault(shape, {})
        may = world.open_node & world.shapes.node_masks[what.nodes] & (world.fleet.size >= len(what.parts))
        may &= (world.fleet.cpu >= what.cpu) & (world.fleet.host_memory >= what.host_memory)
        for node in np.nonzero(may)[0].tolist():
            if node not in known:
                known[node] = self._least_on(shape, node)
        return {node: least for node, least in known.items() if least < NEVER}

    def _least_on(self, shape: int, node: int) -> int:
        world = self.desk.world
        what = world.shapes.shapes[shape]
        parts = len(what.parts)
        holders = self._holders(node)
        sets = [
            removal
            for device in world.fleet.devices_of(node)
            if (removal := self._removals(shape, device, holders.get(device, ()))) is not None
        ]
        if len(sets) < parts:
            return NEVER
        counts = sorted(len(r) for r in sets)[:parts]
        several = any(len(world.spot[p].devices) > 1 for r in sets for p in r)  # type: ignore[union-attr]
        least = counts[-1] if several else sum(counts)
        return max(least, 1)
