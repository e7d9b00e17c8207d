"""The planner beside the reference figures of the prepared states, row by row.

    python -m tests.bench.planner_rows [--states DIR] [--quick] [--seconds S] [--goal TEXT] [--only TEXT] [--seed N]

Rules as the reference has them: budgets off, every pod at most once, no floor of replicas; "open" rows may fill idle
nodes, "guard" rows never do. Pods of several devices may move here; the reference moves single-device pods only. Prints
what was reached beside the best known and the share of its gain; ``--seconds`` are seconds of CPU of this process (a
shared machine slows all else). ``--quick`` takes the rows of L up to 40 nodes with little time each.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from pathlib import Path

from defragd.core.plan import PlanReply, PlanRequest
from defragd.core.planner import plan
from defragd.core.rules import Budgets, Cap, Gain, MixClass, Protection, Rules
from defragd.core.snapshot import Snapshot
from defragd.hami.vendors import VENDORS
from defragd.kube.snapshot_file import load
from tests.support.plan_world import STRATEGIES

TABLE = Path(__file__).with_name("planner_reference.csv")
OPEN = Rules(
    protect=Protection(min_pod_age=timedelta(0), min_replicas=0, priority_at_most=None),
    budgets=Budgets(
        total=None,
        concurrent=None,
        per_source_node=Cap(),
        per_target_node=Cap(),
        per_namespace=Cap(),
        per_workload=Cap(),
    ),
)
ROUNDING = 6e-5
"""The table has four decimals."""


@dataclass(frozen=True, slots=True)
class Row:
    """One reference figure. ``best``: L after for goal "loss", gain for the others."""

    state: str
    goal: str
    moves: int
    guard: bool
    before: float
    best: float

    @property
    def large(self) -> bool:
        return "-n" not in self.state

    @property
    def gain(self) -> float:
        return self.before - self.best if self.goal == "loss" else self.best


def rows() -> Iterator[Row]:
    with TABLE.open() as file:
        for r in csv.DictReader(file):
            yield Row(
                r["state"], r["goal"], int(r["moves"]), r["idle_nodes"] == "guard", float(r["before"]), float(r["best"])
            )


@lru_cache(maxsize=2)
def state(path: Path) -> Snapshot:
    return load(str(path))


def fixed_mix(folder: Path, name: str) -> tuple[MixClass, ...]:
    found = json.loads((folder / "mix" / f"{name}.json").read_text())["classes"]
    return tuple(
        MixClass(
            c["cpuMilli"],
            c["memoryMiB"] << 20,
            c["gpus"],
            c["cores"],
            c["memPercent"],
            c["memMiB"],
            ",".join(c["types"]),
            weight=c["weight"],
        )
        for c in found
    )


def run(
    folder: Path, row: Row, seconds: float, seed: int, steps: int | None = None
) -> tuple[PlanReply, float, Snapshot]:
    snapshot = state(folder / f"{row.state}.json.gz")
    mix = fixed_mix(folder, row.state) if row.goal == "trace" else None
    rules = replace(OPEN, budgets=replace(OPEN.budgets, total=row.moves), gain=Gain(expected_mix=mix))
    args = {"objective": row.goal if row.goal in ("devices", "nodes") else "auto", "useIdleNodes": not row.guard}
    began = time.process_time()
    request = PlanRequest(snapshot, "bench", "best-fit", args, rules, None, seed=seed, max_steps=steps, vendors=VENDORS)
    reply = plan(request, strategies=STRATEGIES, should_stop=lambda: time.process_time() - began > seconds)
    return reply, time.process_time() - began, snapshot


def reached(row: Row, reply: PlanReply, snapshot: Snapshot) -> float:
    """The gain in the row's unit; nodes are those of eight devices, as in the reference."""
    if row.goal == "devices":
        return reply.freed_devices
    if row.goal == "nodes":
        return _eights(snapshot, reply)
    return reply.before.loss - reply.after.loss


def _eights(snapshot: Snapshot, reply: PlanReply) -> int:
    held = {key: (pod.booked_node, bool(pod.allocations)) for key, pod in snapshot.pods.items() if pod.live}

    def idle() -> int:
        used = {node for node, holds in held.values() if holds}
        return sum(len(n.devices) == 8 and name not in used for name, n in snapshot.nodes.items())

    before = idle()
    held.update({m.pod: (m.target.node, True) for m in reply.moves})
    return idle() - before


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--states", type=Path, default=Path("../shared/data/states"))
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--goal", default="")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if not options.states.is_dir():
        print(f"no states in {options.states}: give --states DIR", file=sys.stderr)
        return 2
    behind = count = 0
    for row in rows():
        if options.only not in row.state or options.goal not in row.goal:
            continue
        if options.quick and (row.large or row.goal != "loss" or row.guard):
            continue
        seconds = options.seconds or (1.5 if options.quick else 10.0 if row.large or "-n40" in row.state else 5.0)
        reply, took, snapshot = run(options.states, row, seconds, options.seed)
        gain = reached(row, reply, snapshot)
        far = reply.after.loss - row.best if row.goal == "loss" else row.gain - gain
        mark = "  behind" if far > ROUNDING else ""
        behind += bool(mark)
        count += 1
        share = 100 * gain / row.gain if row.gain else 100.0
        shown = (
            f"L {reply.after.loss:.4f} (best known {row.best:.4f})"
            if row.goal == "loss"
            else f"{row.goal} {gain:.4g} ({row.best:.4g})"
        )
        print(
            f"{row.state:26s} {'guard' if row.guard else 'open ':5s} <={row.moves:3d} {len(reply.moves):3d} moves"
            f"  {shown:34s} {share:6.1f} %  {took:5.2f} s CPU  {reply.stopped}{mark}",
            flush=True,
        )
    print(f"{count} rows, {behind} behind the best known")
    return 0


if __name__ == "__main__":
    sys.exit(main())
