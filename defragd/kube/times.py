"""RFC 3339 times and Go-like time spans, as our custom resources store them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from defragd.kube.errors import BrokenObject

_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_time(text: str | None) -> datetime | None:
    """Aware UTC time; None for absent or empty. Raises BrokenObject for anything that is no RFC 3339 time."""
    if not text:
        return None
    try:
        value = datetime.fromisoformat(text)
    except ValueError as err:
        raise BrokenObject(f"{text!r} is not a time; write it like 2026-03-01T02:00:00Z") from err
    if value.tzinfo is None:
        raise BrokenObject(f"{text!r} has no time zone; write it like 2026-03-01T02:00:00Z")
    return value.astimezone(UTC)


def format_time(value: datetime | None) -> str | None:
    """With microseconds only where there are any, so that a stored time reads back equal to what was written."""
    if value is None:
        return None
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def parse_span(text: str | None, default: timedelta) -> timedelta:
    """ "1h30m" and the like. Raises BrokenObject for anything else."""
    if text is None or text == "":
        return default
    parts = _SPAN.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise BrokenObject(f"{text!r} is not a time span; write it like 90s, 5m or 1h30m")
    return timedelta(seconds=sum(float(number) * _SECONDS[unit] for number, unit in parts))


def format_span(value: timedelta) -> str:
    """The shortest exact form: 90s is 1m30s, 24h is 24h."""
    millis = round(value.total_seconds() * 1000)
    if millis <= 0:
        return "0s"
    out = ""
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, millis = divmod(millis, size)
        out += f"{count}{unit}" if count else ""
    return out
