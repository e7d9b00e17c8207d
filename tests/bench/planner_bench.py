"""The planner on the prepared states and on larger ones of the same kind.

    python -m tests.bench.planner_bench [--states DIR] [--seconds S] [--only TEXT] [--growth] [--largest N]

Prints gain, time, memory, and time as a multiple of one scoring pass of the same run (machines differ). Goals: 1,213
nodes greedy <= 1 s; 10,000 nodes and 200 moves <= 30 s and <= 2 GiB; growth <= n^1.2.
"""

from __future__ import annotations

import argparse
import math
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from defragd.core.plan import PlanReply, PlanRequest
from defragd.core.planner import plan
from defragd.core.rules import Budgets, Cap, Protection, Rules
from defragd.core.score import score
from defragd.core.snapshot import Snapshot
from defragd.hami.vendors import VENDORS
from tests.support.openb import TAKEN, cluster
from tests.support.plan_world import STRATEGIES

RULES = Rules(
    protect=Protection(min_pod_age=timedelta(0), min_replicas=1, priority_at_most=None),
    budgets=Budgets(concurrent=10, per_source_node=Cap(in_flight=2), per_namespace=Cap()),
)
CASES = (
    ("best-fit", {"objective": "auto"}),
    ("best-fit", {"objective": "fgd"}),
    ("best-fit", {"objective": "devices"}),
    ("best-fit", {"objective": "nodes"}),
    ("gpu-drain", {"count": 5}),
    ("node-drain", {"count": 1}),
    ("make-room", {"shape": {"gpus": 4}}),
)


def run(
    snapshot: Snapshot, strategy: str, args: dict[str, object], total: int, seconds: float
) -> tuple[PlanReply, float]:
    rules = replace(RULES, budgets=replace(RULES.budgets, total=total))
    began = time.perf_counter()
    request = PlanRequest(snapshot, "bench", strategy, args, rules, TAKEN, vendors=VENDORS)
    reply = plan(request, strategies=STRATEGIES, should_stop=lambda: time.perf_counter() - began > seconds)
    return reply, time.perf_counter() - began


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def row(
    name: str, strategy: str, args: dict[str, object], total: int, reply: PlanReply, took: float, one: float
) -> None:
    what = strategy if strategy != "best-fit" else str(args["objective"])
    loss = f"{reply.before.loss:.4f}->{reply.after.loss:.4f}"
    print(
        f"{name:28s} {what:10s} <={total:4d} {len(reply.moves):4d} moves  L {loss}"
        f"  phi {reply.after.phi:.4f}  devices {reply.freed_devices:+4d}  nodes {reply.freed_nodes:+4d}"
        f"  {took:7.2f} s = {took / one:6.0f} scores  {peak_mib():6.0f} MiB  {reply.stopped}",
        flush=True,
    )


def scoring_pass(snapshot: Snapshot) -> float:
    began = time.perf_counter()
    score(snapshot)
    return time.perf_counter() - began


def states(folder: Path, only: str, seconds: float) -> None:
    from defragd.kube.snapshot_file import load

    for path in sorted(folder.glob("*.json.gz")):
        name = path.name.removesuffix(".json.gz")
        if only not in name:
            continue
        snapshot = load(str(path))
        one = scoring_pass(snapshot)
        for total in (50, 100, 200) if len(snapshot.nodes) > 100 else (10, 20, 40):
            for strategy, args in CASES:
                reply, took = run(snapshot, strategy, args, total, seconds)
                row(name, strategy, args, total, reply, took, one)


def growth(seconds: float, largest: int) -> None:
    """Time against size, and the exponent between the smallest and the largest."""
    seen: list[tuple[int, float]] = []
    for nodes in (500, 1000, 2000, 5000, 10000):
        if nodes > largest:
            break
        full = nodes == 10000
        snapshot = cluster(nodes, per_node=8 if full else 0, light=full)
        one = scoring_pass(snapshot)
        reply, took = run(snapshot, "best-fit", {"objective": "auto"}, 200, seconds)
        row(f"made-{nodes} ({len(snapshot.pods)} pods)", "best-fit", {"objective": "auto"}, 200, reply, took, one)
        seen.append((nodes, took))
    if len(seen) > 1:
        (small, fast), (large, slow) = seen[0], seen[-1]
        print(f"growth n^{math.log(slow / fast) / math.log(large / small):.2f}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--states", type=Path, default=Path("../shared/data/states"))
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--largest", type=int, default=10000)
    options = parser.parse_args(arguments)
    if options.growth:
        growth(options.seconds * 3, options.largest)
    elif options.states.is_dir():
        states(options.states, options.only, options.seconds)
    else:
        print(f"no states in {options.states}: give --states DIR", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
