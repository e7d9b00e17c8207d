"""A policy in sentences says what the daemon obeys: every value that is written shows."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from defragd.cli.main import run as cli
from defragd.policy.load import load_policies, load_text
from defragd.policy.words import explain

NOW = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)
FULL = """
apiVersion: defragd/v1
kind: DefragPolicy
metadata: {name: full}
spec:
  strategy: {name: node-drain, args: {count: 3}}
  mode: Approve
  schedule: {cron: "17 3 * * *", timeZone: Asia/Shanghai, startingDeadline: 11m, maxDuration: 95m}
  windows: [{deny: {cron: "0 9 * * *", duration: 7h}}, {allow: {cron: "0 1 * * *", duration: 5h}}]
  trigger:
    minFragmentation: 0.21
    maxPendingPods: 13
    lightNodes: {count: 6, usedAtMost: 0.4}
    sinceLastEviction: 9m
    recentFailures: {atMost: 14, within: 38m}
    startOn: {fragmentation: {above: 0.33, for: 44m}, pendingPods: {after: 4m}, unhealthyDevices: {after: 3m}}
  scope: {nodeSelector: {pool: x1}, podSelector: {tier: y2}, namespaces: {include: [z3]}, deviceTypes: [A100]}
  protect: {minPodAge: 29m, minReplicas: 7, priorityAtMost: 4242, requirePDB: true, gangs: Never}
  gain: {perMove: 0.125, total: 0.5}
  budgets:
    {total: 51, perDay: 61, concurrent: 6, perWorkload: "23%", perSourceNode: {perRun: 8}, spacing: 31s, rate: 9/m}
  execution: {settle: 62s, cooldown: 5h, nodeCooldown: 33m, abortAbove: 0.27, approvalExpires: 19h}
  free: {deletionCost: true}
"""
SHOWN = (
    "node-drain", "count=3", "Approve", "17 3 * * *", "Asia/Shanghai", "11m", "1h35m", "0 9 * * *", "0 1 * * *", "0.21",
    "13 pods", "6 nodes", "40%", "9m", "14 moves failed", "38m", "0.33", "44m", "4m", "3m", "pool In x1",
    "tier In y2", "z3", "A100", "29m",
    "7 replicas", "4242", "no PodDisruptionBudget covers", "gangs", "0.125", "0.5", "51 moves", "61 in 24", "6 at once",
    "23%", "8 a run", "31s", "9 starts", "1m2s", "5h", "33m", "27%", "19h", "deletion costs",
)  # fmt: skip


def text(source: str) -> str:
    found = load_text(source)
    assert not found.errors, found.errors
    return "\n".join(line for _, lines in explain(found.policies[0], NOW) for line in lines)


@pytest.mark.parametrize("word", SHOWN)
def test_every_value_shows(word: str) -> None:
    assert word in text(FULL)


def test_a_denied_start_is_told() -> None:
    said = text(FULL.replace('"17 3 * * *"', '"30 9 * * *"'))
    assert "not allowed" in said
    assert "now: outside the allow windows" in said


def test_shipped_policies_read_well() -> None:
    for policy in load_policies(Path("policies")).policies:
        sections = dict(explain(policy, NOW))
        assert all(sections.values())
        assert not any("None" in line for lines in sections.values() for line in lines), policy.name


@pytest.mark.parametrize("output", ["table", "json"])
def test_command(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(["policy", "explain", "make-room", "--now", "2026-12-01T12:00:00Z", "-o", output]) == 0
    said = capsys.readouterr().out
    assert "moves could let fit" in said
    if output == "json":
        assert json.loads(said)["policy"] == "make-room"
