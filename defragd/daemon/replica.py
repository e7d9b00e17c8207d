"""One replica of the daemon over ports: which controllers there are, in which order they start, how they stop.

The same on Kubernetes, on the simulated cluster and in tests; only the ports differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from defragd.controllers.claims import Admission
from defragd.controllers.execution import RunController
from defragd.controllers.free import FreeHints
from defragd.controllers.gates import GateKeeper
from defragd.controllers.heartbeats import HeartbeatLoop
from defragd.controllers.janitor import Janitor
from defragd.controllers.lane import InlineLane, Lane
from defragd.controllers.placements import PlacementController
from defragd.controllers.planning import Planning, PlanRefused
from defragd.controllers.schedule import Scheduler
from defragd.controllers.signals import SignalWatch
from defragd.core.gating import gated
from defragd.core.model import Pod
from defragd.core.plan import Refusal
from defragd.core.run import Run
from defragd.core.run_moves import moves_lately
from defragd.core.vendor import Vendor
from defragd.daemon.figures import budget_use
from defragd.daemon.loops import Loops
from defragd.daemon.policies import Policies
from defragd.daemon.scores import Scores
from defragd.errors import NotLeader
from defragd.obs.cluster import Reading
from defragd.policy.loaded import LoadedPolicy, PolicySet
from defragd.ports import (
    ClaimWriter,
    Clock,
    ClusterReader,
    EventSink,
    Heartbeats,
    Hook,
    Leadership,
    PlacementStore,
    PlannerRunner,
    PodWriter,
    RunStore,
    WorkloadWriter,
)
from defragd.web.deps import ApiDeps, Authorize, CreatePlacement, User, deny_writes
from defragd.web.explainer import build_explain

PAUSED = "defragd.io/paused"
"""Annotation on our own namespace: nothing new starts anywhere while it is there. Its value is the reason."""


def paused_by(reader: ClusterReader, namespace: str) -> Callable[[], str]:
    """The global pause: ``kubectl annotate namespace NS defragd.io/paused=REASON`` (removed, empty or "false": not)."""

    def paused() -> str:
        if not reader.synced():
            return ""
        said = reader.snapshot().namespace_annotations.get(namespace, {}).get(PAUSED, "").strip()
        return "" if said.lower() in ("", "false") else f"paused by namespace {namespace}: {said[:200]}"

    return paused


@dataclass(frozen=True, slots=True)
class Ports:
    """The outside of one replica."""

    reader: ClusterReader
    placements: PlacementStore
    runs: RunStore
    pods: PodWriter
    events: EventSink
    leadership: Leadership
    heartbeats: Heartbeats
    clock: Clock
    seen: Callable[[], int] | None = None
    heartbeats_ready: Callable[[], bool] = lambda: True
    """The other replicas' words are known; before, no placement evicts."""
    watches: Callable[[], Mapping[str, bool]] = dict
    """Resource -> listed completely, for metrics."""
    claims: ClaimWriter | None = None
    """Needed where pods are pinned at admission."""
    workloads: WorkloadWriter | None = None
    """For surges (make before break)."""
    certificate_expiry: Callable[[], float | None] = lambda: None


class Replica:
    """Builds everything at once; `start` runs it, `stop` ends it within a time."""

    def __init__(
        self,
        ports: Ports,
        *,
        policies: Policies,
        planner: PlannerRunner,
        hook: Hook,
        vendors: Mapping[str, Vendor],
        namespace: str,
        untrusted: Callable[[], str] = lambda: "",
        admission_mode: str = "gate",
        resources: frozenset[str] = frozenset(),
        max_age_seconds: float = 90.0,
        rescore_seconds: float = 15.0,
        schedule_seconds: float = 5.0,
        lanes: Callable[[], Lane] = InlineLane,
        read_pod: Callable[[Mapping[str, Any]], Pod | None] = lambda raw: None,
    ) -> None:
        """``lanes`` makes the lanes that writes about pods run in (default: in the loops' own threads). ``read_pod``
        makes a pod that is being created a value (pinning at admission judges it)."""
        self.ports, self.policies, self._hook, self._vendors = ports, policies, hook, vendors
        p = ports
        self.admission = Admission(
            reader=p.reader,
            placements=p.placements,
            clock=p.clock,
            vendors=vendors,
            hook=hook,
            mode=admission_mode,
            claims=p.claims,
            read_pod=read_pod,
            resources=resources,
        )
        by_people = paused_by(p.reader, namespace)

        def paused() -> str:
            return by_people() or untrusted()

        self.loops = Loops(p.clock, hook)
        self.keeper = GateKeeper(
            reader=p.reader, placements=p.placements, pods=p.pods, clock=p.clock, hook=hook, lane=lanes()
        )
        self.beats = HeartbeatLoop(
            heartbeats=p.heartbeats, placements=p.placements, reader=p.reader, clock=p.clock, seen=p.seen
        )
        self.placements = PlacementController(
            reader=p.reader,
            placements=p.placements,
            pods=p.pods,
            events=p.events,
            leadership=p.leadership,
            heartbeats=p.heartbeats,
            clock=p.clock,
            hook=hook,
            vendors=vendors,
            seen=p.seen,
            heartbeats_ready=p.heartbeats_ready,
            max_age_seconds=max_age_seconds,
            paused=paused,
            lane=lanes(),
            admission=admission_mode,
            workloads=p.workloads,
        )
        self.janitor = Janitor(
            reader=p.reader,
            placements=p.placements,
            pods=p.pods,
            leadership=p.leadership,
            clock=p.clock,
            hook=hook,
            vendors=vendors,
            max_age_seconds=max_age_seconds,
            workloads=p.workloads,
        )
        self.runs = RunController(
            reader=p.reader,
            placements=p.placements,
            runs=p.runs,
            events=p.events,
            leadership=p.leadership,
            clock=p.clock,
            hook=hook,
            vendors=vendors,
            terms=policies.terms,
            paused=paused,
            max_age_seconds=max_age_seconds,
            lane=lanes(),
        )
        self.planning = Planning(
            reader=p.reader,
            runs=p.runs,
            planner=planner,
            leadership=p.leadership,
            clock=p.clock,
            hook=hook,
            vendors=vendors,
            namespace=namespace,
            max_age_seconds=max_age_seconds,
        )
        self.scheduler: Scheduler[LoadedPolicy] = Scheduler(
            policies=policies.all,
            job=policies.job,
            planning=self.planning,
            runs=p.runs,
            leadership=p.leadership,
            clock=p.clock,
            hook=hook,
            every_seconds=schedule_seconds,
            signals=SignalWatch(
                reader=p.reader,
                runs=p.runs,
                clock=p.clock,
                hook=hook,
                vendors=vendors,
                fragmentation=self._fragmentation,
                max_age_seconds=max_age_seconds,
            ).due,
        )
        self.free = FreeHints(
            policies=policies.all,
            reader=p.reader,
            pods=p.pods,
            leadership=p.leadership,
            clock=p.clock,
            hook=hook,
            vendors=vendors,
            paused=paused,
            max_age_seconds=max_age_seconds,
        )
        self.scores = Scores(
            reader=p.reader,
            placements=p.placements,
            runs=p.runs,
            leadership=p.leadership,
            clock=p.clock,
            hook=hook,
            waiting=lambda: self.runs.waiting,
            rescore_seconds=rescore_seconds,
        )

    # -- life -----------------------------------------------------------------------------------------------------

    def _fragmentation(self) -> float | None:
        found = self.scores.current()
        return found.loss if found is not None else None

    def start_keeper(self) -> None:
        """First of all: pods that wait behind a gate nobody looks after."""
        self.loops.start("gates", self.keeper.run, beat=lambda: self.keeper.beat, limit=60.0)
        self.loops.start("heartbeats", self.beats.run)

    def start(self) -> None:
        """The rest, when the caches are filled."""
        self.loops.start("placements", self.placements.run, beat=lambda: self.placements.beat)
        self.loops.start("runs", self.runs.run, beat=lambda: self.runs.beat)
        self.loops.start("janitor", self.janitor.run, beat=lambda: self.janitor.beat)
        self.loops.start("policies", self.policies.run, beat=lambda: self.policies.beat)
        self.loops.start("schedule", self.scheduler.run, beat=lambda: self.scheduler.beat, limit=900.0)
        self.loops.start("free", self.free.run, beat=lambda: self.free.beat)
        self.loops.start("scores", self.scores.run, beat=lambda: self.scores.beat, limit=300.0)

    def stop(self, timeout: float) -> list[str]:
        return self.loops.stop(timeout)

    # -- for the servers ------------------------------------------------------------------------------------------

    def decide(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The webhook's decision."""
        return self.admission.decide(request)

    def plan_now(self, policy: str, user: User, *, timeout: float = 120.0) -> Run | Refusal:
        """On a person's word. KeyError: no such policy. NotLeader: ask the leader."""
        if self.policies.get(policy) is None:
            raise KeyError(policy)
        if not self.ports.leadership.is_leader():
            holder = self.ports.leadership.holder() or "nobody"
            raise NotLeader(f"only the leader plans, and that is {holder}")
        try:
            return self.scheduler.request(policy, trigger=f"manual ({user.name})").result(timeout)
        except PlanRefused as error:
            return Refusal(f"DefragPolicy/{policy}", error.reason, error.detail)

    def reading(self) -> Reading | None:
        """What one scrape of the metrics sees."""
        p = self.ports
        synced = p.reader.synced()
        snapshot = p.reader.snapshot() if synced else None
        found = self.scores.current()
        scores = {**self.scores.pools(), **({"all": found} if found is not None else {})}
        return Reading(
            snapshot=snapshot,
            scores=scores,
            placements=p.placements.list(),
            runs=p.runs.list(),
            snapshot_age_seconds=p.reader.age_seconds(),
            leader=p.leadership.is_leader(),
            policies=self.policies.counts(),
            gated_pods=len(gated(snapshot.pods.values())) if snapshot else None,
            synced=p.watches(),
            certificate_expiry=p.certificate_expiry(),
            budgets=budget_use(p.runs.list(), self.policies.terms),
        )

    def api_deps(
        self,
        *,
        metrics: Any = None,
        ready: Mapping[str, Callable[[], str]] | None = None,
        authorize: Authorize = deny_writes,
        writes_enabled: bool = False,
        settings: Mapping[str, Any] | None = None,
        title: str = "",
        authorize_read: Authorize | None = None,
        create_placement: CreatePlacement | None = None,
    ) -> ApiDeps:
        p = self.ports
        checks = {"caches": lambda: "" if p.reader.synced() else "not filled yet", **(ready or {})}
        return ApiDeps(
            reader=p.reader,
            placements=p.placements,
            runs=p.runs,
            leadership=p.leadership,
            clock=p.clock,
            policies=lambda: self.policies.views(p.runs.list()),
            score=self.scores.current,
            pool_scores=self.scores.pools,
            metrics=metrics,
            plan_now=self.plan_now,
            explain=build_explain(
                p.reader,
                lambda: PolicySet(self.policies.all()),
                p.clock,
                vendors=self._vendors,
                history=lambda: moves_lately(p.runs.list(), p.clock.now())[0],
                last_moved=lambda: moves_lately(p.runs.list(), p.clock.now())[1],
            ),
            live={"loops": self.loops.health},
            ready=checks,
            authorize=authorize,
            authorize_read=authorize_read,
            create_placement=create_placement,
            writes_enabled=writes_enabled,
            settings=settings or {},
            events=p.events,
            hook=self._hook,
            title=title,
        )
