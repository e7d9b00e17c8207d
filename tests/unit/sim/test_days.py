"""Simulated days: the same demand with and without policies, budgets kept, a report that stands alone."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from defragd.cli.main import run as cli
from defragd.core.plan import PlanReply, Score
from defragd.core.planner import plan
from defragd.core.snapshot import Snapshot
from defragd.hami.vendors import VENDORS
from defragd.policy.load import load_text
from defragd.policy.loaded import LoadedPolicy
from defragd.policy.registry import strategies
from defragd.sim.churn import Demand, apps_of, changes
from defragd.sim.days import Days, Outcome, _batches
from defragd.sim.days_report import html_page, outcome_value
from tests.support.openb import cluster
from tests.unit.cli.cli_states import splinters, write_list

QUIET = Demand()
BEGAN = datetime(2026, 11, 2, tzinfo=UTC)
POLICY = """
apiVersion: defragd/v1
kind: DefragPolicy
metadata: {name: p}
spec:
  strategy: {name: best-fit}
  schedule: {cron: "0 2 * * *", maxDuration: 2h}
  protect: {minPodAge: 0s}
  trigger: {minFragmentation: 0.0}
"""


def policy(more: str = "") -> LoadedPolicy:
    found = load_text(POLICY + more)
    assert not found.errors, found.errors
    return found.policies[0]


@pytest.fixture(scope="module")
def world() -> Snapshot:
    """Eight nodes, three quarters full, slices placed at random."""
    return cluster(8, seed=3, share=0.75, per_node=4)


def play(world: Snapshot, *policies: LoadedPolicy, days: float = 4, demand: Demand = QUIET) -> Days:
    simulation = Days(
        world,
        changes(world, demand, days),
        began=BEGAN,
        days=days,
        policies=policies,
        planner=lambda request: plan(replace(request, max_steps=60), strategies=strategies()),
        vendors=VENDORS,
    )
    simulation.play()
    return simulation


def test_the_same_seed_gives_the_same_demand(world: Snapshot) -> None:
    assert changes(world, Demand(seed=4), 5) == changes(world, Demand(seed=4), 5) != changes(world, Demand(seed=5), 5)


def test_books_follow_pods(world: Snapshot) -> None:
    """After days of changes and moves the arrays say what the pods say, and no device is overbooked."""
    simulation = play(world, policy())
    end = simulation.snapshot(4 * 86_400)
    for node in end.nodes.values():
        for device in node.devices:
            use = end.usage(node.name)[device.uuid]
            at = simulation._packing.fleet.device_index[device.uuid]
            assert use.memory_mib == simulation._packing.books.memory[at] <= device.memory_mib
            assert use.cores == simulation._packing.books.cores[at] <= device.cores
    assert simulation.out.moves > 0


def test_policies_lower_fragmentation_on_the_same_demand(world: Snapshot) -> None:
    without, with_policy = play(world).out, play(world, policy()).out
    assert without.moves == 0
    assert with_policy.arrived == without.arrived
    assert with_policy.mean_loss < without.mean_loss


def test_a_policy_that_does_nothing_changes_nothing(world: Snapshot) -> None:
    full = Demand(turnover=0.3, growth=1.3)
    idle = policy("  gain: {total: 1000000}\n")
    assert play(world, idle, demand=full).out.samples == play(world, demand=full).out.samples


def test_pending_pods_start_runs_without_a_schedule(world: Snapshot) -> None:
    text = POLICY.replace("best-fit", "make-room").replace('  schedule: {cron: "0 2 * * *", maxDuration: 2h}\n', "")
    signal = text.replace("{minFragmentation: 0.0}", "{startOn: {pendingPods: {after: 2m}}}")
    full = changes(world, Demand(turnover=0.5, growth=1.4), 2)
    nothing = Score(0.5, 0.5, 0, 0)

    def runs(source: str) -> int:
        simulation = Days(
            world,
            full,
            began=BEGAN,
            days=2,
            policies=load_text(source).policies,
            planner=lambda request: PlanReply(request.policy, request.strategy, "L", nothing, nothing),
            vendors=VENDORS,
        )
        return simulation.play().runs

    assert runs(text) == 0
    assert runs(signal) > 0


def test_budgets_and_cooldowns_hold(world: Snapshot) -> None:
    out = play(world, policy("  budgets: {total: 3}\n"), demand=Demand(turnover=0.3)).out
    assert 0 < out.moves <= 3 * 4
    tight = play(world, policy("  budgets: {perWorkload: {perDay: 1}}\n  execution: {cooldown: 90h}\n")).out
    assert max(tight.moves_of.values(), default=0) <= 2


def test_no_demand_no_second_run_with_moves(world: Snapshot) -> None:
    """An unchanged cluster settles: what the first nights gained is not undone."""
    out = play(world, policy(), demand=Demand(turnover=0, scaling=0), days=6).out
    assert out.by_policy["p"]["no moves"] >= 2


def test_deletion_costs_are_used_by_scale_ins(world: Snapshot) -> None:
    demand = Demand(turnover=0.05, scaling=1.0)
    plain = play(world, policy("  suspend: true\n"), demand=demand).out
    hinted = play(world, policy("  suspend: true\n  free: {deletionCost: true}\n"), demand=demand).out
    assert hinted.moves == plain.moves == 0
    assert sum(s.idle_devices for s in hinted.samples) > sum(s.idle_devices for s in plain.samples)


def test_groups_stay_together_in_batches() -> None:
    from defragd.core.plan import Move, Place

    here = Place("n", ("d",))
    moves = [Move(f"m{i}", f"ns/p{i}", "u", here, here, group="g" if i in (1, 2) else "") for i in range(5)]
    assert [[m.id for m in batch] for batch in _batches(moves, 2)] == [["m0"], ["m1", "m2"], ["m3", "m4"]]


def test_report_stands_alone(world: Snapshot) -> None:
    played = play(world, days=1).out
    arms = [outcome_value("without", Outcome(), down_seconds=90), outcome_value("<b>", played, down_seconds=90)]
    page = html_page({"arms": arms, "days": 1, "nodes": 8, "devices": 32, "notes": ["a < b"]})
    assert page.count("<svg") == 3
    assert "<b>" not in page
    assert "a &lt; b" in page
    assert not re.search(r"(src|href)=|https?://|<script", page)


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
    """A small cluster as a file."""
    path = tmp_path / "state.json.gz"
    write_list(path, splinters())
    return str(path)


def test_command(snapshot: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli(["simulate", "--snapshot", snapshot, "--days", "1", "--max-steps", "20", "-o", "json"])
    said = capsys.readouterr()
    assert code == 0, said.err
    value = json.loads(said.out)
    assert [arm["name"] for arm in value["arms"]] == ["without", "with all"]
    assert {"first", "last", "mean"} == value["arms"][0]["fragmentation"].keys()
    assert value["demand"]["seed"] == 1


@pytest.mark.parametrize("args", [["--days", "0"], ["--turnover", "-1"], ["--policies", "/nowhere"], ["--seed", "x"]])
def test_bad_input_is_one_line(args: list[str], snapshot: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli(["simulate", "--snapshot", snapshot, *args])
    assert code == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_apps_without_devices_are_left_out(world: Snapshot) -> None:
    assert all(world.pods[key].allocations for keys in apps_of(world).values() for key in keys)
