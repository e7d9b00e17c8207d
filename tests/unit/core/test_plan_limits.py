"""What keeps pods out of a plan for a while: cooldown, rest of nodes, daily limits, open breakers, gangs, shares."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from defragd.core.budget import Books, Claim, count_places
from defragd.core.plan import PlanReply, PlanRequest
from defragd.core.planner import plan
from defragd.core.reasons import Reason
from defragd.core.rules import Budgets, Cap, Execution, Rules
from defragd.core.snapshot import Snapshot
from defragd.hami.vendors import VENDORS
from defragd.policy.convert import _cap
from defragd.policy.fields import CapSpec
from tests.support.plan_world import NOW, STRATEGIES, UNLIMITED, world

TWO = "n1 { g0 24G: a 10G; g1 24G: b 10G } n2 { g0 24G: - }"
PACK = UNLIMITED
GANG = {"volcano.sh/job-name": "train"}


def solve(snapshot: Snapshot, strategy: str = "best-fit", args: dict | None = None, **fields: object) -> PlanReply:
    rules = fields.pop("rules", UNLIMITED)
    asked = PlanRequest(snapshot, "test", strategy, args or {}, rules, NOW, vendors=VENDORS, **fields)
    return plan(asked, strategies=STRATEGIES)


def why(reply: PlanReply, pod: str) -> str:
    return next((r.reason for r in reply.refused if r.object == f"ns/{pod}"), "")


BOTH = {f"ReplicaSet/ns/{pod}": NOW for pod in "ab"}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        pytest.param({"last_moved": BOTH}, Reason.COOLING_DOWN, id="cooldown of the workload"),
        pytest.param({"arrivals": {"n1": NOW}}, Reason.COOLING_DOWN, id="rest of the node"),
        pytest.param({"closed": {"n1": "the breaker of pool A30 is open"}}, Reason.BREAKER_OPEN, id="breaker"),
    ],
)
def test_rests_hold_at_plan_time(fields: dict, reason: Reason) -> None:
    snapshot = world(TWO)
    free = solve(snapshot, rules=PACK)
    assert free.moves
    held = solve(snapshot, rules=PACK, **fields)
    assert not held.moves
    assert why(held, "a") == why(held, "b") == reason


@pytest.mark.parametrize("cap", ["per_namespace", "per_source_node", "per_target_node"])
def test_daily_limits_of_places_hold_at_plan_time(cap: str) -> None:
    """Else a plan would be dropped move by move when its run begins."""
    rules = replace(UNLIMITED, budgets=replace(UNLIMITED.budgets, **{cap: Cap(per_day=3)}))
    snapshot = world(TWO)
    assert solve(snapshot, rules=rules).moves
    moves = [Claim(f"m{n}", f"w{n}", "ns", source, target) for n in range(3) for source in ("n1", "n2")
             for target in ("n1", "n2")]  # fmt: skip
    assert not solve(snapshot, rules=rules, moved_places=count_places(moves)).moves
    assert solve(snapshot, rules=rules, moved_places=count_places(moves[:2])).moves


def test_a_daily_limit_holds_at_plan_time() -> None:
    rules = replace(UNLIMITED, budgets=replace(UNLIMITED.budgets, per_workload=Cap(in_flight=1, per_day=2)))
    snapshot = world(TWO)
    reply = solve(snapshot, rules=rules, history={"ReplicaSet/ns/a": 2, "ReplicaSet/ns/b": 2})
    assert not reply.moves
    assert why(reply, "a") == why(reply, "b") == Reason.DAILY_LIMIT


def gang(snapshot: Snapshot, *names: str) -> Snapshot:
    pods = {f"ns/{n}": snapshot.pods[f"ns/{n}"] for n in names}
    return snapshot.with_pods({k: replace(p, labels={**p.labels, **GANG}) for k, p in pods.items()})


def test_a_gang_leaves_a_drained_node_as_a_whole() -> None:
    snapshot = gang(world("n1 { g0 24G: a 10G; g1 24G: b 10G } n2 { g0 24G: - ; g1 24G: - }"), "a", "b")
    reply = solve(snapshot, "node-drain", {"node": "n1"})
    assert {m.pod for m in reply.moves} == {"ns/a", "ns/b"}


def test_a_gang_with_a_member_elsewhere_is_not_split() -> None:
    snapshot = gang(world("n1 { g0 24G: a 10G } n2 { g0 24G: b 10G ; g1 24G: - }"), "a", "b")
    reply = solve(snapshot, "node-drain", {"node": "n1"})
    assert not reply.moves
    assert why(reply, "a") == Reason.PART_OF_GANG


def test_best_fit_leaves_gangs_alone() -> None:
    reply = solve(gang(world(TWO), "a", "b"))
    assert not reply.moves
    assert why(reply, "a") == Reason.PART_OF_GANG


@pytest.mark.parametrize(
    ("written", "replicas", "at_once"),
    [("25%", 8, 2), ("25%", 3, 1), ("25%", 0, 1), ("100%", 3, 3), (2, 8, 2), ("10 %", 100, 10)],
)
def test_per_workload_as_a_number_or_a_share(written: object, replicas: int, at_once: int) -> None:
    cap = _cap(CapSpec.model_validate(written))
    books = Books(Budgets(concurrent=None, per_source_node=Cap(), per_target_node=Cap(), per_workload=cap))
    started = 0
    while books.may_fly(claim := Claim(f"m{started}", "w", "ns", "a", "b", replicas)).ok:
        books.take(claim)
        started += 1
    assert started == at_once


@pytest.mark.parametrize("written", ["0%", "101%", "x%", "25", "-5%", "2.5%"])
def test_shares_that_are_none(written: str) -> None:
    with pytest.raises(ValueError, match="share"):
        CapSpec.model_validate(written)


def test_rests_can_be_switched_off() -> None:
    rules = replace(UNLIMITED, execution=Execution(cooldown=timedelta(0), node_cooldown=timedelta(0)))
    assert isinstance(rules, Rules)
    arrivals = {"n1": NOW}
    assert solve(world(TWO), rules=rules, arrivals=arrivals, last_moved={"ReplicaSet/ns/a": NOW}).moves
