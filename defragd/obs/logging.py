"""Logs: one JSON object per line on standard output, coloured text when a person looks at a terminal.

`event` is a constant phrase, data are fields. Logs of libraries go through the same formatter. The order of the fixed
fields is ts, level, event, logger, then plan, run, policy, move, pod, node, device, reason, dry_run, cycle as bound.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, TextIO

import structlog

FIRST_FIELDS = (
    "ts",
    "level",
    "event",
    "logger",
    "run",
    "plan",
    "policy",
    "move",
    "placement",
    "pod",
    "node",
    "device",
    "reason",
    "dry_run",
    "cycle",
)
"""Fields that come first in a line, in this order, when they are there."""

QUIET = ("urllib3", "kubernetes", "apscheduler", "werkzeug", "cheroot", "asyncio")
"""Libraries that say too much at INFO; they log from WARNING on unless debugging."""

_SECRET_KEY = re.compile(r"(?i)(token|password|secret|authorization|private_key|key_pem|bearer)")
_BEARER = re.compile(r"(?i)bearer\s+[a-z0-9._~+/=-]{8,}")
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)
MAX_TEXT = 4096
"""Longer values are cut: an answer of the API server must not fill the log."""


def configure(*, debug: bool = False, stream: TextIO | None = None, json_lines: bool | None = None) -> None:
    """Route structlog and the standard library's logging to ``stream`` (default: standard output).

    ``json_lines`` None = JSON unless the stream is a terminal. Calling it again replaces the earlier set-up.
    """
    out = stream if stream is not None else sys.stdout
    as_json = json_lines if json_lines is not None else not out.isatty()
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        structlog.processors.StackInfoRenderer(),
        redact,
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    last: list[Any]
    if as_json:
        last = [structlog.processors.format_exc_info, order_fields, structlog.processors.JSONRenderer(default=str)]
    else:
        last = [structlog.dev.ConsoleRenderer(colors=out.isatty(), timestamp_key="ts")]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if debug else logging.INFO)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.INFO if debug else logging.WARNING)
    logging.captureWarnings(True)


def get_logger(name: str = "defragd") -> structlog.stdlib.BoundLogger:
    """A bound logger; bind run, policy, dry_run... once and log constant phrases."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


def redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Secrets never reach a log: values of telling keys, bearer tokens and private keys are replaced, long text cut."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = "[redacted]" if value and key != "event" and _SECRET_KEY.search(key) else clean(value)
        elif isinstance(value, Mapping) and not key.startswith("_"):
            event[key] = {k: "[redacted]" if _SECRET_KEY.search(str(k)) else v for k, v in value.items()}
    return event


def clean(text: str) -> str:
    """``text`` without bearer tokens and private keys, at most ``MAX_TEXT`` characters."""
    if len(text) > 16 and ("earer" in text or "EARER" in text or "PRIVATE KEY" in text):
        text = _PEM.sub("[redacted]", _BEARER.sub("Bearer [redacted]", text))
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "..."


def order_fields(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Fixed fields first, the others by name: lines can be compared by eye."""
    first = {key: event[key] for key in FIRST_FIELDS if key in event}
    rest = {key: event[key] for key in sorted(event) if key not in first}
    return {**first, **rest}
