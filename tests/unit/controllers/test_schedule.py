"""Starts: at most one run per start, none in a burst, across restarts, leaders and refusals."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from defragd.controllers.planning import Job, PlanRefused
from defragd.controllers.schedule import Scheduler
from defragd.core.reasons import Reason
from defragd.core.run import Run
from defragd.errors import DefragError
from defragd.policy.load import load_text
from defragd.policy.loaded import LoadedPolicy
from defragd.sim.access import SimLeadership
from defragd.sim.clock import SimClock

MIDNIGHT = datetime(2026, 3, 2, 0, 0, tzinfo=UTC)
TEXT = """
apiVersion: defragd/v1
kind: DefragPolicy
metadata: {name: %s}
spec:
  strategy: {name: best-fit}
  schedule: {cron: "%s", startingDeadline: %s}
"""


def policy(name: str = "nightly", cron: str = "0 2 * * *", deadline: str = "15m") -> LoadedPolicy:
    found = load_text(TEXT % (name, cron, deadline))
    assert not found.errors
    return found.policies[0]


class Records:
    """ports.RunStore as far as the scheduler reads it."""

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def list(self) -> list[Run]:
        return self.runs


class Planner:
    """Planning that records at once, or refuses."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.refuse: PlanRefused | None = None
        self.asked: list[tuple[str, datetime | None]] = []
        self.lag = False

    def plan_policy(
        self, job: Job, *, mode: str | None = None, trigger: str = "schedule", scheduled_for: datetime | None = None
    ) -> Run:
        if self.refuse is not None:
            raise self.refuse
        self.asked.append((job.name, scheduled_for))
        run = Run("ns", f"{job.name}-{len(self.asked)}", job.name, mode or "DryRun", "s", scheduled_for=scheduled_for)
        if not self.lag:
            self.records.runs.append(run)
        return run


class Rig:
    """A scheduler on a clock that moves when told."""

    def __init__(self, *policies: LoadedPolicy) -> None:
        self.policies = list(policies)
        self.clock = SimClock(MIDNIGHT)
        self.records = Records()
        self.planner = Planner(self.records)
        self.leadership = SimLeadership()
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self.scheduler = self.boot()

    def boot(self) -> Scheduler[LoadedPolicy]:
        self.scheduler = Scheduler(
            policies=lambda: self.policies,
            job=lambda p: Job(p.name, p.strategy),
            planning=self.planner,  # type: ignore[arg-type]
            runs=self.records,  # type: ignore[arg-type]
            leadership=self.leadership,
            clock=self.clock,
            hook=lambda event, fields: self.events.append((event, fields)),
        )
        return self.scheduler

    def at(self, hour: int, minute: int = 0, second: int = 0, day: int = 0) -> list[datetime | None]:
        wanted = MIDNIGHT + timedelta(days=day, hours=hour, minutes=minute, seconds=second)
        self.clock.jump((wanted - self.clock.now()).total_seconds())
        before = len(self.planner.asked)
        self.scheduler.cycle()
        return [at for _, at in self.planner.asked[before:]]


TWO = MIDNIGHT + timedelta(hours=2)


def test_a_start_is_acted_on_once() -> None:
    rig = Rig(policy())
    assert rig.at(1, 59, 59) == []
    assert rig.at(2) == [TWO]
    assert rig.at(2, 0, 5) == []
    rig.boot()
    assert rig.at(2, 0, 10) == [], "after a restart the record says so"
    assert rig.at(2, day=1) == [TWO + timedelta(days=1)]


def test_a_record_that_the_cache_does_not_show_yet() -> None:
    rig = Rig(policy())
    rig.planner.lag = True
    assert rig.at(2) == [TWO]
    assert rig.at(2, 0, 5) == []


@pytest.mark.parametrize(("minutes", "made_up"), [(14, True), (16, False)])
def test_a_missed_start_is_made_up_for_within_its_deadline(minutes: int, made_up: bool) -> None:
    rig = Rig(policy())
    assert rig.at(2, minutes) == ([TWO] if made_up else [])


def test_no_burst_after_downtime() -> None:
    rig = Rig(policy(cron="* * * * *", deadline="24h"))
    rig.at(1)
    assert len(rig.planner.asked) == 1
    assert rig.at(9) == [MIDNIGHT + timedelta(hours=9)]
    assert rig.at(9, 0, 30) == []


def test_a_refused_start_is_asked_again_until_its_deadline() -> None:
    rig = Rig(policy())
    rig.planner.refuse = PlanRefused(Reason.RUN_IN_PROGRESS, "run x is under way")
    assert rig.at(2) == []
    assert rig.at(2, 5) == []
    assert [event for event, _ in rig.events] == ["start.delayed"], "said once"
    rig.planner.refuse = None
    assert rig.at(2, 10) == [TWO]


def test_a_start_that_is_recorded_already_is_settled() -> None:
    rig = Rig(policy())
    rig.planner.refuse = PlanRefused(Reason.SUPERSEDED, "recorded already")
    rig.at(2)
    rig.planner.refuse = None
    assert rig.at(2, 1) == []


def test_only_the_leader_plans() -> None:
    rig = Rig(policy())
    rig.leadership.leading = False
    assert rig.at(2) == []
    rig.leadership.leading = True
    assert rig.at(2, 1) == [TWO]


def test_a_clock_set_back_starts_nothing_twice() -> None:
    rig = Rig(policy(cron="0 * * * *"))
    assert len(rig.at(3)) == 1
    assert rig.at(2, 30) == []
    assert rig.at(2) == []
    assert rig.at(3, 0, 1) == []
    assert len(rig.at(4)) == 1


def test_two_policies_due_at_once_have_an_order() -> None:
    rig = Rig(policy("b"), policy("a"), policy("c", "59 1 * * *"))
    rig.at(2)
    assert [name for name, _ in rig.planner.asked] == ["c", "a", "b"]


def test_a_policy_deleted_meanwhile_is_forgotten() -> None:
    rig = Rig(policy())
    rig.policies.clear()
    assert rig.at(2) == []


def test_requests_by_people() -> None:
    rig = Rig(policy())
    asked = rig.scheduler.request("nightly", mode="Approve", trigger="manual (kim)")
    unknown = rig.scheduler.request("weekly")
    rig.scheduler.cycle()
    assert asked.result(0).mode == "Approve"
    with pytest.raises(DefragError, match='no policy "weekly"'):
        unknown.result(0)
    rig.planner.refuse = PlanRefused(Reason.STALE_DATA, "old")
    refused = rig.scheduler.request("nightly")
    rig.scheduler.cycle()
    with pytest.raises(PlanRefused):
        refused.result(0)


def test_the_thread_wakes_up_plans_and_ends() -> None:
    rig = Rig(policy())
    rig.clock.jump(2 * 3600)
    stop = threading.Event()
    thread = threading.Thread(target=rig.scheduler.run, args=(stop,))
    thread.start()
    try:
        assert rig.scheduler.request("nightly").result(10).policy == "nightly"
    finally:
        stop.set()
        thread.join(5)
    assert not thread.is_alive()
    assert ("nightly", TWO) in rig.planner.asked


def test_two_due_at_once_go_by_time_then_name() -> None:
    rig = Rig(policy("b"), policy("a"), policy("late", "1 2 * * *"))
    rig.at(1)
    rig.at(2, 1)
    assert [name for name, _ in rig.planner.asked] == ["a", "b", "late"]


@pytest.mark.slow
def test_a_thousand_policies_are_asked_only_when_due(monkeypatch: pytest.MonkeyPatch) -> None:
    from defragd.controllers import schedule

    rig = Rig(*(policy(f"p{i:04d}", f"{i % 60} {i % 24} * * *") for i in range(1000)))
    asked: list[str] = []
    real = schedule.due
    monkeypatch.setattr(schedule, "due", lambda p, last, now: (asked.append(p.name), real(p, last, now))[1])
    rig.at(0, 0)
    assert len(asked) == 1000
    asked.clear()
    for second in (5, 10, 15):
        rig.at(0, 0, second)
    assert len(asked) <= 3 * 40, "those that just started, once more each"
    began = time.monotonic()
    for second in range(20, 50):
        rig.at(0, 0, second)
        rig.scheduler.next_start()
    assert time.monotonic() - began < 3.0


def test_signals_start_runs_of_the_leader_only() -> None:
    rig = Rig(policy())
    due = [(rig.policies[0], "pending-pods")]
    rig.scheduler._signals = lambda policies: due if list(policies) else []
    rig.at(1)
    assert rig.planner.asked == [("nightly", None)]
    rig.leadership.leading = False
    rig.at(1, 1)
    assert len(rig.planner.asked) == 1


def test_an_edited_policy_is_looked_at_at_once() -> None:
    rig = Rig(policy(cron="0 5 * * *"))
    rig.at(1)
    rig.policies[:] = [policy(cron="5 1 * * *")]
    assert rig.at(1, 5) == [MIDNIGHT + timedelta(hours=1, minutes=5)]
