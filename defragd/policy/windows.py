"""When moves may start: allow and deny spans, recurring or with dates. deny wins, ends are exclusive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from defragd.core.duration import format_duration
from defragd.policy.cron import Cron


@dataclass(frozen=True, slots=True)
class Span:
    """Either ``cron`` and ``duration`` (elapsed time), or ``begin`` and ``end`` (UTC). ``zone`` is for showing."""

    zone: ZoneInfo
    cron: Cron | None = None
    duration: timedelta = timedelta(0)
    begin: datetime | None = None
    end: datetime | None = None

    def covers(self, now: datetime) -> datetime | None:
        """The end (UTC, exclusive) of the span that ``now`` is in, or None."""
        if self.cron is not None:
            start = self.cron.last(now, self.duration)
            # last() excludes a start exactly one duration ago: the end is exclusive.
            return start + self.duration if start is not None else None
        assert self.begin is not None and self.end is not None
        return self.end if self.begin <= now < self.end else None

    def next_begin(self, now: datetime) -> datetime | None:
        """The next begin strictly after ``now``, or None."""
        if self.cron is not None:
            return self.cron.next(now)
        return self.begin if self.begin is not None and self.begin > now else None

    def __str__(self) -> str:
        if self.cron is not None:
            return f'cron "{self.cron.text}" for {format_duration(self.duration)} ({self.zone.key})'
        assert self.begin is not None and self.end is not None
        return f"{_show(self.begin, self.zone)} to {_show(self.end, self.zone)}"


def _show(when: datetime, zone: ZoneInfo) -> str:
    return when.astimezone(zone).isoformat(timespec="minutes")


@dataclass(frozen=True, slots=True)
class WindowVerdict:
    """``until``: while allowed, when that ends (None = not foreseeable); while not, when to ask again."""

    allowed: bool
    reason: str = ""
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Windows:
    """All windows of a policy. None at all: always allowed."""

    allow: tuple[Span, ...] = ()
    deny: tuple[Span, ...] = ()

    def allows(self, now: datetime) -> bool:
        """As ``check`` judges, without the reason and the end."""
        now = now.astimezone(UTC)
        if any(span.covers(now) is not None for span in self.deny):
            return False
        return not self.allow or any(span.covers(now) is not None for span in self.allow)

    def check(self, now: datetime) -> WindowVerdict:
        """Whether a move may start at ``now``; the reason names the window that says no."""
        now = now.astimezone(UTC)
        denied = [(end, span) for span in self.deny if (end := span.covers(now)) is not None]
        if denied:
            end, span = max(denied, key=lambda pair: pair[0])
            return WindowVerdict(False, f"denied by window {span} until {_show(end, span.zone)}", end)
        if self.allow and not any(span.covers(now) is not None for span in self.allow):
            begins = [(begin, span) for span in self.allow if (begin := span.next_begin(now)) is not None]
            if not begins:
                return WindowVerdict(False, "outside every allow window, and none will come", None)
            begin, span = min(begins, key=lambda pair: pair[0])
            return WindowVerdict(False, f"outside the allow windows, next {_show(begin, span.zone)}", begin)
        return WindowVerdict(True, "", self._closes(now))

    def _closes(self, now: datetime) -> datetime | None:
        """When the open window that ``now`` is in ends: the next deny, or the end of the (chained) allows."""
        ends = [begin for span in self.deny if (begin := span.next_begin(now)) is not None]
        if self.allow:
            end = now
            for _ in range(1000):
                later = [e for span in self.allow if (e := span.covers(end)) is not None and e > end]
                if not later or (ends and max(later) >= min(ends)):
                    end = max(later, default=end)
                    break
                end = max(later)
            ends.append(end)
        return min(ends, default=None)

    def __iter__(self) -> Iterator[Span]:
        yield from self.allow
        yield from self.deny
