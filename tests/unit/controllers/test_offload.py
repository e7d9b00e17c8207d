"""The planner in a child process: answers, stops in time, and takes nothing down when it dies."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from defragd.controllers import offload
from defragd.controllers.offload import ChildPlanner, PlanFailed, plan_here
from defragd.core.plan import PlanRequest
from defragd.core.strategy import Proposal, Scene
from defragd.hami.vendors import VENDORS
from defragd.sim.clock import EPOCH
from defragd.sim.world import App, build, node


@dataclass(frozen=True)
class NoArgs:
    """Nothing to say."""


@dataclass(frozen=True)
class Acting:
    """A strategy that does what the test wants."""

    name: str
    act: Callable[[Scene], Proposal]
    args_type: type = NoArgs
    drain: bool = False

    def propose(self, scene: Scene) -> Proposal:
        return self.act(scene)


def _dies(_scene: Scene) -> Proposal:
    os._exit(7)


def _raises(_scene: Scene) -> Proposal:
    raise ValueError("no idea")


def _hangs(_scene: Scene) -> Proposal:
    time.sleep(60)
    return Proposal()


def _obeys(scene: Scene) -> Proposal:
    while not scene.should_stop():
        time.sleep(0.01)
    return Proposal(stopped="time")


def acting() -> Mapping[str, Any]:
    """Looked up by name in the child."""
    acts = {"dies": _dies, "raises": _raises, "hangs": _hangs, "obeys": _obeys}
    return {name: Acting(name, act) for name, act in acts.items()}


def request(strategy: str) -> PlanRequest:
    snapshot = build(
        [node("n1", 2), node("n2", 2)], [App("a", [("n1", 0), ("n2", 0)]), App("b", [("n1", 1), ("n2", 1)])]
    )
    return PlanRequest(snapshot=snapshot, policy="p", strategy=strategy, now=EPOCH, vendors=VENDORS)


def test_the_child_plans_what_we_would_plan() -> None:
    wanted = plan_here(request("best-fit"), time_limit=10)
    found = ChildPlanner().run(request("best-fit"), time_limit=10)
    assert found.moves == wanted.moves
    assert found.moves
    assert found.after == wanted.after


def test_time_out_gives_what_there_is() -> None:
    reply = ChildPlanner(strategies=acting).run(request("obeys"), time_limit=0.3)
    assert reply.stopped == "time"
    assert 0.25 < reply.elapsed_seconds < 3


@pytest.mark.parametrize(
    ("strategy", "words"),
    [("dies", "exit code 7"), ("raises", "strategy raises failed: ValueError: no idea"), ("missing", "missing")],
)
def test_a_failure_is_one_line(strategy: str, words: str) -> None:
    with pytest.raises(PlanFailed) as failed:
        ChildPlanner(strategies=acting).run(request(strategy), time_limit=5)
    assert words in str(failed.value)
    assert "\n" not in str(failed.value)


def test_a_child_that_does_not_obey_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "GRACE", 0.3)
    began = time.monotonic()
    with pytest.raises(PlanFailed, match=r"did not stop after its 0\.2 s and was killed"):
        ChildPlanner(strategies=acting).run(request("hangs"), time_limit=0.2)
    assert time.monotonic() - began < 15
