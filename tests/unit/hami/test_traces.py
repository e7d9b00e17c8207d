"""Decisions recorded from the real HAMi scheduler: every one of them must be ours too."""

from __future__ import annotations

import pytest

from tests.replay_traces import DATA, replay

FILES = sorted(DATA.glob("*.jsonl.gz"))


def test_there_are_traces() -> None:
    assert len(FILES) == 20


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name.removesuffix(".jsonl.gz"))
def test_every_recorded_decision_is_ours(path) -> None:
    tally = replay([path])
    asked = sum(sum(counts.values()) for counts in tally.counts.values())
    assert asked >= 40
    assert tally.deviations == []
