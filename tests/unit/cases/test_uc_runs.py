"""User cases of level exec, on the simulated cluster with every controller."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest

from defragd.controllers.execution import Terms
from defragd.core.placement import Phase
from defragd.core.reasons import Reason
from defragd.core.rules import Cap, Protection, Timeouts
from defragd.core.run import MoveState, RunPhase
from defragd.sim.faults import Faults
from defragd.sim.world import GIB, App, build, node
from tests.support.simrun import FAST, World

ONE = replace(FAST, protect=Protection(min_pod_age=timedelta(0), min_replicas=1))


def ready(world: World, app: str) -> int:
    return sum(1 for p in world.cluster.pods.values() if p.labels.get("app") == app and p.ready and not p.deleting)


# -- UC-07: slow pods under a tight budget --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("limit", "done"), [(30, 20), (10, 10)])
def test_uc07_a_large_workload_slow_to_stop(limit: int, done: int) -> None:
    """12 nodes x 5 pods of one workload, its budget allows 5 at once, a move takes about four minutes, 4 nodes are to
    be emptied (20 moves): four waves in half an hour; in ten minutes two waves, and those empty two whole nodes."""
    nodes = [node(f"n{i:02d}", 5) for i in range(12)]
    spare = [node(f"s{i}", 5) for i in range(4)]
    at = [(n.name, d) for n in nodes for d in range(5)]
    apps = [
        App("w", at, memory_mib=20 * GIB, min_available=55, grace_seconds=400),
        *(
            App(f"keep{i}", [(f"s{i}", 0)], memory_mib=2 * GIB, annotations={"defragd.io/do-not-move": "true"})
            for i in range(4)
        ),
    ]
    budgets = replace(
        FAST.budgets, concurrent=None, per_source_node=Cap(), per_target_node=Cap(), per_workload=Cap(),
        per_namespace=Cap(), spacing=timedelta(0),
    )  # fmt: skip
    limits = Timeouts(evict=timedelta(minutes=10), start=timedelta(minutes=10))
    rules = replace(
        ONE, budgets=budgets, execution=replace(FAST.execution, timeouts=limits, settle=timedelta(seconds=1)),
        partial=True,
    )  # fmt: skip
    world = World(build(nodes + spare, apps), rules=rules, faults=Faults(terminate=180.0, start=58.0))
    world.replica.terms = lambda run: Terms(rules, timedelta(minutes=limit), drain=True)
    world.replica.__post_init__()
    run = world.replica.planning.plan_policy(world.job(strategy="node-drain", count=4))
    assert len(run.moves) >= 20, run.message
    most = 0
    began = world.cluster.clock.now()

    def ended() -> bool:
        nonlocal most
        most = max(most, 60 - ready(world, "w"))
        return world.ended(run.name)()

    world.until(ended, 2400, step=2.0)
    record = world.run_record(run.name)
    states = [m.state for m in record.moves]
    assert most <= 5
    assert world.cluster.overdrawn == []
    if limit == 30:
        assert record.phase is RunPhase.COMPLETED, record.message
        assert world.cluster.clock.now() - began < timedelta(minutes=25)
    else:
        assert (record.phase, record.reason) == (RunPhase.ABORTED, Reason.RUN_DEADLINE)
        assert states.count(MoveState.DONE) == done, record.message
        assert "dropped" in record.message
        empty = [n.name for n in nodes if not world.cluster.snapshot().pods_on.get(n.name)]
        assert len(empty) == 2


# -- UC-19: opt-out between plan and action -------------------------------------------------------------------------


def pair() -> World:
    apps = [
        App("a", [("n1", 0)], memory_mib=8 * GIB),
        App("b", [("n1", 1)], memory_mib=8 * GIB),
        App("x", [("n2", 0)], memory_mib=12 * GIB, annotations={"defragd.io/do-not-move": "true"}),
        App("y", [("n2", 1)], memory_mib=12 * GIB, annotations={"defragd.io/do-not-move": "true"}),
    ]
    return World(build([node("n1", 2), node("n2", 2)], apps), rules=ONE)


def test_uc19_opt_out_set_between_plan_and_action() -> None:
    world = pair()
    run = world.replica.planning.plan_policy(world.job())
    assert {m["pod"].split("/")[1][0] for m in run.plan["moves"]} == {"a", "b"}
    pod = next(p for p in world.cluster.pods.values() if p.name.startswith("a-"))
    world.cluster.set_pod(replace(pod, annotations={"defragd.io/do-not-move": "true"}))
    world.until(world.ended(run.name))
    world.settle()
    record = world.run_record(run.name)
    by_pod = {m["pod"].split("/")[1][0]: s for m, s in zip(run.plan["moves"], record.moves, strict=True)}
    assert by_pod["a"].state is MoveState.DROPPED
    assert by_pod["a"].reason == Reason.OPTED_OUT
    assert by_pod["b"].state in (MoveState.DONE, MoveState.DROPPED)
    assert not [e for e in world.cluster.evictions if e.pod.startswith("default/a-")]
    assert world.leftovers() == []
    assert [f for e, f in world.replica.events if e == "move.ended" and f["reason"] == Reason.OPTED_OUT]


# -- UC-39: same name after the move --------------------------------------------------------------------------------


def test_uc39_a_stateful_pod_comes_back_under_its_name() -> None:
    apps = [
        App("s", [("n1", 0), ("n3", 0)], kind="StatefulSet", memory_mib=8 * GIB, grace_seconds=70),
        App("x", [("n2", 0)], memory_mib=12 * GIB, annotations={"defragd.io/do-not-move": "true"}),
        App("y", [("n3", 1)], memory_mib=12 * GIB, annotations={"defragd.io/do-not-move": "true"}),
    ]
    start = build([node("n1", 1), node("n2", 1), node("n3", 2)], apps)
    world = World(start, rules=ONE, faults=Faults(terminate=60.0))
    run = world.replica.planning.plan_policy(world.job())
    assert run.moves, run.message
    old = {m["pod"]: start.pods[m["pod"]].uid for m in run.plan["moves"]}
    waited: set[str] = set()

    def ended() -> bool:
        for placement in world.cluster.placements.values():
            pod = world.cluster.pods.get(f"{placement.namespace}/{placement.spec.evict_pod}")
            if pod is not None and pod.uid == placement.spec.evict_pod_uid and pod.deleting:
                assert placement.status.phase in (Phase.EVICTING, Phase.AWAITING_POD), placement.status
                waited.add(placement.status.message)
        return world.ended(run.name)()

    world.until(ended, step=0.5)
    assert world.run_record(run.name).phase is RunPhase.COMPLETED
    assert waited, "there was a time of waiting for the old pod's end"
    for key, uid in old.items():
        pod = world.cluster.pods[key]
        move = next(m for m in run.plan["moves"] if m["pod"] == key)
        assert pod.uid != uid
        assert (pod.node, list(pod.devices), pod.ready) == (move["to"]["node"], move["to"]["devices"], True)


# -- UC-59: never all replicas at once ------------------------------------------------------------------------------


def test_uc59_one_replica_at_a_time_with_spacing() -> None:
    apps = [
        App("w", [("n1", 0), ("n2", 0), ("n3", 0)], memory_mib=4 * GIB),
        App("x", [("t", 0)], memory_mib=12 * GIB, annotations={"defragd.io/do-not-move": "true"}),
    ]
    rules = replace(ONE, budgets=replace(FAST.budgets, spacing=timedelta(seconds=30)))
    world = World(build([node(n, 1) for n in ("n1", "n2", "n3", "t")], apps), rules=rules)
    run = world.replica.planning.plan_policy(world.job())
    assert len(run.moves) >= 2
    least = 3

    def ended() -> bool:
        nonlocal least
        least = min(least, ready(world, "w"))
        return world.ended(run.name)()

    world.until(ended, step=0.1)
    assert least >= 2
    moves = sorted(world.run_record(run.name).moves, key=lambda m: m.started or world.cluster.clock.now())
    for before, after in pairwise(moves):
        assert before.finished is not None
        assert after.started is not None
        assert after.started - before.finished >= timedelta(seconds=30)


# -- UC-63: one limit per phase -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotations", "state"),
    [({"defragd.io/start-limit": "30m"}, MoveState.DONE), ({}, MoveState.FAILED)],
)
def test_uc63_a_slow_starter_gets_its_own_limit(annotations: dict[str, str], state: MoveState) -> None:
    """A model server loads for 20 minutes; the policy's limit for starts is 5."""
    apps = [
        App("slow", [("n1", 0)], memory_mib=8 * GIB, annotations=annotations),
        App("x", [("n2", 0)], memory_mib=12 * GIB, annotations={"defragd.io/do-not-move": "true"}),
    ]
    world = World(build([node("n1", 1), node("n2", 1)], apps), rules=ONE)
    world.cluster.faults.start_of["slow-5d4f9c"] = 1200.0
    run = world.replica.planning.plan_policy(world.job())
    world.until(world.ended(run.name), 3000, step=1.0)
    (move,) = world.run_record(run.name).moves
    assert move.state is state, world.describe()


def test_uc63_phases_do_not_share_a_clock() -> None:
    """Eviction 9 of 10 minutes, start 3 of 5: more than any single limit together, and still a success."""
    apps = [
        App("m", [("n1", 0)], memory_mib=8 * GIB, grace_seconds=560),
        App("x", [("n2", 0)], memory_mib=12 * GIB, annotations={"defragd.io/do-not-move": "true"}),
    ]
    world = World(build([node("n1", 1), node("n2", 1)], apps), rules=ONE, faults=Faults(terminate=540.0, start=180.0))
    run = world.replica.planning.plan_policy(world.job())
    world.until(world.ended(run.name), 3000, step=1.0)
    (move,) = world.run_record(run.name).moves
    assert move.state is MoveState.DONE, world.describe()
    (placement,) = world.cluster.placements.values()
    assert placement.spec.timeouts == Timeouts()


# -- UC-67: limits under races --------------------------------------------------------------------------------------


def test_uc67_lagging_watches_and_a_restart_do_not_start_more_than_allowed() -> None:
    """Ten moves from one node, at most two in flight, watches five seconds behind, the process dies in between."""
    apps = [App(f"a{i}", [("n1", i)], memory_mib=4 * GIB) for i in range(10)]
    apps += [
        App(f"t{i}", [(f"t{i}", 0)], memory_mib=12 * GIB, annotations={"defragd.io/do-not-move": "true"})
        for i in range(10)
    ]
    rules = replace(ONE, budgets=replace(FAST.budgets, concurrent=None, per_source_node=Cap(in_flight=2)))
    world = World(build([node("n1", 10), *(node(f"t{i}", 1) for i in range(10))], apps), rules=rules)
    run = world.replica.planning.plan_policy(world.job(strategy="node-drain", node="n1"))
    assert len(run.moves) == 10
    world.cluster.faults.cache_lag = 5.0
    most = 0
    booted = False

    def ended() -> bool:
        nonlocal most, booted
        flying = sum(p.open for p in world.cluster.placements.values())
        most = max(most, flying)
        if flying == 2 and not booted:
            booted, world.replica = True, world.boot()
        return world.ended(run.name)()

    world.until(ended, 1200, step=0.5)
    assert booted
    assert most == 2
    assert world.run_record(run.name).phase is RunPhase.COMPLETED
    assert world.evicted_twice() == []
