"""gpu-drain: empty devices, moving their pods within the node first and then across nodes.

Arguments (``strategy.args`` of a policy), one of:

- ``device``: a device UUID, or ``NODE/gpu-I`` (I = index on the node);
- ``unhealthy: true``: every device reported unhealthy;
- ``count: K``: the K devices that are cheapest to free (summed cost of their pods); pods go to devices in use only.
  Where fewer can be emptied one by one, chains of moves are searched that leave K more devices idle.

A device is emptied completely or not touched, unless the policy accepts partial goals (``partial``). Pods that hold
several devices move with all of them. Idle nodes of four devices or more are refilled only when nothing else has room.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from defragd.core.desk import Desk
from defragd.core.drain import Drainer, Target
from defragd.core.moves import landed
from defragd.core.plan import Place, Refusal
from defragd.core.reasons import Reason
from defragd.core.search import SMALL_WORLD, home_fits, improve
from defragd.core.snapshot import collapse
from defragd.core.strategy import Proposal, Scene
from defragd.core.tables import Spot

PUSHES = 2
PATIENCE = 40
"""Failed attempts with a push before counting drains give up."""
STEPS, ATTEMPTS = 20_000, 4
"""Of search for chains of moves, in clusters small enough for one: short searches that start anew find more than one
long one."""

Moves = tuple[tuple[str, Place], ...]


@dataclass(frozen=True, slots=True)
class GpuDrainArgs:
    """Which devices to empty; exactly one of the three."""

    device: str = ""
    unhealthy: bool = False
    count: int = 0

    def __post_init__(self) -> None:
        if sum((bool(self.device), bool(self.unhealthy), self.count != 0)) != 1:
            raise ValueError("exactly one of device, unhealthy and count is needed")
        if self.count < 0:
            raise ValueError("count must be at least 1")


@dataclass(frozen=True, slots=True)
class GpuDrain:
    name: str = "gpu-drain"
    args_type: type = GpuDrainArgs
    drain: bool = True

    def propose(self, scene: Scene) -> Proposal:
        args: GpuDrainArgs = scene.args
        if args.count:
            return _cheapest(scene, args.count)
        return _named(scene, args)


def _named(scene: Scene, args: GpuDrainArgs) -> Proposal:
    fleet = scene.arena.fleet
    if args.unhealthy:
        chosen = [i for i, d in enumerate(fleet.devices) if not d.healthy and scene.arena.books.slots[i] > 0]
        if not chosen:
            return Proposal(score_name="devices", trim=False, notes=("no unhealthy device holds a pod",))
    else:
        found = find_device(scene, args.device)
        if found is None:
            why = "no such device: a UUID, or NODE/gpu-I with the device's index on its node"
            refusal = Refusal(f"Device/{args.device}", Reason.DEVICE_UNKNOWN, why)
            return Proposal(stopped="infeasible", refused=(refusal,), score_name="devices", trim=False)
        if scene.arena.books.slots[found] == 0:
            return Proposal(score_name="devices", trim=False, notes=(f"device {args.device} holds no pod",))
        chosen = [found]
    best: Proposal | None = None
    for idle in (False, True):
        desk = Desk(scene, use_idle_nodes=idle)
        desk.world.open_device[chosen] = False
        drainer = Drainer(desk, pushes=PUSHES, keep_partial=scene.rules.partial)
        for device in chosen:
            drainer.empty(target_of(scene, [device], f"Device/{fleet.devices[device].uuid}"), near=True)
        proposal = finish(desk, drainer, wanted=len(chosen), unit="devices")
        if best is None or len(proposal.moves) > len(best.moves):
            best = proposal
        if len(drainer.out.done) == len(chosen) or scene.should_stop():
            break
    assert best is not None
    return best


def _cheapest(scene: Scene, count: int) -> Proposal:
    books, fleet = scene.arena.books, scene.arena.fleet
    desk = Desk(scene, closed=books.slots == 0)
    drainer = Drainer(desk, pushes=0, keep_partial=False)
    used = np.nonzero((books.slots > 0) & np.isin(fleet.node_of, _in_scope(scene)))[0].tolist()
    targets = [target_of(scene, [d], f"Device/{fleet.devices[d].uuid}") for d in used]
    targets = [t for t in targets if not t.blockers and drainer.pods_on(t)]
    targets.sort(key=lambda t: (drainer.cost(t), min(t.devices)))
    drainer.try_cheap(targets, count, near=True, patience=PATIENCE)
    reached = 0
    if len(drainer.out.done) < count and not scene.should_stop():
        large = len(fleet.devices) > SMALL_WORLD
        found = improve(scene, "devices", use_idle_nodes=False, enough=count, most_steps=0 if large else STEPS)
        reached = freed(scene, found.moves)
        for attempt in range(0 if large else ATTEMPTS):
            if reached >= count or scene.should_stop():
                break
            again = replace(scene, seed=scene.seed + attempt)
            found = improve(again, "empty", use_idle_nodes=False, most_steps=STEPS)
            reached = max(reached, freed(scene, found.moves))
        if freed(scene, found.moves) >= count:
            lean = leanest(scene, found.moves, count)
            moves = lean if scene.orderable(dict(lean)) is not None else found.moves
            keys = frozenset(key for key, _ in moves)
            return Proposal(moves=moves, goals=(keys,), score_name="devices", trim=False)
    return finish(desk, drainer, wanted=count, unit="devices", quiet=True, reached=reached)


def leanest(scene: Scene, moves: Moves, count: int) -> Moves:
    """The moves without those that ``count`` idle devices more can do without, dearest first."""
    desk = Desk(scene, "devices", use_idle_nodes=True)
    world, number = desk.world, desk.number
    node_index, device_index = scene.arena.fleet.node_index, scene.arena.fleet.device_index
    spots = {
        number[key]: Spot(node_index[place.node], tuple(device_index[uuid] for uuid in place.devices))
        for key, place in moves
    }
    least = world.value + count
    for pod in spots:
        world.lift(pod)
    for pod, spot in spots.items():
        world.put(pod, spot)
    again = True
    while again:
        again = False
        for pod in sorted(spots, key=lambda p: (-float(desk.cost[p]), p)):
            world.lift(pod)
            if home_fits(world, pod):
                world.put(pod, world.home[pod])
                if world.value >= least:
                    del spots[pod]
                    again = True
                    continue
                world.lift(pod)
            world.put(pod, spots[pod])
    return tuple((key, place) for key, place in moves if number[key] in spots)


def freed(scene: Scene, moves: Moves) -> int:
    """Devices that would be idle after the moves and are not now, less those that are idle only now."""
    fleet, held = scene.arena.fleet, scene.arena.books.slots
    slots = held.copy()
    for key, place in moves:
        pod = scene.movable[key]
        for sign, now in ((-1, pod), (1, landed(pod, place, scene.snapshot.devices))):
            for uuid, (count, _, _) in collapse(now.allocations, init_done=now.init_done).items():
                slots[fleet.device_index[uuid]] += sign * count
    return int((slots == 0).sum() - (held == 0).sum())


def _in_scope(scene: Scene) -> list[int]:
    return [scene.arena.fleet.node_index[name] for name in sorted(scene.scope_nodes)]


def find_device(scene: Scene, name: str) -> int | None:
    """A device by UUID or by ``NODE/gpu-I``."""
    fleet = scene.arena.fleet
    if name in fleet.device_index:
        return fleet.device_index[name]
    node, _, rest = name.rpartition("/")
    if node in fleet.node_index and rest.startswith("gpu-") and rest[4:].isdigit():
        for d in fleet.devices_of(fleet.node_index[node]):
            if fleet.devices[d].index == int(rest[4:]):
                return d
    return None


def target_of(scene: Scene, devices: list[int], name: str) -> Target:
    """The devices as a drain target; pods on them that may not move are its blockers."""
    fleet = scene.arena.fleet
    uuids = {fleet.devices[d].uuid for d in devices}
    nodes = {fleet.names[int(fleet.node_of[d])] for d in devices}
    blockers = [
        scene.standing[pod.key]
        for node in sorted(nodes)
        for pod in scene.snapshot.booked_on.get(node, ())
        if pod.key in scene.standing and uuids & set(pod.devices)
    ]
    return Target(name, frozenset(devices), tuple(blockers))


def finish(desk: Desk, drainer: Drainer, *, wanted: int, unit: str, quiet: bool = False, reached: int = 0) -> Proposal:
    """The proposal for what could be emptied; ``quiet``: targets tried in vain are no news (any would have done).
    ``reached``: how many another way would have emptied, not enough either."""
    out = drainer.out
    done = len(out.done)
    notes: list[str] = []
    stopped = "complete"
    moves = desk.places()
    goals = tuple(frozenset(desk.shapes.pods[p].key for p in goal) for goal in out.goals)
    refused = list(out.refused.values())
    if done < wanted:
        most = max(done, reached)
        how = f" ({len(moves)} moves)" if done == most else ""
        notes.append(f"{most} of {wanted} {unit} can be emptied{how}")
        if not desk.scene.rules.partial:
            stopped = "time" if desk.scene.should_stop() else "infeasible"
            moves, goals = (), ()
        if quiet:
            refused = refused[:20]
            refused.append(
                Refusal(
                    "Plan/goal", Reason.GOAL_UNREACHABLE, f"at most {most} of {wanted} {unit} were found to come free"
                )
            )
    elif quiet:
        refused = []
    return Proposal(
        moves=moves,
        goals=goals,
        refused=tuple(refused),
        notes=tuple(notes),
        stopped=stopped,
        score_name=unit,
        trim=False,
    )


STRATEGY = GpuDrain()
