"""Runs that start without a schedule: what lasts long enough, whom a move could help, and when the books are wrong."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from defragd.core.run import Run
from defragd.core.snapshot import Snapshot
from defragd.hami.vendors import VENDORS
from defragd.policy.load import load_text
from defragd.policy.loaded import LoadedPolicy
from defragd.policy.signals import FRAGMENTATION, HEALTH, PENDING, Memory, look
from tests.support.plan_world import NOW, world

EMPTY = world("n1 { g0 24G: a 10G }")


def policy(start_on: str, more: str = "") -> LoadedPolicy:
    found = load_text(
        f"""
apiVersion: defragd/v1
kind: DefragPolicy
metadata: {{name: p}}
spec:
  strategy: {{name: make-room}}
  trigger: {{startOn: {start_on}}}
{more}"""
    )
    assert not found.errors, found.errors
    return found.policies[0]


class Watch:
    """Looks once a minute and remembers; ``fire`` records the run that a signal starts."""

    def __init__(self, start_on: str, more: str = "") -> None:
        self.policy, self.memory, self.now, self.runs = policy(start_on, more), Memory(), NOW, []
        self.said = ""

    def look(self, snapshot: Snapshot = EMPTY, loss: float | None = 0.0) -> str:
        self.memory, signal = look(
            self.policy, snapshot, self.memory, self.runs, self.now, fragmentation=loss, vendors=VENDORS
        )
        self.said = signal.text
        if signal.kind:
            self.runs.append(Run("ns", f"r{len(self.runs)}", "p", "Auto", "s", trigger=signal.kind, created=self.now))
        self.now += timedelta(minutes=1)
        return signal.kind

    def minutes(self, count: int, loss: float) -> list[int]:
        """Minutes in which a run started."""
        return [minute for minute in range(count) if self.look(loss=loss)]


HIGH = "{fragmentation: {above: 0.3, rearmBelow: 0.2, for: 30m}}"


def test_fragmentation_must_last() -> None:
    watch = Watch(HIGH)
    assert watch.minutes(30, 0.35) == []
    assert watch.minutes(1, 0.29) == [], "a dip starts the count anew"
    assert watch.minutes(40, 0.35) == [30]


def test_fragmentation_starts_once_per_rise() -> None:
    watch = Watch(HIGH)
    assert watch.minutes(31, 0.35) == [30]
    assert watch.minutes(120, 0.35) == [], "still high: the run could not mend it"
    assert watch.minutes(120, 0.25) == [], "between the limits nothing is armed"
    assert watch.minutes(90, 0.35) == []
    assert watch.minutes(1, 0.2) == []
    assert watch.minutes(40, 0.35) == [30]


def test_fragmentation_is_tried_again_after_hours() -> None:
    watch = Watch(HIGH)
    assert watch.minutes(31 + 6 * 60, 0.35) == [30, 30 + 6 * 60]


def test_a_restart_does_not_start_again() -> None:
    watch = Watch(HIGH)
    watch.minutes(31, 0.35)
    watch.memory = Memory()
    assert watch.minutes(60, 0.35) == []


FULL = "n1 { g0 24G: a 10G; g1 24G: b 10G }"
WAITS = "{pendingPods: {after: 5m}}"


def waiting(text: str, pod: str, minutes: int = 6) -> Snapshot:
    snapshot = world(text, pending=pod)
    key = f"ns/{pod.split()[0]}"
    return snapshot.with_pods({key: replace(snapshot.pods[key], created=NOW - timedelta(minutes=minutes))})


@pytest.mark.parametrize(
    ("snapshot", "kind", "text"),
    [
        pytest.param(waiting(FULL, "z 20G"), PENDING, "fits nowhere", id="a move would let it fit"),
        pytest.param(waiting(FULL, "z 20G", minutes=4), "", "", id="not yet"),
        pytest.param(waiting(FULL, "z 12G"), "", "books are in doubt", id="UC-21: it should fit already"),
        pytest.param(waiting("n1 { g0 24G: a 20G; g1 24G: b 20G }", "z 20G"), "", "too little", id="no capacity"),
        pytest.param(waiting(FULL, "z 2x20G"), "", "too little", id="not for two devices"),
        pytest.param(waiting(FULL, "z 3x2G"), "", "even when empty", id="too many devices for any node"),
        pytest.param(waiting(FULL, "z 30G"), "", "even when empty", id="too much for any device"),
        pytest.param(world(FULL), "", "", id="nobody waits"),
    ],
)
def test_pending_pods(snapshot: Snapshot, kind: str, text: str) -> None:
    watch = Watch(WAITS)
    assert watch.look(snapshot) == kind
    assert text in watch.said


def test_uc21_distrusted_devices_never_start_moves() -> None:
    """The scheduler counts deleted pods, so the devices are distrusted, and moves would not help z."""
    snapshot = waiting("n1 { g0 24G: -; g1 24G: - } n2 { g0 24G: a 10G; g1 24G: b 10G }", "z 20G")
    bad = snapshot.nodes["n1"]
    bad = replace(bad, devices=tuple(replace(d, distrusted="HAMi's metrics differ") for d in bad.devices))
    watch = Watch(WAITS)
    assert watch.look(replace(snapshot, nodes={**snapshot.nodes, "n1": bad})) == ""
    assert "distrusted" in watch.said


def test_not_again_within_the_interval() -> None:
    watch = Watch("{pendingPods: {after: 5m}, interval: 20m}")
    snapshot = waiting(FULL, "z 20G")
    assert [m for m in range(45) if watch.look(snapshot)] == [0, 20, 40]


def test_a_device_that_turns_unhealthy() -> None:
    watch = Watch("{unhealthyDevices: {after: 2m}}")
    sick = world("n1 { g0 24G unhealthy: a 8G; g1 24G: - }")
    assert watch.look(world("n1 { g0 24G: a 8G; g1 24G: - }")) == ""
    assert [watch.look(sick) for _ in range(3)] == ["", "", HEALTH]
    assert "GPU-n1-g0" in watch.look(sick) or watch.runs


def test_an_empty_sick_device_needs_no_run() -> None:
    watch = Watch("{unhealthyDevices: {after: 0s}}")
    assert watch.look(world("n1 { g0 24G unhealthy: -; g1 24G: a 8G }")) == ""


@pytest.mark.parametrize("more", ["  suspend: true\n", '  windows: [{deny: {cron: "0 0 * * *", duration: 24h}}]\n'])
def test_suspend_and_windows_hold_these_starts_too(more: str) -> None:
    watch = Watch(WAITS, more)
    assert watch.look(waiting(FULL, "z 20G")) == ""


@pytest.mark.parametrize(
    ("start_on", "text"),
    [
        ("{fragmentation: {above: 0.2, rearmBelow: 0.3}}", "must be less than above"),
        ("{fragmentation: {}}", "above"),
        ("{pendingPods: {after: -1m}}", "negative"),
        ("{pendingPod: {}}", "pendingPods"),
        ("{interval: 0s}", "more than 0"),
    ],
)
def test_nonsense_is_refused(start_on: str, text: str) -> None:
    found = load_text(
        f"apiVersion: defragd/v1\nkind: DefragPolicy\nmetadata: {{name: p}}\n"
        f"spec: {{strategy: {{name: make-room}}, trigger: {{startOn: {start_on}}}}}\n"
    )
    assert any(text in str(error) for error in found.errors), found.errors


def test_unknown_fragmentation_starts_nothing() -> None:
    watch = Watch(HIGH)
    assert [watch.look(loss=None) for _ in range(60)] == [""] * 60
    assert FRAGMENTATION not in {run.trigger for run in watch.runs}


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("strategy: {name: best-fit}\n  trigger: {startOn: {pendingPods: {}}}", "make-room does"),
        ("strategy: {name: make-room}\n  trigger: {startOn: {unhealthyDevices: {}}}", "gpu-drain does"),
        ("strategy: {name: best-fit}\n  free: {deletionCost: true}", "no effect in mode DryRun"),
        ("strategy: {name: make-room}\n  trigger: {startOn: {pendingPods: {}}}", ""),
    ],
)
def test_what_is_hardly_meant_is_told(spec: str, text: str) -> None:
    found = load_text(f"apiVersion: defragd/v1\nkind: DefragPolicy\nmetadata: {{name: p}}\nspec:\n  {spec}\n")
    assert not found.errors
    said = " ".join(str(warning) for warning in found.warnings)
    assert text in said if text else not said
