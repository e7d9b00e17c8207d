"""The Grafana dashboard as code: `python -m tests.chart.generate` writes chart/files/dashboard.json from it.

Rows answer what people ask, in this order: is it healthy, how fragmented are we, what did it do and gain, what did it
cost, what would it do. Every replica reports the same cluster, so gauges of the cluster are taken by ``max``, counters
are summed. Plain dictionaries: no Grafana library.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

SELECT = 'job=~"$job", instance=~"$instance"'
WIDTH = 24
RATE = "$__rate_interval"
GREEN, YELLOW, RED = "green", "yellow", "red"


@dataclass(frozen=True)
class Query:
    """``expr`` with S for the selector of job and instance; ``legend`` in Grafana's form."""

    expr: str
    legend: str = ""

    @property
    def text(self) -> str:
        return self.expr.replace("{S", "{" + SELECT)


@dataclass(frozen=True)
class Panel:
    title: str
    description: str
    queries: Sequence[Query]
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 6
    height: int = 7
    stacked: bool = False
    steps: Sequence[tuple[str, float | None]] = ((GREEN, None),)
    decimals: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def stat(title: str, description: str, expr: str, **more: Any) -> Panel:
    return Panel(title, description, [Query(expr)], kind="stat", width=3, height=4, **more)


def quantile(q: float, metric: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket{{S}}[{RATE}])))"


HEALTH = [
    stat("Replicas", "Replicas that are scraped.", "count(defragd_build_info{S})", steps=[(RED, None), (GREEN, 1)]),
    stat("Leaders", "Exactly one replica plans and moves.", "sum(defragd_leader{S})",
         steps=[(RED, None), (GREEN, 1), (RED, 2)]),
    stat("Age of data", "Seconds since the oldest watch proved to be alive; above 90 s nothing is moved.",
         "max(defragd_snapshot_age_seconds{S})", unit="s", steps=[(GREEN, None), (YELLOW, 75), (RED, 90)]),
    stat("Certificate left", "Until the webhook's certificate expires; it is renewed well ahead.",
         "min(defragd_certificate_expiry_timestamp_seconds{S}) - time()", unit="s",
         steps=[(RED, None), (YELLOW, 14 * 86400), (GREEN, 28 * 86400)]),
    stat("Broken policies", "Policy files that cannot be used; the last good version stays in force.",
         'max(defragd_policies{S, state="broken"})', steps=[(GREEN, None), (RED, 1)]),
    stat("Pods behind the gate", "Pods that wait behind our scheduling gate; minutes at most.",
         "max(defragd_pods_gated{S})", steps=[(GREEN, None), (YELLOW, 1)]),
    stat("Objects set aside", "Broken or contradictory books: nothing is moved from or to them.",
         "sum(max by (reason) (defragd_problems{S})) or sum(0 * defragd_build_info{S})",
         steps=[(GREEN, None), (YELLOW, 1)]),
    stat("Stopped by the breaker", "Policies whose runs undid each other or did not gain.",
         "sum(max by (policy) (defragd_breaker_open{S}))", steps=[(GREEN, None), (RED, 1)]),
    Panel("Watches", "1 when the resource was listed completely.",
          [Query("min by (resource) (defragd_watch_synced{S})", "{{resource}}")], extra={"max": 1.1, "min": 0}),
    Panel("Watches started again", "Restarts per resource; a few an hour are normal.",
          [Query(f"sum by (resource) (rate(defragd_watch_restarts_total{{S}}[{RATE}]))"
                 " or sum by (resource) (0 * defragd_watch_synced{S})", "{{resource}}")], unit="ops"),
    Panel("Failed cycles and lost Events", "Loops that ended a cycle with an exception; Events that were dropped.",
          [Query(f"sum by (loop) (rate(defragd_loop_failures_total{{S}}[{RATE}]))", "{{loop}}"),
           Query(f"sum(rate(defragd_kube_events_lost_total{{S}}[{RATE}]))", "Events lost")], unit="ops"),
    Panel("Processor and memory", "Of each replica, without its planning children.",
          [Query(f"rate(process_cpu_seconds_total{{S}}[{RATE}])", "cores {{instance}}"),
           Query("process_resident_memory_bytes{S}", "memory {{instance}}")],
          extra={"right": ("memory", "bytes")}),
    Panel("Admission reviews", "Pods that the webhook saw, by what it decided.",
          [Query(f"sum by (decision) (rate(defragd_webhook_requests_total{{S}}[{RATE}]))", "{{decision}}")],
          unit="reqps", width=8),
    Panel("Time of admission reviews", "Past webhook.timeoutSeconds the API server goes on without us.",
          [Query(quantile(0.5, "defragd_webhook_duration_seconds"), "median"),
           Query(quantile(0.99, "defragd_webhook_duration_seconds"), "99th percentile")], unit="s", width=8),
    Panel("Faults of the webhook", "Reviews that were allowed unchanged because of a fault.",
          [Query(f"sum by (fault) (rate(defragd_webhook_faults_total{{S}}[{RATE}]))", "{{fault}}")],
          unit="ops", width=8),
]  # fmt: skip

FRAGMENTATION = [
    stat("Lost to fragmentation", "L: the share of idle capacity that the usual requests cannot use.",
         'max(defragd_fragmentation_ratio{S, pool="all", measure="loss"})', unit="percentunit", decimals=1,
         steps=[(GREEN, None), (YELLOW, 0.15), (RED, 0.3)]),
    stat("A plan would win back", "The part of L that the newest open plan removes.",
         "max(defragd_fragmentation_recoverable_ratio{S})", unit="percentunit", decimals=1),
    stat("Idle capacity", "Sum of idle shares, in whole devices.",
         'max(defragd_idle_device_equivalents{S, pool="all"})', decimals=1),
    stat("Whole idle devices", "Devices without any pod.", 'max(defragd_idle_devices{S, pool="all"})'),
    stat("Idle nodes", "Nodes with devices, none of them in use.", 'max(defragd_idle_nodes{S, pool="all"})'),
    stat("Shapes that do not fit", "Usual request shapes of which not one copy fits now.",
         'max(defragd_demands_unplaceable{S, pool="all"})', steps=[(GREEN, None), (YELLOW, 1)]),
    stat("Pending pods", "Unbound pods that ask for devices.", "max(defragd_pods_pending{S})",
         steps=[(GREEN, None), (YELLOW, 1)]),
    stat("Largest hole", "The largest piece of memory free on one device.",
         "max(defragd_device_memory_largest_free_bytes{S})", unit="bytes"),
    Panel("Fragmentation by pool", "L (loss) and phi; the pool all is the whole cluster.",
          [Query("max by (pool, measure) (defragd_fragmentation_ratio{S})", "{{pool}} {{measure}}")],
          unit="percentunit", width=12),
    Panel("Why", "Phi by cause: the shape left on devices, host resources, both, the device type.",
          [Query('max by (cause) (defragd_fragmentation_cause_ratio{S, pool="all"})', "{{cause}}")],
          unit="percentunit", width=12, stacked=True),
    Panel("Devices by state", "All pools together.",
          [Query("sum by (state) (max by (pool, state) (defragd_devices{S}))", "{{state}}")], stacked=True),
    Panel("Nodes by state", "Nodes with devices.",
          [Query("sum by (state) (max by (pool, state) (defragd_nodes{S}))", "{{state}}")], stacked=True),
    Panel("Device memory", "Booked and free, by pool.",
          [Query("max by (pool) (defragd_device_memory_allocated_bytes{S})", "booked {{pool}}"),
           Query("max by (pool) (defragd_device_memory_free_bytes{S})", "free {{pool}}")], unit="bytes"),
    Panel("Copies of usual requests", "How many more would fit: now, and if idle capacity were pooled.",
          [Query('max by (shape, when) (defragd_shape_copies{S, pool="all"})', "{{shape}} {{when}}")],
          kind="bargauge"),
]  # fmt: skip

DONE = [
    Panel("Moves", "Moves that ended in the range shown, by result.",
          [Query("sum by (result) (increase(defragd_moves_total{S}[$__range]))", "{{result}}")],
          kind="stat", width=6, decimals=0),
    Panel("Moves by policy and result", "Per second, as they end.",
          [Query(f"sum by (policy, result) (rate(defragd_moves_total{{S}}[{RATE}]))", "{{policy}} {{result}}")],
          unit="ops", width=9),
    Panel("Moves under way", "In flight, by policy; and placements that are open.",
          [Query("max by (policy) (defragd_moves_in_flight{S})", "{{policy}}"),
           Query('sum(max by (state) (defragd_placements{S, state!~"Completed|Failed|Expired"}))',
                 "open placements")], width=9),
    Panel("Last run: fragmentation", "L before the last run that moved something, and as its plan promised.",
          [Query("max by (policy, when) (defragd_last_run_fragmentation_ratio{S})", "{{policy}} {{when}}")],
          unit="percentunit", kind="bargauge"),
    Panel("Last run: freed devices", "Whole devices that its plan freed.",
          [Query("max by (policy) (defragd_last_run_freed_devices{S})", "{{policy}}")], kind="bargauge"),
    Panel("Why placements missed", "Replacements that did not end where they were placed, by reason.",
          [Query("sum by (reason) (increase(defragd_placements_missed_total{S}[$__range]))", "{{reason}}")],
          kind="bargauge", decimals=0),
    Panel("Runs by end", "Runs that reached a phase, in the range shown.",
          [Query("sum by (policy, phase) (increase(defragd_runs_total{S}[$__range]))", "{{policy}} {{phase}}")],
          kind="bargauge", decimals=0),
]  # fmt: skip

COST = [
    Panel("Evictions by answer", "blocked: a disruption budget said not now.",
          [Query(f"sum by (result) (rate(defragd_evictions_total{{S}}[{RATE}]))", "{{result}}")], unit="ops"),
    Panel("Waits for disruption budgets", "Evictions put off by a PodDisruptionBudget.",
          [Query(f"sum(rate(defragd_pdb_waits_total{{S}}[{RATE}]))", "waits")], unit="ops"),
    Panel("Time of a move by stage", "95th percentile: hold, evict, schedule, ready, settle.",
          [Query(quantile(0.95, "defragd_move_duration_seconds", "stage"), "{{stage}}")], unit="s"),
    Panel("Gates let go", "pinned is the good one; overdue and failed are not.",
          [Query(f"sum by (why) (rate(defragd_gates_released_total{{S}}[{RATE}]))", "{{why}}")], unit="ops"),
    Panel("Calls to the API server", "By verb; in steady state watches and leases only.",
          [Query(f"sum by (verb) (rate(defragd_kube_requests_total{{S}}[{RATE}]))", "{{verb}}")],
          unit="reqps", width=8),
    Panel("Time of calls", "95th percentile by verb.",
          [Query(quantile(0.95, "defragd_kube_request_duration_seconds", "verb"), "{{verb}}")], unit="s", width=8),
    Panel("Pods recycled", "Own pinned pods that could not start, evicted once without their pin.",
          [Query(f"sum by (result) (rate(defragd_pods_recycled_total{{S}}[{RATE}]))", "{{result}}")],
          unit="ops", width=8),
]  # fmt: skip

WOULD = [
    stat("Age of the newest plan", "Since the newest run record was made.",
         "time() - max(defragd_last_plan_timestamp_seconds{S})", unit="s"),
    stat("Waits for approval", "Plans that a person must approve.",
         'max(defragd_run_records{S, phase="AwaitingApproval"})', steps=[(GREEN, None), (YELLOW, 1)]),
    Panel("Plans by result", "moves: there is something to do; empty: nothing to gain.",
          [Query("sum by (policy, result, dry_run) (increase(defragd_plans_total{S}[$__range]))",
                 "{{policy}} {{result}} dry={{dry_run}}")], kind="bargauge", width=9, decimals=0),
    Panel("Budgets of the run under way", "Moves that count against them, and moves they still allow.",
          [Query("max by (budget) (defragd_budget_used_moves{S})", "{{budget}} used"),
           Query("max by (budget) (defragd_budget_allowed_moves{S})", "{{budget}} left")], kind="bargauge", width=9),
    Panel("Time to plan", "95th percentile, by strategy.",
          [Query(quantile(0.95, "defragd_plan_duration_seconds", "strategy"), "{{strategy}}")], unit="s", width=8),
    Panel("Moves that fresh data no longer allowed", "By reason, in the range shown.",
          [Query("sum by (reason) (increase(defragd_plan_validation_failures_total{S}[$__range]))", "{{reason}}")],
          kind="bargauge", width=8, decimals=0),
    Panel("What people asked for", "Approve, pause, resume, cancel, run through API and UI, in the range shown.",
          [Query("sum by (verb) (increase(defragd_user_actions_total{S}[$__range]))", "{{verb}}")],
          kind="bargauge", width=8, decimals=0),
]  # fmt: skip

ROWS = {
    "Is it healthy?": HEALTH,
    "How fragmented are we?": FRAGMENTATION,
    "What did it do, and what did it gain?": DONE,
    "What did it cost?": COST,
    "What would it do?": WOULD,
}


def panels() -> Iterator[Panel]:
    for row in ROWS.values():
        yield from row


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    steps = [{"color": color, "value": value} for color, value in panel.steps]
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "min": panel.extra.get("min", 0 if panel.unit != "s" else None),
        "max": panel.extra.get("max"),
        "decimals": panel.decimals,
        "color": {"mode": "thresholds" if panel.kind != "timeseries" else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": steps},
    }
    options: dict[str, Any] = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}}
    if panel.kind == "timeseries":
        custom: dict[str, Any] = {"lineWidth": 1, "fillOpacity": 40 if panel.stacked else 5, "showPoints": "never"}
        custom["stacking"] = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        defaults["custom"] = custom
        options["tooltip"] = {"mode": "multi", "sort": "desc"}
    else:
        options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "orientation": "auto"}
        if panel.kind == "bargauge":
            options |= {"displayMode": "basic", "orientation": "horizontal", "showUnfilled": True}
    overrides = []
    if "right" in panel.extra:
        word, unit = panel.extra["right"]
        overrides = [
            {
                "matcher": {"id": "byRegexp", "options": f"^{word}.*"},
                "properties": [{"id": "unit", "value": unit}, {"id": "custom.axisPlacement", "value": "right"}],
            }
        ]
    datasource = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": datasource,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": {k: v for k, v in defaults.items() if v is not None}, "overrides": overrides},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": datasource,
                "expr": query.text,
                "legendFormat": query.legend or "__auto",
                "instant": panel.kind != "timeseries",
                "range": panel.kind == "timeseries",
            }
            for index, query in enumerate(panel.queries)
        ],
    }


def _variable(name: str, label: str, metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, {name})"
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": query, "refId": name},
        "definition": query,
        "includeAll": True,
        "allValue": ".+",
        "multi": True,
        "refresh": 2,
        "sort": 1,
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard() -> dict[str, Any]:
    """Grafana's JSON model."""
    built: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        grid = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        built.append({"id": len(built) + 1, "type": "row", "title": title, "collapsed": False, "gridPos": grid,
                      "panels": []})  # fmt: skip
        y, x, height = y + 1, 0, 0
        for panel in row:
            if x + panel.width > WIDTH:
                x, y, height = 0, y + height, 0
            built.append(_panel(panel, len(built) + 1, x, y))
            x, height = x + panel.width, max(height, panel.height)
        y += height
    return {
        "uid": "defragd",
        "title": "defragd: GPU defragmentation",
        "description": "Health, fragmentation, moves and their gain, cost, and what the next plan would do.",
        "tags": ["defragd", "hami", "gpu"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "timezone": "browser",
        "time": {"from": "now-24h", "to": "now"},
        "refresh": "1m",
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
                 "current": {}, "refresh": 1},
                _variable("job", "Job", "defragd_build_info"),
                _variable("instance", "Instance", 'defragd_build_info{job=~"$job"}'),
            ]
        },
        "annotations": {"list": []},
        "panels": built,
    }  # fmt: skip


def text() -> str:
    """The committed file."""
    return json.dumps(dashboard(), indent=1) + "\n"
