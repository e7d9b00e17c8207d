"""Oscillation: when the breaker opens, for whom, how long, and how it is lifted."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from defragd.core.breaker import OPEN_FOR, STATE, digest, judge, keeps
from defragd.core.reasons import Reason
from defragd.core.run import MoveState, Run, RunMove, RunPhase
from defragd.sim.clock import EPOCH
from defragd.sim.world import App, build, node

NOW = EPOCH


def run(name: str, *, state: str = "A", hours_ago: float = 2, done: int = 1, policy: str = "p") -> Run:
    return Run(
        "ns",
        name,
        policy,
        "Auto",
        "best-fit",
        phase=RunPhase.COMPLETED,
        moves=tuple(RunMove(f"m{i}", MoveState.DONE) for i in range(done)),
        created=NOW - timedelta(hours=hours_ago),
        annotations={STATE: state} if state else {},
    )


def opener(hours_ago: float, **more: object) -> Run:
    made = replace(run("stop", done=0, hours_ago=hours_ago), reason=str(Reason.BREAKER_OPEN), message="again as before")
    return replace(made, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("runs", "open_"),
    [
        pytest.param([], False, id="nothing known"),
        pytest.param([run("r", state="B")], False, id="another state"),
        pytest.param([run("r")], True, id="the state is back after a move"),
        pytest.param([run("r", policy="other")], True, id="moved by another policy"),
        pytest.param([run("r", done=0)], False, id="nothing was moved from it"),
        pytest.param([run("r", hours_ago=24 * 8)], False, id="long ago"),
        pytest.param([run("r", hours_ago=30), opener(1)], True, id="open"),
        pytest.param([run("r", hours_ago=30), opener(25)], False, id="timed out, old runs do not open it again"),
        pytest.param([run("r", hours_ago=30), opener(1, desired="Approved")], False, id="lifted"),
        pytest.param([run("r", hours_ago=0.5), opener(1, desired="Approved")], True, id="again after it was lifted"),
        pytest.param([opener(1, annotations={})], False, id="a refusal does not prolong it"),
        pytest.param([opener(1, policy="other")], False, id="another policy's breaker"),
    ],
)
def test_judge(runs: list[Run], open_: bool) -> None:
    permit = judge(runs, "p", "A", NOW)
    assert permit.ok is not open_
    assert permit.ok or (permit.reason is Reason.BREAKER_OPEN and permit.detail)


def test_an_open_breaker_names_the_way_out() -> None:
    permit = judge([opener(1)], "p", "Z", NOW)
    assert permit.cap == "open"
    assert "again as before" in permit.detail
    assert "run stop" in permit.detail


def test_records_that_hold_it_open_are_kept() -> None:
    assert keeps(opener(1), NOW)
    assert not keeps(opener(25), NOW)
    assert not keeps(run("r"), NOW)
    assert timedelta(hours=24) == OPEN_FOR


def test_digest_knows_places_not_names() -> None:
    nodes = [node("n1", 2), node("n2", 2)]
    world = build(nodes, [App("a", [("n1", 0), ("n2", 0)])])
    moved = build(nodes, [App("a", [("n1", 0), ("n2", 1)])])
    pods = {f"default/x{i}": replace(p, name=f"x{i}", uid=f"u{i}") for i, p in enumerate(world.pods.values())}
    assert digest(replace(world, pods=pods)) == digest(world)
    assert digest(moved) != digest(world)
