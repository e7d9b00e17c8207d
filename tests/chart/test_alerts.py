"""Alerting rules: accepted and unit-tested by promtool, complete, and every metric in them exists."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from defragd.obs.cluster import Reading
from defragd.obs.metrics import Metrics
from tests.chart import dashboard

HERE = Path(__file__).parent
CHART = HERE.parents[1] / "chart"
RULES: dict[str, Any] = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
ALERTS: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]
CASES: dict[str, Any] = yaml.safe_load((HERE / "alerts_test.yaml").read_text())


def promtool(*arguments: str) -> str:
    path = shutil.which("promtool")
    assert path, "promtool is missing: apt-get install -y prometheus"
    run = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def metric_names() -> set[str]:
    """Every series name the daemon can expose."""
    metrics = Metrics()
    metrics.watch_cluster(Reading)
    names: set[str] = set()
    for family in metrics.registry.collect():
        names |= {family.name, f"{family.name}_total", f"{family.name}_bucket"}
    source = (Path(Metrics.__module__.replace(".", "/")).parents[0] / "cluster.py").read_text()
    return names | set(re.findall(r'"(defragd_[a-z_]+)"', source))


@pytest.mark.slow
def test_promtool_accepts_the_rules() -> None:
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", str(CHART / "files" / "alerts.yaml"))


@pytest.mark.slow
def test_every_alert_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    bare = {"groups": [{**g, "rules": [{**r, "annotations": {}} for r in g["rules"]]} for g in RULES["groups"]]}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(bare))
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump({**CASES, "rule_files": ["rules.yaml"]}))
    assert "SUCCESS" in promtool("test", "rules", str(tmp_path / "cases.yaml"))


def test_every_alert_is_tested_both_ways() -> None:
    cases = [case for test in CASES["tests"] for case in test["alert_rule_test"]]
    fires = {case["alertname"] for case in cases if case["exp_alerts"]}
    silent = {case["alertname"] for case in cases if not case["exp_alerts"]}
    names = {alert["alert"] for alert in ALERTS}
    assert fires == names
    # Those whose silent case is another series of the same test.
    assert names - silent == {"DefragdLoopFailing", "DefragdMoveFailureRate", "DefragdGateStuck"}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_alerts_are_complete_and_have_a_runbook(alert: dict[str, Any]) -> None:
    notes = alert["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url"}
    assert alert["labels"]["severity"] in ("critical", "warning", "info") and alert["for"]
    assert notes["runbook_url"] == f"chart/README.md#{alert['alert'].lower()}"
    runbooks = (CHART / "README.md").read_text()
    assert f"#### {alert['alert']}\n" in runbooks


def test_alerts_and_dashboard_ask_for_metrics_that_exist() -> None:
    known = metric_names()
    asked = {name for alert in ALERTS for name in re.findall(r"defragd_[a-z_]+", alert["expr"])}
    asked |= {name for p in dashboard.panels() for q in p.queries for name in re.findall(r"defragd_[a-z_]+", q.expr)}
    assert asked <= known, asked - known
