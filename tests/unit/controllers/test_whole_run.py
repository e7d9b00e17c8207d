"""A policy's run from plan to end on the simulated cluster, with every controller, and with a crash at every write."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from defragd.controllers.planning import PlanRefused
from defragd.core.reasons import Reason
from defragd.core.run import MoveState, RunPhase
from defragd.core.score import score
from defragd.core.snapshot import Snapshot
from defragd.ports import Outcome, Written
from defragd.sim.faults import Faults
from defragd.sim.world import GIB, App, build, demo, node
from tests.support.simrun import FAST, Crash, World, with_rules


def small() -> Snapshot:
    """Three half-empty nodes: a Deployment under a budget of one, another without, a StatefulSet."""
    apps = [
        App("web", [("n1", 0), ("n2", 0), ("n3", 0)], memory_mib=8 * GIB, min_available=2),
        App("api", [("n1", 1), ("n2", 1)], memory_mib=8 * GIB),
        App("db", [("n2", 2), ("n3", 1)], kind="StatefulSet", memory_mib=8 * GIB),
    ]
    return build([node("n1", 3), node("n2", 3), node("n3", 3)], apps)


def consolidate(world: World, seconds: float = 900.0) -> str:
    run = world.replica.planning.plan_policy(world.job())
    world.until(world.ended(run.name), seconds)
    world.settle()
    return run.name


def assert_clean(world: World) -> None:
    """The invariants that hold whatever happened on the way."""
    assert world.leftovers() == []
    assert world.cluster.overdrawn == []
    assert world.evicted_twice() == []
    failed = [fields for event, fields in world.replica.events if event == "loop.failed"]
    assert failed == []


def test_a_run_puts_every_pod_where_the_plan_says() -> None:
    world = World(demo())
    before = score(world.cluster.snapshot())
    run = world.replica.planning.plan_policy(world.job())
    assert run.phase is RunPhase.RUNNING
    world.until(world.ended(run.name))
    world.settle()
    record = world.run_record(run.name)
    assert record.phase is RunPhase.COMPLETED
    assert {m.state for m in record.moves} == {MoveState.DONE}
    after = score(world.cluster.snapshot())
    assert after.loss == pytest.approx(run.plan["fragmentation"]["after"]["L"], abs=1e-5)
    assert after.idle_devices - before.idle_devices == run.plan["freed"]["devices"] > 5
    assert len(world.cluster.evictions) == len(record.moves)
    assert {e.pod for e in world.cluster.evictions}.isdisjoint({"core/billing-5d4f9c-a000", "core/billing-5d4f9c-a001"})
    assert_clean(world)


def test_make_before_break_over_a_whole_run() -> None:
    """Under budgets that allow no eviction: nobody is ever out, and counts are as before."""
    apps = [
        App("web", [("n1", 0), ("n2", 0), ("n3", 0)], memory_mib=6 * GIB, min_available=3),
        App("api", [("n1", 1), ("n2", 1)], memory_mib=6 * GIB, min_available=2),
    ]
    start = build([node("n1", 3), node("n2", 3), node("n3", 3)], apps)
    # the plan is one for a time with other budgets
    loose = replace(start, budgets=())
    world = World(loose, rules=replace(FAST, execution=replace(FAST.execution, handover="SurgeFirst")))
    run = world.replica.planning.plan_policy(world.job())
    world.cluster.budgets = {b.key: b for b in start.budgets}
    least = {app.name: len(app.at) for app in apps}

    def ready(name: str) -> int:
        pods = world.cluster.pods.values()
        return sum(1 for p in pods if p.labels.get("app") == name and p.ready and not p.deleting)

    def look() -> bool:
        assert all(ready(name) >= count for name, count in least.items())
        return world.ended(run.name)()

    world.until(look, 900.0)
    world.settle()
    record = world.run_record(run.name)
    assert {m.state for m in record.moves} == {MoveState.DONE}, [m.message for m in record.moves]
    assert world.cluster.evictions == []
    assert {o.workload.name: o.replicas for o in world.cluster.owners.values()} == {"web-5d4f9c": 3, "api-5d4f9c": 2}
    assert sorted(ready(name) for name in least) == [2, 3]
    assert_clean(world)


def test_writes_per_move_stay_within_the_promise() -> None:
    """Creation, status, eviction and pin of a placement plus its share of the run's record: at most 8."""
    world = World(demo())
    consolidate(world)
    moves = len(world.cluster.evictions)
    assert len(world.replica.access.writes) <= 8 * moves


def test_an_unchanged_cluster_gives_no_moves() -> None:
    world = World(small())
    first = consolidate(world)
    assert world.run_record(first).moves
    world.cluster.advance(60)
    second = world.replica.planning.plan_policy(world.job())
    assert (second.phase, second.moves, second.reason) == (RunPhase.COMPLETED, (), Reason.NO_GAIN)


def test_a_dry_run_writes_its_record_and_nothing_else() -> None:
    world = World(small())
    run = world.replica.planning.plan_policy(world.job("DryRun"))
    world.settle()
    assert (run.phase, bool(run.moves)) == (RunPhase.PLANNED, True)
    assert world.replica.access.writes == ["create_run"]


def test_approve_waits_for_a_person() -> None:
    world = World(small())
    run = world.replica.planning.plan_policy(world.job("Approve"))
    world.settle(20)
    assert world.run_record(run.name).phase is RunPhase.AWAITING_APPROVAL
    assert not world.cluster.evictions
    world.replica.access.runs.write_desired(run.name, "Approved", "kim")
    world.until(world.ended(run.name))
    assert world.run_record(run.name).phase is RunPhase.COMPLETED
    assert world.cluster.evictions


def test_one_run_at_a_time() -> None:
    world = World(small())
    world.replica.planning.plan_policy(world.job())
    world.cluster.advance(1)
    with pytest.raises(PlanRefused) as refused:
        world.replica.planning.plan_policy(world.job())
    assert refused.value.reason is Reason.RUN_IN_PROGRESS
    dry = world.replica.planning.plan_policy(world.job("DryRun"))
    assert dry.phase is RunPhase.PLANNED


def test_a_start_is_recorded_once() -> None:
    world = World(small())
    at = world.cluster.clock.now()
    world.replica.planning.plan_policy(world.job("DryRun"), scheduled_for=at)
    with pytest.raises(PlanRefused) as refused:
        world.boot().planning.plan_policy(world.job("DryRun"), scheduled_for=at)
    assert refused.value.reason is Reason.SUPERSEDED


@pytest.mark.parametrize("why", ["stale", "not leader"])
def test_no_plan_and_no_move_on_old_data_or_without_the_lease(why: str) -> None:
    world = World(small())
    run = world.replica.planning.plan_policy(world.job())
    if why == "stale":
        world.cluster.faults.stale = 1000.0
    else:
        world.replica.access.leadership.leading = False
    world.settle(30)
    assert not world.cluster.evictions
    with pytest.raises(PlanRefused) as refused:
        world.replica.planning.plan_policy(world.job("DryRun"))
    assert refused.value.reason is Reason.STALE_DATA
    world.cluster.faults.stale = 0.0
    world.replica.access.leadership.leading = True
    world.until(world.ended(run.name))
    assert_clean(world)


def test_a_global_pause_is_kept_within_one_look() -> None:
    world = World(small())
    run = world.replica.planning.plan_policy(world.job())
    world.replica.paused = "maintenance"
    world.settle(20)
    assert not world.cluster.evictions
    world.replica.paused = ""
    world.until(world.ended(run.name))
    assert world.run_record(run.name).phase is RunPhase.COMPLETED


def test_a_workload_that_never_gets_ready_stops_the_run() -> None:
    """One of its replicas is lost for a while, the others stay where they are."""
    rules = replace(
        FAST, execution=replace(FAST.execution, timeouts=replace(FAST.execution.timeouts, start=timedelta(seconds=20)))
    )
    world = World(small(), rules=rules, faults=Faults(never_ready={"web-5d4f9c"}))
    run = world.replica.planning.plan_policy(world.job())
    world.until(world.ended(run.name), 300)
    record = world.run_record(run.name)
    web = [e for e in world.cluster.evictions if e.pod.startswith("default/web")]
    assert len({e.uid for e in web}) <= 2, "the move itself, and at most our own pinned pod that never got Ready"
    states = {m.id: m.state for m in record.moves}
    of_web = [states[m["id"]] for m in run.plan["moves"] if m["workload"] == "Deployment/default/web"]
    assert of_web[0] is MoveState.FAILED
    assert set(of_web[1:]) == {MoveState.DROPPED}
    assert world.cluster.overdrawn == []


@pytest.mark.slow
def test_lagging_caches_do_not_start_more_than_allowed() -> None:
    """Watches five seconds behind: never more than two in flight from one node, and the run still ends well."""
    rules = with_rules(per_source_node=replace(FAST.budgets.per_source_node, in_flight=2), concurrent=3)
    world = World(demo(), rules=rules)
    run = world.replica.planning.plan_policy(world.job())
    world.cluster.faults.cache_lag = 5.0
    most: dict[str, int] = {}

    def done() -> bool:
        flying: dict[str, int] = {}
        for placement in world.cluster.placements.values():
            if placement.open:
                move = next(m for m in run.plan["moves"] if placement.name.endswith(f"-{m['id']}"))
                flying[move["from"]["node"]] = flying.get(move["from"]["node"], 0) + 1
        for name, count in flying.items():
            most[name] = max(most.get(name, 0), count)
        assert sum(flying.values()) <= 3
        return world.ended(run.name)()

    world.until(done, 1200, step=0.25)
    assert max(most.values()) <= 2
    assert world.run_record(run.name).phase is RunPhase.COMPLETED
    assert world.cluster.overdrawn == []
    assert world.evicted_twice() == []


@pytest.mark.parametrize("operation", ["create", "write_run", "evict", "patch_pod", "write_status"])
@pytest.mark.parametrize(
    "outcome", [Outcome.CONFLICT, Outcome.UNKNOWN, pytest.param(Outcome.BLOCKED, marks=pytest.mark.slow)]
)
def test_answers_that_are_lost_or_refused_once(operation: str, outcome: Outcome) -> None:
    """The first two writes of a kind are answered so and do not happen; the run ends well all the same."""
    world = World(small())
    world.cluster.faults.answers[operation] = [Written(outcome, "injected")] * 2
    name = consolidate(world)
    record = world.run_record(name)
    assert record.phase in (RunPhase.COMPLETED, RunPhase.ABORTED)
    assert sum(m.state is MoveState.DONE for m in record.moves) >= len(record.moves) - 2
    assert_clean(world)


# -- crashes --------------------------------------------------------------------------------------------------------


def count_writes() -> int:
    world = World(small())
    consolidate(world)
    return len(world.replica.access.writes)


WRITES = count_writes()


def crash_at(number: int, when: str) -> World:
    """A run in which the process dies around its ``number``-th write."""
    world = World(small())
    seen = 0

    def on_write(moment: str, operation: str) -> None:
        nonlocal seen
        if moment == "before":
            seen += 1
        if seen == number and moment == when:
            seen += 1
            raise Crash(operation)

    run = world.replica.planning.plan_policy(world.job())
    world.cluster.faults.on_write = on_write
    world.until(world.ended(run.name))
    world.settle()
    assert world.crashes == 1
    record = world.run_record(run.name)
    assert record.phase is RunPhase.COMPLETED, world.describe()
    assert {m.state for m in record.moves} == {MoveState.DONE}, world.describe()
    assert len(world.cluster.evictions) == len(record.moves)
    assert_clean(world)
    return world


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", [2, 5, 9, 14, 20])
def test_crash_at_a_write(number: int, when: str) -> None:
    crash_at(number, when)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("when", ["before", "after"])
def test_crash_at_every_write(when: str) -> None:
    for number in range(1, WRITES):
        crash_at(number, when)


# -- oscillation ----------------------------------------------------------------------------------------------------


def put_back(world: World, start: Snapshot) -> None:
    """Somebody scatters the pods again, exactly as they were."""
    for pod in list(world.cluster.pods.values()):
        del world.cluster.pods[pod.key]
    for pod in start.pods.values():
        world.cluster.set_pod(replace(pod, uid=pod.uid + "-again"))
    world.cluster.advance(1)


def test_a_known_state_that_comes_back_opens_the_breaker() -> None:
    start = small()
    none = replace(FAST.execution, cooldown=timedelta(0), node_cooldown=timedelta(0))
    world = World(start, rules=replace(FAST, execution=none))
    for _ in range(2):
        consolidate(world)
        put_back(world, start)
        world.cluster.advance(60, step=10)
    evicted = len(world.cluster.evictions)
    stopped = world.boot().planning.plan_policy(world.job())
    assert (stopped.phase, stopped.reason, stopped.moves) == (RunPhase.ABORTED, Reason.BREAKER_OPEN, ())
    assert "default/" in stopped.message, "it names the pods"
    assert "third time in state" in stopped.message
    assert len(world.cluster.evictions) == evicted
    for _ in range(8):
        world.cluster.advance(60, step=10)
        again = world.boot().planning.plan_policy(world.job())
        assert again.reason == Reason.BREAKER_OPEN
    assert stopped.name in world.cluster.runs, "the record that holds it open is not tidied away"
    world.cluster.advance(0.1)
    assert world.boot().planning.plan_policy(world.job("DryRun")).phase is RunPhase.PLANNED
    world.cluster.advance(60, step=10)
    world.replica.access.runs.write_desired(stopped.name, "Approved", "kim")
    assert world.boot().planning.plan_policy(world.job()).phase is RunPhase.RUNNING


def test_history_is_bounded() -> None:
    world = World(build([node("n1", 2)], [App("a", [("n1", 0), ("n1", 1)], memory_mib=8 * GIB)]))
    for _ in range(22):
        world.replica.planning.plan_policy(world.job("DryRun"))
        world.cluster.advance(60, step=30)
    assert len(world.cluster.runs) <= 20
    consolidated = World(build([node("n1", 1)], []))
    for _ in range(7):
        consolidated.replica.planning.plan_policy(consolidated.job())
        consolidated.cluster.advance(60, step=30)
    assert len(consolidated.cluster.runs) <= 5


@pytest.mark.parametrize("mode", ["Auto", "Approve", "DryRun"])
def test_a_run_whose_creator_died_before_its_first_status_is_taken_up(mode: str) -> None:
    """The API server stores a new object without its status; the second write never came."""
    world = World(small())
    run = world.replica.planning.plan_policy(world.job(mode))
    bare = replace(world.run_record(run.name), moves=(), started=None, finished=None, message="", reason="")
    phase = RunPhase.AWAITING_APPROVAL if mode == "Approve" else RunPhase.PLANNED
    world.cluster.runs[run.name] = replace(bare, phase=phase)
    world.cluster.touch()
    world.replica = world.boot()
    world.settle(3)
    assert not world.cluster.placements, "its creator may still be about to write"
    world.settle(60)
    record = world.run_record(run.name)
    if mode == "Auto":
        assert record.phase is RunPhase.COMPLETED
        assert {m.state for m in record.moves} == {MoveState.DONE}
    else:
        assert (record.phase, world.cluster.evictions) == (phase, [])


def test_one_ledger_over_all_policies() -> None:
    """What one policy moved today is gone from every other's limit per day, at plan time, across a restart."""
    world = World(demo(), rules=with_rules(per_day=2))
    first = consolidate(world)
    assert len(world.run_record(first).moves) == 2
    world.cluster.advance(1)
    other = replace(world.job(), name="other")
    second = world.boot().planning.plan_policy(other)
    assert not second.moves
    assert any(r["reason"] == Reason.OVER_BUDGET and "perDay = 2" in r["detail"] for r in second.plan["refused"])


def test_a_refused_move_starts_no_cooldown() -> None:
    from defragd.core.run_moves import moves_lately

    world = World(small())
    run = world.run_record(consolidate(world))
    now = world.cluster.clock.now()
    assert moves_lately([run], now)[1]
    refused = replace(run, moves=tuple(replace(m, state=MoveState.REFUSED) for m in run.moves))
    assert moves_lately([refused], now) == ({}, {})
