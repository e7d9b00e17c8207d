"""The JSON Schema of policy files, generated from the model and shipped beside it (editors, CI of users).

``python -m defragd.policy.json_schema`` writes the shipped file; a test keeps the two equal.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from defragd.policy.schema import DefragPolicy

FILE = Path(__file__).with_name("defragpolicy.schema.json")
ID = "https://defragd.io/schemas/defragpolicy-v1.json"


def generate() -> dict[str, Any]:
    """The schema, with the short forms that files may use (one schedule, bare numbers, plain label maps)."""
    schema = DefragPolicy.model_json_schema(by_alias=True, mode="validation")
    defs = schema["$defs"]
    spec = defs["PolicySpec"]["properties"]
    spec["schedule"]["anyOf"] = [
        {"$ref": "#/$defs/ScheduleSpec"},
        {"type": "array", "items": spec["schedule"].pop("items")},
    ]
    spec["schedule"].pop("type")
    for name in ("perSourceNode", "perTargetNode", "perNamespace", "perWorkload"):
        item = defs["BudgetsSpec"]["properties"][name]
        item["anyOf"] = [{"type": "integer", "minimum": 1}, {"$ref": item.pop("$ref")}, {"type": "null"}]
        item["default"] = item["default"]["inFlight"]
        if name == "perWorkload":
            item["anyOf"].insert(1, {"type": "string", "pattern": "^[0-9]{1,3} *%$"})
    labels = {"type": "object", "additionalProperties": {"type": "string"}, "not": {"anyOf": [
        {"required": ["matchLabels"]}, {"required": ["matchExpressions"]}]}}  # fmt: skip
    for name in ("nodeSelector", "podSelector"):
        item = defs["ScopeSpec"]["properties"][name]
        item["anyOf"] = [{"$ref": item.pop("$ref")}, labels]
    mix = defs["GainSpec"]["properties"]["expectedMix"]
    mix["anyOf"] = [{"const": "auto"}, {"type": "string", "minLength": 1}, {"$ref": "#/$defs/MixSpec"}]
    for definition in defs.values():
        for item in definition.get("properties", {}).values():
            if "$ref" in item and "default" not in item:
                _allow_empty(item)
    _allow_empty_lists(defs)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": ID, **schema}


def _allow_empty(item: dict[str, Any]) -> None:
    """A section that is written but empty counts as absent; required ones must be there."""
    if item["$ref"].rpartition("/")[2] not in ("StrategySpec", "PolicySpec", "Metadata"):
        item["anyOf"] = [{"$ref": item.pop("$ref")}, {"type": "null"}]


def _allow_empty_lists(defs: dict[str, Any]) -> None:
    for definition in defs.values():
        required = definition.get("required", [])
        for name, item in definition.get("properties", {}).items():
            if name not in required and item.get("type") in ("array", "object") and "default" not in item:
                item["type"] = [item["type"], "null"]
    spec = defs["PolicySpec"]["properties"]
    spec["schedule"]["anyOf"].append({"type": "null"})
    for name in ("nodeSelector", "podSelector"):
        defs["ScopeSpec"]["properties"][name]["anyOf"].append({"type": "null"})


def text() -> str:
    """What the shipped file must hold."""
    return json.dumps(generate(), indent=2, ensure_ascii=False) + "\n"


def shipped() -> dict[str, Any]:
    """The schema as shipped."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
