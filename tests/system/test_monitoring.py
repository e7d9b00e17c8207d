"""A real Prometheus scrapes the daemon at work: every query of the dashboard has data, rules load, none is amiss."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.ground.cluster import Cluster
from tests.ground.commands import REPOSITORY
from tests.ground.daemon import Daemon
from tests.ground.prometheus import Prometheus
from tests.system import worlds
from tests.system.test_main_job import ended_run

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(420)]
CHART = REPOSITORY / "chart" / "files"


def queries() -> list[tuple[str, str]]:
    board: dict[str, Any] = json.loads((CHART / "dashboard.json").read_text())
    return [(panel["title"], target["expr"]) for panel in board["panels"] for target in panel.get("targets", [])]


def test_every_panel_has_data(cluster: Cluster, start_daemon: Callable[..., Daemon]) -> None:
    worlds.scattered(cluster)
    daemon = start_daemon([worlds.policy()])
    ports = [replica.api_port for replica in daemon.replicas]
    with Prometheus(daemon.folder / "prometheus", ports, rules=CHART / "alerts.yaml") as prometheus:
        run = ended_run(daemon, 0, cluster)
        assert run["status"]["counts"]["done"] > 0
        moves = 'max(sum by (instance) (defragd_moves_total{result="done"}))'
        cluster.wait(
            lambda: max(prometheus.values(moves), default=0.0) == run["status"]["counts"]["done"], 20, "the last scrape"
        )
        # rates need two scrapes after the last change
        cluster.wait(lambda: len(prometheus.values("sum(rate(defragd_moves_total[20s]))")) > 2, 20, "rates")
        # the first plan may fall before the first scrape, so that only the next minute's shows as a rate
        end = time.monotonic() + 90
        while True:
            empty = [(title, expr) for title, expr in queries() if not prometheus.values(expr)]
            if not empty or time.monotonic() > end:
                break
            time.sleep(2)
        status, rules = prometheus.get("/api/v1/rules")
        status_alerts, alerts = prometheus.get("/api/v1/alerts")
    assert not empty
    groups = rules["data"]["groups"]
    assert status == 200 and sum(len(group["rules"]) for group in groups) == 20
    assert not [rule for group in groups for rule in group["rules"] if rule.get("lastError")]
    assert status_alerts == 200
    firing = {alert["labels"]["alertname"] for alert in alerts["data"]["alerts"] if alert["state"] == "firing"}
    assert not firing, firing


def test_promtool_likes_the_exposition(cluster: Cluster, start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon([worlds.policy(cron=None)], replicas=1)
    status, text = daemon.replicas[0].get("/metrics")
    assert status == 200
    program = shutil.which("promtool")
    assert program
    run = subprocess.run([program, "check", "metrics"], input=text, capture_output=True, text=True, timeout=30)
    assert run.returncode == 0, run.stdout + run.stderr
