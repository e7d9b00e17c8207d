"""The one place where reports of drivers and adapters (ports.Hook) become log lines and metrics.

``Observer(logger, metrics)`` is the hook: ``observer(event, fields)``. It never raises: a report must not stop work.
Unknown events are logged only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from defragd.obs.metrics import EVICTION_RESULTS, Metrics, known_reason
from defragd.obs.pools import OTHER

Fields = Mapping[str, Any]

STAGE_OF = {
    "Pending": "hold",
    "Held": "hold",
    "Evicting": "evict",
    "AwaitingPod": "schedule",
    "Binding": "schedule",
    "Settling": "settle",
    "hold": "hold",
    "evict": "evict",
    "schedule": "schedule",
    "ready": "ready",
    "settle": "settle",
    "pending": "hold",
    "held": "hold",
    "evicting": "evict",
    "awaiting": "schedule",
    "starting": "ready",
    "settling": "settle",
}
"""Words of "placement.ended" to the stages of ``defragd_move_duration_seconds``; those of one stage are added up."""

DEBUG_EVENTS = frozenset({"api.call", "webhook.request"})
"""Frequent and harmless: logged when debugging only; their faults are logged as warnings."""
WARNING_EVENTS = frozenset(
    {
        "api.fault",
        "gate.stuck",
        "kind.unknown",
        "loop.died",
        "object.broken",
        "plan.failed",
        "policy.broken",
        "policy.warning",
        "stop.slow",
        "watch.restart",
        "watch.unavailable",
    }
)
WARNING_ENDINGS = (".trouble", ".failed", ".dropped")
"""Events by the end of their name that are warnings too."""
FAULT_INTERVAL = 60.0
"""The same fault is logged once a minute at most, with the number of those left out; it is always counted."""


class Observer:
    """See the module. ``logger`` is a structlog logger (or anything with debug/info/warning taking keywords)."""

    def __init__(self, logger: Any, metrics: Metrics, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.logger = logger
        self.metrics = metrics
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._last: dict[str, tuple[float, int]] = {}
        self._handlers: dict[str, Callable[[Fields], None]] = {
            "placement.ended": self._placement_ended,
            "eviction": self._eviction,
            "webhook.request": self._webhook,
            "gate.released": lambda f: self.metrics.gates_released.labels(_why(f)).inc(),
            "run.phase": self._run_phase,
            "move.ended": self._move_ended,
            "move.refused": lambda f: self.metrics.validation_failures.labels(known_reason(f.get("reason"))).inc(),
            "plan.done": self._plan_done,
            "plan.failed": self._plan_failed,
            "watch.restart": self._watch_restart,
            "recycle": lambda f: self.metrics.recycled.labels(_result(f)).inc(),
            "loop.failed": lambda f: self.metrics.loop_failures.labels(_text(f, "loop")).inc(),
            "certs.renewed": lambda _f: self.metrics.certificate_renewals.inc(),
            "certs.trouble": lambda _f: self.metrics.certificate_trouble.inc(),
            "gate.stuck": lambda _f: self.metrics.gates_stuck.inc(),
            "event.dropped": lambda _f: self.metrics.events_lost.inc(),
            "event.failed": lambda _f: self.metrics.events_lost.inc(),
            "api.write": lambda f: self.metrics.user_actions.labels(_text(f, "verb")).inc(),
            "api.call": self._api_call,
            "leader.changed": lambda _f: self.metrics.leader_changes.inc(),
            "http.request": self._http,
            "policies.reloaded": self._reloaded,
            "breaker": lambda f: self.metrics.breaker_open.labels(self._policy(f)).set(1.0 if f.get("open") else 0.0),
            "cycle": self._cycle,
        }

    def __call__(self, event: str, fields: Fields) -> None:
        try:
            handler = self._handlers.get(event)
            if handler is not None:
                handler(fields)
        except Exception:  # noqa: BLE001 - a wrong report is counted, never raised into the work that reports
            self.metrics.events.inc()
        try:
            self._log(event, fields)
        except Exception:  # noqa: BLE001 - a full disk or a closed stream must not stop work either
            self.metrics.events.inc()

    # -- logs ----------------------------------------------------------------------------------------------------

    def _log(self, event: str, fields: Fields) -> None:
        data = {("what" if key == "event" else key): value for key, value in fields.items()}
        if event in ("webhook.request", "http.request"):
            fault = data.get("fault") or data.get("error")
            if fault:
                self._log_fault(event, str(fault), data)
                return
        if event in DEBUG_EVENTS or event == "http.request":
            self.logger.debug(event, **data)
        elif event in WARNING_EVENTS or event.endswith(WARNING_ENDINGS) or data.get("level") == "warning":
            data.pop("level", None)
            self.logger.warning(event, **data)
        else:
            data.pop("level", None)
            self.logger.info(event, **data)

    def _log_fault(self, event: str, fault: str, data: dict[str, Any]) -> None:
        key = f"{event}/{fault}"
        now = self._monotonic()
        with self._lock:
            last, skipped = self._last.get(key, (float("-inf"), 0))
            if now - last < FAULT_INTERVAL:
                self._last[key] = (last, skipped + 1)
                return
            self._last[key] = (now, 0)
        if skipped:
            data["repeated"] = skipped
        self.logger.warning(event, **data)

    # -- metrics -------------------------------------------------------------------------------------------------

    def _policy(self, fields: Fields) -> str:
        return self.metrics.policy(str(fields.get("policy") or ""))

    def _placement_ended(self, fields: Fields) -> None:
        result, reason = str(fields.get("result") or ""), known_reason(fields.get("reason"))
        result = result if result in ("Completed", "Failed", "Expired") else OTHER
        self.metrics.placements_ended.labels(result, reason).inc()
        if result == "Failed":
            self.metrics.placements_missed.labels(reason).inc()
        seconds = fields.get("seconds") or fields.get("phases")
        if isinstance(seconds, Mapping):
            sums: dict[str, float] = {}
            for name, value in seconds.items():
                stage = STAGE_OF.get(str(name))
                if stage is not None and value is not None:
                    sums[stage] = sums.get(stage, 0.0) + float(value)
            for stage, total in sums.items():
                self.metrics.move_seconds.labels(stage).observe(total)

    def _eviction(self, fields: Fields) -> None:
        result = _result(fields)
        if result == "blocked":
            self.metrics.pdb_waits.inc()
        self.metrics.evictions.labels(result).inc()

    def _webhook(self, fields: Fields) -> None:
        decision = str(fields.get("decision") or "unchanged")
        self.metrics.webhook_requests.labels(decision).inc()
        self.metrics.webhook_seconds.labels(decision).observe(float(fields.get("seconds") or 0.0))
        if fields.get("fault"):
            self.metrics.webhook_faults.labels(str(fields["fault"])).inc()

    def _run_phase(self, fields: Fields) -> None:
        self.metrics.runs.labels(self._policy(fields), str(fields.get("phase") or "")).inc()

    def _move_ended(self, fields: Fields) -> None:
        result = str(fields.get("result") or "").lower()
        reason = "" if result == "done" else known_reason(fields.get("reason"))
        self.metrics.moves.labels(self._policy(fields), result, reason).inc()

    def _plan_done(self, fields: Fields) -> None:
        strategy = self.metrics.strategy(str(fields.get("strategy") or ""))
        stopped, moves = str(fields.get("stopped") or "complete"), fields.get("moves") or 0
        moves = moves if isinstance(moves, int) else len(moves)
        result = "moves" if moves else "infeasible" if stopped == "infeasible" else "empty"
        self.metrics.plans.labels(self._policy(fields), result, _dry(fields)).inc()
        self.metrics.plan_seconds.labels(strategy, stopped).observe(float(fields.get("seconds") or 0.0))
        self.metrics.plan_moves.labels(strategy).observe(float(moves))

    def _plan_failed(self, fields: Fields) -> None:
        self.metrics.plans.labels(self._policy(fields), "failed", _dry(fields)).inc()

    def _watch_restart(self, fields: Fields) -> None:
        kind = self.metrics.resource(str(fields.get("kind") or ""))
        self.metrics.watch_restarts.labels(kind, self.metrics.restart_reason(str(fields.get("reason") or ""))).inc()

    def _api_call(self, fields: Fields) -> None:
        verb = str(fields.get("verb") or "")
        resource = self.metrics.resource(str(fields.get("resource") or ""))
        self.metrics.api_requests.labels(verb, resource, self.metrics.code(str(fields.get("code") or 0))).inc()
        self.metrics.api_seconds.labels(verb).observe(float(fields.get("seconds") or 0.0))

    def _http(self, fields: Fields) -> None:
        route = self.metrics.route(str(fields.get("route") or "unknown"))
        self.metrics.http_requests.labels(route, self.metrics.code(str(fields.get("code") or 0))).inc()

    def _reloaded(self, fields: Fields) -> None:
        failed = fields.get("errors") or fields.get("ok") is False
        self.metrics.policy_reloads.labels("failed" if failed else "ok").inc()

    def _cycle(self, fields: Fields) -> None:
        self.metrics.cycle_time.labels(self.metrics.resource(str(fields.get("loop") or "main"))).set(time.time())


def _text(fields: Fields, key: str) -> str:
    return str(fields.get(key) or "")[:40]


def _result(fields: Fields) -> str:
    """ports.Outcome as the metrics' word; what is unknown counts as an error."""
    result = str(fields.get("result") or "").lower()
    return result if result in EVICTION_RESULTS else "error"


def _why(fields: Fields) -> str:
    why = str(fields.get("why") or "").lower()
    return why if why in ("pinned", "overdue", "closed", "surplus", "failed") else OTHER


def _dry(fields: Fields) -> str:
    if fields.get("dry_run") is not None:
        return "true" if fields["dry_run"] else "false"
    mode = fields.get("mode")
    return "unknown" if mode is None else "true" if mode == "DryRun" else "false"
