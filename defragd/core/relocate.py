"""Finding room for pods that must leave: directly where there is a hole, else by pushing one other pod further on.

Depth-first over the pods, the one with the fewest places first, the best places first. Each pushed pod is one move
more, so the number of extra moves is tried from none upwards: what is found first has the fewest moves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from defragd.core.places import Places
from defragd.core.tables import Spot, World

WIDTH = 12
"""Places tried per pod before going back."""
PUSHES = 48
"""Pods tried for being pushed on, per pod without a place."""


@dataclass
class Relocation:
    """Moves that empty what had to be emptied; ``stuck``: the pod that found no place (None = all did)."""

    moves: dict[int, Spot] = field(default_factory=dict)
    stuck: int | None = None


class Relocator:
    """Relocates pods in ``world``; on success the world is left in the new state, on failure as it was."""

    def __init__(
        self,
        world: World,
        *,
        verify: Callable[[int, Spot], bool],
        should_stop: Callable[[], bool],
        fixed: Collection[int] = (),
        budget: int = 4000,
    ) -> None:
        self.world, self.verify, self.should_stop = world, verify, should_stop
        self.places = Places(world)
        self.fixed = set(fixed)
        """Pods that may not be pushed (already moved, or not to be touched)."""
        self.steps = budget
        self.spent = 0
        """Places looked at in vain."""
        self.allow: Callable[[int, Spot], bool] = lambda pod, spot: True
        self._cpu = np.array(world.cpu_of)
        self._host = np.array(world.host_of)
        self._placeable: dict[int, bool] = {}

    def relocate(
        self, pods: Sequence[int], *, extra: int, least: int = 0, first: Callable[[int], int] = lambda pod: -1
    ) -> Relocation:
        """Finds places for all ``pods`` (they must have left: the caller has lifted them). ``first``: the node to
        prefer per pod. From ``least`` up to ``extra`` other pods may be pushed on."""
        left = self.steps
        result = Relocation(stuck=pods[0] if pods else None)
        for pushes in range(least, extra + 1):
            self.spent += left - self.steps
            self.steps = left
            moves: dict[int, Spot] = {}
            self._deepest = len(pods) + 1
            self._placeable.clear()
            if self._place(list(pods), moves, pushes, first, result):
                return Relocation(moves)
            if self.should_stop():
                break
        self.spent += left - self.steps
        return result

    def _place(
        self, todo: list[int], moves: dict[int, Spot], pushes: int, first: Callable[[int], int], result: Relocation
    ) -> bool:
        if not todo:
            return True
        if self.steps <= 0 or self.should_stop():
            return False
        pod, spots, homeless = self._hardest(todo, first, pushes)
        rest = [p for p in todo if p != pod]
        if len(rest) < self._deepest:
            self._deepest = len(rest)
            result.stuck = pod
        if homeless > pushes:
            return False
        for spot in spots[:WIDTH]:
            self.steps -= 1
            if spot == self.world.home[pod] or not self.allow(pod, spot) or not self.verify(pod, spot):
                continue
            self.world.put(pod, spot)
            moves[pod] = spot
            if self._place(rest, moves, pushes, first, result):
                return True
            del moves[pod]
            self.world.lift(pod)
            if self.steps <= 0:
                return False
        if pushes > 0:
            return self._push(pod, rest, moves, pushes, first, result)
        return False

    def _hardest(self, todo: list[int], first: Callable[[int], int], pushes: int) -> tuple[int, list[Spot], int]:
        """The pod with the fewest places, those places, and how many pods at least must be pushed on for those that
        have none (one for each that wants a device for itself, one for all others)."""
        best: tuple[int, int, list[Spot]] | None = None
        shapes = self.world.shapes.shape
        seen: dict[tuple[int, int], list[Spot]] = {}
        alone, shared = 0, 0
        for pod in todo[:16]:
            t = int(shapes[pod])
            key = (t, first(pod))
            if key not in seen:
                seen[key] = self.places.spots(t, first=key[1], limit=WIDTH)
            spots = seen[key]
            if not spots:
                whole = any(part.whole for part in self.world.shapes.shapes[t].parts)
                alone, shared = alone + whole, shared | (not whole)
            if best is None or len(spots) < best[0]:
                best = (len(spots), pod, spots)
            if alone + shared > pushes:
                break
        assert best is not None
        return best[1], best[2], alone + shared

    def _push(
        self,
        pod: int,
        rest: list[int],
        moves: dict[int, Spot],
        pushes: int,
        first: Callable[[int], int],
        result: Relocation,
    ) -> bool:
        """Puts ``pod`` in the place of another one, which then needs a place itself."""
        world = self.world
        shape = int(world.shapes.shape[pod])
        for other in self._candidates(shape, {pod, *rest, *moves})[:PUSHES]:
            if self.steps <= 0 or self.should_stop():
                return False
            self.steps -= 1
            home = world.spot[other]
            assert home is not None
            world.lift(other)
            spot = self._spot_with(shape, home)
            if spot is not None and spot != world.home[pod] and self.allow(pod, spot) and self.verify(pod, spot):
                world.put(pod, spot)
                moves[pod] = spot
                if self._place([other, *rest], moves, pushes - 1, first, result):
                    return True
                del moves[pod]
                world.lift(pod)
            world.put(other, home)
        return False

    def _candidates(self, shape: int, excluded: set[int]) -> list[int]:
        """Pods whose leaving could make room for the shape, small ones first, those with no place anywhere left out."""
        world = self.world
        want = world.shapes.shapes[shape]
        node = world.pod_node
        may = node >= 0
        if not may.any():
            return []
        shapes = world.shapes.shape
        may &= (world.open_node & world.shapes.node_masks[want.nodes])[node]
        may &= world.pod_parts >= len(want.parts)
        may &= self._cpu[shapes] >= want.cpu - world.cpu[node]
        may &= self._host[shapes] >= want.host_memory - world.host[node]
        device = world.pod_device
        kind = world.fleet.kind[device]
        use = world.used
        need = np.array([p.need for p in want.parts], dtype=np.int64).max(axis=0)[kind]
        may &= world.open_device[device] & (need >= 0)
        may &= use[device, 3] - world.pod_cores + max(p.cores for p in want.parts) <= world.fleet.cores[device]
        may &= use[device, 2] - world.pod_memory + need <= world.fleet.memory[device]
        may[list(excluded | self.fixed)] = False
        found = np.nonzero(may)[0]
        order = np.lexsort((found, world.pod_memory[found], world.pod_cores[found]))
        return [pod for pod in found[order].tolist() if self._has_place(int(shapes[pod]))][: 2 * PUSHES]

    def _has_place(self, shape: int) -> bool:
        if shape not in self._placeable:
            self._placeable[shape] = self.places.any(shape)
        return self._placeable[shape]

    def _spot_with(self, shape: int, home: Spot) -> Spot | None:
        """A place on that node which uses the room just made."""
        world = self.world
        if len(world.part_of[shape]) > 1:
            return world.choose(shape, home.node)
        if not world.allowed(shape, home.node):
            return None
        for device in home.devices:
            if not world.device_allowed(shape, device):
                continue
            ids = world.id[device : device + 1]
            world.states.following(ids)
            if world.states.next[ids[0], world.part_of[shape][0]] >= 0:
                return Spot(home.node, (device,))
        return world.choose(shape, home.node) if len(home.devices) > 1 else None
