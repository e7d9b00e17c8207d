"""How much of its budgets a run has used."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from defragd.controllers.execution import Terms
from defragd.core.rules import Budgets, Rules
from defragd.core.run import MoveState, Run, RunMove, RunPhase
from defragd.daemon.figures import budget_use

T = datetime(2026, 12, 1, 2, 0, tzinfo=UTC)


def run(phase: RunPhase, *states: MoveState) -> Run:
    moves = tuple(
        RunMove(f"m{i}", state, started=None if state in (MoveState.WAITING, MoveState.REFUSED) else T)
        for i, state in enumerate(states)
    )
    return Run(namespace="ns", name="r", policy="p", mode="Auto", strategy="best-fit", phase=phase, moves=moves)


@pytest.mark.parametrize(
    ("budgets", "expected"),
    [
        (Budgets(total=5, concurrent=2), {"total": (3, 2), "concurrent": (1, 1)}),
        (Budgets(total=2, concurrent=None), {"total": (3, 0), "concurrent": (1, None)}),
    ],
)
def test_moves_that_count_and_moves_that_are_left(budgets: Budgets, expected) -> None:
    going = run(
        RunPhase.RUNNING, MoveState.DONE, MoveState.FAILED, MoveState.IN_FLIGHT, MoveState.WAITING, MoveState.REFUSED
    )
    assert (
        budget_use([run(RunPhase.COMPLETED, MoveState.DONE), going], lambda _: Terms(Rules(budgets=budgets)))
        == expected
    )


def test_nothing_runs() -> None:
    assert budget_use([run(RunPhase.PLANNED)], lambda _: Terms(Rules())) == {
        "total": (0, None),
        "concurrent": (0, None),
    }
