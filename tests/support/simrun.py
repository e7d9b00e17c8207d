"""A whole replica on the simulated cluster, driven step by step: every controller once per look, then time passes.

``Crash`` comes out of a write (before or after it took effect) and stands for kill -9: drop the replica, make another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from defragd.controllers.execution import RunController, Terms
from defragd.controllers.gates import GateKeeper
from defragd.controllers.heartbeats import HeartbeatLoop
from defragd.controllers.janitor import Janitor
from defragd.controllers.offload import plan_here
from defragd.controllers.placements import PlacementController
from defragd.controllers.planning import Job, Planning
from defragd.core.placement import GATE
from defragd.core.plan import PlanReply, PlanRequest
from defragd.core.rules import Budgets, Cap, Execution, Protection, Rules
from defragd.core.run import Run, RunPhase
from defragd.core.snapshot import Snapshot
from defragd.hami.vendors import VENDORS
from defragd.sim.access import SimAccess
from defragd.sim.cluster import SimCluster
from defragd.sim.faults import Faults

FAST = Rules(
    protect=Protection(min_pod_age=timedelta(0)),
    budgets=Budgets(
        concurrent=8,
        per_source_node=Cap(in_flight=4),
        per_target_node=Cap(in_flight=1),
        per_workload=Cap(in_flight=1),
        spacing=timedelta(seconds=1),
        rate=None,
    ),
    execution=Execution(settle=timedelta(seconds=2)),
)


class Crash(BaseException):
    """kill -9."""


class HerePlanner:
    """ports.PlannerRunner without a child: the same plan, in this process, with a search that is short but the same
    every time."""

    def run(self, request: PlanRequest, *, time_limit: float) -> PlanReply:
        return plan_here(replace(request, max_steps=150), time_limit=time_limit)


@dataclass
class Replica:
    """One process of the daemon."""

    access: SimAccess
    rules: Rules = FAST
    terms: Callable[[Run], Terms] | None = None
    paused: str = ""
    events: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        access = self.access

        def hook(event: str, fields: Mapping[str, Any]) -> None:
            self.events.append((event, dict(fields)))

        everyone = {
            "reader": access,
            "placements": access.placements,
            "pods": access,
            "clock": access.clock,
            "hook": hook,
        }
        leading = {**everyone, "leadership": access.leadership, "vendors": VENDORS}
        self.keeper = GateKeeper(**everyone)
        self.beats = HeartbeatLoop(
            heartbeats=access.heartbeats, placements=access.placements, reader=access, clock=access.clock
        )
        self.placements = PlacementController(**leading, events=access, heartbeats=access.heartbeats, workloads=access)
        self.janitor = Janitor(**leading, workloads=access)
        self.runs = RunController(
            reader=access,
            placements=access.placements,
            runs=access.runs,
            events=access,
            leadership=access.leadership,
            clock=access.clock,
            hook=hook,
            vendors=VENDORS,
            terms=self.terms or (lambda run: Terms(self.rules)),
            paused=lambda: self.paused,
        )
        self.planning = Planning(
            reader=access,
            runs=access.runs,
            planner=HerePlanner(),
            leadership=access.leadership,
            clock=access.clock,
            hook=hook,
            vendors=VENDORS,
            namespace="kube-system",
        )

    def look(self) -> None:
        self.keeper.release_overdue()
        self.beats.publish()
        self.runs.cycle()
        self.placements.cycle()
        self.janitor.cycle()


class World:
    """A cluster and one replica at a time. A look every 100 ms of simulated time."""

    def __init__(self, start: Snapshot, *, rules: Rules = FAST, faults: Faults | None = None) -> None:
        self.rules = rules
        self.cluster = SimCluster(start, faults=faults)
        self.crashes = 0
        self.replica = self.boot()

    def boot(self) -> Replica:
        """A new process, with nothing in memory."""
        return Replica(SimAccess(self.cluster, identity=f"sim-{self.crashes}"), self.rules)

    def job(self, mode: str = "Auto", strategy: str = "best-fit", **args: Any) -> Job:
        return Job("nightly", strategy, args=args, rules=self.rules, mode=mode, time_limit=10.0)

    def step(self, seconds: float = 0.1) -> None:
        try:
            self.replica.look()
        except Crash:
            self.crashes += 1
            self.replica = self.boot()
        self.cluster.advance(seconds)

    def until(self, done: Callable[[], bool], seconds: float = 600.0, step: float = 0.1) -> None:
        left = seconds
        while not done():
            assert left > 0, f"not done after {seconds} simulated seconds:\n{self.describe()}"
            self.step(step)
            left -= step

    def settle(self, seconds: float = 5.0) -> None:
        """Lets some time pass after the end, so that leftovers would show."""
        left = seconds
        while left > 0:
            self.step()
            left -= 0.1

    def run_record(self, name: str) -> Run:
        return self.cluster.runs[name]

    def ended(self, name: str) -> Callable[[], bool]:
        return lambda: (
            self.cluster.runs[name].phase not in (RunPhase.RUNNING, RunPhase.PAUSED, RunPhase.AWAITING_APPROVAL)
        )

    def describe(self) -> str:
        lines = [f"{r.name} {r.phase} {r.reason} {r.message}" for r in self.cluster.runs.values()]
        for run in self.cluster.runs.values():
            lines += [f"  {m.id} {m.state} {m.reason} {m.message}" for m in run.moves]
        lines += [
            f"{p.key} {p.status.phase}/{p.status.step} {p.status.reason} {p.status.message}"
            for p in self.cluster.placements.values()
            if p.open
        ]
        lines += [
            f"{p.key} {p.phase} gates={p.gates} {p.unschedulable}" for p in self.cluster.pods.values() if not p.ready
        ]
        return "\n".join(lines)

    def leftovers(self) -> list[str]:
        """What must not be there when nothing is under way (invariant I7)."""
        found = [f"{p.key} is gated" for p in self.cluster.pods.values() if GATE in p.gates]
        found += [f"{p.key} is open" for p in self.cluster.placements.values() if p.open]
        found += [f"{p.key} is pending: {p.unschedulable}" for p in self.cluster.pods.values() if p.live and not p.node]
        found += [f"{p.key} is not Ready" for p in self.cluster.pods.values() if p.live and not p.ready]
        return found

    def evicted_twice(self) -> list[str]:
        """Pods of whose lineage a single placement took more than one."""
        by_placement: dict[str, int] = {}
        for eviction in self.cluster.evictions:
            for placement in self.cluster.placements.values():
                if placement.spec.evict_pod_uid == eviction.uid:
                    by_placement[placement.key] = by_placement.get(placement.key, 0) + 1
        return [key for key, count in by_placement.items() if count > 1]


def with_rules(rules: Rules = FAST, **budgets: Any) -> Rules:
    return replace(rules, budgets=replace(rules.budgets, **budgets))
