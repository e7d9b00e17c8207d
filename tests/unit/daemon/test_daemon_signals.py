"""Runs that nobody scheduled, with the whole replica: a waiting pod is helped, deletion costs are written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from defragd.core.free import DELETION_COST, OURS
from defragd.core.model import DeviceRequest
from defragd.core.run import RunPhase
from defragd.daemon.demo import sim_ports
from defragd.daemon.policies import Policies
from defragd.daemon.replica import Replica
from defragd.hami.vendors import VENDORS
from defragd.sim.access import SimAccess
from defragd.sim.cluster import SimCluster
from defragd.sim.world import GIB, App, build, node
from tests.support.simrun import HerePlanner

HEAD = "apiVersion: defragd/v1\nkind: DefragPolicy\nmetadata: {name: p}\nspec:\n"
MAKE_ROOM = """\
  strategy: {name: make-room}
  mode: %s
  trigger: {startOn: {pendingPods: {after: 2m}}}
  protect: {minPodAge: 0s}
  execution: {settle: 1s}
"""
FREE = """\
  strategy: {name: best-fit}
  mode: %s
  protect: {minPodAge: 0s}
  free: {deletionCost: true}
"""


def boot(cluster: SimCluster, folder: Path, spec: str) -> Replica:
    access = SimAccess(cluster)
    (folder / "p.yaml").write_text(HEAD + spec)
    policies = Policies([folder], clock=access.clock, hook=lambda event, fields: None)
    assert not policies.load().errors
    return Replica(
        sim_ports(access),
        policies=policies,
        planner=HerePlanner(),
        hook=lambda event, fields: None,
        vendors=VENDORS,
        namespace="kube-system",
    )


def look(replica: Replica) -> None:
    replica.keeper.release_overdue()
    replica.beats.publish()
    replica.scheduler.cycle()
    replica.runs.cycle()
    replica.placements.cycle()
    replica.janitor.cycle()


def waiting(gib: int) -> SimCluster:
    """Two half-full devices, and a pod that wants ``gib`` on one."""
    apps = [
        App("a", [("n1", 0), ("far", 0)], memory_mib=10 * GIB),
        App("b", [("n1", 1), ("far", 1)], memory_mib=10 * GIB),
        App("full", [("far", 0), ("far", 1)], memory_mib=14 * GIB),
        App("z", [("n1", 0)], memory_mib=gib * GIB),
    ]
    start = build([node("n1", 2), node("far", 2)], apps)
    (z,) = (p for p in start.pods.values() if p.labels.get("app") == "z")
    pod = replace(
        z,
        node="",
        booked_node="",
        bind_phase="",
        phase="Pending",
        ready=False,
        ready_since=None,
        allocations=(),
        created=(start.taken_at or z.created),
        requests=(DeviceRequest(0, False, False, "NVIDIA", 1, gib * GIB),),
    )
    return SimCluster(start.with_pods({z.key: pod}))


@pytest.mark.parametrize(("mode", "helped"), [("Auto", True), ("DryRun", False)])
def test_a_waiting_pod_is_helped_after_the_delay(mode: str, helped: bool, tmp_path: Path) -> None:
    cluster = waiting(20)
    replica = boot(cluster, tmp_path, MAKE_ROOM % mode)
    for _ in range(100):
        look(replica)
        cluster.advance(1.0)
    assert not cluster.runs, "not before two minutes"
    for _ in range(60):
        look(replica)
        cluster.advance(1.0)
    (run,) = cluster.runs.values()
    assert run.trigger == "pending-pods"
    assert run.phase is (RunPhase.COMPLETED if helped else RunPhase.PLANNED)
    assert len(cluster.evictions) == (1 if helped else 0)
    assert len(run.plan["moves"]) == 1


def test_no_run_for_a_pod_that_no_move_can_help(tmp_path: Path) -> None:
    cluster = waiting(23)
    # the other devices are full, and the two half-full ones together have room for no more than 28
    replica = boot(cluster, tmp_path, MAKE_ROOM % "Auto")
    pod = next(p for p in cluster.pods.values() if p.labels.get("app") == "z")
    cluster.set_pod(replace(pod, requests=(DeviceRequest(0, False, False, "NVIDIA", 2, 23 * GIB),)))
    for _ in range(200):
        look(replica)
        cluster.advance(2.0)
    assert not cluster.runs
    assert not cluster.evictions


@pytest.mark.parametrize(("mode", "written"), [("Auto", True), ("Approve", True), ("DryRun", False)])
def test_deletion_costs_are_written_and_taken_off(mode: str, written: bool, tmp_path: Path) -> None:
    apps = [
        App("w", [("n1", 0), ("n1", 1)], memory_mib=6 * GIB),
        App("x", [("n1", 1), ("n2", 0)], memory_mib=6 * GIB),
        App("y", [("n2", 0), ("n2", 0)], memory_mib=4 * GIB),
    ]
    cluster = SimCluster(build([node("n1", 2), node("n2", 1)], apps))
    replica = boot(cluster, tmp_path, FREE % mode)
    assert bool(replica.free.cycle()) is written
    marked = {p.name: p.annotations for p in cluster.pods.values() if DELETION_COST in p.annotations}
    assert [name.split("-")[0] for name in marked] == (["w"] if written else [])
    cluster.advance(1.0)
    assert replica.free.cycle() == 0, "nothing to do twice"
    (tmp_path / "p.yaml").write_text(HEAD + (FREE % mode).replace("true", "false"))
    replica.policies.load()
    assert bool(replica.free.cycle()) is written
    assert not [p for p in cluster.pods.values() if p.annotations.get(DELETION_COST) or p.annotations.get(OURS)]
