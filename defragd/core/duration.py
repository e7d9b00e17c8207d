"""Durations as people write them: ``30s``, ``5m``, ``1h30m``, ``1d``. Kubernetes style, days and weeks added."""

from __future__ import annotations

import re
from datetime import timedelta

_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
MAX_DURATION = timedelta(days=3660)


def parse_duration(text: str) -> timedelta:
    """``"1h30m"`` -> 90 minutes; ``"0"`` -> zero. Raises ValueError with the mend in it.

    A bare number is refused: nobody can tell whether it means seconds or minutes.
    """
    value = text.strip()
    if value == "0":
        return timedelta(0)
    if len(value) > 64 or not _WHOLE.fullmatch(value):
        raise ValueError(f'"{value[:40]}" is no duration; write it like 30s, 5m, 1h30m or 1d')
    try:
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(value))
        found = timedelta(seconds=seconds)
    except OverflowError:
        found = MAX_DURATION + timedelta(1)
    if found > MAX_DURATION:
        raise ValueError(f'"{value[:40]}" is longer than ten years')
    return found


def format_duration(value: timedelta) -> str:
    """The shortest exact form: ``1h30m``, ``45s``, ``0s``; fractions of a second as ``1.5s``."""
    seconds = value.total_seconds()
    sign = "-" if seconds < 0 else ""
    seconds = abs(seconds)
    whole = int(seconds)
    rest = seconds - whole
    out = ""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        count, whole = divmod(whole, size)
        out += f"{count}{unit}" if count else ""
    tail = f"{whole + rest:.3f}".rstrip("0").rstrip(".")
    if tail != "0" or not out:
        out += f"{tail}s"
    return sign + out
