"""Output in kubectl's manner: tables with upper-case headers, JSON, YAML, names. Warnings go to standard error."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
FORMATS = ("table", "wide", "json", "yaml", "name")
NONE = "<none>"
MAX_WARNINGS = 20
"""Lines of warnings on standard error; the rest is counted. All are in the JSON."""


@dataclass
class Table:
    """``wide`` columns (by index) are left out of ``-o table``."""

    columns: Sequence[str]
    rows: list[Sequence[Any]] = field(default_factory=list)
    wide: frozenset[int] = frozenset()
    right: frozenset[int] = frozenset()

    def render(self, *, wide: bool = False, headers: bool = True) -> str:
        keep = [index for index in range(len(self.columns)) if wide or index not in self.wide]
        lines = [[self.columns[i] for i in keep]] if headers else []
        lines += [[cell(row[i]) for i in keep] for row in self.rows]
        if not lines:
            return ""
        widths = [max(len(line[i]) for line in lines) for i in range(len(keep))]
        right = [keep[i] in self.right for i in range(len(keep))]
        return "\n".join(
            "   ".join(
                text.rjust(width) if flush else text.ljust(width)
                for text, width, flush in zip(line, widths, right, strict=True)
            ).rstrip()
            for line in lines
        )


def cell(value: Any) -> str:
    """One cell: nothing is ``<none>``, floats are short."""
    if value is None or value == "" or value == []:
        return NONE
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value)
    return " ".join(str(value).split())


GREEN, YELLOW, RED = (
    ("Completed", "Done", "ok"),
    ("AwaitingApproval", "Paused", "Refused", "Dropped", "warn"),
    (
        "Failed",
        "Aborted",
        "Expired",
        "fail",
    ),
)
_COLOURS = {word: code for words, code in ((GREEN, 32), (YELLOW, 33), (RED, 31)) for word in words}
_WORDS = re.compile(r"(?<![\w/.-])(" + "|".join(_COLOURS) + r")(?![\w/.-])")


def colours() -> bool:
    """Only a person's terminal gets colours, and not when NO_COLOR asks for none."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str) -> str:
    """Words of state in colour where `colours` allows it; the widths of tables are computed before."""
    return _WORDS.sub(lambda m: f"\x1b[{_COLOURS[m[1]]}m{m[1]}\x1b[0m", text) if colours() else text


def age(span: timedelta) -> str:
    """``5d2h``, ``3h10m``, ``45s`` as kubectl shows ages."""
    seconds = max(0, int(span.total_seconds()))
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days}d{hours}h" if days < 10 and hours else f"{days}d"
    if hours:
        return f"{hours}h{minutes}m" if hours < 10 and minutes else f"{hours}h"
    if minutes:
        return f"{minutes}m{left}s" if minutes < 10 and left else f"{minutes}m"
    return f"{left}s"


def output_option(*formats: str) -> Callable[[F], F]:
    """``-o``; the first format is the default."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats or FORMATS),
        default=(formats or FORMATS)[0],
        show_default=True,
        help="Output format.",
    )


def no_headers_option(function: F) -> F:
    return click.option("--no-headers", is_flag=True, help="Leave out the headers of tables.")(function)


def emit(value: Any, output: str, *, text: Callable[[bool], str], names: Iterable[str] = ()) -> None:
    """Print ``value`` as JSON or YAML, or the text of ``text(wide)``, or names."""
    match output:
        case "json":
            click.echo(json.dumps(value, indent=2, ensure_ascii=False))
        case "yaml":
            click.echo(to_yaml(value), nl=False)
        case "name":
            for name in names:
                click.echo(name)
        case _:
            shown = text(output == "wide")
            if shown:
                click.echo(shown)


def to_yaml(value: Any) -> str:
    import yaml

    found: str = yaml.safe_dump(json.loads(json.dumps(value)), sort_keys=False, allow_unicode=True, width=120)
    return found


def warn(lines: Sequence[str]) -> None:
    """``warning:`` lines on standard error, each once, at most MAX_WARNINGS."""
    unique = list(dict.fromkeys(" ".join(line.split()) for line in lines))
    for line in unique[:MAX_WARNINGS]:
        click.echo(f"warning: {line}", err=True)
    if len(unique) > MAX_WARNINGS:
        click.echo(f"warning: {len(unique) - MAX_WARNINGS} more warnings; all are in the output of -o json", err=True)


def warn_refusals(items: Sequence[Mapping[str, str]]) -> None:
    """Warnings of a plan or snapshot: ``object: detail (Reason)``."""
    warn([f"{item['object']}: {item['detail']} ({item['reason']})" for item in items])
