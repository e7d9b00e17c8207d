"""`make bench`: every benchmark one after the other, each in a process of its own; prints their figures.

    python -m tests.bench [NAME ...]     names: reader, annotations, webhook, rows, growth, serving, idle

The planner's rows need the prepared states (`--states`, by default beside the checkout); without them they are left
out, and that is said. Nothing here is a test: machines are noisy, so read ratios.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

STATES = Path("../shared/data/states")
BENCHES: dict[str, list[str]] = {
    "reader": ["tests.bench.reader_bench", "--snapshot"],
    "annotations": ["tests.bench.annotations_bench"],
    "webhook": ["tests.bench.webhook_bench"],
    "rows": ["tests.bench.planner_rows", "--quick"],
    "serving": ["tests.bench.serving_bench"],
    "idle": ["tests.bench.idle_bench"],
    "growth": ["tests.bench.planner_bench", "--growth"],
}
NEEDS_STATES = {"rows", "growth", "serving", "idle"}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    worst = 0
    for name in names or list(BENCHES):
        print(f"\n== {name}", flush=True)
        if name in NEEDS_STATES and not STATES.is_dir():
            print(f"left out: no prepared states in {STATES}")
            continue
        worst = max(worst, subprocess.run([sys.executable, "-m", *BENCHES[name]], check=False).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
