"""The lane where calls run: order per key, answers, and how much may be decided ahead."""

from __future__ import annotations

import threading

import pytest

from defragd.controllers.lane import AHEAD, Done, InlineLane, PoolLane


def test_inline_runs_at_once_and_is_never_full() -> None:
    lane = InlineLane()
    lane.submit("a", lambda: 1)
    assert not lane.full()
    assert lane.collect() == [Done("a", 1)]


def test_a_pool_is_full_before_jobs_pile_up_and_takes_more_when_one_has_ended() -> None:
    go, lane = threading.Semaphore(0), PoolLane(2)
    for number in range(AHEAD * 2):
        assert not lane.full()
        lane.submit(f"job-{number}", lambda: go.acquire(timeout=10))
    assert lane.full()
    with pytest.raises(ValueError, match="busy"):
        lane.submit("job-0", lambda: None)
    go.release()
    lane.wait(10)
    assert len(lane.collect()) == 1
    assert not lane.full()
    for _ in range(AHEAD * 2):
        go.release()
    lane.close()
