"""Every metric: name, help, labels, buckets. One own registry, one process, no multiprocess mode.

Names carry their unit; counters exist at zero before anything happens; label values come from closed or bounded sets
(reasons are `core.reasons`, policies and strategies are capped), never pod or namespace names.
"""

from __future__ import annotations

import platform
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from defragd import __version__
from defragd.core.reasons import Reason
from defragd.obs.cluster import ClusterCollector, Reading
from defragd.obs.pools import OTHER, Bounded, PoolOf, pool_of

MOVE_RESULTS = ("done", "failed", "refused", "dropped")
PLAN_RESULTS = ("moves", "empty", "infeasible", "failed")
STOPPED = ("complete", "time", "steps", "budget", "infeasible")
STAGES = ("hold", "evict", "schedule", "ready", "settle")
EVICTION_RESULTS = ("ok", "blocked", "refused", "conflict", "gone", "error")
DECISIONS = ("unchanged", "patched", "fault")
STRATEGIES = ("best-fit", "gpu-drain", "node-drain", "make-room")
FAILURES = (
    Reason.HOLD_TIMEOUT,
    Reason.EVICT_TIMEOUT,
    Reason.START_TIMEOUT,
    Reason.POD_TIMEOUT,
    Reason.REPLACEMENT_MISSING,
    Reason.WRONG_NODE,
    Reason.WRONG_DEVICE,
    Reason.PLACE_STOLEN,
    Reason.ALLOCATE_FAILED,
    Reason.POD_CRASHED,
    Reason.POD_DELETED,
)
"""How a placement misses its place: reasons that exist at zero."""
_REASONS = frozenset(str(reason) for reason in Reason)

SLOW = (0.05, 0.25, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
STAGE = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0)
COUNTS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)


def known_reason(reason: object) -> str:
    """``reason`` when it is in the closed list, "" stays "", anything else is "other"."""
    text = str(reason or "")
    return text if not text or text in _REASONS else OTHER


class Metrics:
    """All metrics and their registry.

    ``Metrics()`` has everything but the cluster; ``watch_cluster(source)`` adds the gauges that are computed per
    scrape from one `Reading`. ``render()`` is the body of ``/metrics`` and ``content_type`` its type.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, *, process: bool = True) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series per counter and histogram that nobody reads
        self.registry = CollectorRegistry(auto_describe=True)
        self.policy = Bounded(200)
        self.strategy = Bounded(20, STRATEGIES)
        self.resource = Bounded(40)
        self.restart_reason = Bounded(15)
        self.code = Bounded(40)
        self.route = Bounded(60)
        if process:
            ProcessCollector(registry=self.registry)
        self._build()
        self._zero()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

    def _build(self) -> None:
        count, gauge, hist = self._counter, self._gauge, self._histogram
        self.build_info = gauge("defragd_build_info", "Version of the running daemon.", "version", "python_version")
        self.plans = count("defragd_plans_total", "Plans computed.", "policy", "result", "dry_run")
        self.plan_seconds = hist(
            "defragd_plan_duration_seconds", "Time to compute a plan.", SLOW, "strategy", "stop_reason"
        )
        self.plan_moves = hist("defragd_plan_moves", "Moves per plan.", COUNTS, "strategy")
        self.validation_failures = count(
            "defragd_plan_validation_failures_total", "Moves that fresh data no longer allowed.", "reason"
        )
        self.moves = count("defragd_moves_total", "Moves that ended.", "policy", "result", "reason")
        self.move_seconds = hist("defragd_move_duration_seconds", "Time a move spent in a stage.", STAGE, "stage")
        self.evictions = count("defragd_evictions_total", "Eviction requests by answer.", "result")
        self.pdb_waits = count("defragd_pdb_waits_total", "Evictions that a disruption budget put off.")
        self.placements_ended = count("defragd_placements_ended_total", "Placements that ended.", "result", "reason")
        self.placements_missed = count(
            "defragd_placements_missed_total", "Replacements that did not end where placed.", "reason"
        )
        self.gates_released = count("defragd_gates_released_total", "Scheduling gates removed.", "why")
        self.webhook_requests = count("defragd_webhook_requests_total", "Admission reviews answered.", "decision")
        self.webhook_seconds = hist(
            "defragd_webhook_duration_seconds", "Time to answer an admission review.", FAST, "decision"
        )
        self.webhook_faults = count("defragd_webhook_faults_total", "Reviews allowed because of a fault.", "fault")
        self.watch_restarts = count("defragd_watch_restarts_total", "Watches started again.", "resource", "reason")
        self.api_requests = count(
            "defragd_kube_requests_total", "Requests to the API server.", "verb", "resource", "code"
        )
        self.api_seconds = hist("defragd_kube_request_duration_seconds", "Time of API server requests.", FAST, "verb")
        self.http_requests = count("defragd_http_requests_total", "Requests to API and UI.", "route", "code")
        self.runs = count("defragd_runs_total", "Runs that reached a phase.", "policy", "phase")
        self.leader_changes = count("defragd_leader_changes_total", "Times that the seen leader changed.")
        self.policy_reloads = count("defragd_policy_reloads_total", "Reloads of policy files.", "result")
        self.breaker_open = gauge("defragd_breaker_open", "1 while a policy is stopped by its breaker.", "policy")
        self.cycle_time = gauge("defragd_last_cycle_timestamp_seconds", "When a loop last finished a cycle.", "loop")
        self.recycled = count(
            "defragd_pods_recycled_total", "Own pinned pods that could not start, evicted once without pin.", "result"
        )
        self.loop_failures = count("defragd_loop_failures_total", "Cycles that ended with an exception.", "loop")
        self.certificate_renewals = count("defragd_certificate_renewals_total", "Serving certificates made anew.")
        self.certificate_trouble = count("defragd_certificate_failures_total", "Certificate upkeep that failed.")
        self.gates_stuck = count("defragd_gate_release_failures_total", "Scheduling gates that resist removal.")
        self.events_lost = count("defragd_kube_events_lost_total", "Kubernetes Events dropped or refused.")
        self.user_actions = count("defragd_user_actions_total", "Changes that people asked for.", "verb")
        self.events = count("defragd_unexpected_events_total", "Reports that no metric knows.")

    def _zero(self) -> None:
        self.build_info.labels(__version__, platform.python_version()).set(1)
        for strategy in STRATEGIES:
            self.plan_moves.labels(strategy)
            for stopped in STOPPED:
                self.plan_seconds.labels(strategy, stopped)
        for stage in STAGES:
            self.move_seconds.labels(stage)
        for result in EVICTION_RESULTS:
            self.evictions.labels(result)
        for reason in FAILURES:
            self.placements_missed.labels(reason)
            self.placements_ended.labels("Failed", reason)
        self.placements_ended.labels("Completed", Reason.COMPLETED)
        self.placements_ended.labels("Expired", Reason.EXPIRED)
        for reason in (Reason.STALE_DATA, Reason.PDB_BLOCKS, Reason.POD_CHANGED, Reason.DEVICE_FULL, Reason.NODE_UNFIT):
            self.validation_failures.labels(reason)
        for why in ("pinned", "overdue", "closed", "surplus", "failed"):
            self.gates_released.labels(why)
        for decision in DECISIONS:
            self.webhook_requests.labels(decision)
            self.webhook_seconds.labels(decision)
        for fault in ("malformed", "oversize", "exception"):
            self.webhook_faults.labels(fault)
        for result in ("ok", "failed"):
            self.policy_reloads.labels(result)
        for result in EVICTION_RESULTS:
            self.recycled.labels(result)
        for loop in ("placements", "runs", "gates", "janitor", "schedule"):
            self.loop_failures.labels(loop)
        for verb in ("approve", "pause", "resume", "cancel", "run"):
            self.user_actions.labels(verb)

    def know_policy(self, policy: str) -> None:
        """Create the series of a policy at zero, so that rates are right from its first move on."""
        name = self.policy(policy)
        self.breaker_open.labels(name)
        for result in PLAN_RESULTS:
            for dry_run in ("true", "false"):
                self.plans.labels(name, result, dry_run)
        self.moves.labels(name, "done", "")
        self.moves.labels(name, "failed", "")
        for phase in ("Completed", "Aborted", "Failed"):
            self.runs.labels(name, phase)

    def watch_cluster(
        self, source: Callable[[], Reading | None], *, pools: PoolOf = pool_of, max_age: float = 5.0
    ) -> None:
        """Add the gauges of cluster, placements, runs and health, computed from ``source()`` once per scrape."""
        self.registry.register(ClusterCollector(source, pools=pools, max_age=max_age))

    def render(self) -> bytes:
        """The exposition text of everything."""
        return generate_latest(self.registry)
