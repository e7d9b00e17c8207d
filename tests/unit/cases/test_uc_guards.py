"""User cases of levels plan, guard and time: who may be moved, when, and at what cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from defragd.core.cost import move_cost
from defragd.core.eligibility import eligible
from defragd.core.model import DisruptionBudget, Node, Selector
from defragd.core.pdb import Ledger
from defragd.core.plan import Move, Place, PlanReply, PlanRequest
from defragd.core.plan_json import move_to_json
from defragd.core.planner import plan
from defragd.core.reasons import Reason
from defragd.core.rules import Budgets, Cap, Execution, Gain, Protection, Rules, equals
from defragd.core.run import Run, RunMove, RunPhase
from defragd.core.run_progress import Around, advance
from defragd.core.snapshot import Snapshot
from defragd.hami.vendors import VENDORS
from defragd.policy.load import load_text
from defragd.policy.loaded import LoadedPolicy
from defragd.policy.schedule import due, next_starts
from defragd.policy.triggers import evaluate
from tests.support.plan_world import NOW, STRATEGIES, UNLIMITED, complete, make_pod, world


def solve(
    snapshot: Snapshot,
    strategy: str = "best-fit",
    args: dict | None = None,
    *,
    rules: Rules = UNLIMITED,
    now: datetime = NOW,
    **more: object,
) -> PlanReply:
    request = PlanRequest(snapshot, "uc", strategy, args or {}, rules, now, vendors=VENDORS, **more)  # type: ignore[arg-type]
    return plan(request, strategies=STRATEGIES)


def moved(reply: PlanReply) -> set[str]:
    return {move.pod.removeprefix("ns/") for move in reply.moves}


def why(reply: PlanReply, pod: str) -> tuple[str, str]:
    return next(((r.reason, r.detail) for r in reply.refused if r.object == f"ns/{pod}"), ("", ""))


def annotated(snapshot: Snapshot, pod: str, key: str, value: str) -> Snapshot:
    known = snapshot.pods[f"ns/{pod}"]
    return snapshot.with_pods({known.key: replace(known, annotations={**known.annotations, key: value})})


def policy(spec: str) -> LoadedPolicy:
    head = "apiVersion: defragd/v1\nkind: DefragPolicy\nmetadata: {name: p}\nspec:\n  strategy: {name: best-fit}\n"
    found = load_text(head + spec)
    assert not found.errors, found.errors
    return found.policies[0]


# -- UC-15: clock changes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("day", "utc"),
    [
        pytest.param(date(2026, 10, 25), datetime(2026, 10, 25, 0, 30, tzinfo=UTC), id="02:30 twice: the first"),
        pytest.param(date(2027, 3, 28), datetime(2027, 3, 28, 1, 0, tzinfo=UTC), id="no 02:30: first instant after"),
    ],
)
def test_uc15_clock_changes(day: date, utc: datetime) -> None:
    nightly = policy('  schedule: {cron: "30 2 * * *", timeZone: Europe/Berlin}\n')
    begin = datetime(day.year, day.month, day.day, tzinfo=UTC) - timedelta(days=2)
    coming = next_starts(nightly, begin, 6)
    assert [start.utc for start in coming if start.local.date() == day] == [utc]
    assert len({start.local.date() for start in coming}) == 6, "one on every day, before and after"

    # every five minutes over five days, as the daemon asks: one start per local date
    last, started = None, []
    for minute in range(0, 5 * 24 * 60, 5):
        now = begin + timedelta(minutes=minute)
        start = due(nightly, last, now)
        if start is not None and start.utc != last:
            last = start.utc
            started.append(start.local.date())
    assert Counter(started)[day] == 1
    assert len(started) == len(set(started)) == 5


# -- UC-17: this pod may only move at night -------------------------------------------------------------------------

SPLINTERS = "n1 { g0 24G: a 8G, b 4G } n2 { g0 24G: c 12G }"


@pytest.mark.parametrize(("hour", "expected"), [(20, set()), (2, {"a", "b"})])
def test_uc17_allowed_hours(hour: int, expected: set[str]) -> None:
    snapshot = annotated(world(SPLINTERS), "a", "defragd.io/allowed-hours", "01:00-05:00 UTC")
    snapshot = annotated(snapshot, "c", "defragd.io/do-not-move", "true")
    reply = solve(snapshot, now=NOW.replace(hour=hour))
    assert moved(reply) in (expected, {"b"} if hour == 20 else expected)
    if hour == 20:
        reason, detail = why(reply, "a")
        assert reason == Reason.OUTSIDE_ALLOWED_HOURS
        assert "01:00" in detail


@pytest.mark.parametrize("text", ["always", "25:00-26:00 UTC", "01:00-05:00 Middle/Earth", ""])
def test_uc17_garbage_protects_and_warns(text: str) -> None:
    reply = solve(annotated(world(SPLINTERS), "a", "defragd.io/allowed-hours", text), now=NOW.replace(hour=2))
    assert "a" not in moved(reply)
    assert why(reply, "a")[0] == Reason.MALFORMED_ANNOTATION
    assert [w.object for w in reply.warnings] == ["ns/a"]


# -- UC-29: single replica ------------------------------------------------------------------------------------------


def single() -> Snapshot:
    snapshot = world("n1 { g0 24G: a@A 8G, b@B 8G } n2 { g0 24G: c 8G }")
    return replace(snapshot, workloads={**snapshot.workloads, "rs-A": replace(snapshot.workloads["rs-A"], replicas=1)})


def test_uc29_single_replica_stays_with_its_reason() -> None:
    snapshot = single()
    for pod, ok in (("a", False), ("b", True)):
        found = eligible(snapshot, snapshot.pods[f"ns/{pod}"], Rules(), NOW, vendors=VENDORS)
        assert found.ok is ok
    reply = solve(snapshot, "gpu-drain", {"device": "GPU-n1-g0"}, rules=replace(UNLIMITED, partial=True))
    assert why(reply, "a")[0] == Reason.TOO_FEW_REPLICAS


def test_uc29_explicit_opt_in() -> None:
    snapshot = annotated(single(), "a", "defragd.io/move", "allow")
    assert eligible(snapshot, snapshot.pods["ns/a"], Rules(), NOW, vendors=VENDORS).ok


@pytest.mark.parametrize("handover", ["EvictFirst", "SurgeFirst"])
def test_uc29_make_before_break_needs_no_budget(handover: str) -> None:
    """An eviction waits for A's budget, which never allows one; a second pod beside the first disturbs nobody."""
    snapshot = annotated(single(), "a", "defragd.io/move", "allow")
    held = DisruptionBudget("ns", "strict", equals({"app": "A"}), allowed=0, healthy=1, desired=1)
    pod = replace(snapshot.pods["ns/a"], labels={"app": "A"})
    snapshot = replace(snapshot.with_pods({pod.key: pod}), budgets=(held,))
    target = Place("n2", (snapshot.nodes["n2"].devices[0].uuid,))
    todo = {"moves": [move_to_json(Move("m1", "ns/a", pod.uid, Place("n1", pod.devices), target, gain=1.0))]}
    moves = (RunMove("m1"),)
    run = Run("ns", "r", "p", "Auto", "best-fit", plan=todo, moves=moves, phase=RunPhase.RUNNING, started=NOW)
    rules = replace(UNLIMITED, execution=replace(Execution(), handover=handover))
    found = advance(run, [], snapshot, rules, NOW, around=Around(vendors=VENDORS, drain=True))
    created = [(p.spec.evict_pod, p.spec.handover) for p in found.create]
    assert created == ([("a", "SurgeFirst")] if handover == "SurgeFirst" else []), found.update.moves
    assert handover == "SurgeFirst" or "strict" in found.waiting


# -- UC-31: a service that never allows disruption ------------------------------------------------------------------


def strict() -> Snapshot:
    one = "; ".join(f"g{i} 24G: " + ("a@A 2xwhole" if i < 2 else "-") for i in range(8))
    two = "; ".join(f"g{i} 24G: " + ("b@B 3xwhole" if i < 3 else "-") for i in range(8))
    return world(f"n1 {{ {one} }} n2 {{ {two} }}", budgets={"A": 0})


@pytest.mark.parametrize(("minutes", "ok"), [(3, False), (6, True)])
def test_uc31_trigger_shows_both_terms(minutes: int, ok: bool) -> None:
    packer = policy(
        "  trigger: {minFragmentation: null, maxPendingPods: null, lightNodes: {count: 2, usedAtMost: 0.5}, "
        "sinceLastEviction: 5m}\n"
    )
    last = NOW - timedelta(minutes=minutes)
    verdict = evaluate(packer.trigger, strict(), fragmentation=0.0, now=NOW, last_eviction=last)
    assert verdict.ok is ok
    assert "2 nodes" in str(verdict)
    assert f"{minutes}m ago of at least 5m" in str(verdict)


def test_uc31_only_what_its_budget_lets_go() -> None:
    reply = solve(strict(), "best-fit", {"objective": "nodes", "useIdleNodes": True})
    assert moved(reply) == {"b"}
    assert {move.target.node for move in reply.moves} == {"n1"}
    assert reply.freed_nodes == 1
    assert why(reply, "a")[0] == Reason.PDB_BLOCKS


# -- UC-33: important jobs moved too often --------------------------------------------------------------------------


def important() -> tuple[Snapshot, dict[str, object]]:
    snapshot = world("n1 { g0 24G: h 10G; g1 24G: l 10G }", pending="z 20G")
    snapshot = snapshot.with_pods({"ns/h": replace(snapshot.pods["ns/h"], priority=1000)})
    rules = replace(UNLIMITED, budgets=replace(UNLIMITED.budgets, per_workload=Cap(in_flight=1, per_day=2)))
    return snapshot, {"rules": rules, "history": {"ReplicaSet/ns/h": 2}}


def test_uc33_the_unimportant_one_moves() -> None:
    snapshot, more = important()
    reply = solve(snapshot, "make-room", **more)  # type: ignore[arg-type]
    assert moved(reply) == {"l"}


def test_uc33_nobody_when_it_opted_out() -> None:
    snapshot, more = important()
    reply = solve(annotated(snapshot, "l", "defragd.io/do-not-move", "true"), "make-room", **more)  # type: ignore[arg-type]
    assert not reply.moves
    assert why(reply, "h")[0] == Reason.DAILY_LIMIT
    assert why(reply, "l")[0] == Reason.OPTED_OUT


def test_uc33_cost_grows_with_priority_and_recent_moves() -> None:
    snapshot, _ = important()
    high, low = snapshot.pods["ns/h"], snapshot.pods["ns/l"]
    assert move_cost(snapshot, high, now=NOW) > move_cost(snapshot, low, now=NOW)
    assert move_cost(snapshot, low, now=NOW, moves_today=1) > move_cost(snapshot, low, now=NOW)


# -- UC-37: one displaced member stops the gang ---------------------------------------------------------------------


def gang(minimum: str) -> Snapshot:
    snapshot = world("n1 { g0 24G: g1@G 8G; g1 24G: g2@G 8G; g2 24G: g3@G 8G; g3 24G: g4@G 8G } n2 { g0 24G: x 8G }")
    marks = {"pod-group.scheduling.sigs.k8s.io": "G", "pod-group.scheduling.sigs.k8s.io/min-available": minimum}
    return snapshot.with_pods(
        {f"ns/g{i}": replace(snapshot.pods[f"ns/g{i}"], labels={"app": "G", **marks}) for i in range(1, 5)}
    )


def test_uc37_members_stay_at_the_minimum() -> None:
    rules = replace(UNLIMITED, protect=Protection(gangs="Members"))
    reply = solve(gang("4"), rules=rules)
    assert not moved(reply) & {"g1", "g2", "g3", "g4"}
    assert why(reply, "g1")[0] == Reason.GANG_AT_MINIMUM


def test_uc37_a_member_may_move_above_the_minimum() -> None:
    snapshot = gang("3")
    rules = replace(UNLIMITED, protect=Protection(gangs="Members"))
    assert eligible(snapshot, snapshot.pods["ns/g1"], rules, NOW, vendors=VENDORS).ok


def test_uc37_by_default_whole_or_not_at_all() -> None:
    reply = solve(gang("3"))
    assert not moved(reply) & {"g1", "g2", "g3", "g4"}
    assert why(reply, "g1")[0] == Reason.PART_OF_GANG


# -- UC-43: two hundred candidates, cap of five ---------------------------------------------------------------------


def many() -> Snapshot:
    nodes, pods = {}, {}
    for n in range(40):
        plain = world(f"n{n:02d} {{ " + "; ".join(f"g{d} 24G: -" for d in range(5)) + " }").nodes[f"n{n:02d}"]
        nodes[plain.name] = plain
        for d in range(5):
            number = n * 5 + d
            made = make_pod(f"p{number:03d}", f"{4 + number % 5 * 2}G", devices=[plain.devices[d]])
            made = replace(made, namespace=f"team-{number % 10}")
            pods[made.key] = made
    return complete(Snapshot(nodes=nodes, pods=pods, taken_at=NOW), {})


def test_uc43_total_node_and_namespace_caps() -> None:
    budgets = Budgets(
        total=5, concurrent=None, per_source_node=Cap(per_run=2), per_target_node=Cap(), per_namespace=Cap(per_run=3),
        per_workload=Cap(), rate=None,
    )  # fmt: skip
    snapshot = many()
    request = PlanRequest(
        snapshot, "uc", "best-fit", {}, replace(UNLIMITED, budgets=budgets, protect=Protection(min_replicas=1)), NOW,
        max_steps=200, vendors=VENDORS,
    )  # fmt: skip
    reply = plan(request, strategies=STRATEGIES)
    assert 0 < len(reply.moves) <= 5
    assert max(Counter(m.source.node for m in reply.moves).values()) <= 2
    assert max(Counter(m.pod.split("/")[0] for m in reply.moves).values()) <= 3
    assert all(m.gain > 0 for m in reply.moves)
    over = [r for r in reply.refused if r.reason == Reason.OVER_BUDGET]
    assert over
    assert any("budgets.total = 5" in r.detail for r in over), over[:3]


# -- UC-45: more fully empty nodes, please --------------------------------------------------------------------------


def quarter() -> Snapshot:
    parts = []
    for name, used in (("n1", 2), ("n2", 1), ("n3", 2), ("n4", 2)):
        devices = "; ".join(f"g{i} 24G: " + (f"{name}p{i} whole" if i < used else "-") for i in range(4))
        parts.append(f"{name} {{ {devices} }}")
    return world(" ".join(parts))


def test_uc45_two_nodes_by_three_moves() -> None:
    reply = solve(quarter(), "node-drain", {"count": 2})
    assert len(reply.moves) == 3
    assert reply.freed_nodes == 2


def test_uc45_three_nodes_are_impossible() -> None:
    reply = solve(quarter(), "node-drain", {"count": 3})
    assert not reply.moves
    assert reply.stopped == "infeasible"
    best = solve(quarter(), "node-drain", {"count": 3}, rules=replace(UNLIMITED, partial=True))
    assert len(best.moves) == 3
    assert best.freed_nodes == 2


# -- UC-55: a native pod on the node --------------------------------------------------------------------------------


def native() -> Snapshot:
    snapshot = world("n1 { g0 24G: -; g1 24G: a 6G; g2 24G: b 6G } n2 { g0 24G: c 12G }")
    plain = make_pod("native", "whole", devices=[snapshot.nodes["n1"].devices[0]])
    outside = replace(plain, scheduler="default-scheduler", allocations=(), booked_node="", bind_phase="")
    sick = snapshot.nodes["n1"]
    devices = (replace(sick.devices[0], distrusted="used outside HAMi"), *sick.devices[1:])
    nodes: dict[str, Node] = {**snapshot.nodes, "n1": replace(sick, devices=devices)}
    return replace(snapshot, pods={**snapshot.pods, outside.key: outside}, nodes=nodes)


def test_uc55_node_drain_names_the_native_pod() -> None:
    reply = solve(native(), "node-drain", {"node": "n1"})
    assert not reply.moves
    assert any(r.object == "ns/native" for r in reply.refused), reply.refused


def test_uc55_device_drain_goes_round_it() -> None:
    reply = solve(native(), "gpu-drain", {"device": "n1/gpu-1"})
    assert moved(reply) == {"a"}
    assert reply.moves[0].target.devices[0] != "GPU-n1-g0"


# -- UC-69: broken pods block the budget ----------------------------------------------------------------------------


def broken(*, always: bool, healthy: int = 2) -> Snapshot:
    snapshot = world("n1 { g0 24G: a1@A 8G; g1 24G: a2@A 8G; g2 24G: a3@A 8G } n2 { g0 24G: x 8G }")
    pods = {"ns/a1": replace(snapshot.pods["ns/a1"], ready=False, ready_since=None)}
    selector: Selector = equals({"app": "A"})
    budget = DisruptionBudget("ns", "A", selector, 0, healthy=healthy, desired=2, always_allow_unhealthy=always)
    return replace(snapshot.with_pods(pods), budgets=(budget,))


@pytest.mark.parametrize(
    ("always", "healthy", "pod", "ok"),
    [
        pytest.param(True, 2, "a1", True, id="variant 1: the broken one may go"),
        pytest.param(True, 1, "a1", True, id="variant 1: always"),
        pytest.param(True, 2, "a2", False, id="variant 1: the healthy ones may not"),
        pytest.param(False, 2, "a1", True, id="variant 2: demand met, permitted"),
        pytest.param(False, 1, "a1", False, id="variant 2: demand not met"),
        pytest.param(False, 2, "a3", False, id="variant 2: the healthy ones may not"),
    ],
)
def test_uc69_unhealthy_pods_and_budgets(always: bool, healthy: int, pod: str, ok: bool) -> None:
    snapshot = broken(always=always, healthy=healthy)
    assert Ledger.of(snapshot).may_evict(snapshot.pods[f"ns/{pod}"]).ok is ok


@pytest.mark.parametrize("drain", [False, True])
def test_uc69_not_ready_pods_are_left_alone_unless_draining(drain: bool) -> None:
    snapshot = broken(always=True)
    found = eligible(snapshot, snapshot.pods["ns/a1"], Rules(), NOW, drain=drain, vendors=VENDORS)
    assert found.ok is drain
    assert found.ok or found.reason is Reason.NOT_READY


def test_gain_gate_is_the_policys() -> None:
    rules = replace(UNLIMITED, gain=Gain(total=1e6))
    assert not solve(world(SPLINTERS), rules=rules).moves
