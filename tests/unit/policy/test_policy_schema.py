"""The shipped JSON Schema is the model's, and agrees with it about files."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pydantic
import pytest
import yaml

from defragd.policy import json_schema
from defragd.policy.load import load_policies, load_text
from defragd.policy.schema import DefragPolicy

POLICIES = Path(__file__).parents[3] / "policies"
HEAD = {"apiVersion": "defragd/v1", "kind": "DefragPolicy", "metadata": {"name": "p"}}


def policy(**spec):
    return {**HEAD, "spec": {"strategy": {"name": "best-fit"}, **spec}}


def test_the_shipped_schema_is_up_to_date():
    """To the letter with the locked pydantic; others write numbers and constants in another way."""
    shipped, now = json_schema.FILE.read_text(encoding="utf-8"), json_schema.text()
    lock = (POLICIES.parent / ".ci" / "requirements.lock").read_text()
    if f"\npydantic=={pydantic.VERSION} " in lock:
        assert shipped == now, "run python -m defragd.policy.json_schema"
    assert fields(json.loads(shipped)) == fields(json.loads(now)), "run python -m defragd.policy.json_schema"


def fields(schema):
    return {name: sorted(item["properties"]) for name, item in schema["$defs"].items()}


def test_every_field_is_documented():
    for name, definition in json_schema.generate()["$defs"].items():
        assert definition.get("description"), name
        for field, item in definition["properties"].items():
            assert item.get("description"), f"{name}.{field}"
    assert all(field.description for field in DefragPolicy.model_fields.values())


@pytest.mark.parametrize("path", sorted(POLICIES.glob("*.yaml")), ids=lambda p: p.name)
def test_shipped_policies_are_valid_dry_runs_without_any_warning(path, context):
    found = load_policies(path, context)
    assert (found.errors, found.warnings) == ((), ())
    (loaded,) = found.policies
    assert loaded.mode == "DryRun" and loaded.name == path.stem
    jsonschema.validate(yaml.safe_load(path.read_text()), json_schema.shipped())
    jsonschema.validate(loaded.document, json_schema.shipped())


VALID = [
    policy(),
    policy(schedule={"cron": "@daily"}),
    policy(schedule=[{"cron": "@daily", "timeZone": "Asia/Shanghai", "startingDeadline": None, "maxDuration": None}]),
    policy(
        budgets={"perNamespace": 3, "perWorkload": {"perDay": 2}, "perSourceNode": None, "rate": "5/30s", "total": None}
    ),
    policy(scope={"nodeSelector": {"a": "b"}, "podSelector": {"matchLabels": {"a": "b"}}}),
    policy(gain={"expectedMix": {"classes": [{"weight": 1.0, "cores": 50}]}}),
    policy(
        windows=[{"deny": {"cron": "@daily", "duration": "1h"}}, {"allow": {"from": "2026-12-24", "to": "2026-12-27"}}]
    ),
    policy(scope=None, windows=None, budgets=None, schedule=None),
]
INVALID = [
    policy(foo=1),
    policy(mode="auto"),
    policy(budgets={"total": 0}),
    policy(budgets={"perNamespace": "3"}),
    policy(scope={"nodeSelector": {"a": 1}}),
    policy(execution={"settle": "60"}),
    policy(execution={"settle": 60}),
    policy(trigger={"minFragmentation": 2}),
    {**HEAD, "spec": {}},
    {**policy(), "kind": "Policy"},
]


@pytest.mark.parametrize("document", VALID)
def test_what_the_model_takes_the_schema_takes(document, context):
    assert not load_text(yaml.safe_dump(document), "f", context).errors
    jsonschema.validate(document, json_schema.shipped())


@pytest.mark.parametrize("document", INVALID)
def test_what_the_schema_refuses_the_model_refuses(document, context):
    assert load_text(yaml.safe_dump(document), "f", context).errors
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, json_schema.shipped())
