"""The plan-level user cases, each as the smallest state that shows the symptom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from defragd.core.reasons import Reason
from defragd.core.rules import Budgets, Cap, Gain, MixClass
from tests.support.plan_world import UNLIMITED, make_plan, world


def moved(reply) -> set[str]:
    return {m.pod for m in reply.moves}


def test_enough_in_sum_too_little_on_any_device():
    reply = make_plan(world("n1 { g0 24G: a 10G; g1 24G: b 10G }", pending="c 20G"))
    assert len(reply.moves) == 1
    move = reply.moves[0]
    assert move.source.node == move.target.node == "n1"
    assert move.source.devices != move.target.devices
    assert reply.freed_devices == 1
    assert "idle device memory: 28 GiB in sum, largest hole 14 GiB -> 24 GiB" in reply.notes


@pytest.mark.parametrize("strategy", ["make-room"])
def test_room_for_a_four_device_job_takes_two_moves(strategy):
    def node(name: str, *pods: str) -> str:
        """Eight devices, the pods (name and number of whole devices) from the left."""
        held = [f"{pod[:2]} {pod[2:]}xwhole" for pod in pods for _ in range(int(pod[2:]))]
        held += ["-"] * (8 - len(held))
        return f"{name} {{ " + "; ".join(f"g{i} 24G: {what}" for i, what in enumerate(held)) + " } "

    text = node("n1", "p44", "p22", "p11") + node("n2", "q44", "q22") + node("n3", "r44", "r22", "r11")
    snapshot = world(text, pending="z 4xwhole")
    reply = make_plan(snapshot, strategy)
    assert len(reply.moves) == 2, reply.moves
    assert moved(reply) in ({"ns/p2", "ns/p1"}, {"ns/r2", "ns/r1"}, {"ns/p1", "ns/q2"}, {"ns/r1", "ns/q2"})


def test_one_pod_too_big_for_any_balance_stays():
    reply = make_plan(world("n1 { g0 24G: x 20G } n2 { g0 24G: - }"))
    assert reply.moves == ()
    assert reply.stopped == "complete"


def test_eight_light_nodes_become_two_full_ones():
    text = "".join(f"n{i} {{ g0 24G: p{i} 6G }}" for i in range(8))
    first, second = make_plan(world(text)), make_plan(world(text))
    assert len(first.moves) == 6
    assert first.freed_nodes == first.freed_devices == 6
    assert first == second


def test_unhealthy_device_is_left_and_never_a_target():
    snapshot = world("n1 { g0 24G unhealthy: a 8G; g1 24G: b 8G } n2 { g0 24G: c 12G; g1 24G unhealthy: - }")
    for args in ({"device": "n1/gpu-0"}, {"device": "GPU-n1-g0"}, {"unhealthy": True}):
        reply = make_plan(snapshot, "gpu-drain", args)
        assert moved(reply) == {"ns/a"}
        assert reply.moves[0].target.devices[0] in ("GPU-n1-g1", "GPU-n2-g0")


def test_cost_decides_who_makes_room():
    snapshot = world("n1 { g0 24G: h 10G; g1 24G: l 10G }", pending="z 20G")
    pods = dict(snapshot.pods)
    pods["ns/h"] = replace(pods["ns/h"], priority=1000)
    snapshot = replace(snapshot, pods=pods)
    for strategy in ("make-room", "best-fit"):
        reply = make_plan(snapshot, strategy, history={"ReplicaSet/ns/h": 2})
        assert moved(reply) == {"ns/l"}, strategy


def test_caps_of_a_run_take_the_best_and_name_the_cap():
    text = "".join(f"n{i} {{ g0 24G: a{i} 8G; g1 24G: b{i} 8G }}" for i in range(6))
    rules = replace(UNLIMITED, budgets=replace(UNLIMITED.budgets, total=3, per_source_node=Cap(per_run=1)))
    reply = make_plan(world(text), rules=rules)
    assert len(reply.moves) == 3
    assert len({m.source.node for m in reply.moves}) == 3
    over = [r for r in reply.refused if r.reason == Reason.OVER_BUDGET]
    assert over
    assert all("budgets." in r.detail for r in over)


WHOLE_NODES = (
    "n1 { g0 24G: a1 whole; g1 24G: a2 whole; g2 24G: -; g3 24G: - }"
    "n2 { g0 24G: b1 whole; g1 24G: -; g2 24G: -; g3 24G: - }"
    "n3 { g0 24G: c1 whole; g1 24G: c2 whole; g2 24G: -; g3 24G: - }"
    "n4 { g0 24G: d1 whole; g1 24G: d2 whole; g2 24G: -; g3 24G: - }"
)


def test_two_whole_nodes_take_three_moves():
    reply = make_plan(world(WHOLE_NODES), "node-drain", {"count": 2})
    assert len(reply.moves) == 3
    assert reply.freed_nodes == 2
    assert "ns/b1" in moved(reply)


def test_three_whole_nodes_are_impossible_and_said_so():
    reply = make_plan(world(WHOLE_NODES), "node-drain", {"count": 3})
    assert reply.moves == ()
    assert reply.stopped == "infeasible"
    assert any("2 of 3" in note for note in reply.notes)
    partial = make_plan(world(WHOLE_NODES), "node-drain", {"count": 3}, rules=replace(UNLIMITED, partial=True))
    assert partial.freed_nodes == 2


def test_two_devices_need_the_same_room_on_each():
    reply = make_plan(world("n1 { g0 40G: a 20G, b 10G; g1 40G: c 10G }", pending="m 2x20G"), "make-room")
    assert [(m.pod, m.target.devices) for m in reply.moves] == [("ns/b", ("GPU-n1-g1",))]


def test_two_shares_need_two_devices():
    snapshot = world("n1 { g0 24G: -; g1 24G: a 20G } n2 { g0 24G: - }", pending="m 2x10G")
    reply = make_plan(snapshot, "make-room")
    assert [(m.pod, m.target.node) for m in reply.moves] == [("ns/a", "n2")]


def mixed(mib: int, cores: int):
    return replace(UNLIMITED, gain=Gain(expected_mix=(MixClass(0, 0, 1, cores, 0, mib, weight=1.0),)))


def copies(reply) -> tuple[int, int]:
    return reply.before.classes[0].fits, reply.after.classes[0].fits


def test_full_in_one_dimension_is_exchanged():
    text = "n1 { g0 24G: a1 11G/10c, a2 11G/10c } n2 { g0 24G: b1 2G/45c, b2 2G/45c }"
    reply = make_plan(world(text), rules=mixed(10 * 1024, 40))
    assert copies(reply) == (0, 2)
    assert len(reply.moves) == 2
    assert not any(m.group for m in reply.moves)


STUCK = "n1 { g0 24G: a1 11G/15c, a2 11G/15c } n2 { g0 24G: b1 3G/45c, b2 3G/45c }"


def test_exchange_where_neither_can_go_first_is_one_group():
    reply = make_plan(world(STUCK), rules=mixed(10 * 1024, 40))
    assert copies(reply) == (0, 2)
    assert len(reply.waves) == 1
    assert len({m.group for m in reply.moves}) == 1
    assert reply.moves[0].group


@pytest.mark.parametrize("budgets", [{"a1": 0, "a2": 0}, None])
def test_group_that_no_limit_can_bear_is_not_made(budgets):
    rules = mixed(10 * 1024, 40)
    if budgets is None:
        rules = replace(rules, budgets=replace(rules.budgets, concurrent=1))
    reply = make_plan(world(STUCK, budgets=budgets), rules=rules)
    assert reply.moves == ()
    if budgets is None:
        bound = [item for item in reply.refused if item.reason == Reason.CYCLE_NEEDS_BOTH_OUT]
        assert len(bound) >= 2 and all("budgets.concurrent = 1" in item.detail for item in bound)


@pytest.mark.parametrize(("cap", "together"), [(Cap(in_flight=1), 0), (Cap(in_flight=2), 2), (Cap(), 2)])
def test_an_exchange_within_a_node_needs_two_arrivals_there(cap, together):
    rules = mixed(10 * 1024, 40)
    rules = replace(rules, budgets=replace(rules.budgets, per_target_node=cap))
    one_node = "n1 { g0 24G: a1 11G/15c, a2 11G/15c; g1 24G: b1 3G/45c, b2 3G/45c }"
    reply = make_plan(world(one_node), rules=rules)
    assert len(reply.moves) == together
    assert all(move.group for move in reply.moves)
    why = [item.detail for item in reply.refused if item.reason == Reason.CYCLE_NEEDS_BOTH_OUT]
    assert bool(why) == (not together)
    assert all("perTargetNode" in text and "n1" in text for text in why)


def test_third_device_is_a_buffer():
    rules = mixed(10 * 1024, 40)
    rules = replace(rules, budgets=replace(rules.budgets, concurrent=1))
    reply = make_plan(world(STUCK + " n3 { g0 24G: - }"), rules=rules)
    assert copies(reply)[1] == 4
    assert len(reply.moves) == 3
    assert not any(m.group for m in reply.moves)


def test_default_budgets_bound_the_waves():
    text = "".join(f"n{i} {{ g0 24G: p{i} 6G }}" for i in range(8))
    reply = make_plan(world(text), rules=replace(UNLIMITED, budgets=Budgets()))
    for wave in reply.waves:
        targets = [m.target.node for m in reply.moves if m.id in wave]
        assert len(targets) == len(set(targets))
        assert len(wave) <= 5


def test_drain_names_who_stands_in_the_way():
    snapshot = world("n1 { g0 24G: a 8G; g1 24G: c 20G } n2 { g0 24G: b 12G }")
    reply = make_plan(snapshot, "node-drain", {"node": "n1"})
    assert reply.moves == ()
    assert reply.stopped == "infeasible"
    blocker = next(r for r in reply.refused if r.object == "ns/c")
    assert blocker.reason == Reason.NO_PLACE
    assert "memory" in blocker.detail
    partly = make_plan(snapshot, "node-drain", {"node": "n1", "allOrNothing": False})
    assert moved(partly) == {"ns/a"}


def test_wished_shape_in_plain_numbers():
    snapshot = world("n1 { g0 24G: a 8G; g1 24G: b 8G } n2 { g0 24G: c 12G; g1 24G: d 12G }")
    reply = make_plan(snapshot, "make-room", {"shape": {"gpus": 1, "memMiB": 20480, "cores": 10}})
    assert len(reply.moves) == 1
    assert reply.moves[0].pod in ("ns/a", "ns/b", "ns/c", "ns/d")


def test_a_pod_of_an_open_placement_is_not_planned_again():
    snapshot = replace(world("n1 { g0 24G: a 8G } n2 { g0 24G: b 8G }"), moving={"ns/a": "ns/pin-a"})
    reply = make_plan(snapshot)
    assert moved(reply) <= {"ns/b"}
    assert {item.object: item.reason for item in reply.refused}["ns/a"] == Reason.ALREADY_MOVING


def test_owners_that_were_not_read_are_said():
    snapshot = world("n1 { g0 24G: a 8G }")
    bare = replace(snapshot, workloads={}, known=snapshot.known - {"workloads"})
    assert any(item.object == "ReplicaSet/*" for item in make_plan(bare).warnings)
    assert not any(item.object == "ReplicaSet/*" for item in make_plan(snapshot).warnings)


def test_a_pod_on_a_node_that_was_not_read_stays():
    snapshot = world("n1 { g0 24G: a 8G } n2 { g0 24G: b 8G }")
    reply = make_plan(replace(snapshot, nodes={"n2": snapshot.nodes["n2"]}))
    assert {item.object: item.reason for item in reply.refused}["ns/a"] == Reason.NODE_UNKNOWN
