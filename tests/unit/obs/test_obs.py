"""Logs, metrics and the observer between them."""

from __future__ import annotations

import io
import json
import logging
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from defragd.core.reasons import Reason
from defragd.core.snapshot import Snapshot
from defragd.obs.cluster import Reading, device_state, free_share
from defragd.obs.logging import clean, configure, get_logger
from defragd.obs.metrics import Metrics, known_reason
from defragd.obs.observer import FAULT_INTERVAL, Observer
from defragd.obs.pools import Bounded, pool_by_label, pool_of
from tests.support.web_fakes import build_score
from tests.support.web_world import build_placements, build_runs, build_snapshot, build_world


def samples(metrics: Metrics) -> dict[tuple, float]:
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for s in family.samples:
            found[(s.name, *sorted(s.labels.items()))] = s.value
    return found


@pytest.fixture
def stream():
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()


class Logger:
    def __init__(self):
        self.lines = []

    def __getattr__(self, level):
        return lambda event, **data: self.lines.append((level, event, data))


# -- logs ------------------------------------------------------------------------------------------------------------


def test_a_log_line_is_json_with_the_fixed_fields_first(stream) -> None:
    configure(stream=stream)
    get_logger("defragd.runs").bind(run="r-1", dry_run=True).info("wave started", wave=2, device="GPU-1", alpha=1)
    line = json.loads(stream.getvalue())
    assert list(line) == ["ts", "level", "event", "logger", "run", "device", "dry_run", "alpha", "wave"]
    assert line["event"] == "wave started" and line["logger"] == "defragd.runs" and line["level"] == "info"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", line["ts"])


def test_libraries_log_in_the_same_form_and_quietly(stream) -> None:
    configure(stream=stream)
    logging.getLogger("urllib3.connectionpool").info("not seen")
    logging.getLogger("urllib3.connectionpool").warning("retry %s", 3)
    logging.getLogger("other").info("seen")
    lines = [json.loads(text) for text in stream.getvalue().splitlines()]
    assert [(line["logger"], line["event"]) for line in lines] == [
        ("urllib3.connectionpool", "retry 3"), ("other", "seen"),
    ]  # fmt: skip


def test_an_exception_is_one_line_of_json(stream) -> None:
    configure(stream=stream)
    try:
        raise ValueError("bad\nnews")
    except ValueError:
        get_logger().exception("cycle failed")
    (text,) = stream.getvalue().splitlines()
    assert "ValueError" in json.loads(text)["exception"]


def test_people_get_text_and_debug_is_a_switch(stream) -> None:
    configure(stream=stream, json_lines=False)
    get_logger().debug("hidden")
    get_logger().info("shown", pod="a/b")
    assert "shown" in stream.getvalue() and "hidden" not in stream.getvalue() and "{" not in stream.getvalue()
    configure(stream=stream, json_lines=False, debug=True)
    get_logger().debug("hidden no more")
    assert "hidden no more" in stream.getvalue()


def test_secrets_do_not_reach_the_log(stream) -> None:
    configure(stream=stream)
    key = "-----BEGIN PRIVATE KEY-----\nMIIabc\n-----END PRIVATE KEY-----"
    get_logger().warning(
        "call failed",
        token="t0p",
        headers={"Authorization": "x1y2"},
        detail="Authorization: Bearer abcdefghijkl",
        pem=key,
    )
    text = stream.getvalue()
    for secret in ("t0p", "x1y2", "abcdefghijkl", "MIIabc"):
        assert secret not in text
    assert len(clean("x" * 99_999)) < 5000


# -- observer --------------------------------------------------------------------------------------------------------

EVENTS = [
    (
        "placement.ended",
        {"result": "Completed", "reason": "Completed", "seconds": {"pending": 1, "held": 2, "evicting": 7}},
        ("defragd_placements_ended_total", ("reason", "Completed"), ("result", "Completed")),
    ),
    (
        "placement.ended",
        {"result": "Failed", "reason": Reason.WRONG_DEVICE},
        ("defragd_placements_missed_total", ("reason", "WrongDevice")),
    ),
    ("eviction", {"result": "OK"}, ("defragd_evictions_total", ("result", "ok"))),
    ("eviction", {"result": "Blocked"}, ("defragd_pdb_waits_total",)),
    ("eviction", {"result": "Unknown"}, ("defragd_evictions_total", ("result", "error"))),
    (
        "webhook.request",
        {"decision": "patched", "seconds": 0.002},
        ("defragd_webhook_requests_total", ("decision", "patched")),
    ),
    (
        "webhook.request",
        {"decision": "fault", "fault": "malformed", "seconds": 0.0},
        ("defragd_webhook_faults_total", ("fault", "malformed")),
    ),
    ("gate.released", {"pod": "a/b", "why": "overdue"}, ("defragd_gates_released_total", ("why", "overdue"))),
    ("run.phase", {"policy": "p", "phase": "Running"}, ("defragd_runs_total", ("phase", "Running"), ("policy", "p"))),
    (
        "move.ended",
        {"policy": "p", "result": "Done", "reason": "x"},
        ("defragd_moves_total", ("policy", "p"), ("reason", ""), ("result", "done")),
    ),
    (
        "move.ended",
        {"policy": "p", "result": "Failed", "reason": "StartTimeout"},
        ("defragd_moves_total", ("policy", "p"), ("reason", "StartTimeout"), ("result", "failed")),
    ),
    (
        "plan.done",
        {"policy": "p", "strategy": "best-fit", "seconds": 1.2, "moves": 3, "stopped": "complete", "mode": "Auto"},
        ("defragd_plans_total", ("dry_run", "false"), ("policy", "p"), ("result", "moves")),
    ),
    (
        "plan.done",
        {"policy": "p", "strategy": "best-fit", "seconds": 1.2, "moves": 0, "stopped": "infeasible", "dry_run": True},
        ("defragd_plans_total", ("dry_run", "true"), ("policy", "p"), ("result", "infeasible")),
    ),
    (
        "plan.failed",
        {"policy": "p"},
        ("defragd_plans_total", ("dry_run", "unknown"), ("policy", "p"), ("result", "failed")),
    ),
    (
        "watch.restart",
        {"kind": "pods", "reason": "gone"},
        ("defragd_watch_restarts_total", ("reason", "gone"), ("resource", "pods")),
    ),
    (
        "api.call",
        {"verb": "GET", "resource": "pods", "code": 200, "seconds": 0.1},
        ("defragd_kube_requests_total", ("code", "200"), ("resource", "pods"), ("verb", "GET")),
    ),
    ("leader.changed", {"leader": "a"}, ("defragd_leader_changes_total",)),
    ("loop.failed", {"loop": "runs", "error": "x"}, ("defragd_loop_failures_total", ("loop", "runs"))),
    ("certs.renewed", {}, ("defragd_certificate_renewals_total",)),
    ("recycle", {"result": "OK"}, ("defragd_pods_recycled_total", ("result", "ok"))),
    ("api.write", {"verb": "approve"}, ("defragd_user_actions_total", ("verb", "approve"))),
    ("policies.reloaded", {"ok": False, "policies": 1}, ("defragd_policy_reloads_total", ("result", "failed"))),
]


@pytest.mark.parametrize(("event", "fields", "key"), EVENTS, ids=[f"{k}-{e[0]}" for k, e in enumerate(EVENTS)])
def test_every_event_counts_in_its_metric_and_is_logged(event, fields, key) -> None:
    metrics, logger = Metrics(process=False), Logger()
    before = samples(metrics).get(key, 0.0)
    Observer(logger, metrics)(event, fields)
    found = samples(metrics)
    assert found[key] == before + 1
    assert found[("defragd_unexpected_events_total",)] == 0
    assert [line[1] for line in logger.lines] == [event]


def test_stages_that_are_one_are_added_up() -> None:
    metrics = Metrics(process=False)
    Observer(Logger(), metrics)("placement.ended", {"result": "Completed", "seconds": {"pending": 1, "held": 2}})
    assert samples(metrics)[("defragd_move_duration_seconds_sum", ("stage", "hold"))] == 3
    assert samples(metrics)[("defragd_move_duration_seconds_count", ("stage", "hold"))] == 1


def test_unknown_events_and_odd_fields_are_logged_and_never_raise() -> None:
    metrics, logger = Metrics(process=False), Logger()
    observer = Observer(logger, metrics)
    observer("something.new", {"event": "clash", "x": object()})
    observer("webhook.request", {"decision": "patched", "seconds": "soon"})
    assert logger.lines[0][2]["what"] == "clash"
    assert samples(metrics)[("defragd_unexpected_events_total",)] == 1

    class Full:
        def __getattr__(self, name):
            raise OSError("no space left")

    Observer(Full(), metrics)("cycle", {})


def test_the_same_fault_is_logged_once_a_minute_but_always_counted() -> None:
    now = [0.0]
    metrics, logger = Metrics(process=False), Logger()
    observer = Observer(logger, metrics, monotonic=lambda: now[0])
    for _ in range(50):
        observer("webhook.request", {"decision": "fault", "fault": "exception", "seconds": 0.0, "detail": "boom"})
    now[0] += FAULT_INTERVAL + 1
    observer("webhook.request", {"decision": "fault", "fault": "exception", "seconds": 0.0, "detail": "boom"})
    assert [(level, data.get("repeated")) for level, _, data in logger.lines] == [("warning", None), ("warning", 49)]
    assert samples(metrics)[("defragd_webhook_requests_total", ("decision", "fault"))] == 51


@pytest.mark.parametrize("event", ["certs.trouble", "loop.failed", "event.dropped", "plan.failed", "gate.stuck"])
def test_trouble_is_a_warning(event: str) -> None:
    logger = Logger()
    Observer(logger, Metrics(process=False))(event, {})
    assert logger.lines[0][0] == "warning"


# -- metrics ---------------------------------------------------------------------------------------------------------


def reading(snapshot: Snapshot | None = None) -> Reading:
    snap = snapshot if snapshot is not None else build_snapshot()
    return Reading(
        snapshot=snap, scores={"all": build_score(), "NVIDIA L40S": build_score()}, placements=build_placements(snap),
        runs=build_runs(snap), snapshot_age_seconds=2.0, leader=True, synced={"pods": True, "nodes": False},
        certificate_expiry=1.8e9, policies={"ok": 2}, gated_pods=1,
    )  # fmt: skip


def test_counters_exist_at_zero_before_anything_happened() -> None:
    found = samples(Metrics(process=False))
    for key in (
        ("defragd_evictions_total", ("result", "blocked")),
        ("defragd_webhook_requests_total", ("decision", "fault")),
        ("defragd_placements_missed_total", ("reason", "WrongDevice")),
        ("defragd_webhook_duration_seconds_count", ("decision", "patched")),
        ("defragd_move_duration_seconds_count", ("stage", "evict")),
        ("defragd_plan_duration_seconds_count", ("stop_reason", "complete"), ("strategy", "best-fit")),
        ("defragd_leader_changes_total",),
    ):
        assert found[key] == 0, key


def test_no_creation_times_are_exposed() -> None:
    assert not [key for key in samples(Metrics(process=False)) if key[0].endswith("_created")]


def test_a_known_policy_has_its_series_at_zero() -> None:
    metrics = Metrics(process=False)
    metrics.know_policy("p")
    assert samples(metrics)[("defragd_moves_total", ("policy", "p"), ("reason", ""), ("result", "done"))] == 0


def test_names_follow_the_conventions() -> None:
    metrics = Metrics()
    metrics.watch_cluster(reading)
    for family in text_string_to_metric_families(metrics.render().decode()):
        if family.name.startswith("process_"):
            continue
        assert family.name.startswith("defragd_") and family.documentation.endswith("."), family.name
        if family.type == "histogram":
            assert family.name.endswith(("_seconds", "_moves"))
        for word in ("_ms", "_mib", "_percent", "_pct"):
            assert word not in family.name
        for sample in family.samples:
            assert not {"pod", "namespace", "node", "device", "device_uuid"} & set(sample.labels), sample


def test_promtool_agrees() -> None:
    promtool = shutil.which("promtool")
    assert promtool, "promtool is missing; apt-get install -y prometheus"
    metrics = build_world().metrics
    done = subprocess.run([promtool, "check", "metrics"], input=metrics.render(), capture_output=True, check=False)
    assert done.returncode == 0 and not done.stdout and not done.stderr, done.stderr.decode() + done.stdout.decode()


def test_the_cluster_is_told_in_gauges_of_one_moment() -> None:
    metrics, snap = Metrics(process=False), build_snapshot()
    metrics.watch_cluster(lambda: reading(snap), max_age=0.0)
    found = samples(metrics)
    assert found[("defragd_fragmentation_ratio", ("measure", "loss"), ("pool", "all"))] == 0.56
    states = {key[2][1]: value for key, value in found.items()
              if key[0] == "defragd_devices" and key[1] == ("pool", "NVIDIA L40S")}  # fmt: skip
    assert sum(states.values()) == 16 and states["unhealthy"] == 1 and states["cordoned"] == 1
    assert (
        found[("defragd_placements", ("state", "Failed"))] == 1
        and found[("defragd_placements", ("state", "Held"))] == 0
    )
    assert found[("defragd_run_records", ("phase", "Running"))] == 1
    assert found[("defragd_moves_in_flight", ("policy", "nightly-consolidation"))] == 1
    assert found[("defragd_watch_synced", ("resource", "nodes"))] == 0
    assert found[("defragd_pods_pending",)] == 1 and found[("defragd_leader",)] == 1
    assert found[("defragd_fragmentation_recoverable_ratio",)] == 0, "the newest plan is being carried out"
    assert found[("defragd_certificate_expiry_timestamp_seconds",)] == 1.8e9


def test_recoverable_is_what_the_newest_open_plan_would_bring() -> None:
    metrics, now = Metrics(process=False), reading()
    waiting = replace(now, runs=[run for run in now.runs if run.phase != "Running"])
    metrics.watch_cluster(lambda: waiting)
    assert samples(metrics)[("defragd_fragmentation_recoverable_ratio",)] == pytest.approx(0.15)


def test_figures_of_changed_nodes_are_computed_again() -> None:
    metrics, world = Metrics(process=False), [build_snapshot()]
    metrics.watch_cluster(lambda: reading(world[0]), max_age=0.0)
    key = ("defragd_devices", ("pool", "NVIDIA A100-SXM4-80GB"), ("state", "full"))
    before = samples(metrics)[key]
    world[0] = world[0].with_pods({"ads/embed-000-x0000": None})
    assert samples(metrics)[key] == before - 1
    sick = world[0].nodes["gpu-node-01"]
    nodes = {**world[0].nodes, sick.name: replace(sick, devices=tuple(replace(d, healthy=False) for d in sick.devices))}
    world[0] = replace(world[0], nodes=nodes)
    assert samples(metrics)[("defragd_devices", ("pool", "NVIDIA A100-SXM4-80GB"), ("state", "unhealthy"))] == 4


def test_no_cluster_yet_is_no_error() -> None:
    metrics = Metrics(process=False)
    metrics.watch_cluster(lambda: None)
    assert samples(metrics)[("defragd_leader",)] == 0


def test_labels_are_bounded() -> None:
    bound = Bounded(3, ["a"])
    assert [bound(x) for x in "abcdeab"] == ["a", "b", "c", "other", "other", "a", "b"]
    assert (
        known_reason("HoldTimeout") == "HoldTimeout"
        and known_reason("boom at 0x1") == "other"
        and known_reason("") == ""
    )
    metrics = Metrics(process=False)
    observer = Observer(Logger(), metrics)
    for number in range(500):
        observer("move.ended", {"policy": f"p{number}", "result": "Done"})
    assert sum(1 for key in samples(metrics) if key[0] == "defragd_moves_total") <= 201


def test_pools() -> None:
    node = build_snapshot().nodes["gpu-node-01"]
    assert pool_of(node) == "NVIDIA A100-SXM4-80GB" and pool_of(replace(node, devices=())) == "none"
    assert pool_by_label("pool")(node) == pool_of(node)
    hami = replace(node, devices=tuple(replace(d, model="NVIDIA-Tesla T4") for d in node.devices))
    assert pool_of(hami) == "Tesla T4"
    assert pool_by_label("pool")(replace(node, labels={"pool": "blue"})) == "blue"


def test_states_and_free_shares_of_devices() -> None:
    snap = build_snapshot()
    node = snap.nodes["gpu-node-01"]
    use = snap.usage("gpu-node-01")
    first, second, third = node.devices[:3]
    assert device_state(first, use[first.uuid]) == "empty" and free_share(first, use[first.uuid]) == 1.0
    assert device_state(second, use[second.uuid]) == "full"
    assert device_state(third, use[third.uuid]) == "partial"
    assert device_state(replace(first, distrusted="x", healthy=False), use[first.uuid]) == "distrusted"
    crowded = replace(use[third.uuid], slots=10)
    assert free_share(third, crowded) == 0.0


def test_budgets_watches_and_certificate_of_a_reading() -> None:
    metrics = Metrics(process=False)
    reading = Reading(
        synced={"pods": True, "nodes": False},
        certificate_expiry=1_800_000_000.0,
        budgets={"total": (3, 47), "concurrent": (2, None)},
    )
    metrics.watch_cluster(lambda: reading)
    text = metrics.render().decode()
    for line in (
        'defragd_watch_synced{resource="pods"} 1.0',
        'defragd_watch_synced{resource="nodes"} 0.0',
        "defragd_certificate_expiry_timestamp_seconds 1.8e+09",
        'defragd_budget_used_moves{budget="total"} 3.0',
        'defragd_budget_allowed_moves{budget="total"} 47.0',
        'defragd_budget_used_moves{budget="concurrent"} 2.0',
    ):
        assert line in text
    assert 'defragd_budget_allowed_moves{budget="concurrent"}' not in text
