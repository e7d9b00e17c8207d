"""chart/docs/policies.md from the policy model: every field with type, default and meaning; every strategy's args."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any

from defragd.policy.json_schema import shipped
from defragd.policy.registry import strategies
from defragd.policy.strategy_args import model_of

HEAD = """\
# Policies: every field

*Generated from the model by `python -m tests.chart.generate`; do not edit.*

A policy is a YAML file (several documents are fine) in the directory that `--policies` names, or an entry of the
chart's value `policies`. It is reloaded when it changes; a broken edit keeps the last good version in force and says
so. Unknown fields are refused with file, line and the nearest valid name: `defragd policy validate FILE`. A field that
is absent has the default shown; `null` means unlimited or off where the type allows it. Durations: `30s`, `15m`, `2h`.

Ready examples, one per strategy: [policies/](../../policies/).

| field | type | default | meaning |
|---|---|---|---|
"""


def text() -> str:
    """The page."""
    schema = shipped()
    spec = _resolve(schema, schema["properties"]["spec"])
    lines = [_row(*item) for item in _fields(schema, spec, "spec")]
    parts = [HEAD + "\n".join(lines), "\n## Strategies and their args\n"]
    for name, strategy in sorted(strategies().items()):
        module = __import__(type(strategy).__module__, fromlist=["x"])
        model = model_of(strategy.args_type).model_json_schema(by_alias=True)
        about = inspect.cleandoc(module.__doc__ or "").replace("``", "`").partition(": ")[2]
        parts.append(f"### {name}\n\n{about[:1].upper()}{about[1:]}\n")
        args = list(_fields(model, model, "spec.strategy.args"))
        if args:
            parts.append("| arg | type | default |\n|---|---|---|")
            parts.append("\n".join(f"| `{a.rsplit('args.', 1)[1]}` | {b} | {c} |" for a, b, c, _ in args) + "\n")
        else:
            parts.append("No args.\n")
    return "\n".join(parts).rstrip() + "\n"


def _resolve(schema: Mapping[str, Any], node: Mapping[str, Any]) -> dict[str, Any]:
    """``node`` with its $ref (or the one of its alternatives that is an object) taken in; its own words win."""
    ref = node.get("$ref")
    if ref:
        return {**schema["$defs"][ref.rsplit("/", 1)[1]], **{k: v for k, v in node.items() if k != "$ref"}}
    return dict(node)


def _fields(schema: Mapping[str, Any], node: Mapping[str, Any], path: str) -> Iterator[tuple[str, str, str, str]]:
    """(path, type, default, meaning) of everything below ``node``, depth first."""
    required = set(node.get("required") or ())
    for name, raw in (node.get("properties") or {}).items():
        item = _resolve(schema, raw)
        here = f"{path}.{name}"
        default = "required" if name in required else _default(raw, item)
        yield here, _type(schema, raw), default, _flat(raw.get("description") or item.get("description"))
        for inner in _objects(schema, raw):
            yield from _fields(schema, inner, here)


def _objects(schema: Mapping[str, Any], raw: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    seen = []
    for option in (raw, *(raw.get("anyOf") or ()), *(raw.get("oneOf") or ())):
        for candidate in (option, option.get("items")):
            if isinstance(candidate, Mapping):
                found = _resolve(schema, candidate)
                if found.get("properties") and found.get("title") not in seen:
                    seen.append(found.get("title"))
                    yield found


def _type(schema: Mapping[str, Any], raw: Mapping[str, Any]) -> str:
    options = raw.get("anyOf") or raw.get("oneOf")
    if options:
        return " or ".join(dict.fromkeys(_type(schema, option) for option in options))
    item = _resolve(schema, raw)
    if "enum" in item:
        return ", ".join(f"`{value}`" for value in item["enum"])
    if "const" in item:
        return f"`{item['const']}`"
    if item.get("type") == "array":
        return f"list of {_type(schema, item.get('items') or {})}"
    kind = item.get("type", "any")
    if isinstance(kind, list):
        return " or ".join(kind)
    return str(kind)


def _default(raw: Mapping[str, Any], item: Mapping[str, Any]) -> str:
    if "default" not in raw and "default" not in item:
        return ""
    value = raw.get("default", item.get("default"))
    return f"`{json.dumps(value, ensure_ascii=False)}`" if not isinstance(value, dict) or not value else "see below"


def _row(path: str, kind: str, default: str, meaning: str) -> str:
    cells = (f"`{path.removeprefix('spec.')}`", kind, default, meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _flat(text: str | None) -> str:
    return " ".join((text or "").split()).replace("``", "`")
