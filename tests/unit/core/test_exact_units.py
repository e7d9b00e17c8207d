"""Moves of pods whose backend books other figures than were asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from defragd.core.reasons import Reason
from tests.support.plan_world import UNLIMITED, make_plan
from tests.support_table import CASES, build

BY_WORD = {case.word: case for case in CASES if not case.mig}


@pytest.mark.parametrize("word", ["AMD", "Vastai", "Biren", "Enflame", "kunlun"])
def test_the_move_is_booked_as_hami_books_it(word: str) -> None:
    world = build("2.10", BY_WORD[word])
    rules = replace(UNLIMITED, scope=replace(UNLIMITED.scope, vendors=(word,)))
    reply = make_plan(world.snapshot, "gpu-drain", {"device": world.expected[0].uuid}, rules=rules)
    assert [move.pod for move in reply.moves] == ["team/p"]
    assert world.expected[0].uuid not in reply.moves[0].target.devices


def test_what_cannot_be_pinned_stays() -> None:
    world = build("2.10", BY_WORD["GCU"])
    rules = replace(UNLIMITED, scope=replace(UNLIMITED.scope, vendors=("GCU",)))
    reply = make_plan(world.snapshot, "gpu-drain", {"device": world.expected[0].uuid}, rules=rules)
    assert not reply.moves
    assert reply.refused[-1].reason == Reason.VENDOR_NOT_PINNABLE
