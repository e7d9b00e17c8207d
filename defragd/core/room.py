"""Making room: the fewest moves after which a pod that has no place fits.

For one wanted shape, the number of moves is tried from one upwards. On every node that could host it, the sets of pods
whose leaving opens enough devices (and host CPU and memory) are tried, cheapest first; each needs proven places for the
pods of the set, if need be by pushing one more pod further on. The first that works has the fewest moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, islice

from defragd.core.desk import Desk
from defragd.core.places import Places
from defragd.core.relocate import Relocator
from defragd.core.tables import Spot

MOST = 12
"""Moves for one wanted pod, at most."""
EXACT = 3
"""For shapes of one device, up to this many leavers all sets of a node are tried."""
MANY = 24
COMBINATIONS = 200
"""Choices of devices tried per node."""
PUSHED_NODES = 24
"""Nodes tried per number of moves when other pods have to be pushed on."""
SMALL = 400
TRIES = 1500


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
        self.fixed: set[int] = set()
        """Pods that have moved already."""
        self.tries = TRIES

    def make(self, shape: int, *, most: int = MOST) -> Room:
        """Fits the shape with the fewest moves and books it. ``most``: moves left in the budget."""
        world = self.desk.world
        free = Places(world).spots(shape, limit=1)
        if free:
            world.hold(shape, free[0])
            return Room(free[0])
        bounds = self._bounds(shape)
        nodes = sorted(bounds, key=lambda n: (bounds[n], n))
        self.tries = TRIES
        self._placeable: dict[int, bool] = {}
        for moves in range(1, min(most, MOST) + 1):
            for pushes in range(min(moves, 3)):
                pushed = 0
                for node in nodes:
                    if bounds[node] > moves - pushes:
                        break
                    found = self._on_node(shape, node, moves - pushes, pushes)
                    if found is not None:
                        return found
                    pushed += pushes > 0
                    if self.tries <= 0 or self.desk.scene.should_stop():
                        return Room(tried=TRIES - self.tries)
                    if pushed >= PUSHED_NODES:
                        break
        return Room(tried=TRIES - self.tries)

    def _homeless(self, pods: tuple[int, ...]) -> bool:
        """Some pod of the set has no place anywhere, whatever leaves here (asked in large worlds only, where the room
        that the set itself makes hardly ever is the only one)."""
        world = self.desk.world
        if len(world.fleet.devices) <= SMALL:
            return False
        for t in {int(world.shapes.shape[p]) for p in pods}:
            if t not in self._placeable:
                single = len(world.part_of[t]) == 1
                self._placeable[t] = not single or len(Places(world).single(t)) > 0
            if not self._placeable[t]:
                return True
        return False

    def _on_node(self, shape: int, node: int, leavers: int, pushes: int) -> Room | None:
        desk, world = self.desk, self.desk.world
        for leave in self._sets(shape, node, leavers):
            if self.tries <= 0 or desk.scene.should_stop():
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
                found = relocator.relocate(list(leave), extra=pushes, first=lambda pod: node)
                if found.stuck is None and self._charge(found.moves):
                    self.fixed |= found.moves.keys()
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
        for device in world.fleet.devices_of(node):
            removal = self._removals(shape, device)
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

    def _removals(self, shape: int, device: int) -> tuple[int, ...] | None:
        """Fewest movable pods whose leaving lets a part of the shape onto the device; None = never."""
        world = self.desk.world
        what = world.shapes.shapes[shape]
        kind, slots, memory, cores = world.use[device]
        part = max(what.parts, key=lambda p: (p.cores, p.need[kind]))
        if part.need[kind] < 0 or not world.device_allowed(shape, device):
            return None
        here = []
        for pod in world.on_node[int(world.fleet.node_of[device])]:
            spot = world.spot[pod]
            if spot is not None and device in spot.devices and pod not in self.fixed:
                here.append((world.held_now[pod][spot.devices.index(device)], pod))
        here.sort(key=lambda item: (-item[0][2], -item[0][1], item[1]))
        gone: list[int] = []
        all_slots, all_memory, all_cores = (
            int(a[device]) for a in (world.fleet.slots, world.fleet.memory, world.fleet.cores)
        )

        def fits() -> bool:
            if part.whole and slots > 0:
                return False
            if part.zero and cores >= all_cores > 0:
                return False
            return (
                slots + part.slots <= all_slots
                and memory + part.need[kind] <= all_memory
                and cores + part.cores <= all_cores
            )

        while not fits():
            if not here:
                return None
            (s, m, c), pod = here.pop(0)
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
        """Least number of leavers per node that could host the shape at all."""
        world = self.desk.world
        what = world.shapes.shapes[shape]
        parts = len(what.parts)
        mask = world.shapes.node_masks[what.nodes]
        found: dict[int, int] = {}
        for node in range(len(world.fleet.names)):
            if not (world.open_node[node] and mask[node]) or world.fleet.size[node] < parts:
                continue
            if world.fleet.cpu[node] < what.cpu or world.fleet.host_memory[node] < what.host_memory:
                continue
            sets = [r for d in world.fleet.devices_of(node) if (r := self._removals(shape, d)) is not None]
            if len(sets) < parts:
                continue
            counts = sorted(len(r) for r in sets)[:parts]
            several = any(len(world.spot[p].devices) > 1 for r in sets for p in r)  # type: ignore[union-attr]
            least = counts[-1] if several else sum(counts)
            if world.cpu[node] < what.cpu or world.host[node] < what.host_memory or world.room[node] < 1:
                least = max(least, 1)
            found[node] = max(least, 1)
        return found
