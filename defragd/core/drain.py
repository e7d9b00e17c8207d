"""Emptying places: named ones, or the cheapest of many. Shared by gpu-drain and node-drain.

Every pod on the place needs a proven room elsewhere before anything is proposed. A pod that cannot go (protected, over
budget, no room) makes its place infeasible; which pod and why is said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from defragd.core.desk import Desk
from defragd.core.outlook import Outlook
from defragd.core.plan import Refusal
from defragd.core.reasons import Reason
from defragd.core.relocate import Relocator
from defragd.core.tables import Spot


@dataclass(frozen=True, slots=True)
class Target:
    """A place to empty. ``object`` is how it is called in refusals; ``blockers`` stand in the way whatever is done."""

    object: str
    devices: frozenset[int]
    blockers: tuple[Refusal, ...] = ()


@dataclass
class Drained:
    """What came of it: moves per target that was emptied, refusals for the rest."""

    done: list[Target] = field(default_factory=list)
    goals: list[frozenset[int]] = field(default_factory=list)
    refused: dict[str, Refusal] = field(default_factory=dict)
    partial: list[int] = field(default_factory=list)
    """Pods that could go although their target could not be emptied."""


class Drainer:
    """Empties targets one after another in the desk's world."""

    def __init__(self, desk: Desk, *, pushes: int, keep_partial: bool) -> None:
        self.desk, self.pushes, self.keep_partial = desk, pushes, keep_partial
        self.out = Drained()
        self.taken: set[int] = set()
        """Pods that are placed for good."""
        self.outlook = Outlook(desk.world)

    def pods_on(self, target: Target) -> list[int]:
        world = self.desk.world
        nodes = {int(world.fleet.node_of[d]) for d in target.devices}
        return sorted(
            pod
            for node in nodes
            for pod in world.on_node[node]
            if (spot := world.spot[pod]) is not None and target.devices & set(spot.devices)
        )

    def cost(self, target: Target) -> float:
        """Price of emptying it: the summed cost of its pods."""
        return float(sum(self.desk.cost[pod] for pod in self.pods_on(target)))

    def try_cheap(
        self, targets: Sequence[Target], count: int, *, near: bool, patience: int, moves: int | None = None
    ) -> None:
        """Empties targets in the given order until ``count`` are done; nobody asks why the others cannot be.

        A second pass pushes one other pod further on where there is no hole; it gives up after ``patience`` failures.
        ``moves``: pods that may be moved in all.
        """
        for pushes in (0, 1):
            failed = 0
            self.outlook.forget()
            for target in targets:
                if len(self.out.done) >= count or self.desk.scene.should_stop() or failed > patience:
                    break
                if target in self.out.done:
                    continue
                pods = self.pods_on(target)
                if any(pod in self.taken for pod in pods):
                    continue
                if moves is not None and len(self.taken) + len(pods) + pushes > moves:
                    continue
                if self.outlook.missing(pods, target.devices) > pushes:
                    continue
                if self._attempt(target, pods, near=near, pushes=pushes):
                    self.outlook.forget()
                else:
                    failed += pushes

    def _attempt(self, target: Target, pods: Sequence[int], *, near: bool, pushes: int) -> bool:
        world = self.desk.world
        closed = list(target.devices)
        was_open = world.open_device[closed]
        world.open_device[closed] = False
        if not self._relocate(pods, near=near, pushes=pushes, explain=False):
            self.out.done.append(target)
            return True
        world.open_device[closed] = was_open
        return False

    def empty(self, target: Target, *, near: bool, pushes: int | None = None) -> bool:
        """Moves everything off the target, or leaves the world as it was and says why (in ``out.refused``).

        ``near``: places on the pod's own node come first.
        """
        world = self.desk.world
        pods = self.pods_on(target)
        was_open = world.open_device.copy()
        world.open_device[list(target.devices)] = False
        why: list[Refusal] = list(target.blockers)
        again = [pod for pod in pods if pod in self.taken]
        if again:
            why.append(self._refusal(again[0], Reason.GOAL_UNREACHABLE, "it would have to move twice"))
        if not why:
            why = self._relocate(pods, near=near, pushes=self.pushes if pushes is None else pushes)
        if not why:
            self.out.done.append(target)
            self.out.refused.pop(target.object, None)
            return True
        if self.keep_partial and not again:
            for pod in pods:
                if not self._relocate([pod], near=near, pushes=0):
                    self.out.partial.append(pod)
        else:
            world.open_device[:] = was_open
        for item in why:
            self.out.refused.setdefault(item.object, item)
        self.out.refused.setdefault(
            target.object,
            Refusal(target.object, Reason.GOAL_UNREACHABLE, f"cannot be emptied: {why[0].object}: {why[0].detail}"),
        )
        return False

    def _relocate(self, pods: Sequence[int], *, near: bool, pushes: int, explain: bool = True) -> list[Refusal]:
        desk, world = self.desk, self.desk.world
        home = {pod: world.spot[pod] for pod in pods}
        for pod in pods:
            world.lift(pod)
        relocator = Relocator(
            world,
            verify=desk.verify,
            should_stop=desk.scene.should_stop,
            fixed={*self.taken, *pods},
        )
        own: Callable[[int], int] = lambda pod: world.home[pod].node if near else -1  # noqa: E731
        found = relocator.relocate(list(pods), extra=pushes, first=own)
        if found.stuck is None:
            over = self._charge(found.moves)
            if over is None:
                self.taken |= found.moves.keys()
                self.out.goals.append(frozenset(found.moves))
                return []
            for pod in found.moves:
                world.lift(pod)
            for pod in found.moves:
                world.put(pod, home.get(pod) or world.home[pod])
            return [over]
        for pod in pods:
            spot = home[pod]
            assert spot is not None
            world.put(pod, spot)
        return [self._refusal(found.stuck, Reason.NO_PLACE, self.no_place(found.stuck) if explain else "")]

    def _charge(self, moves: dict[int, Spot]) -> Refusal | None:
        desk = self.desk
        done: list[int] = []
        for pod, spot in moves.items():
            if desk.may_plan(pod, spot):
                for other in done:
                    desk.plan(other, None)
                return desk.refused[pod]
            desk.plan(pod, spot)
            done.append(pod)
        return None

    def _refusal(self, pod: int, reason: Reason, detail: str) -> Refusal:
        return Refusal(self.desk.shapes.pods[pod].key, reason, detail)

    def no_place(self, pod: int) -> str:
        """Why no other place takes the pod, counted over devices and nodes."""
        return explain_places(self.desk, pod)


def explain_places(desk: Desk, pod: int) -> str:
    """ "no place: 12 devices full, 2 unhealthy; 3 nodes without CPU or memory" for one pod at its home."""
    world, shapes = desk.world, desk.shapes
    t = int(shapes.shape[pod])
    what = shapes.shapes[t]
    fleet = world.fleet
    masked = shapes.node_masks[what.nodes]
    node = fleet.node_of
    lifted = world.spot[pod] is None
    own = world.home[pod].node
    counts: dict[str, int] = {}

    def count(name: str, rows: np.ndarray) -> None:
        found = int(rows.sum())
        if found:
            counts[name] = found

    healthy = np.array([d.healthy for d in fleet.devices], dtype=np.bool_)
    left = np.ones(len(fleet.devices), dtype=np.bool_)
    left[list(world.home[pod].devices)] = False
    count("unhealthy", left & ~healthy)
    left &= healthy
    count("cordoned or not trusted", left & ~fleet.device_open & fleet.node_open[node])
    count("on nodes that cannot take it (not ready, taints, selectors)", left & ~(masked & fleet.node_open)[node])
    left &= fleet.device_open & (masked & fleet.node_open)[node]
    count("closed to this plan (idle nodes, held, being emptied)", left & ~(world.open_device & world.open_node[node]))
    left &= world.open_device & world.open_node[node]
    need = np.array([p.need for p in what.parts], dtype=np.int64).max(axis=0)[fleet.kind]
    count("of another type", left & (need < 0))
    left &= need >= 0
    use = world.used
    cores = max(p.cores for p in what.parts)
    short_memory = use[:, 2] + need > fleet.memory
    short_cores = (use[:, 3] + cores > fleet.cores) | (any(p.whole for p in what.parts) & (use[:, 1] > 0))
    count("without the memory", left & short_memory & ~short_cores)
    count("without the cores", left & short_cores & ~short_memory)
    count("without memory and cores", left & short_cores & short_memory)
    left &= ~short_memory & ~short_cores
    count("without a free slot", left & (use[:, 1] >= fleet.slots))
    left &= use[:, 1] < fleet.slots
    cpu, host, room = world.cpu.copy(), world.host.copy(), world.room.copy()
    if not lifted:
        cpu[own] += what.cpu
        host[own] += what.host_memory
        room[own] += 1
    full = (cpu < what.cpu) | (host < what.host_memory) | (room < 1)
    count("on nodes without host CPU, memory or pod slots", left & full[node])
    left &= ~full[node]
    if len(what.parts) > 1:
        count(f"on nodes with fewer than {len(what.parts)} that fit", left)
    said = "; ".join(f"{number} devices {name}" for name, number in counts.items())
    return f"no place: {said}" if said else "no place for it"
