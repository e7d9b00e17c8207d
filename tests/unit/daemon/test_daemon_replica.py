"""A replica over simulated ports: what it offers to servers and people."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from defragd.core.plan import Refusal
from defragd.core.run import Run, RunPhase
from defragd.daemon.demo import sim_ports
from defragd.daemon.policies import Policies
from defragd.daemon.replica import PAUSED, Replica, paused_by
from defragd.errors import NotLeader
from defragd.hami.vendors import VENDORS
from defragd.sim.access import SimAccess
from defragd.sim.cluster import SimCluster
from defragd.sim.world import App, build, node
from defragd.web.deps import User
from tests.support.simrun import HerePlanner

POLICY = """
apiVersion: defragd/v1
kind: DefragPolicy
metadata: {name: now}
spec:
  strategy: {name: best-fit}
  protect: {minPodAge: 0s}
"""


@pytest.fixture
def access() -> SimAccess:
    return SimAccess(SimCluster(build([node("n1", 2), node("n2", 2)], [App("a", [("n1", 0), ("n2", 0)])])))


@pytest.fixture
def replica(access: SimAccess, tmp_path: Path) -> Replica:
    (tmp_path / "now.yaml").write_text(POLICY)
    policies = Policies([tmp_path], clock=access.clock, hook=lambda event, fields: None)
    policies.load()
    return Replica(
        sim_ports(access),
        policies=policies,
        planner=HerePlanner(),
        hook=lambda event, fields: None,
        vendors=VENDORS,
        namespace="kube-system",
    )


def test_plan_now_is_the_leaders_and_knows_its_policies(access: SimAccess, replica: Replica) -> None:
    with pytest.raises(KeyError):
        replica.plan_now("never", User("kim"))
    access.leadership.leading = False
    with pytest.raises(NotLeader):
        replica.plan_now("now", User("kim"))


def test_plan_now_answers_with_the_run_or_the_reason(access: SimAccess, replica: Replica) -> None:
    replica.loops.start("schedule", replica.scheduler.run)
    try:
        run = replica.plan_now("now", User("kim"), timeout=20)
        assert isinstance(run, Run)
        assert run.trigger == "manual (kim)"
        assert run.phase in (RunPhase.PLANNED, RunPhase.COMPLETED)
        access.cluster.faults.stale = 1000
        refused = replica.plan_now("now", User("kim"), timeout=20)
        assert isinstance(refused, Refusal)
        assert "1000 s" in refused.detail
    finally:
        assert replica.stop(5) == []


@pytest.mark.parametrize(
    ("value", "paused"), [(None, False), ("", False), ("false", False), ("maintenance", True), ("true", True)]
)
def test_global_pause_by_annotation(access: SimAccess, value: str | None, paused: bool) -> None:
    annotations = {} if value is None else {"kube-system": {PAUSED: value}}
    access.cluster.start = replace(access.cluster.start, namespace_annotations=annotations)
    access.cluster.touch()
    said = paused_by(access, "kube-system")()
    assert bool(said) is paused
    assert not paused or value in said  # type: ignore[operator]


def test_a_scrape_speaks_of_one_moment(replica: Replica) -> None:
    replica.scores.refresh()
    reading = replica.reading()
    assert reading is not None
    assert reading.snapshot is not None
    assert set(reading.scores) >= {"all"}
    assert dict(reading.policies) == {"ok": 1, "broken": 0}
