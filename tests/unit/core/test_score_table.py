"""The table of scores that independent programs agree on (four decimals), for prepared states of the openb trace.

Ten small states are in the tree. DEFRAGD_STATES names a directory with others of the table, which are then checked too.
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest

from defragd.core.mix import Mix, given_mix
from defragd.core.plan import Score
from defragd.core.rules import MixClass
from defragd.core.score import score
from defragd.kube.snapshot_file import load

HERE = Path(__file__).parents[2] / "data" / "states"
FOLDERS = [HERE, *([Path(os.environ["DEFRAGD_STATES"])] if "DEFRAGD_STATES" in os.environ else [])]
MIB = 1 << 20


def find(name: str) -> Path | None:
    return next((path for folder in FOLDERS if (path := folder / name).is_file()), None)


def rows() -> list[dict[str, str]]:
    with (HERE / "table.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if find(f"{row['state']}.json.gz") is not None]


def trace_mix(state: str) -> Mix | None:
    recipe = state.partition("-s1")[0]
    path = find(f"mix/{recipe}-s1.json")
    if path is None:
        return None
    return given_mix(
        [
            MixClass(
                c["cpuMilli"],
                c["memoryMiB"] * MIB,
                c["gpus"],
                c["cores"],
                c["memPercent"],
                c["memMiB"],
                ",".join(c["types"]),
                weight=c["weight"],
            )
            for c in json.loads(path.read_text())["classes"]
        ]
    )


def agrees(found: Score, row: dict[str, str], suffix: str = "") -> None:
    assert found.loss == pytest.approx(float(row[f"loss{suffix}"]), abs=0.00006)
    assert found.phi == pytest.approx(float(row[f"phi{suffix}"]), abs=0.00006)
    assert found.idle_devices == int(row["idle_devices"])
    assert found.idle_nodes == int(row["idle_nodes"])
    assert found.idle_gpus == pytest.approx(float(row["idle_gpus"]), abs=0.006)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["state"])
def test_the_table(row):
    snapshot = load(find(f"{row['state']}.json.gz"))
    assert len(snapshot.nodes) == int(row["nodes"])
    assert len(snapshot.pods) == int(row["pods"])
    assert sum(bool(pod.allocations) for pod in snapshot.pods.values()) == int(row["gpu_pods"])
    assert len(snapshot.devices) == int(row["gpus"])
    found = score(snapshot)
    agrees(found, row)
    assert len(found.classes) == int(row["classes"])
    mix = trace_mix(row["state"])
    if mix is not None:
        agrees(score(snapshot, mix=mix), row, "_trace")


def test_ten_states_are_in_the_tree():
    assert len(list(HERE.glob("*.json.gz"))) == 10
    assert all(trace_mix(row["state"]) is not None for row in rows() if find(f"{row['state']}.json.gz").parent == HERE)
