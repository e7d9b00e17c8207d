"""A real Prometheus that scrapes the daemon's replicas, and runs queries as Grafana would."""

from __future__ import annotations

import http.client
import json
import math
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from tests.ground.api import wait_for
from tests.ground.process import Process, free_port

VARIABLES = {"$__rate_interval": "20s", "$__range": "5m", "$job": ".+", "$instance": ".+"}


class Prometheus:
    """``with Prometheus(folder, [port, ...]) as prometheus``; scrapes each port once a second."""

    def __init__(self, folder: Path, ports: Sequence[int], *, rules: Path | None = None) -> None:
        program = shutil.which("prometheus")
        if not program:
            raise RuntimeError("prometheus is missing: apt-get install -y prometheus")
        folder.mkdir(parents=True, exist_ok=True)
        self.port, self.began = free_port(), time.time()
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)] if rules else [],
            "scrape_configs": [
                {"job_name": "defragd", "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}]}
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        command = [
            program, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]  # fmt: skip
        self.process = Process("prometheus", command, folder, {})

    def __enter__(self) -> Prometheus:
        self.process.start()
        wait_for(lambda: self.get("/-/ready")[0] == 200, 30, "Prometheus ready")
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate(wait=10)

    def get(self, path: str, **query: str) -> tuple[int, Any]:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            client.request("GET", f"{path}?{urlencode(query)}" if query else path)
            answer = client.getresponse()
            raw = answer.read()
        except OSError as error:
            return 0, str(error)
        finally:
            client.close()
        try:
            return answer.status, json.loads(raw)
        except ValueError:
            return answer.status, raw.decode(errors="replace")

    def values(self, expr: str) -> list[float]:
        """All finite values of a panel's query over the time since this Prometheus began."""
        for name, value in VARIABLES.items():
            expr = expr.replace(name, value)
        status, body = self.get(
            "/api/v1/query_range", query=expr, start=f"{self.began}", end=f"{time.time()}", step="2s"
        )
        assert status == 200 and body["status"] == "success", f"{expr}: {body}"
        found = [float(value) for series in body["data"]["result"] for _, value in series["values"]]
        return [value for value in found if math.isfinite(value)]
