"""Oscillation (UC-35): when the breaker opens, for which pools, how long, and how it is lifted."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from defragd.core.breaker import BREAKER, OPEN_FOR, closed_nodes, judge, keeps, marks, open_breakers, states_of
from defragd.core.plan import Move, Place
from defragd.core.plan_json import move_to_json
from defragd.core.reasons import Reason
from defragd.core.run import MoveState, Run, RunMove, RunPhase
from defragd.core.snapshot import Snapshot
from tests.support.plan_world import NOW, world

S1 = "n1 { g0 24G: a 10G; g1 24G: b 10G } n2 { g0 24G: c 10G }"
S2 = "n1 { g0 24G: a 10G; g1 24G: - } n2 { g0 24G: c 10G, b 10G }"
MOVE = Move(
    "m1", "ns/b", "uid-b", Place("n1", ("GPU-n1-g1",)), Place("n2", ("GPU-n2-g0",)), wave=1, workload="ReplicaSet/ns/b"
)


def pool(node: object) -> str:
    return "A30"


def run(
    name: str,
    hours_ago: float,
    snapshot: Snapshot,
    *,
    state: MoveState = MoveState.DONE,
    policy: str = "p",
    **more: object,
) -> Run:
    made = Run(
        "ns",
        name,
        policy,
        "Auto",
        "best-fit",
        plan={"moves": [move_to_json(MOVE)]},
        phase=RunPhase.COMPLETED,
        moves=(RunMove("m1", state),),
        created=NOW - timedelta(hours=hours_ago),
        annotations=marks(snapshot, [MOVE], pool),
    )
    return replace(made, **more)  # type: ignore[arg-type]


def opener(hours_ago: float, **more: object) -> Run:
    made = run("stop", hours_ago, world(S1), state=MoveState.DROPPED, annotations={BREAKER: "A30"})
    return replace(made, reason=str(Reason.BREAKER_OPEN), message="b goes in circles", **more)  # type: ignore[arg-type]


KNOWN, OTHER = world(S1), world(S2)
TWICE = [run("r1", 20, KNOWN), run("r2", 10, KNOWN)]


@pytest.mark.parametrize(
    ("runs", "opens"),
    [
        pytest.param([], False, id="nothing known"),
        pytest.param(TWICE[:1], False, id="first return: once is chance"),
        pytest.param(TWICE, True, id="second return"),
        pytest.param([run("r1", 20, KNOWN, policy="q"), TWICE[1]], True, id="moved by two policies"),
        pytest.param([run("r1", 20, OTHER), TWICE[1]], False, id="from another state"),
        pytest.param([run("r1", 20, KNOWN, state=MoveState.FAILED), TWICE[1]], False, id="not moved"),
        pytest.param([run("r1", 24 * 8, KNOWN), TWICE[1]], False, id="long ago"),
        pytest.param([*TWICE, opener(5)], False, id="before the last opening does not count"),
        pytest.param([opener(30), *TWICE], True, id="again after it was lifted"),
        pytest.param([replace(TWICE[0], annotations={"defragd.io/states": "{"}), TWICE[1]], False, id="garbage"),
    ],
)
def test_judge(runs: list[Run], opens: bool) -> None:
    opening = judge(runs, KNOWN, [MOVE], NOW, pool)
    assert (opening is not None) is opens
    if opening is not None:
        assert opening.pools == ("A30",)
        assert all(word in opening.text for word in ("ns/b", "r1", "r2", "on n1", "on n2", "third time in state"))


def test_other_workloads_do_not_hide_a_return() -> None:
    changed = world("n1 { g0 24G: x 4G; g1 24G: b 10G } n2 { g0 24G: y 10G }")
    assert judge(TWICE, changed, [MOVE], NOW, pool) is not None


def test_states_know_places_not_names() -> None:
    pods = {f"ns/{i}": replace(p, name=f"p{i}", uid=f"u{i}") for i, p in enumerate(KNOWN.pods.values())}
    key = ["ReplicaSet/ns/b"]
    assert states_of(replace(KNOWN, pods=pods), key) == states_of(KNOWN, key)
    assert states_of(OTHER, key) != states_of(KNOWN, key)


@pytest.mark.parametrize(
    ("runs", "open_"),
    [
        pytest.param([opener(1)], True, id="open"),
        pytest.param([opener(25)], False, id="timed out"),
        pytest.param([opener(1, desired="Approved")], False, id="lifted"),
        pytest.param([opener(1, desired="Cancelled")], True, id="another wish does not lift it"),
        pytest.param([opener(1, annotations={})], False, id="a refusal does not prolong it"),
    ],
)
def test_open(runs: list[Run], open_: bool) -> None:
    found = open_breakers(runs, NOW)
    assert ("A30" in found) is open_
    closed = closed_nodes(KNOWN, found, pool)
    assert set(closed) == ({"n1", "n2"} if open_ else set())
    for why in closed.values():
        assert "run stop" in why
        assert "goes in circles" in why


def test_another_pool_goes_on() -> None:
    pools = {"n1": "A30", "n2": "T4"}
    assert set(closed_nodes(KNOWN, open_breakers([opener(1)], NOW), lambda node: pools[node.name])) == {"n1"}


def test_records_that_hold_it_open_are_kept() -> None:
    assert keeps(opener(1), NOW)
    assert not keeps(opener(25), NOW)
    assert not keeps(run("r", 1, KNOWN), NOW)
    assert timedelta(hours=24) == OPEN_FOR


def test_pods_that_go_in_circles_by_turns() -> None:
    """Once a is moved, once b, and the pool is as before each time: the pool's own digest sees it."""
    other = replace(MOVE, pod="ns/a", uid="uid-a", source=Place("n1", ("GPU-n1-g0",)), workload="ReplicaSet/ns/a")
    first = run("r1", 20, KNOWN)
    second = replace(
        run("r2", 10, KNOWN), plan={"moves": [move_to_json(other)]}, annotations=marks(KNOWN, [other], pool)
    )
    opening = judge([first, second], KNOWN, [MOVE], NOW, pool)
    assert opening is not None
    assert "pool A30 is for the third time in state" in opening.text
    assert "ns/a" in opening.text
    assert judge([first, second], world(S1.replace("c 10G", "y 10G")), [MOVE], NOW, pool) is None
