"""What metrics show of runs under way: how much of its policy's budgets each has used, and what is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from defragd.controllers.execution import Terms
from defragd.core.run import MoveState, Run, RunPhase
from defragd.core.run_moves import ENDED_MOVES

BUDGETS = ("total", "concurrent")
"""Shown always, at zero when nothing runs."""
STARTED = frozenset({MoveState.IN_FLIGHT, *ENDED_MOVES}) - {MoveState.REFUSED}


def budget_use(runs: Sequence[Run], terms: Callable[[Run], Terms]) -> Mapping[str, tuple[int, int | None]]:
    """Budget -> (moves that count against it, moves it still allows; None = unlimited or nothing runs)."""
    active = next((run for run in runs if run.phase in (RunPhase.RUNNING, RunPhase.PAUSED)), None)
    if active is None:
        return dict.fromkeys(BUDGETS, (0, None))
    budgets = terms(active).rules.budgets
    started = sum(1 for move in active.moves if move.started is not None and move.state in STARTED)
    flying = sum(1 for move in active.moves if move.state is MoveState.IN_FLIGHT)
    used = {"total": (started, budgets.total), "concurrent": (flying, budgets.concurrent)}
    return {name: (count, None if cap is None else max(0, cap - count)) for name, (count, cap) in used.items()}
