"""What a search over assignments has to keep to, whichever way it searches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from defragd.core.arrays import Floats
from defragd.core.tables import Spot

MOVE_PRICE, GROUP_PRICE = 1e-9, 3e-9
"""Of equally good plans one with fewer moves is better, and one in which fewer pods have to be out together."""


@dataclass(frozen=True)
class Task:
    """``limit``: pods that may stand elsewhere than at home (None = any number). ``cost``: of moving each pod.
    ``may_move``: the exact rules for a pod and a place. ``orderable``: how many pods of these moves have to be out
    together, None when no order allows them."""

    seed: int
    limit: int | None
    cost: Floats
    may_move: Callable[[int, Spot], bool]
    orderable: Callable[[dict[int, Spot]], int | None]
    should_stop: Callable[[], bool]
