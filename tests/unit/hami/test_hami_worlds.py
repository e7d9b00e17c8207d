"""What HAMi's own scheduler answered in random worlds is what we answer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.differential.__main__ import judge, verdicts
from tests.replay_traces import records

WORLDS = sorted((Path(__file__).resolve().parents[2] / "data" / "hami-worlds").glob("*.jsonl.gz"))


@pytest.mark.parametrize("path", WORLDS, ids=lambda path: path.name)
def test_every_answer_is_ours(path: Path) -> None:
    counted: Counter[str] = Counter()
    wrong: list[str] = []
    for record in records(path):
        tally = judge(record)
        counted += verdicts(tally)
        wrong += tally.deviations
    assert not wrong, "\n".join(wrong[:3])
    assert counted["equal"] > 1000
    assert counted["declined"] <= 0.02 * counted["equal"]
