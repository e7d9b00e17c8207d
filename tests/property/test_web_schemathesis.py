"""The API against its own contract by schemathesis: every operation, generated parameters and bodies, every check."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from defragd.web.app import create_app
from tests.support.effort import amount
from tests.support.web_world import build_world

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import schemathesis

pytestmark = pytest.mark.slow
EXAMPLES = amount(60, 10)
APP = create_app(build_world().deps)
SCHEMA = schemathesis.openapi.from_wsgi("/openapi.json", APP)
OPERATIONS = [result.ok() for result in SCHEMA.get_all_operations()]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda op: op.label)
@pytest.mark.parametrize("token", ["", "root"], ids=["nobody", "root"])
def test_answers_are_as_the_contract_says(operation, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}"} if token else {}

    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy())
    def run(case) -> None:
        if "timeout" in (case.query or {}):
            case.query["timeout"] = "0"
        # page tokens and actions are opaque texts: a made-up one is rightly refused
        case.call_and_validate(
            headers=headers, excluded_checks=[schemathesis.checks.CHECKS.get_one("positive_data_acceptance")]
        )

    run()


def test_every_route_is_in_the_contract() -> None:
    assert len(OPERATIONS) >= 22
