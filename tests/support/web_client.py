"""What tests of the API share: a client for a world, and the form of refusals."""

from __future__ import annotations

import json

import jsonschema
from flask.testing import FlaskClient

from defragd.web.app import create_app
from defragd.web.openapi import document
from tests.support.web_world import WebWorld

ROOT = {"Authorization": "Bearer root"}
RUN = "/api/v1/runs/weekly-drain-1"


def client(world: WebWorld) -> FlaskClient:
    return create_app(world.deps).test_client()


def problem(answer, status: int, reason: str) -> dict:
    """The answer is a refusal as the contract says; gives its body."""
    assert answer.status_code == status, answer.data
    assert answer.content_type == "application/problem+json"
    body = json.loads(answer.data)
    check(body, "Problem")
    assert body["status"] == status and body["reason"] == reason
    return body


def check(value, name: str) -> None:
    """``value`` is as the contract's schema ``name`` says."""
    doc = document()
    schema = {"$ref": f"#/components/schemas/{name}", "components": doc["components"]}
    jsonschema.Draft202012Validator(schema).validate(value)
