"""A large workload that stops slowly under a tight budget: never more out than allowed, and the run's limit is kept."""

from __future__ import annotations

from datetime import timedelta

import pytest

from defragd.controllers.execution import Terms
from defragd.core.plan import Move, Place
from defragd.core.plan_json import move_to_json
from defragd.core.reasons import Reason
from defragd.core.rules import Budgets, Cap, Execution, Protection, Rules, Timeouts
from defragd.core.run import MoveState, Run, RunMove, RunPhase
from defragd.sim.access import SimAccess
from defragd.sim.faults import Faults
from defragd.sim.world import GIB, App, build, node
from tests.support.simrun import Replica, World

SLOW = Rules(
    protect=Protection(min_pod_age=timedelta(0)),
    budgets=Budgets(
        concurrent=None,
        per_source_node=Cap(),
        per_target_node=Cap(),
        per_namespace=Cap(),
        per_workload=Cap(),
        spacing=timedelta(0),
        rate=None,
    ),
    execution=Execution(settle=timedelta(seconds=10), timeouts=Timeouts(hold=timedelta(minutes=20))),
)


def campaign(limit: timedelta) -> tuple[World, Run]:
    """Ten nodes with five replicas each of one workload, five of which may be out; twenty moves empty four nodes."""
    hosts = [node(f"n{i}", 10) for i in range(10)]
    at = [(f"n{i}", k) for i in range(10) for k in range(5)]
    start = build(hosts, [App("w", at, memory_mib=8 * GIB, min_available=45, grace_seconds=300)])
    world = World(start, rules=SLOW, faults=Faults(terminate=180.0, start=40.0))
    pods = [p for p in start.pods.values() if p.node in ("n0", "n1", "n2", "n3")]
    moves = [
        Move(
            id=f"m{i}",
            pod=pod.key,
            uid=pod.uid,
            source=Place(pod.node, pod.devices),
            target=Place(f"n{4 + i % 6}", (f"GPU-n{4 + i % 6}-{5 + i // 6}",)),
            wave=1 + i // 5,
            workload="Deployment/default/w",
        )
        for i, pod in enumerate(pods)
    ]
    world.replica = Replica(
        SimAccess(world.cluster), SLOW, terms=lambda run: Terms(SLOW, max_duration=limit, drain=True)
    )
    now = world.cluster.clock.now()
    run = Run(
        "kube-system",
        "campaign",
        "p",
        "Auto",
        "node-drain",
        plan={"moves": [move_to_json(m) for m in moves]},
        phase=RunPhase.RUNNING,
        moves=tuple(RunMove(m.id) for m in moves),
        started=now,
    )
    assert world.replica.access.runs.create(run).ok
    return world, run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("minutes", "phase", "done"), [(30, RunPhase.COMPLETED, 20), (10, RunPhase.ABORTED, 10)], ids=["30m", "10m"]
)
def test_the_budget_refills_slowly(minutes: int, phase: RunPhase, done: int) -> None:
    world, run = campaign(timedelta(minutes=minutes))
    most = 0

    def ended() -> bool:
        nonlocal most
        budget = world.cluster.budgets["default/w"]
        most = max(most, 50 - world.cluster.healthy(budget))
        return world.ended(run.name)()

    world.until(ended, 3600, step=1.0)
    record = world.run_record(run.name)
    states = [m.state for m in record.moves]
    assert most == 5
    assert world.cluster.overdrawn == []
    assert (record.phase, states.count(MoveState.DONE)) == (phase, done), world.describe()
    assert len(world.cluster.evictions) == done, "every pod is evicted once, however long it takes to stop"
    took = world.cluster.clock.monotonic() / 60
    assert took < minutes
    if phase is RunPhase.ABORTED:
        assert record.reason == Reason.RUN_DEADLINE
        assert "10 done, 10 dropped" in record.message
        emptied = {f"n{i}" for i in range(4)} - {p.node for p in world.cluster.pods.values()}
        assert len(emptied) == 2, "what was done is spent on whole nodes"
