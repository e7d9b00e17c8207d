"""Shortfall edges, generations, cycles and waves on hand-made steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from defragd.core.budget import Claim, Floor
from defragd.core.graph import Step, Yard, cycles, generations, shortfall_graph
from defragd.core.pdb import Ledger
from defragd.core.reasons import Reason
from defragd.core.rules import Budgets, Cap
from defragd.core.waves import order
from tests.support.plan_world import make_pod, world

FREE = Budgets(total=None, concurrent=None, per_source_node=Cap(), per_target_node=Cap(), per_namespace=Cap())

BOTH = Budgets(
    total=None,
    concurrent=None,
    per_source_node=Cap(),
    per_target_node=Cap(),
    per_namespace=Cap(),
    per_workload=Cap(),
)


def step(index: int, source: int, target: int, cores: int) -> Step:
    """A pod of ``cores`` percent from one device to another, each device a node of its own."""
    pod = make_pod(f"p{index}", f"1G/{cores}c")
    amounts = lambda d: {("slots", d): 1, ("memory", d): 1, ("cores", d): cores}
    return Step(
        index,
        pod,
        Claim(pod.key, f"W/{index}", "ns", f"n{source}", f"n{target}"),
        amounts(source),
        amounts(target),
        source_devices=frozenset([source]),
        target_devices=frozenset([target]),
    )


def yard(*free_cores: int) -> Yard:
    room = {}
    for device, cores in enumerate(free_cores):
        room |= {("slots", device): 5, ("memory", device): 100, ("cores", device): cores}
    return Yard(room, {d: set() for d in range(len(free_cores))})


def ordered(steps, room, budgets=FREE):
    snapshot = world("n1 { g0 24G: - }")
    ledger = Ledger.of(snapshot)
    return order(steps, room, budgets=budgets, ledger=ledger, floor=Floor.of(snapshot, ledger))


def test_no_edge_where_there_is_room():
    steps = [step(0, 0, 1, 40), step(1, 1, 2, 40)]
    assert not shortfall_graph(steps, yard(0, 40, 40)).edges


def test_edge_only_for_the_shortfall_largest_leaver_first():
    steps = [step(0, 0, 1, 50), step(1, 1, 2, 30), step(2, 1, 3, 60)]
    graph = shortfall_graph(steps, yard(0, 10, 100, 100))
    assert set(graph.edges) == {(2, 0)}
    assert generations(graph) == {1: 0, 2: 0, 0: 1}


def test_chain_becomes_waves_with_after():
    steps = [step(0, 0, 1, 50), step(1, 1, 2, 50), step(2, 2, 3, 50)]
    found = ordered(steps, yard(0, 0, 0, 50))
    assert found.waves == [[2], [1], [0]]
    assert found.after == {2: (), 1: (2,), 0: (1,)}


def test_swap_is_one_group():
    steps = [step(0, 0, 1, 50), step(1, 1, 0, 50)]
    assert cycles(shortfall_graph(steps, yard(0, 0))) == [[0, 1]]
    found = ordered(steps, yard(0, 0))
    assert found.waves == [[0, 1]]
    assert set(found.group) == {0, 1}
    assert found.dropped == {}


def test_swap_beyond_the_budget_is_dropped_with_its_reason():
    steps = [step(0, 0, 1, 50), step(1, 1, 0, 50), step(2, 2, 3, 10)]
    budgets = Budgets(total=None, concurrent=1)
    found = ordered(steps, yard(0, 0, 0, 50), budgets)
    assert found.waves == [[2]]
    assert {reason for reason, _ in found.dropped.values()} == {Reason.CYCLE_NEEDS_BOTH_OUT}


def test_arrivals_on_one_node_go_one_after_another():
    steps = [step(0, 0, 3, 10), step(1, 1, 3, 10), step(2, 2, 3, 10)]
    budgets = Budgets(total=None, concurrent=None, per_target_node=Cap(in_flight=1))
    assert [len(w) for w in ordered(steps, yard(0, 0, 0, 100), budgets).waves] == [1, 1, 1]


def test_what_needs_room_freed_in_the_wave_waits_for_the_next():
    steps = [step(0, 0, 1, 50), step(1, 1, 2, 50)]
    assert ordered(steps, yard(0, 20, 100)).waves == [[1], [0]]
    assert ordered(steps, yard(0, 50, 100)).waves == [[0, 1]]


def test_a_leaver_that_covers_the_shortfall_to_the_point_is_enough():
    steps = [step(0, 0, 1, 40), step(1, 1, 2, 30), step(2, 1, 3, 30)]
    assert set(shortfall_graph(steps, yard(0, 10, 100, 100)).edges) == {(1, 0)}


def test_a_pod_for_itself_waits_for_all_on_its_device_that_it_may_wait_for():
    wants = replace(step(0, 0, 1, 10), whole=frozenset([1]))
    steps = [wants, step(1, 1, 2, 10), step(2, 1, 3, 10)]
    room = yard(50, 50, 50, 50)
    assert set(shortfall_graph(steps, room).edges) == {(1, 0), (2, 0)}
    assert set(shortfall_graph(steps, room, sources=[(2,), (), ()]).edges) == {(2, 0)}


@pytest.mark.parametrize("gain", [0.0, 1.0])
def test_a_pod_without_cores_and_the_one_that_takes_the_last_do_not_arrive_together(gain):
    idle_wish = replace(step(0, 0, 2, 0), zero=frozenset([2]), gain=gain)
    last = replace(step(1, 1, 2, 40), gain=0.5)
    found = ordered([idle_wish, last], yard(50, 50, 40), BOTH)
    assert all(len(wave) == 1 for wave in found.waves)
    roomy = ordered([idle_wish, last], yard(50, 50, 50), BOTH)
    assert len(roomy.waves) == 1


@pytest.mark.parametrize("gain", [0.0, 1.0])
def test_a_pod_that_wants_an_empty_device_shares_no_wave_with_another_arrival_there(gain):
    first = replace(step(0, 0, 2, 10), alone=frozenset([2]), gain=gain)
    found = ordered([first, replace(step(1, 1, 2, 10), gain=0.5)], yard(50, 50, 90), BOTH)
    assert all(len(wave) == 1 for wave in found.waves)


def test_two_that_need_the_last_cores_are_not_stopped_by_a_third_elsewhere():
    steps = [step(0, 0, 2, 40), step(1, 1, 2, 40), replace(step(2, 3, 4, 0), zero=frozenset([4]))]
    found = ordered(steps, yard(50, 50, 80, 50, 10), BOTH)
    assert found.waves == [[0, 1, 2]]
