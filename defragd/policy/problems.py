"""Validation errors as people want them: file, line, column, path, what is wrong, what was probably meant."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from defragd.policy.yaml_source import Document, Loc, Problem

_SAYS: Mapping[str, str] = {
    "missing": "is required",
    "string_type": "text is expected",
    "bool_type": "true or false is expected",
    "bool_parsing": "true or false is expected",
    "int_type": "a whole number is expected",
    "int_from_float": "a whole number is expected",
    "int_parsing_size": "this number is too large",
    "float_type": "a number is expected",
    "model_type": "an object (name: value) is expected",
    "model_attributes_type": "an object (name: value) is expected",
    "dict_type": "an object (name: value) is expected",
    "list_type": "a list is expected",
    "tuple_type": "a list is expected",
    "finite_number": "a finite number is expected",
}


def from_validation(document: Document, error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """Every error of one document as a Problem; those of unions' members that were not meant are left out."""
    out: list[Problem] = []
    items = error.errors(include_url=False)
    for item in items:
        loc = tuple(item["loc"])
        if _is_shadowed(item, items):
            continue
        names = names_at(model, loc[:-1])
        value = value_at(document.value, loc)
        out.append(describe(document, loc, item["type"], item["msg"], item.get("ctx") or {}, names, value))
    return sorted(out, key=lambda problem: (problem.line, problem.column))


def describe(
    document: Document,
    loc: Loc,
    kind: str,
    message: str,
    context: Mapping[str, Any],
    names: Iterable[str] = (),
    value: Any = None,
) -> Problem:
    """One Problem in our words; ``names`` are the valid fields beside the one in question."""
    if kind == "extra_forbidden":
        return _at_key(document, loc, f'unknown field "{loc[-1]}"{nearest(str(loc[-1]), names)}')
    if kind == "missing":
        return document.problem(loc[:-1], f'field "{loc[-1]}" is required')
    if kind in ("literal_error", "enum"):
        expected = str(context.get("expected", "")).replace("'", "")
        choices = [part.strip() for part in expected.replace(" or ", ",").split(",")]
        shown = f'"{value}"' if isinstance(value, str) else show(value)
        if len(choices) == 1:
            return document.problem(loc, f"{shown} is not {choices[0]}")
        hint = nearest(value, choices) if isinstance(value, str) else ""
        return document.problem(loc, f"{shown[:60]} is none of {expected}{hint}")
    if kind == "value_error":
        inner = context.get("error")
        return document.problem(loc, str(inner) if inner is not None else message)
    if kind in _SAYS:
        said = _SAYS[kind]
        quote = f'; put it into quotes: "{show(value)}"' if kind == "string_type" and _scalar(value) else ""
        return document.problem(loc, f"{said}, not {show(value)}{quote}")
    return document.problem(loc, _ours(message))


def _ours(message: str) -> str:
    """pydantic's sentence as ours."""
    said = message.replace("Input should be", "must be").replace("should have", "must have")
    return said[:1].lower() + said[1:]


def _at_key(document: Document, loc: Loc, message: str) -> Problem:
    line, column, _ = document.find(loc, key=True)
    _, _, path = document.find(loc[:-1])
    return Problem(document.source, line, column, path, message)


def show(value: Any) -> str:
    """A value in a message: short, never a whole structure."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'the text "{value[:40]}"'
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, (list, tuple)):
        return "a list"
    return str(value)[:40]


def _scalar(value: Any) -> bool:
    return isinstance(value, (bool, int, float))


def nearest(word: str, names: Iterable[str]) -> str:
    """``, did you mean "X"?`` or ""."""
    names = list(names)
    folded = {name.lower().replace("_", "").replace("-", ""): name for name in names}
    found = folded.get(word.lower().replace("_", "").replace("-", ""))
    if found is None:
        close = difflib.get_close_matches(word, names, n=1, cutoff=0.6) or [
            folded[key] for key in difflib.get_close_matches(word.lower(), folded, n=1, cutoff=0.6)
        ]
        found = close[0] if close else None
    if found is not None and found != word:
        return f', did you mean "{found}"?'
    return f"; fields here: {', '.join(names)}" if 0 < len(names) <= 12 else ""


def value_at(value: Any, loc: Loc) -> Any:
    """The value at a location; parts that name union members or wrapped lists are passed over."""
    for part in loc:
        if isinstance(value, dict):
            if part in value:
                value = value[part]
        elif isinstance(value, list) and isinstance(part, int) and 0 <= part < len(value):
            value = value[part]
    return value


def names_at(model: type[BaseModel], loc: Loc) -> list[str]:
    """Valid field names (as written in files) of the object at ``loc``."""
    current: type[BaseModel] | None = model
    for part in loc:
        if isinstance(part, int) or current is None:
            continue
        inner = next((f.annotation for n, f in current.model_fields.items() if (f.alias or n) == part), None)
        if inner is not None:
            current = _model_in(inner)
    return [f.alias or n for n, f in current.model_fields.items()] if current else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in typing.get_args(annotation):
        found = _model_in(part)
        if found is not None:
            return found
    return None


def _is_shadowed(item: Mapping[str, Any], items: Iterable[Mapping[str, Any]]) -> bool:
    """A union tried ``auto`` as well as the object that was written: only the object's errors matter."""
    loc = tuple(item["loc"])
    if not loc or not str(loc[-1]).startswith("literal["):
        return False
    return any(
        tuple(o["loc"])[: len(loc) - 1] == loc[:-1] and o is not item and o["type"] != "model_type" for o in items
    )
