"""A strategy's own arguments, checked against its documented dataclass. camelCase in files, snake_case in Python."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from defragd.policy.fields import to_camel

_BASE = ConfigDict(strict=True, extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class ArgsProblem:
    """``loc`` is the path below ``args``; ``type``, ``context`` and ``message`` are pydantic's."""

    loc: tuple[int | str, ...]
    type: str
    message: str
    context: Mapping[str, Any]


@lru_cache(maxsize=64)
def model_of(kind: type) -> type[BaseModel]:
    """The pydantic model of an argument dataclass (nested dataclasses too)."""
    hints = typing.get_type_hints(kind)
    fields: dict[str, Any] = {}
    for item in dataclasses.fields(kind):
        default: Any = ...
        if item.default is not dataclasses.MISSING:
            default = item.default
        options: dict[str, Any] = {"alias": to_camel(item.name), "description": item.metadata.get("doc")}
        if item.default_factory is not dataclasses.MISSING:
            options["default_factory"] = item.default_factory
            fields[item.name] = (_translate(hints[item.name]), Field(**options))
        else:
            fields[item.name] = (_translate(hints[item.name]), Field(default, **options))
    return create_model(kind.__name__, __config__=_BASE, __doc__=kind.__doc__, **fields)


def _translate(hint: Any) -> Any:
    """Types with nested dataclasses replaced by their models."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return model_of(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(_translate(arg) for arg in args)]  # noqa: UP007 - built at run time
    return hint


def check_args(kind: type, args: Mapping[str, Any]) -> tuple[Any, list[ArgsProblem]]:
    """(instance of ``kind``, []) or (None, problems). A ValueError of the dataclass is a problem of the whole."""
    try:
        model = model_of(kind)
    except Exception as error:  # noqa: BLE001 - types of a plug-in may be anything
        said = f"the strategy's arguments cannot be described: {type(error).__name__}: {error}"
        return None, [ArgsProblem((), "value_error", said, {})]
    try:
        text = json.dumps(dict(args), allow_nan=True)
        built = model.model_validate_json(text)
    except ValidationError as error:
        return None, [
            ArgsProblem(tuple(e["loc"]), e["type"], e["msg"], e.get("ctx") or {})
            for e in error.errors(include_url=False, include_input=False)
        ]
    except (TypeError, ValueError, RecursionError) as error:
        return None, [ArgsProblem((), "value_error", str(error), {})]
    try:
        return _instance(kind, built), []
    except (ValueError, TypeError) as error:
        return None, [ArgsProblem((), "value_error", str(error), {"error": error})]


def _instance(kind: type, built: BaseModel) -> Any:
    hints = typing.get_type_hints(kind)
    values = {}
    for item in dataclasses.fields(kind):
        value = getattr(built, item.name)
        values[item.name] = _instance(_nested(hints[item.name]), value) if isinstance(value, BaseModel) else value
    return kind(**values)


def _nested(hint: Any) -> type:
    for part in (hint, *typing.get_args(hint)):
        if isinstance(part, type) and dataclasses.is_dataclass(part):
            return part
    raise TypeError(f"{hint} holds no dataclass")
