"""Cost of pages, API and /metrics on a large cluster: CPU milliseconds of the first and of a later request, and bytes.

    python -m tests.bench.serving_bench [--states FILE]

The first request of all makes the computed view of the cluster; the daemon makes it anew at most every two seconds.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from defragd.core.score import score
from defragd.kube.snapshot_file import load
from defragd.obs.cluster import Reading
from defragd.obs.metrics import Metrics
from defragd.obs.pools import pool_of
from defragd.web.app import create_app
from tests.bench.__main__ import STATES
from tests.support.web_world import NOW, build_world

LIMIT_MS = {"/metrics": 50.0}
PAGE_MS, PAGE_BYTES = 300.0, 500_000


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", type=Path, default=STATES / "hami-churn-85-s1.json.gz")
    options = parser.parse_args(arguments)
    snapshot = load(options.states)
    found = score(snapshot)
    metrics = Metrics(process=False)
    world = build_world(snapshot=snapshot, score=lambda: found, metrics=metrics)
    pools = {pool_of(node) for node in snapshot.nodes.values()}
    metrics.watch_cluster(
        lambda: Reading(
            snapshot=snapshot, scores={"all": found, **dict.fromkeys(pools, found)}, placements=world.placements.items,
            runs=world.runs.items, snapshot_age_seconds=1.0, leader=True, synced={"pods": True},
            certificate_expiry=NOW.timestamp() + 86400, policies={"ok": 2, "broken": 0}, gated_pods=0,
        )
    )  # fmt: skip
    node = next(name for name, item in snapshot.nodes.items() if len(item.devices) == 8)
    pod = next(pod.key for pod in snapshot.booked_on[node])
    paths = [
        "/", "/map", "/map?limit=200", "/map?q=1", "/plans", "/plans/nightly-consolidation-3", "/runs",
        "/runs/nightly-consolidation-3", "/placements", "/policies", f"/explain/node/{node}", f"/explain/pod/{pod}",
        "/api/v1/cluster-info", "/api/v1/runs", "/metrics",
    ]  # fmt: skip
    client = create_app(world.deps).test_client()
    print(f"{len(snapshot.nodes)} nodes, {len(snapshot.devices)} devices, {len(snapshot.pods)} pods")
    print(f"{'path':44} {'first ms':>9} {'later ms':>9} {'bytes':>9}")
    missed = 0
    for path in paths:
        spent = []
        for _ in range(6):
            began = time.process_time()
            answer = client.get(path, headers={"Accept": "text/html,*/*"})
            spent.append((time.process_time() - began) * 1000)
            assert answer.status_code == 200, (path, answer.status_code)
        size, later = len(answer.data), sorted(spent[1:])[2]
        is_page = not path.startswith(("/api", "/metrics"))
        over = later > LIMIT_MS.get(path, PAGE_MS) or (is_page and size > PAGE_BYTES)
        missed += over
        print(f"{path:44} {spent[0]:9.1f} {later:9.1f} {size:9d}{'  over its goal' if over else ''}")
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
