"""What counts as better: loss first, then idle devices, then idle nodes; and nothing moves for nothing."""

from __future__ import annotations

import pytest

from tests.support.plan_world import make_plan, world


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
