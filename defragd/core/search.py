"""Best plans for an objective: steepest descent, then search; and why each pod that stays does."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from defragd.core.desk import Desk
from defragd.core.plan import Refusal
from defragd.core.reasons import Reason
from defragd.core.search_anneal import Anneal
from defragd.core.search_greedy import LEAST, Greedy
from defragd.core.search_lns import Lns
from defragd.core.search_macro import DeviceFreer, empty_nodes
from defragd.core.search_task import Task
from defragd.core.strategy import Proposal, Scene
from defragd.core.tables import Spot, World

SMALL_STEPS = 150_000
STEPS_PER_POD = 750
LEAST_STEPS = 3_000
MOST_ONE_BY_ONE, ONE_BY_ONE = 10_000, 0.05
"""Steps taken one by one at most, and their least share, where some pods cannot be moved in batches."""
SMALL_WORLD = 600
"""Devices."""
LARGE_STEPS = {"devices": 40_000, "nodes": 40_000}
"""Larger worlds: by objective (others find nearly all by single moves), ..."""
LARGEST = 20_000
"""... up to this many devices."""


def improve(
    scene: Scene, objective: str, *, use_idle_nodes: bool, enough: int | None = None, most_steps: int = SMALL_STEPS
) -> Proposal:
    """Moves that improve ``objective`` within the policy's caps. ``enough``: idle devices to win, then it ends;
    ``most_steps``: of search, where nobody else sets a limit."""
    desk = Desk(scene, objective, use_idle_nodes=use_idle_nodes)
    if objective == "nodes":
        empty_nodes(desk, scene.rules.budgets.total)
    elif objective == "devices":
        freer = DeviceFreer(desk, scene.rules.budgets.total, enough=enough)
        freer.run()
        if desk.world.value >= freer.enough:
            return Proposal(moves=desk.places(), objective=objective)
    greedy = Greedy(
        desk.world,
        desk.cost,
        limit=scene.rules.budgets.total,
        least=scene.rules.gain.per_move,
        may_plan=desk.may_plan,
        plan=desk.plan,
        verify=desk.verify,
        should_stop=scene.should_stop,
    )
    greedy.moved = dict.fromkeys(desk.moved())
    stopped = greedy.run()
    steps = scene.max_steps if scene.max_steps is not None else min(_steps(desk.world), most_steps)
    if enough is not None:
        steps = min(steps, LEAST_STEPS)
    if stopped != "time" and steps > 0:
        stopped = _search(desk, greedy, steps)
    return Proposal(
        moves=desk.places(),
        refused=tuple(_why_not(desk, greedy)),
        stopped=stopped,
        objective=objective,
    )


def _search(desk: Desk, greedy: Greedy, steps: int) -> str:
    """Destroy and repair from the greedy plan; then descent again, and moves that gain nothing are taken back."""
    scene, world = desk.scene, desk.world
    limit = scene.rules.budgets.total
    names = world.fleet.names

    def orderable(moves: dict[int, Spot]) -> int | None:
        # in the order of the proposal, on which the order of the moves depends
        keys = {desk.shapes.pods[p].key: scene.place(spot) for p, spot in sorted(moves.items())}
        return scene.orderable(keys) if _within_caps(desk, moves) else None

    verified: dict[int, set[Spot]] = defaultdict(set)

    def may_move(pod: int, spot: Spot) -> bool:
        if spot in verified[pod]:
            return True
        if desk.shapes.shapes[int(desk.shapes.shape[pod])].plain:
            if scene.barred and (desk.shapes.pods[pod].key, names[spot.node]) in scene.barred:
                return False
            verified[pod].add(spot)
            return True
        return desk.verify(pod, spot)

    task = Task(scene.seed, limit, desk.cost, may_move, orderable, scene.should_stop)
    anneal = Anneal(world, task, steps=steps, barred=_barred(desk))
    why, best = anneal.run(), anneal.best
    left = len(world.home) - len(anneal.batch.pods)
    if why != "time" and left:
        # pods of several devices, and what the batches cannot tell: one step at a time
        share = max(left / len(world.home), ONE_BY_ONE)
        lns = Lns(world, task, steps=max(1, int(share * min(steps, MOST_ONE_BY_ONE))))
        last, best = lns.run(), lns.best
        why = last if last == "time" else why
    for pod in list(desk.claims):
        desk.plan(pod, None)
    for pod, spot in best.items():
        desk.plan(pod, spot)
    greedy.moved = dict.fromkeys(sorted(best))
    greedy.gains.slope = world.aim.slope(world.total)
    greedy.gains.refresh(np.arange(len(names)))
    if why != "time":
        greedy.run()
    _trim(desk, greedy)
    if why == "complete" or (why == "steps" and scene.max_steps is None):
        return "budget" if limit is not None and len(greedy.moved) >= limit else "complete"
    return why


def _barred(desk: Desk) -> dict[int, frozenset[int]]:
    """Pairs of pod and node that an earlier round found impossible."""
    nodes = desk.world.fleet.node_index
    found: dict[int, set[int]] = defaultdict(set)
    for key, name in desk.scene.barred:
        if key in desk.number:
            found[desk.number[key]].add(nodes[name])
    return {pod: frozenset(where) for pod, where in found.items()}


def _trim(desk: Desk, greedy: Greedy) -> None:
    """Takes back moves that are worth less than the least gain per move, where the pod can still go home."""
    world = desk.world
    least = max(desk.scene.rules.gain.per_move, LEAST)
    again = True
    while again:
        again = False
        for pod in sorted(greedy.moved, key=lambda p: (-float(desk.cost[p]), p)):
            spot, value = world.spot[pod], world.value
            assert spot is not None
            world.lift(pod)
            if home_fits(world, pod):
                world.put(pod, world.home[pod])
                if world.value >= value - least:
                    greedy.moved.pop(pod)
                    desk.plan(pod, None)
                    again = True
                    continue
                world.lift(pod)
            world.put(pod, spot)


def home_fits(world: World, pod: int) -> bool:
    """A lifted pod could go back: host and devices have the room it held."""
    home = world.home[pod]
    what = world.shapes.shapes[int(world.shapes.shape[pod])]
    node = home.node
    if (what.cpu and world.cpu[node] < what.cpu) or (what.host_memory and world.host[node] < what.host_memory):
        return False
    if world.room[node] < 1:
        return False
    states = world.states
    for part, device, (slots, memory, cores) in zip(what.parts, home.devices, world.shapes.held[pod].use, strict=True):
        kind, s, m, c = world.use[device]
        if s + slots > states.kind_slots[kind] or m + memory > states.kind_memory[kind]:
            return False
        if c + cores > states.kind_cores[kind] or (part.whole and s > 0 and states.kind_cores[kind] == 100):
            return False
        if part.zero and c >= states.kind_cores[kind] > 0:
            return False
    return True


def _within_caps(desk: Desk, moves: dict[int, Spot]) -> bool:
    """The caps of a whole run allow this set of moves."""
    books = desk.scene.budget_books()
    for pod, spot in sorted(moves.items()):
        claim = desk.scene.claim(desk.shapes.pods[pod], desk.world.fleet.names[spot.node])
        if not (books.may_plan(claim).ok and books.ever_flies(claim).ok):
            return False
        books.take(claim)
        books.land(claim)
    return True


def _steps(world: World) -> int:
    """Steps of search where nobody sets a limit: enough for small clusters, few where single moves find nearly all."""
    devices = len(world.fleet.devices)
    if devices > SMALL_WORLD:
        return LARGE_STEPS.get(world.aim.name, 0) if devices <= LARGEST else 0
    return min(SMALL_STEPS, max(LEAST_STEPS, STEPS_PER_POD * len(world.home)))


def _why_not(desk: Desk, greedy: Greedy) -> list[Refusal]:
    """One reason for every movable pod that stays: over budget, no place, or no gain."""
    out: list[Refusal] = []
    scene, gains, shapes = desk.scene, greedy.gains, desk.shapes
    score, _ = greedy._best(False)
    reachable = (gains.arrive > -np.inf).sum(axis=1)
    total = scene.rules.budgets.total
    full = total is not None and len(greedy.moved) >= total
    for pod, value in enumerate(shapes.pods):
        if pod in greedy.moved:
            continue
        if pod in desk.refused:
            out.append(desk.refused[pod])
        elif reachable[shapes.shape[pod]] == 0 and gains.inside[pod] == -np.inf:
            out.append(Refusal(value.key, Reason.NO_PLACE, "no other device or node has room for it"))
        elif full and score[pod] > greedy.least:
            out.append(Refusal(value.key, Reason.OVER_BUDGET, f"budgets.total = {total} moves are planned already"))
        else:
            out.append(Refusal(value.key, Reason.NO_GAIN, "no other place for it improves the objective"))
    out += [Refusal(key, Reason.NOT_BOUND, why) for key, why in shapes.left_out.items()]
    return out
