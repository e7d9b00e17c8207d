"""Figures as people read them: the fragmentation sentence, ages, shares, sizes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from defragd.core.plan import Score

CAUSE_WORDS: Mapping[str, str] = {
    "deviceShape": "device shape",
    "host": "host CPU or memory",
    "both": "both",
    "type": "device type",
}
"""Causes of phi, in words."""


MAKES_ROOM = "the move is worth nothing by itself, it makes room for others; what counts is the whole plan"
"""What a negative gain of a move means."""

STOPPED: Mapping[str, str] = {
    "time": "at the time limit",
    "steps": "at the step limit",
    "budget": "at a budget",
    "infeasible": "without a way",
}
"""Why a search ended, where it was not complete."""


def sentence(score: Score, plan: Mapping[str, Any] | None = None) -> str:
    """The score for people; ``plan`` (a plan object with fragmentation) adds what its moves would bring."""
    if not score.classes or score.idle_gpus <= 0:
        return "Nothing is idle, or nothing typical is missing: fragmentation is 0."
    ranked = dict.fromkeys(shape(c.label)[0] for c in sorted(score.classes, key=lambda c: -c.weight))
    shapes = "; ".join(list(ranked)[:3]) + ("; …" if len(ranked) > 3 else "")
    idle = f"{score.idle_gpus:,.0f}" if score.idle_gpus >= 10 else f"{score.idle_gpus:.1f}"
    if score.loss >= 0.995:
        more = "could take far more than they can today: hardly one such request fits now"
    elif score.loss < 0.005:
        more = "take about all that they could"
    else:
        more = f"could take {1 / (1 - score.loss):.1f} times as many as they can today"
    text = (
        f"Fragmentation {score.loss:.2f}: of the requests you usually see ({shapes}), the idle capacity of {idle} "
        f"devices {more}."
    )
    causes = [
        f"{round(share * 100)} point{'' if round(share * 100) == 1 else 's'} {CAUSE_WORDS.get(name, name)}"
        for name, share in score.causes.items()
        if round(share * 100) >= 1
    ]
    if causes:
        text += f" Causes: {', '.join(causes)}."
    return text + _after(plan)


def shape(label: str) -> tuple[str, str]:
    """A shape's label in two parts for people: devices, host. "1 device, 0 cores, 10240 MiB, 2 CPU, 4096 MiB host" is
    ("1 device: 10 GiB", "2 CPU, 4.0 GiB host"). Labels of another form come back whole."""
    parts = label.split(", ")
    if len(parts) < 3 or not parts[1].endswith(" cores") or not parts[2].endswith((" %", " MiB")):
        return label, ""
    cores, memory = parts[1].removesuffix(" cores"), _size(parts[2])
    host = ", ".join(_size(part) for part in parts[3:])
    if cores == "100" and memory == "100 %":
        count, _, word = parts[0].partition(" ")
        return f"{count} whole {word}", host
    return f"{parts[0]}: {memory}" + (f", {cores} cores" if cores != "0" else ""), host


def _size(part: str) -> str:
    number, _, rest = part.partition(" MiB")
    return f"{gib(int(number))}{rest}" if number.isdigit() and part != number else part


def _after(plan: Mapping[str, Any] | None) -> str:
    try:
        moves, after = len(plan["moves"]), float(plan["fragmentation"]["after"]["L"])  # type: ignore[index]
    except (TypeError, KeyError, ValueError):
        return ""
    return f" {moves} moves would bring it to {after:.2f}." if moves else ""


def age(when: datetime | None, now: datetime) -> str:
    """``5d2h`` style; "-" for never. Future times have the same form."""
    if when is None:
        return "-"
    seconds = abs(int((now - when).total_seconds()))
    for size, unit, small, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= size:
            rest = seconds % size // small
            big = seconds // size
            return f"{big}{unit}{rest}{small_unit}" if rest and big < 10 else f"{big}{unit}"
    return f"{seconds}s"


def moment(when: datetime | None) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if when else "-"


def percent(share: float) -> str:
    """Whole percent; what is neither 0 nor 100 is never rounded to them."""
    value = share * 100
    if 0 < value < 1:
        return "<1%"
    return f"{min(99, round(value)) if value < 100 else 100:d}%"


def gib(mib: int) -> str:
    """MiB as people say it."""
    return f"{mib / 1024:,.0f} GiB" if mib >= 10240 else f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib} MiB"


def short(text: str, size: int = 28) -> str:
    """``text`` cut in the middle: names differ at both ends."""
    if len(text) <= size:
        return text
    tail = (size - 1) // 2
    return f"{text[: size - 1 - tail]}…{text[-tail:]}"
