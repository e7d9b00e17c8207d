"""The product's fit and the tests' stand-in of HAMi were written apart: in random worlds they must say the same."""

from __future__ import annotations

from random import Random

import pytest

from tests.ground.hami.generate import world
from tests.replay_traces import Tally, World


@pytest.mark.parametrize("seed", range(8))
def test_two_readings_of_the_protocol_agree(seed: int) -> None:
    random, tally = Random(seed), Tally()

    for _ in range(40):
        World(world(random), tally).run()

    assert sum(sum(counts.values()) for counts in tally.counts.values()) > 200
    assert not tally.deviations, "\n".join(tally.deviations[:3])
