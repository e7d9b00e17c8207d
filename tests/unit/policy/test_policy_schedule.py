"""Starts and windows: deadlines without bursts, deny over allow, exclusive ends, one run per scheduled start."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defragd.policy.cron import parse_cron
from defragd.policy.schedule import Schedule, due, never_allowed, next_starts
from defragd.policy.windows import Span, Windows
from tests.support.effort import examples

BERLIN = ZoneInfo("Europe/Berlin")
UTC_ZONE = ZoneInfo("UTC")


@dataclass
class FakePolicy:
    schedules: tuple = ()
    windows: Windows = field(default_factory=Windows)
    name: str = "p"
    suspended: bool = False


def at(text):
    return datetime.fromisoformat(text).astimezone(UTC)


def every(cron, zone=UTC_ZONE, deadline=timedelta(minutes=15)):
    return Schedule(parse_cron(cron, zone), deadline)


def span(cron, hours, zone=UTC_ZONE):
    return Span(zone, cron=parse_cron(cron, zone), duration=timedelta(hours=hours))


def dated(begin, end):
    return Span(UTC_ZONE, begin=at(begin), end=at(end))


NIGHTLY = FakePolicy((every("0 2 * * *"),))


@pytest.mark.parametrize(
    ("last", "now", "expected"),
    [
        (None, "2026-12-01T01:59:59Z", None),
        (None, "2026-12-01T02:00:00Z", "2026-12-01T02:00:00Z"),
        (None, "2026-12-01T02:15:00Z", "2026-12-01T02:00:00Z"),
        (None, "2026-12-01T02:15:01Z", None),
        ("2026-12-01T02:00:00Z", "2026-12-01T02:00:30Z", None),
        ("2026-11-30T02:00:00Z", "2026-12-01T02:10:00Z", "2026-12-01T02:00:00Z"),
        # The clock was set back: nothing until it has passed the last start again.
        ("2026-12-01T02:00:00Z", "2026-12-01T01:00:00Z", None),
        ("2026-12-01T02:00:00Z", "2026-11-20T02:00:00Z", None),
    ],
)
def test_due(last, now, expected):
    found = due(NIGHTLY, at(last) if last else None, at(now))
    assert (found.utc if found else None) == (at(expected) if expected else None)


def test_a_week_of_downtime_gives_one_run_not_seven():
    policy = FakePolicy((every("0 2 * * *", deadline=None),))
    found = due(policy, at("2026-11-20T02:00:00Z"), at("2026-12-01T13:00:00Z"))
    assert found and found.utc == at("2026-12-01T02:00:00Z")
    assert due(policy, found.utc, at("2026-12-01T13:00:01Z")) is None


def test_a_policy_that_never_ran_does_not_reach_back_for_ever():
    policy = FakePolicy((every("0 2 * * *", deadline=None),))
    assert due(policy, None, at("2026-12-01T13:00:00Z")) is None


def test_of_several_schedules_the_latest_start_counts_and_equal_ones_are_one():
    policy = FakePolicy((every("0 2 * * *"), every("5 2 * * *"), every("0 2 * * *")))
    found = due(policy, None, at("2026-12-01T02:06:00Z"))
    assert found and found.utc == at("2026-12-01T02:05:00Z")
    assert due(policy, found.utc, at("2026-12-01T02:07:00Z")) is None
    minutes = [s.utc.minute for s in next_starts(policy, at("2026-12-01T00:00:00Z"), 3)]
    assert minutes == [0, 5, 0]


def test_suspended_starts_nothing_and_says_so():
    policy = FakePolicy((every("0 2 * * *"),), suspended=True)
    assert due(policy, None, at("2026-12-01T02:00:00Z")) is None
    assert "suspended" in next_starts(policy, at("2026-12-01T00:00:00Z"), 1)[0].reason


def test_no_schedule_is_never_due():
    assert due(FakePolicy(), None, at("2026-12-01T02:00:00Z")) is None
    assert next_starts(FakePolicy(), at("2026-12-01T02:00:00Z"), 5) == []


def test_the_nights_when_the_clock_changes_have_one_start_each():
    policy = FakePolicy((every("30 2 * * *", BERLIN),))
    for begin, day, expected in (
        ("2026-10-24T12:00:00Z", 25, "2026-10-25T00:30:00Z"),
        ("2027-03-27T12:00:00Z", 28, "2027-03-28T01:00:00Z"),
    ):
        last, ran = at(begin), []
        for minute in range(36 * 60):
            now = at(begin) + timedelta(minutes=minute)
            found = due(policy, last, now)
            if found:
                ran.append(found)
                last = found.utc
        of_the_day = [s for s in ran if s.local.day == day]
        assert [s.utc for s in of_the_day] == [at(expected)]


@pytest.mark.parametrize(
    ("windows", "now", "allowed"),
    [
        (Windows(), "2026-12-01T12:00:00Z", True),
        (Windows(deny=(span("0 9 * * MON-FRI", 8),)), "2026-12-01T08:59:59Z", True),
        (Windows(deny=(span("0 9 * * MON-FRI", 8),)), "2026-12-01T09:00:00Z", False),
        (Windows(deny=(span("0 9 * * MON-FRI", 8),)), "2026-12-01T16:59:59Z", False),
        (Windows(deny=(span("0 9 * * MON-FRI", 8),)), "2026-12-01T17:00:00Z", True),
        (Windows(deny=(span("0 9 * * MON-FRI", 8),)), "2026-12-05T12:00:00Z", True),
        (Windows(allow=(span("0 1 * * *", 4),)), "2026-12-01T00:59:59Z", False),
        (Windows(allow=(span("0 1 * * *", 4),)), "2026-12-01T01:00:00Z", True),
        (Windows(allow=(span("0 1 * * *", 4),)), "2026-12-01T05:00:00Z", False),
        (Windows(allow=(span("0 1 * * *", 4),), deny=(span("0 2 * * *", 1),)), "2026-12-01T02:30:00Z", False),
        (Windows(deny=(dated("2026-12-24T00:00Z", "2026-12-27T00:00Z"),)), "2026-12-24T00:00:00Z", False),
        (Windows(deny=(dated("2026-12-24T00:00Z", "2026-12-27T00:00Z"),)), "2026-12-27T00:00:00Z", True),
        (Windows(allow=(dated("2026-12-24T00:00Z", "2026-12-27T00:00Z"),)), "2026-12-28T00:00:00Z", False),
        # Across midnight and the change of the clock: durations are elapsed time.
        (Windows(deny=(span("0 22 * * *", 8, BERLIN),)), "2026-10-25T03:59:00Z", False),
        (Windows(deny=(span("0 22 * * *", 8, BERLIN),)), "2026-10-25T04:00:00Z", True),
    ],
)
def test_windows(windows, now, allowed):
    verdict = windows.check(at(now))
    assert verdict.allowed is allowed
    assert bool(verdict.reason) is not allowed


def test_until_tells_when_it_opens_and_when_it_closes():
    windows = Windows(allow=(span("0 1 * * *", 4),), deny=(span("0 3 * * *", 1),))
    assert windows.check(at("2026-12-01T00:00Z")).until == at("2026-12-01T01:00Z")
    assert windows.check(at("2026-12-01T02:00Z")).until == at("2026-12-01T03:00Z")
    assert windows.check(at("2026-12-01T03:30Z")).until == at("2026-12-01T04:00Z")
    assert windows.check(at("2026-12-01T04:30Z")).until == at("2026-12-01T05:00Z")
    chained = Windows(allow=(span("0 1 * * *", 4), span("0 5 * * *", 2)))
    assert chained.check(at("2026-12-01T02:00Z")).until == at("2026-12-01T07:00Z")
    assert Windows().check(at("2026-12-01T02:00Z")).until is None


def test_denied_starts_are_listed_with_their_reason_and_never_due():
    policy = FakePolicy((every("0 */6 * * *"),), Windows(deny=(span("0 5 * * *", 2),)))
    starts = next_starts(policy, at("2026-12-01T00:00Z"), 3)
    assert [(s.utc.hour, s.allowed) for s in starts] == [(6, False), (12, True), (18, True)]
    assert "denied by window" in starts[0].reason
    assert due(policy, None, at("2026-12-01T06:00Z")) is None
    # The window is over at 07:00, but the start was inside it.
    late = FakePolicy((every("0 */6 * * *", deadline=timedelta(hours=3)),), policy.windows)
    assert due(late, at("2026-12-01T00:00Z"), at("2026-12-01T07:30Z")) is None


def test_never_allowed():
    now = at("2026-12-01T00:00Z")
    assert never_allowed(FakePolicy((every("0 10 * * *"),), Windows(deny=(span("0 9 * * *", 8),))), now)
    assert not never_allowed(FakePolicy((every("0 2 * * *"),), Windows(deny=(span("0 9 * * *", 8),))), now)
    assert never_allowed(FakePolicy((), Windows(deny=(span("0 0 * * *", 24),))), now)
    assert not never_allowed(FakePolicy((every("* * * * *"),), Windows(deny=(span("0 0 * * *", 23),))), now)


@settings(max_examples=examples(50), deadline=None)
@given(
    st.lists(
        st.sampled_from(["0 2 * * *", "*/7 * * * *", "30 1-3 * * *", "0 * * * *", "15 2 * * SUN"]),
        min_size=1,
        max_size=3,
    ),
    st.lists(st.tuples(st.sampled_from(["0 1 * * *", "0 3 * * *", "30 * * * *"]), st.integers(1, 5)), max_size=2),
    st.sampled_from([timedelta(0), timedelta(minutes=3), timedelta(hours=2), None]),
    st.lists(st.integers(1, 90), min_size=5, max_size=60),
)
def test_whatever_the_polling_no_start_runs_twice_or_inside_a_deny(crons, denies, deadline, steps):
    windows = Windows(deny=tuple(span(c, h / 2, BERLIN) for c, h in denies))
    policy = FakePolicy(tuple(every(c, BERLIN, deadline) for c in crons), windows)
    now, last, seen = at("2026-10-24T22:00:00Z"), None, []
    for step in steps:
        now += timedelta(minutes=step)
        found = due(policy, last, now)
        if found is None:
            continue
        assert last is None or found.utc > last
        assert found.utc <= now and windows.check(found.utc).allowed and windows.check(now).allowed
        assert deadline is None or now - found.utc <= max(deadline, timedelta(seconds=1))
        seen.append(found.utc)
        last = found.utc
    assert len(seen) == len(set(seen))
