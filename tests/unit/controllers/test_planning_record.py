"""What a run's record holds: enough for people, never too much for the API server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from defragd.controllers.planning import REFUSED_KEPT, WARNINGS_KEPT, for_record, run_name

AT = datetime(2026, 3, 2, 2, 0, 0, 123_000, tzinfo=UTC)


def plan(refused: list[dict[str, str]], warnings: int = 0) -> dict[str, Any]:
    return {
        "refused": refused,
        "warnings": [{"object": f"w{i}"} for i in range(warnings)],
        "notes": ["hint"],
        "moves": [],
    }


def refusals(reason: str, count: int) -> list[dict[str, str]]:
    return [{"object": f"ns/p{i}", "reason": reason, "detail": "d"} for i in range(count)]


def test_long_lists_are_cut_per_reason_and_counted() -> None:
    found = for_record(plan(refusals("OverBudget", 6000) + refusals("OptedOut", 3), warnings=WARNINGS_KEPT + 7))
    assert len(found["refused"]) == REFUSED_KEPT + 3
    assert sum(r["reason"] == "OptedOut" for r in found["refused"]) == 3
    assert len(found["warnings"]) == WARNINGS_KEPT
    assert found["notes"] == ["hint", f"{6000 - REFUSED_KEPT} more objects: OverBudget", "7 more warnings"]


def test_short_lists_stay_whole() -> None:
    short = plan(refusals("NoGain", REFUSED_KEPT), warnings=2)
    assert for_record(short) == short


@pytest.mark.parametrize("policy", ["p", "a" * 63, "With_Odd.Letters", "-" * 5, "x" * 31 + "-y"])
def test_run_names_leave_room_for_placement_names(policy: str) -> None:
    for scheduled in (True, False):
        name = run_name(policy, AT, scheduled=scheduled)
        assert len(name) <= 50
        assert name == name.lower()
        assert not name.startswith("-")
        assert not set(name) - set("abcdefghijklmnopqrstuvwxyz0123456789-")


def test_a_scheduled_start_has_one_name_and_manual_runs_have_their_own() -> None:
    assert run_name("p", AT) == run_name("p", AT.replace(microsecond=0)) == "p-260302-020000"
    later = AT + timedelta(milliseconds=1)
    assert run_name("p", AT, scheduled=False) != run_name("p", later, scheduled=False)
