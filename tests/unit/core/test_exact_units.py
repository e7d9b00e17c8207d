"""Moves of pods whose backend books other figures than were asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from defragd.core.reasons import Reason
from tests.support.plan_world import UNLIMITED, make_plan, world
from tests.support_table import CASES, build

BY_WORD = {case.word: case for case in CASES if not case.mig}


@pytest.mark.parametrize("word", ["AMD", "Vastai", "Biren", "Enflame", "kunlun"])
def test_the_move_is_booked_as_hami_books_it(word: str) -> None:
    case = build("2.10", BY_WORD[word])
    rules = replace(UNLIMITED, scope=replace(UNLIMITED.scope, vendors=(word,)))
    reply = make_plan(case.snapshot, "gpu-drain", {"device": case.expected[0].uuid}, rules=rules)
    assert [move.pod for move in reply.moves] == ["team/p"]
    assert case.expected[0].uuid not in reply.moves[0].target.devices


def test_what_cannot_be_pinned_stays() -> None:
    case = build("2.10", BY_WORD["GCU"])
    rules = replace(UNLIMITED, scope=replace(UNLIMITED.scope, vendors=("GCU",)))
    reply = make_plan(case.snapshot, "gpu-drain", {"device": case.expected[0].uuid}, rules=rules)
    assert not reply.moves
    assert reply.refused[-1].reason == Reason.VENDOR_NOT_PINNABLE


@pytest.mark.parametrize("pods", [0, 1])
def test_a_node_that_has_less_than_it_holds_is_no_obstacle(pods: int) -> None:
    """Its allocatable shrank under its pods: it may give pods away, and the search goes on."""
    snapshot = world("n1 { g0 24G: a 8G, b 4G; g1 24G: - } n2 { g0 24G: c 8G; g1 24G: - }")
    node = snapshot.nodes["n1"]
    small = replace(node, allocatable=replace(node.allocatable, pods=pods))
    reply = make_plan(replace(snapshot, nodes={**snapshot.nodes, "n1": small}), args={"objective": "devices"})
    assert reply.moves
    assert all(move.target.node != "n1" for move in reply.moves)
