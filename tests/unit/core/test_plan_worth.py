"""What counts as better: loss first, then idle devices, then idle nodes; and nothing moves for nothing."""

from __future__ import annotations

import pytest

from defragd.core.desk import Desk
from defragd.core.plan import Place, PlanRequest
from defragd.core.planner import make_scene
from defragd.hami.vendors import VENDORS
from defragd.strategies.gpu_drain import freed, leanest
from tests.support.plan_world import NOW, UNLIMITED, make_plan, world


def test_a_large_node_is_not_emptied_into_more_small_ones():
    reply = make_plan(
        world("n0 { g0 24G: -; g1 24G: a 4G/10c; g2 24G: b whole } n1 { g0 24G: - } n2 { g0 24G: - }"), max_steps=60
    )
    assert reply.moves == ()
    assert {item.object for item in reply.refused} >= {"ns/a", "ns/b"}


@pytest.mark.parametrize("nodes", ["n0 n1", "n1 n0"])
def test_of_two_nodes_that_could_come_free_the_larger_does(nodes):
    large, small = nodes.split()
    text = f"{large} {{ g0 24G: -; g1 24G: a 4G/10c }} {small} {{ g0 24G: b 4G/10c }} n2 {{ g0 24G: c 18G/80c }}"
    reply = make_plan(world(text), max_steps=0)
    assert [(m.pod, m.target.node) for m in reply.moves] == [("ns/a", "n2")]
    assert reply.after.loss == reply.before.loss
    assert reply.freed_nodes == 1


def test_moves_that_free_nothing_are_taken_back():
    snapshot = world("n1 { g0 24G: a 4G/10c; g1 24G: b 6G/20c; g2 24G: c 4G/10c } n2 { g0 24G: d 4G/10c, e 4G/10c }")
    request = PlanRequest(snapshot, "p", "gpu-drain", {}, UNLIMITED, NOW, vendors=VENDORS)
    scene = make_scene(request, None, drain=True, should_stop=lambda: False)
    to_b, beside_b = Place("n1", ("GPU-n1-g1",)), ("ns/d", Place("n1", ("GPU-n1-g1",)))
    moves = (("ns/a", to_b), beside_b)
    assert freed(scene, moves) == 1
    assert leanest(scene, moves, 1) == (("ns/a", to_b),)
    assert set(leanest(scene, (*moves, ("ns/c", to_b)), 2)) == {("ns/a", to_b), ("ns/c", to_b)}


def test_a_pull_towards_few_full_devices():
    def value(text: str) -> float:
        request = PlanRequest(world(text), "p", "gpu-drain", {}, UNLIMITED, NOW, vendors=VENDORS)
        return Desk(make_scene(request, None, drain=True, should_stop=lambda: False), "empty").world.value

    halves = value("n1 { g0 24G: a 12G/50c; g1 24G: b 12G/50c }")
    uneven = value("n1 { g0 24G: a 4G/10c; g1 24G: b 20G/90c }")
    idle = value("n1 { g0 24G: a 12G/50c, b 12G/50c; g1 24G: - }")
    assert halves < uneven < idle
