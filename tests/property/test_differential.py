"""The product's fit and the tests' stand-in of HAMi were written apart: in random worlds they must say the same."""

from __future__ import annotations

import json
from random import Random

import pytest

from tests.differential.__main__ import main, run, verdicts
from tests.differential.shrink import shrink
from tests.differential.standin import StandIn
from tests.replay_traces import Tally
from tests.support.effort import amount


def agree(total: Tally, least: int) -> None:
    found = verdicts(total)
    assert not total.deviations, "\n".join(total.deviations[:3])
    assert found["equal"] >= least
    # a forecast that we decline is a refusal of something HAMi may accept
    assert found["declined"] <= 0.001 * found["equal"]


def test_two_readings_of_the_protocol_agree() -> None:
    agree(run(StandIn(), range(60), show=False), 700)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_thousand_verdicts_agree() -> None:
    """700 worlds are about 10,000 verdicts; DEFRAGD_FULL=1 asks them all."""
    worlds = amount(700, 140)
    agree(run(StandIn(), range(10_000, 10_000 + worlds), show=False), 13 * worlds)


class Forgetful(StandIn):
    """A HAMi that forgets every pod with two containers."""

    def answer(self, record: dict) -> dict:  # type: ignore[type-arg]
        kept = [p for p in record["pods"] if len(p["spec"]["containers"]) < 2]
        return {**super().answer({**record, "pods": kept}), "pods": record["pods"]}


def test_a_disagreement_is_shrunk_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    total = run(Forgetful(), range(100, 110))

    assert total.deviations
    first = capsys.readouterr().out.splitlines()
    assert first[0].startswith("seed 1")
    world = json.loads(first[1])
    assert len(world["pods"]) == 1, "the one pod that matters"
    assert len(world["pods"][0]["spec"]["containers"]) > 1
    assert len(world["queries"]) == len(world["nodes"]) == 1


def test_a_world_without_disagreement_stays() -> None:
    record = StandIn().world(Random(1))
    assert shrink(record, lambda _: "") == (record, "")


def test_the_tool_prints_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--worlds", "3", "--seed", "5"]) == 0
    assert "0 different, 0 declined, 3 worlds from seed 5" in capsys.readouterr().out
