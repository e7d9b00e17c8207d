"""What a pod asks of the NVIDIA backend: resource quantities resolved per container."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

INT32 = 2**31 - 1
NO_PERCENT = 101
"""HAMi's own mark for "no percentage given"."""
_SUFFIX = {
    "": Fraction(1), "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000),
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", 1)},
}  # fmt: skip
_QUANTITY = re.compile(r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)(?:[eE]([+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)$")


def integer(quantity: object) -> int | None:
    """A Kubernetes quantity as an integer; None when it is none ("500m", "x")."""
    found = _QUANTITY.match(str(quantity))
    if not found:
        return None
    number = Fraction(found.group(1)) * (
        Fraction(10) ** int(found.group(2)) if found.group(2) else _SUFFIX[found.group(3) or ""]
    )
    return int(number) if number.denominator == 1 else None


@dataclass(frozen=True)
class Ask:
    """One container's wish: ``count`` devices of ``memory`` MiB (0: ``percent`` of each) and ``cores`` percent each."""

    count: int
    memory: int
    percent: int
    cores: int


def amount(container: Mapping[str, Any], resource: str) -> object | None:
    """Limits first, then requests."""
    resources = container.get("resources") or {}
    for part in ("limits", "requests"):
        value = (resources.get(part) or {}).get(resource)
        if value is not None:
            return value
    return None


def resolve(container: Mapping[str, Any], nvidia: Mapping[str, Any]) -> Ask | None:
    """None: HAMi sees no request (no count, or a memory value that drops the whole request)."""
    raw_count = amount(container, nvidia["resourceCountName"])
    count = None if raw_count is None else integer(raw_count)
    if not count or count < 0:
        return None
    memory = 0
    raw_memory = amount(container, nvidia["resourceMemoryName"])
    if raw_memory is not None:
        parsed = integer(raw_memory)
        factor = int(nvidia["memoryFactor"])
        if parsed is None or not 0 <= parsed <= INT32 // factor:
            return None
        memory = parsed * factor
    percent = _percent(amount(container, nvidia["resourceMemoryPercentageName"]))
    if percent == NO_PERCENT and memory == 0:
        if nvidia["defaultMemory"]:
            memory = int(nvidia["defaultMemory"])
        else:
            percent = 100
    raw_cores = amount(container, nvidia["resourceCoreName"])
    cores = int(nvidia["defaultCores"]) if raw_cores is None else (integer(raw_cores) or 0)
    return Ask(count, memory, percent, cores)


def _percent(raw: object | None) -> int:
    value = None if raw is None else integer(raw)
    if value is None or value <= 0:
        return NO_PERCENT
    return min(value, 100)
