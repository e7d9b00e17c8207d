"""Cron expressions and the instants they mean, with a stated rule for daylight saving.

cronsim knows the calendar (weekday 0 and 7 are Sunday, day and weekday as in Debian's cron); it is asked in naive local
time only. What a change of the clock does to a start is decided here:

- the hour field begins with ``*``: the job runs by elapsed time. A skipped hour has no starts, a repeated one has its
  starts twice;
- otherwise: a start that the clock skips happens at the first valid instant after the gap (several of one gap are one
  start), a start that comes twice happens the first time only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from defragd.core.annotations import first_valid

MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_FIELDS = {"minute": "0 to 59", "hour": "0 to 23", "day-of-month": "1 to 31", "month": "1 to 12 or JAN to DEC",
           "day-of-week": "0 to 7 or SUN to SAT"}  # fmt: skip
_EXAMPLE = 'write it like "0 2 * * *"'
_SLACK = timedelta(hours=26)
"""More than any jump of a clock, so that a search in local time never begins too late."""
_STEPS = tuple(timedelta(hours=hours) for hours in (1, 26, 192, 768, 9000))
_OVERLAP = timedelta(hours=3)
"""More than any clock of our days is set back at once."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A checked expression in a zone. ``fields`` are the five fields after macros are replaced."""

    text: str
    fields: str
    zone: ZoneInfo

    @property
    def by_elapsed_time(self) -> bool:
        return self.fields.split()[1].startswith("*")

    def after(self, when: datetime) -> Iterator[datetime]:
        """Starts (UTC) strictly after ``when``, in order, each once; ends where the calendar does (50 years)."""
        return self._elapsed(when) if self.by_elapsed_time else self._local(when)

    def next(self, when: datetime) -> datetime | None:
        return next(self.after(when), None)

    def last(self, until: datetime, within: timedelta) -> datetime | None:
        """The last start in (until - within, until], or None; short spans first, so dense schedules are cheap."""
        for span in (*(step for step in _STEPS if step < within), within):
            found = None
            for start in self.after(until - span):
                if start > until:
                    break
                found = start
            if found is not None:
                return found
        return None

    def _local(self, when: datetime) -> Iterator[datetime]:
        last = when.astimezone(UTC)
        begin = (last.astimezone(self.zone) - _SLACK).replace(tzinfo=None)
        for naive in _simulate(self.fields, begin):
            start = first_valid(naive, self.zone)
            if start > last:
                last = start
                yield start

    def _elapsed(self, when: datetime) -> Iterator[datetime]:
        last = when.astimezone(UTC)
        begin = (last.astimezone(self.zone) - _OVERLAP).replace(tzinfo=None)
        seen = _simulate(self.fields, begin)
        pending: list[datetime] = []
        for naive in seen:
            for fold in (0, 1):
                start = naive.replace(tzinfo=self.zone, fold=fold).astimezone(UTC)
                if start > last and start.astimezone(self.zone).replace(tzinfo=None) == naive and start not in pending:
                    pending.append(start)
            # A repeated hour comes out of order; nothing later in local time is more than the slack behind.
            safe = first_valid(naive, self.zone) - _OVERLAP
            ready = sorted(start for start in pending if start <= safe)
            pending = [start for start in pending if start > safe]
            yield from ready
        yield from sorted(pending)


def _simulate(fields: str, begin: datetime) -> Iterator[datetime]:
    limit = begin.year + 50
    try:
        for naive in CronSim(fields, begin):
            if naive.year > limit:
                return
            yield naive
    except (StopIteration, OverflowError):
        return


@lru_cache(maxsize=4096)
def parse_cron(text: str, zone: ZoneInfo) -> Cron:
    """A Cron. Raises ValueError with the field and the mend, also for an expression that can never match."""
    word = text.strip()
    if word.startswith("@"):
        fields = MACROS.get(word.lower(), "")
        if not fields:
            raise ValueError(f'"{word[:40]}" is unknown; the short forms are {", ".join(sorted(MACROS))}')
    else:
        fields = " ".join(word.split())
    parts = fields.split()
    if len(parts) != 5:
        raise ValueError(
            f'"{word[:60]}" has {len(parts)} fields instead of 5 (minute hour day month weekday); {_EXAMPLE}'
        )
    if len(fields) > 400 or not fields.isascii():
        raise ValueError(f'"{word[:40]}" is no cron expression; {_EXAMPLE}')
    parts[4] = re.sub(r"-SUN\b", "-7", parts[4], flags=re.IGNORECASE)
    fields = " ".join(parts)
    for part, (name, allowed) in zip(parts, _FIELDS.items(), strict=True):
        at = list(_FIELDS).index(name)
        probe = ["0", "0", "*", "*", "*"]
        probe[at] = part
        try:
            CronSim(" ".join(probe), datetime(2000, 1, 1))  # noqa: DTZ001 - the calendar only
        except (CronSimError, ValueError, AssertionError, TypeError):
            if name == "day-of-month" and part in ("30", "31"):
                continue
            raise ValueError(f'{name} "{part[:40]}" cannot be read ({name} is {allowed}); {_EXAMPLE}') from None
    try:
        first = next(CronSim(fields, datetime(2024, 1, 1)), None)  # noqa: DTZ001 - the calendar only
    except (CronSimError, ValueError, OverflowError):
        first = None
    if first is None:
        raise ValueError(f'"{word[:60]}" never fires: there is no such date')
    return Cron(word, fields, zone)
