"""Brute force as the judge: on tiny worlds every assignment is looked at, and the planner must reach the best loss.

The worlds come from fixed seeds, so a failure is always one of the planner's. The long run is a sample.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product

import pytest

from defragd.core.arrays import build_arena
from defragd.core.mix import running_mix
from defragd.core.model import Pod
from defragd.core.rules import Budgets, Cap
from defragd.core.score import loss_of, measure
from defragd.core.snapshot import Snapshot
from defragd.core.yardstick import make_yardstick
from tests.support.effort import amount
from tests.support.plan_world import UNLIMITED, make_plan, world

WORLDS = amount(500, 40)
SIZES = ("4G/10c", "8G/20c", "10G/40c", "12G/50c", "16G/15c", "6G", "whole")
MOST_PODS, MOST_STATES = 6, 20_000


def tiny(seed: int) -> Snapshot:
    """Two or three nodes of one or two devices and at most six pods, one of which may hold two devices."""
    dice = random.Random(seed)
    lines, number = [], 0
    for n in range(dice.randint(2, 3)):
        devices = dice.randint(1, 2)
        wide = devices == 2 and dice.random() < 0.15
        parts = []
        for g in range(devices):
            on, memory, cores = [], 24, 100
            for _ in range(dice.randint(0, 3)):
                size = dice.choice(SIZES)
                gib, _, share = size.removesuffix("c").partition("/")
                need, percent = (24, 100) if size == "whole" else (int(gib.removesuffix("G")), int(share or 0))
                if wide or number == MOST_PODS or need > memory or percent > cores or cores <= 0:
                    continue
                number, memory, cores = number + 1, memory - need, cores - percent
                on.append(f"p{number} {size}")
            parts.append(f"g{g} 24G: {', '.join(on) or '-'}")
        if wide and number < MOST_PODS:
            number += 1
            parts = [f"g0 24G: p{number} 2x8G/20c", f"g1 24G: p{number} 2x8G/20c"]
        lines.append(f"n{n} {{ {'; '.join(parts)} }}")
    return world(" ".join(lines))


def places(snapshot: Snapshot, pod: Pod) -> Iterator[tuple[str, ...]]:
    """Every set of devices of one node, as many as the pod holds; where it is comes first."""
    yield pod.devices
    for node in snapshot.nodes.values():
        for chosen in combinations([d.uuid for d in node.devices], len(pod.devices)):
            if set(chosen) != set(pod.devices):
                yield chosen


def best_loss(snapshot: Snapshot, most: int | None) -> float:
    """The least loss of any feasible assignment with at most ``most`` pods elsewhere, pools as before."""
    arena = build_arena(snapshot)
    yard = make_yardstick(running_mix(snapshot), arena.fleet, arena.books)
    pods = [pod for pod in snapshot.pods.values() if pod.allocations]
    index = arena.fleet.device_index
    options = [list(places(snapshot, pod)) for pod in pods]
    best: dict[tuple[tuple[int, ...], ...], float] = {}
    for chosen in product(*options):
        if most is not None and sum(c != o[0] for c, o in zip(chosen, options, strict=True)) > most:
            continue
        use = [[0, 0, 0, 0] for _ in index]
        for pod, uuids in zip(pods, chosen, strict=True):
            ask = pod.requests[0]
            for uuid in uuids:
                row = use[index[uuid]]
                row[0] += 1
                row[1] += ask.memory_on(snapshot.devices[uuid])
                row[2] += ask.cores
                row[3] += ask.cores == 100
        key = tuple(tuple(row) for row in use)
        if key in best:
            continue
        alone = all(row[0] == 1 or not row[3] for row in use)
        # HAMi refuses a pod without cores where all cores are taken, and so might the order of arrival: not judged
        full = any(row[2] >= 100 and row[0] > 1 for row in use)
        if not alone or full or any(row[1] > 24 * 1024 or row[2] > 100 for row in use):
            best[key] = 2.0
            continue
        books = arena.books.copy()
        for device, row in enumerate(use):
            books.slots[device], books.memory[device], books.cores[device] = row[:3]
        best[key] = loss_of(yard, measure(arena.fleet, books, yard).copies.sum(axis=0))
    return min(best.values())


def judge(seed: int, most: int | None) -> bool:
    """False: the world is too large, or full in a way that the judge does not judge."""
    snapshot = tiny(seed)
    pods = [pod for pod in snapshot.pods.values() if pod.allocations]
    states = 1
    for pod in pods:
        states *= len(list(places(snapshot, pod)))
    if not pods or states > MOST_STATES:
        return False
    before = make_plan(snapshot, max_steps=0).before.loss
    wanted = best_loss(snapshot, most)
    if wanted > before - 1e-9:
        return False
    budgets = Budgets(
        total=most,
        concurrent=None,
        per_source_node=Cap(),
        per_target_node=Cap(),
        per_namespace=Cap(),
        per_workload=Cap(),
    )
    reply = make_plan(snapshot, rules=replace(UNLIMITED, budgets=budgets), args={"useIdleNodes": True})
    assert reply.after.loss <= wanted + 1e-9, f"seed {seed}: {reply.after.loss} where {wanted} is possible"
    return True


def test_the_judge_knows_a_simple_world():
    snapshot = world("n1 { g0 24G: a 12G/50c; g1 24G: b 12G/50c, c 8G/20c } n2 { g0 24G: d whole }")
    assert best_loss(snapshot, 0) == pytest.approx(make_plan(snapshot, max_steps=0).before.loss)
    assert best_loss(snapshot, None) <= best_loss(snapshot, 1) <= best_loss(snapshot, 0)


@pytest.mark.parametrize("most", [None, 2])
def test_the_best_of_all_assignments_is_reached(most):
    assert sum(judge(seed, most) for seed in range(6)) >= 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("most", [None, 1, 3])
def test_the_best_of_all_assignments_is_reached_in_many_worlds(most):
    judged = sum(judge(seed, most) for seed in range(1000, 1000 + WORLDS))
    assert judged >= WORLDS / 50
