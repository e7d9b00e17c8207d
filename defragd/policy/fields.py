"""Building blocks of the policy model: how durations, rates, caps, selectors, zones and times are written and read."""

from __future__ import annotations

import difflib
import re
from datetime import UTC, datetime, time, timedelta
from functools import lru_cache
from typing import Annotated, Any
from zoneinfo import ZoneInfo, available_timezones

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema, model_validator

from defragd.core.annotations import first_valid
from defragd.core.duration import format_duration, parse_duration

_ALIASES = {"require_pdb": "requirePDB", "memory_mib": "memoryMiB", "mem_mib": "memMiB"}


def to_camel(name: str) -> str:
    """``min_pod_age`` -> ``minPodAge``, with the acronyms of the documented names."""
    head, *rest = name.split("_")
    return _ALIASES.get(name) or head + "".join(part.capitalize() for part in rest)


class Section(BaseModel):
    """Base of everything in a policy: strict, frozen, camelCase, unknown fields refused.

    A section that is written but empty (``scope:`` with everything below it commented out) counts as absent.
    """

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        hide_input_in_errors=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_is_absent(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        sections = {f.alias for f in cls.model_fields.values() if f.default_factory is not None}
        return {key: item for key, item in value.items() if item is not None or key not in sections}


def text(value: Any, what: str) -> str:
    """``value`` when it is text; ValueError with the mend otherwise."""
    if isinstance(value, str):
        return value
    shown = "nothing" if value is None else str(value).lower() if isinstance(value, bool) else str(value)[:40]
    raise ValueError(f"{what} is expected as text, not {shown}{_quote_hint(value, shown)}")


def _quote_hint(value: Any, shown: str) -> str:
    return f'; put it into quotes: "{shown}"' if isinstance(value, (bool, int, float)) else ""


# -- durations and rates ----------------------------------------------------------------------------------------------


def _duration(value: Any) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value == 0:
            return timedelta(0)
        unit = "s" if value < 0 or isinstance(value, float) else f"s or {value}m"
        raise ValueError(f"a duration needs a unit, such as {value}{unit}" if value > 0 else "must not be negative")
    word = text(value, "a duration such as 30s, 5m or 1h30m").strip()
    if word.startswith("-"):
        raise ValueError("must not be negative")
    return parse_duration(word)


def _positive(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise ValueError("must be more than 0")
    return value


_SCHEMA = {"type": "string", "pattern": r"^(0|([0-9]+(\.[0-9]+)?(ms|s|m|h|d|w))+)$", "examples": ["30s", "5m", "1h30m"]}
Duration = Annotated[
    timedelta,
    BeforeValidator(_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema(_SCHEMA),
]
"""``30s``, ``5m``, ``1h30m``, ``1d``; not negative."""
PositiveDuration = Annotated[
    timedelta,
    BeforeValidator(lambda value: _positive(_duration(value))),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema(_SCHEMA),
]

_RATE = re.compile(r"(\d{1,6})\s*/\s*(\d*(?:s|m|h|d))", re.ASCII)


def _rate(value: Any) -> tuple[int, timedelta]:
    if isinstance(value, tuple):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise ValueError(f"a rate needs a period, such as {value}/m or {value}/h")
    word = text(value, "a rate such as 10/m")
    found = _RATE.fullmatch(word.strip())
    if not found:
        raise ValueError(f'"{word[:40]}" is no rate; write it like 10/m, 5/30s or 100/h')
    count, span = int(found[1]), found[2]
    period = parse_duration(span if span[0].isdigit() else f"1{span}")
    if count < 1 or period <= timedelta(0):
        raise ValueError(f'"{word[:40]}" would never let a move start; write null for no limit')
    return count, period


def _show_rate(value: tuple[int, timedelta]) -> str:
    text = format_duration(value[1])
    return f"{value[0]}/{text.removeprefix('1') if text[:1] == '1' and text[1:].isalpha() else text}"


Rate = Annotated[
    tuple[int, timedelta],
    BeforeValidator(_rate),
    PlainSerializer(_show_rate, return_type=str),
    WithJsonSchema({"type": "string", "pattern": r"^[0-9]{1,6} */ *[0-9]*(s|m|h|d)$", "examples": ["10/m", "100/h"]}),
]
"""``10/m``: so many moves started per period; the period may carry a number (``5/30s``)."""


# -- caps -------------------------------------------------------------------------------------------------------------

Count = Annotated[int, Field(ge=1, le=1_000_000)]


def _in_flight(value: Any) -> Any:
    """A count, or a share such as "25%" (of a workload's replicas)."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"([1-9][0-9]?|100)\s*%", value.strip(), re.ASCII)
    if not found:
        raise ValueError(f'"{value[:20]}" is neither a number nor a share such as 25%')
    return f"{found[1]}%"


InFlight = Annotated[
    Count | str,
    BeforeValidator(_in_flight),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^[0-9]{1,3} *%$"}]}),
]


class CapSpec(Section):
    """A limit on moves. A bare number limits the moves in flight at once; null lifts every limit."""

    in_flight: InFlight | None = None
    """Moves under way at the same time: a number or, per workload, a share of its replicas; null: no limit."""
    per_run: Count | None = None
    """Moves of one run; null: no limit."""
    per_day: Count | None = None
    """Moves in any 24 hours, over all policies; null: no limit."""

    @model_validator(mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        if value is None:
            return {}
        if isinstance(value, (int, float, str)):
            return {"inFlight": value}
        return value


# -- selectors --------------------------------------------------------------------------------------------------------


class SelectorExpression(Section):
    """One requirement of a label selector, as in Kubernetes."""

    key: str = Field(min_length=1)
    """Label key."""
    operator: str
    """In, NotIn, Exists or DoesNotExist."""
    values: list[str] = Field(default_factory=list)
    """For In and NotIn."""

    @model_validator(mode="after")
    def _fits(self) -> SelectorExpression:
        operators = ("In", "NotIn", "Exists", "DoesNotExist")
        if self.operator not in operators:
            raise ValueError(f'operator "{self.operator}" is none of {", ".join(operators)}')
        if self.operator in ("In", "NotIn") and not self.values:
            raise ValueError(f"operator {self.operator} needs values")
        if self.operator in ("Exists", "DoesNotExist") and self.values:
            raise ValueError(f"operator {self.operator} takes no values")
        return self


class SelectorSpec(Section):
    """A label selector: plain ``key: value`` pairs, or ``matchLabels`` and ``matchExpressions``; empty selects all."""

    match_labels: dict[str, str] = Field(default_factory=dict)
    """Labels that must have exactly these values."""
    match_expressions: list[SelectorExpression] = Field(default_factory=list)
    """Further requirements."""

    @model_validator(mode="before")
    @classmethod
    def _plain_labels(cls, value: Any) -> Any:
        if isinstance(value, dict) and not set(value) & {"matchLabels", "matchExpressions"}:
            return {"matchLabels": value}
        return value


# -- zones and times --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def zone_names() -> tuple[str, ...]:
    return tuple(sorted(available_timezones() - {"localtime", "Factory", "posixrules"}))


@lru_cache(maxsize=256)
def load_zone(name: str) -> ZoneInfo:
    """The IANA zone. Raises ValueError with the nearest name."""
    if name in zone_names():
        return ZoneInfo(name)
    lower = {zone.lower(): zone for zone in zone_names()}
    ends = {zone.rpartition("/")[2].lower(): zone for zone in zone_names()}
    word = name.lower().replace(" ", "_")
    near = lower.get(word) or ends.get(word)
    if near is None:
        close = difflib.get_close_matches(word, lower, n=1, cutoff=0.75)
        near = lower[close[0]] if close else None
    hint = f", did you mean {near}?" if near else "; use an IANA name such as Europe/Berlin or UTC"
    raise ValueError(f'unknown time zone "{name[:60]}"{hint}')


def _zone(value: Any) -> str:
    word = text(value, "a time zone such as Europe/Berlin")
    load_zone(word)
    return word


Zone = Annotated[str, BeforeValidator(_zone), WithJsonSchema({"type": "string", "examples": ["UTC", "Asia/Shanghai"]})]


class Moment:
    """A point in time as written: with its own offset, or local time of a zone that is known later."""

    __slots__ = ("naive", "text")

    def __init__(self, text: str, naive: datetime) -> None:
        self.text, self.naive = text, naive

    def instant(self, zone: ZoneInfo) -> datetime:
        """UTC. A local time that the clock skips is the first valid instant after the gap."""
        if self.naive.tzinfo is not None:
            return self.naive.astimezone(UTC)
        return first_valid(self.naive, zone)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Moment) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


def _moment(value: Any) -> Moment:
    if isinstance(value, Moment):
        return value
    word = text(value, "a time such as 2026-12-24T00:00").strip()
    try:
        when = datetime.fromisoformat(word)
    except ValueError:
        raise ValueError(
            f'"{word[:40]}" is no time; write it like 2026-12-24, 2026-12-24T18:00 or 2026-12-24T18:00:00Z'
        ) from None
    if not 1970 < when.year < 2200:
        raise ValueError(f'"{word[:40]}" is not between the years 1971 and 2199')
    return Moment(word, datetime.combine(when.date(), time()) if len(word) <= 10 else when)


MomentField = Annotated[
    Moment,
    BeforeValidator(_moment),
    PlainSerializer(lambda value: value.text, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["2026-12-24", "2026-12-24T18:00", "2026-12-24T18:00:00+01:00"]}),
]
