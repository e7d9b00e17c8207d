"""Strategies by entry point (group ``defragd.strategies``): the shipped four and any installed plug-in.

A plug-in that cannot be imported, is no strategy, or takes a name that is taken, is refused by name; the others go on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from defragd.policy.strategy_args import model_of

GROUP = "defragd.strategies"
SHIPPED = "defragd.strategies."


@dataclass(frozen=True, slots=True)
class Refused:
    """A plug-in that is not used. ``origin`` is the distribution (or module) that brings it."""

    name: str
    origin: str
    detail: str

    def __str__(self) -> str:
        return f'strategy plug-in "{self.name}" of {self.origin} is not used: {self.detail}'


def strategies() -> Mapping[str, Any]:
    """All usable strategies by name."""
    return _registry()[0]


def refused() -> tuple[Refused, ...]:
    """Plug-ins that are not used, and why."""
    return _registry()[1]


def refresh() -> None:
    """Look again (a wheel was installed)."""
    _registry.cache_clear()


@lru_cache(maxsize=1)
def _registry() -> tuple[Mapping[str, Any], tuple[Refused, ...]]:
    return collect(entry_points(group=GROUP))


def collect(points: Any) -> tuple[Mapping[str, Any], tuple[Refused, ...]]:
    """Load entry points. Shipped names are ours; of two plug-ins with one name neither is used."""
    found: dict[str, Any] = {}
    bad: list[Refused] = []
    unique = {(point.name, point.value): point for point in points}
    ours = {point.name for point in unique.values() if point.value.startswith(SHIPPED)}
    names = [point.name for point in unique.values()]
    for point in sorted(unique.values(), key=lambda p: (p.name, p.value)):
        shipped = point.value.startswith(SHIPPED)
        if not shipped and point.name in ours:
            bad.append(Refused(point.name, _origin(point), "the name belongs to a shipped strategy"))
            continue
        if not shipped and names.count(point.name) > 1:
            bad.append(Refused(point.name, _origin(point), "another plug-in has the same name"))
            continue
        try:
            strategy = point.load()
            detail = _unfit(point.name, strategy)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a plug-in may raise anything
            detail = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"[:300]
            strategy = None
        if detail:
            bad.append(Refused(point.name, _origin(point), detail))
        else:
            found[point.name] = strategy
    return found, tuple(bad)


def _unfit(name: str, strategy: Any) -> str:
    """What keeps an object from being a strategy, or ""."""
    if getattr(strategy, "name", None) != name:
        return f"its name attribute is {getattr(strategy, 'name', None)!r}, but its entry point is {name!r}"
    kind = getattr(strategy, "args_type", None)
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        return "args_type is no dataclass"
    if not callable(getattr(strategy, "propose", None)):
        return "it has no propose function"
    try:
        model_of(kind)
    except Exception as error:  # noqa: BLE001 - types of a plug-in may be anything
        return f"its arguments cannot be described: {type(error).__name__}"
    return ""


def _origin(point: EntryPoint) -> str:
    dist = getattr(point, "dist", None)
    name = dist.metadata["Name"] if dist is not None else ""
    return str(name or point.value)
