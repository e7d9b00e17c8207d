"""When a policy's runs start: the next starts for people, and what is due now for the daemon."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from defragd.policy.cron import Cron
from defragd.policy.windows import Windows

NEW_POLICY_LOOKBACK = timedelta(minutes=15)
"""How far a policy that has never run may reach back when its startingDeadline is unlimited."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One compiled schedule; None means unlimited."""

    cron: Cron
    starting_deadline: timedelta | None = timedelta(minutes=15)
    max_duration: timedelta | None = timedelta(hours=2)


class Scheduled(Protocol):
    """What is needed of a policy here; `policy.loaded.LoadedPolicy` is one."""

    @property
    def name(self) -> str: ...
    @property
    def schedules(self) -> tuple[Schedule, ...]: ...
    @property
    def windows(self) -> Windows: ...
    @property
    def suspended(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a run. ``local`` is in the schedule's zone; ``reason`` says why it is not allowed."""

    policy: str
    utc: datetime
    local: datetime
    allowed: bool = True
    reason: str = ""
    max_duration: timedelta | None = None


def _all(policy: Scheduled, after: datetime) -> Iterator[tuple[datetime, int]]:
    """(start, index of its schedule) of all schedules, in order; of several at one instant only the first."""
    streams = [((when, index) for when in s.cron.after(after)) for index, s in enumerate(policy.schedules)]
    last: datetime | None = None
    for when, index in heapq.merge(*streams):
        if when != last:
            last = when
            yield when, index


def _start(policy: Scheduled, when: datetime, index: int) -> Start:
    schedule = policy.schedules[index]
    verdict = policy.windows.check(when)
    reason = verdict.reason
    if policy.suspended:
        reason = "the policy is suspended"
    return Start(policy.name, when, when.astimezone(schedule.cron.zone), not reason, reason, schedule.max_duration)


def next_starts(policy: Scheduled, after: datetime, count: int) -> list[Start]:
    """The next ``count`` starts strictly after ``after``; those that a window denies are among them."""
    return [_start(policy, when, index) for when, index in itertools.islice(_all(policy, after), max(count, 0))]


def due(policy: Scheduled, last_start: datetime | None, now: datetime) -> Start | None:
    """The start to act on at ``now``, or None.

    ``last_start`` is the scheduled time (UTC) of the last start that was acted on; None: never. Of all starts since
    then only the last is made up for, and only within its startingDeadline, so a long downtime gives one run, not a
    burst. A clock set back gives none until it has passed ``last_start`` again. Windows must allow both the scheduled
    time and ``now``.
    """
    if policy.suspended or not policy.schedules or not policy.windows.check(now).allowed:
        return None
    best: tuple[datetime, int] | None = None
    for index, schedule in enumerate(policy.schedules):
        deadline = schedule.starting_deadline
        reach = NEW_POLICY_LOOKBACK if deadline is None and last_start is None else deadline
        if last_start is not None:
            since = max(now - last_start, timedelta(0))
            reach = since if reach is None else min(reach, since)
        assert reach is not None
        found = _last_allowed(policy, schedule.cron, now, max(reach, timedelta(seconds=1)))
        if found is not None and (last_start is None or found > last_start) and (best is None or found > best[0]):
            best = (found, index)
    return _start(policy, *best) if best else None


def _last_allowed(policy: Scheduled, cron: Cron, now: datetime, within: timedelta) -> datetime | None:
    """The last start in [now - within, now] that no window denies (the deadline itself still counts)."""
    floor = now - within
    reach = within + timedelta(microseconds=1)
    at = now
    for _ in range(1000):
        found = cron.last(at, reach)
        if found is None or found < floor:
            return None
        if policy.windows.allows(found):
            return found
        at = found - timedelta(microseconds=1)
        reach = at - floor + timedelta(microseconds=1)
        if reach <= timedelta(0):
            return None
    return None


def never_allowed(policy: Scheduled, now: datetime) -> bool:
    """None of many starts over the coming year is allowed (or, without a schedule, no time of a sample of them)."""
    now = now.astimezone(UTC)
    step = timedelta(hours=43, minutes=37)
    times = [now + step * index for index in range(200)]
    if not policy.schedules:
        return not any(
            policy.windows.allows(when) for when in times + [now + timedelta(minutes=97) * k for k in range(120)]
        )
    near = (when for when, _ in itertools.islice(_all(policy, now), 50))
    far = (start for when in times for start, _ in itertools.islice(_all(policy, when), 1))
    return not any(policy.windows.allows(start) for start in itertools.chain(near, far))
