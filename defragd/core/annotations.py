"""The ``defragd.io/*`` annotations: what owners of pods may say about moving them, and how it is read.

Four keys, on a pod (or its template), its owner and root owner, its namespace; the first also on a node. The nearest
place that says something decides; a node speaks for itself, whatever the pod says. A value that cannot be read
protects the pod and is reported: a typing error must never make a pod movable.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from functools import lru_cache
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from defragd.core.duration import parse_duration
from defragd.core.model import Pod
from defragd.core.snapshot import Snapshot

PREFIX = "defragd.io/"
DO_NOT_MOVE = "defragd.io/do-not-move"
ALLOWED_HOURS = "defragd.io/allowed-hours"
START_LIMIT = "defragd.io/start-limit"
MOVE = "defragd.io/move"
KEYS = (DO_NOT_MOVE, ALLOWED_HOURS, START_LIMIT, MOVE)
MAX_START_LIMIT = timedelta(hours=24)

T = TypeVar("T")
_RANGE = re.compile(r"(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})", re.ASCII)


class MalformedAnnotation(ValueError):
    """The value of an annotation cannot be read; ``str()`` says what is wrong and how to write it."""


@dataclass(frozen=True, slots=True)
class Hours:
    """Daily spans of local time (minutes since midnight, end exclusive, may wrap midnight) in an IANA zone."""

    spans: tuple[tuple[int, int], ...]
    zone: str
    text: str = ""

    def contains(self, now: datetime) -> bool:
        local = now.astimezone(ZoneInfo(self.zone))
        minute = local.hour * 60 + local.minute
        return any(a <= minute < b if a < b else minute >= a or minute < b for a, b in self.spans)

    def next_open(self, now: datetime) -> datetime:
        """The next instant (UTC) at which a span is open; ``now`` when one is. A start that the clock skips opens at
        the first valid instant after the gap."""
        if self.contains(now):
            return now.astimezone(UTC)
        zone = ZoneInfo(self.zone)
        today = now.astimezone(zone).date()
        starts: list[datetime] = []
        for day in range(4):
            for begin, _end in self.spans:
                naive = datetime.combine(today + timedelta(days=day), time(begin // 60, begin % 60))
                starts += (first_valid(naive, zone, fold=fold) for fold in (0, 1))
        return min(start for start in starts if start > now and self.contains(start))


def first_valid(naive: datetime, zone: ZoneInfo, *, fold: int = 0) -> datetime:
    """The instant (UTC) of a local wall time. One that the clock skips becomes the first valid instant after the gap;
    of one that comes twice ``fold`` picks the first or the second."""
    aware = naive.replace(tzinfo=zone, fold=fold)
    instant = aware.astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None, fold=0) == naive:
        return instant
    # In a gap the two folds give an instant after it and one before it; the change itself lies between them.
    low, high = sorted(naive.replace(tzinfo=zone, fold=f).astimezone(UTC) for f in (0, 1))
    before = low.astimezone(zone).utcoffset()
    while high - low > timedelta(seconds=1):
        middle = low + (high - low) / 2
        low, high = (middle, high) if middle.astimezone(zone).utcoffset() == before else (low, middle)
    return high.replace(microsecond=0)


def parse_do_not_move(value: str) -> bool | datetime:
    """True or False, or the end of the protection as an aware time. Raises MalformedAnnotation."""
    word = value.strip().lower()
    if word in ("true", "false"):
        return word == "true"
    try:
        until = datetime.fromisoformat(value.strip())
    except ValueError:
        until = None
    if until is None or until.tzinfo is None or "T" not in value.upper():
        raise MalformedAnnotation(
            f'{DO_NOT_MOVE}: "{value[:60]}" is neither true, false nor an RFC 3339 time such as 2026-12-24T00:00:00Z'
        )
    return until.astimezone(UTC)


@lru_cache(maxsize=1024)
def parse_hours(value: str) -> Hours:
    """``"01:00-05:00 Europe/Berlin"``, several spans with commas, UTC without a zone. Raises MalformedAnnotation."""
    mend = f'write it like {ALLOWED_HOURS}: "01:00-05:00 Europe/Berlin"'
    spans_text, _, zone = value.strip().partition(" ")
    zone = zone.strip() or "UTC"
    spans: list[tuple[int, int]] = []
    for part in spans_text.split(","):
        found = _RANGE.fullmatch(part.strip())
        if not found:
            raise MalformedAnnotation(f'{ALLOWED_HOURS}: "{value[:60]}" cannot be read; {mend}')
        h1, m1, h2, m2 = (int(x) for x in found.groups())
        begin, end = h1 * 60 + m1, h2 * 60 + m2
        if m1 > 59 or m2 > 59 or begin >= 1440 or end > 1440 or begin == end:
            raise MalformedAnnotation(
                f'{ALLOWED_HOURS}: "{part.strip()}" is no span of a day (00:00 to 24:00, not empty)'
            )
        spans.append((begin, end))
    check_zone(zone, ALLOWED_HOURS)
    return Hours(tuple(spans), zone, value.strip())


def check_zone(zone: str, what: str) -> None:
    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        raise MalformedAnnotation(f'{what}: "{zone[:60]}" is no IANA time zone such as Europe/Berlin or UTC') from None


def parse_start_limit(value: str) -> timedelta:
    """More than nothing, at most a day. Raises MalformedAnnotation."""
    try:
        limit = parse_duration(value)
    except ValueError as error:
        raise MalformedAnnotation(f"{START_LIMIT}: {error}") from None
    if not timedelta(0) < limit <= MAX_START_LIMIT:
        raise MalformedAnnotation(f'{START_LIMIT}: "{value[:40]}" must be more than 0 and at most 24h')
    return limit


def parse_move(value: str) -> bool:
    """``allow`` only. Raises MalformedAnnotation."""
    if value.strip().lower() != "allow":
        raise MalformedAnnotation(f'{MOVE}: "{value[:40]}" has no meaning; the only value is "allow"')
    return True


@dataclass(frozen=True, slots=True)
class Broken:
    """One annotation that cannot be read. ``where``: the object that carries it, as refusals name objects."""

    where: str
    detail: str


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the annotations around one pod say, all places taken together."""

    do_not_move: bool = False
    until: datetime | None = None
    """End of an opt-out that ends."""
    opted_out_by: str = ""
    hours: Hours | None = None
    start_limit: timedelta | None = None
    allow: bool = False
    broken: tuple[Broken, ...] = ()


def _places(snapshot: Snapshot, pod: Pod) -> Iterator[tuple[str, Mapping[str, str]]]:
    yield pod.key, pod.annotations
    owner = snapshot.workload_of(pod)
    if owner is not None:
        yield f"{owner.kind}/{owner.name}", owner.annotations
        top = snapshot.workloads.get(owner.top.uid) if owner.top else None
        if top is not None and top.uid != owner.uid:
            yield f"{top.kind}/{top.name}", top.annotations
    yield f"Namespace/{pod.namespace}", snapshot.namespace_annotations.get(pod.namespace, {})


def wishes(snapshot: Snapshot, pod: Pod, now: datetime) -> Wishes:
    """Everything said about one pod. An opt-out that has ended counts as not said."""
    opted = said = allow = False
    until: datetime | None = None
    opted_by = ""
    hours: Hours | None = None
    limit: timedelta | None = None
    broken: list[Broken] = []
    for where, said_here in _places(snapshot, pod):
        if not said_here:
            continue
        broken += unread(where, said_here)
        value = said_here.get(DO_NOT_MOVE)
        if value is not None and not said:
            opted, until, said = _opt_out(value, now)
            opted_by = where if opted else ""
        if hours is None and (text := said_here.get(ALLOWED_HOURS)) is not None:
            hours = _quiet(parse_hours, text)
        if limit is None and (text := said_here.get(START_LIMIT)) is not None:
            limit = _quiet(parse_start_limit, text)
        if not allow and (text := said_here.get(MOVE)) is not None:
            allow = bool(_quiet(parse_move, text))
    node = snapshot.nodes.get(pod.node)
    if node is not None and DO_NOT_MOVE in node.annotations:
        where = f"Node/{node.name}"
        broken += unread(where, {DO_NOT_MOVE: node.annotations[DO_NOT_MOVE]})
        if not opted:
            opted, until, _ = _opt_out(node.annotations[DO_NOT_MOVE], now)
            opted_by = where if opted else ""
    return Wishes(opted, until, opted_by, hours, limit, allow, tuple(broken))


def _opt_out(value: str, now: datetime) -> tuple[bool, datetime | None, bool]:
    """(opted out, until, the question is settled here)."""
    try:
        answer = parse_do_not_move(value)
    except MalformedAnnotation:
        return False, None, False
    if isinstance(answer, bool):
        return answer, None, True
    return (True, answer, True) if answer > now else (False, None, False)


def _quiet(parse: Callable[[str], T], value: str) -> T | None:
    try:
        return parse(value)
    except MalformedAnnotation:
        return None


def start_limit(snapshot: Snapshot, pod: Pod, now: datetime) -> timedelta | None:
    """How long the pod's replacement may take to become Ready, where somebody says so; None = the policy's limit."""
    return wishes(snapshot, pod, now).start_limit


def unread(where: str, annotations: Mapping[str, str]) -> list[Broken]:
    """What is wrong with the ``defragd.io/*`` annotations of one object. A misspelt key counts: somebody meant it."""
    found: list[Broken] = []
    parsers: dict[str, Callable[[str], Any]] = {
        DO_NOT_MOVE: parse_do_not_move,
        ALLOWED_HOURS: parse_hours,
        START_LIMIT: parse_start_limit,
        MOVE: parse_move,
    }
    for key, value in annotations.items():
        if not key.startswith(PREFIX):
            continue
        parse = parsers.get(key)
        if parse is None:
            near = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.85)
            if near:
                found.append(Broken(where, f"{key} is unknown, did you mean {near[0]}?"))
            continue
        try:
            parse(value)
        except MalformedAnnotation as error:
            found.append(Broken(where, str(error)))
    return found
