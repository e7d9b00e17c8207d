"""Devices in two wings of four: which free set HAMi takes, and how it rates a node for it.

The wings go by the place of a device in HAMi's sorted list (first four, last four); links across go by index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations

from defragd.core import fit_checks as checks
from defragd.core.fit_state import Pick, Spot, Task

Answer = tuple[list[Pick], "Counter[str]"]
WING = 4
_ACROSS = tuple((i, i + WING) for i in range(WING))
_SQUARES = ((0, 1, 4, 5), (2, 3, 6, 7), (0, 2, 4, 6), (1, 3, 5, 7), (0, 3, 4, 7), (1, 2, 5, 6))
_ALL_LINKS = (*_ACROSS, *combinations(range(WING), 2), *combinations(range(WING, 2 * WING), 2))


def _cross(fits: Sequence[int], count: int) -> list[int]:
    """Sets across the wings: linked pairs, or squares that leave a linked pair where they can."""
    free = set(fits)
    if count == 2:
        for a in fits:
            for b in fits:
                if (min(a, b), max(a, b)) in _ACROSS:
                    return [a, b]
    if count == WING and len(free) in (4, 5):
        return next((list(s) for s in _SQUARES if free.issuperset(s)), [])
    if count == WING and len(free) == 6:
        last: list[int] = []
        for square in _SQUARES:
            if free.issuperset(square):
                last = list(square)
                if any(free - set(square) >= set(link) for link in _ALL_LINKS):
                    break
        return last
    return []


def choose(spots: Sequence[Spot], fits: Callable[[Spot], bool], count: int) -> list[int]:
    """Indexes of the devices HAMi takes, [] for none."""
    passing = [fits(spot) for spot in spots]
    left, right = sum(passing[:WING]), sum(passing[WING:])
    if count == 2 * WING:
        return list(range(2 * WING)) if left + right == count else []
    if count not in (1, 2, WING):
        return []
    if left >= count or right >= count:
        sizes = (1, 3, 2, 4) if count == 1 else range(count, WING + 1)
        for size in sizes:
            start = 0 if left == size else WING if right == size else -1
            if start >= 0:
                found = [s.device.index for s, ok in zip(spots[start:], passing[start:], strict=True) if ok]
                return found[:count]
    return _cross([s.device.index for s, ok in zip(spots, passing, strict=True) if ok], count)


def _take(task: Task, eligible: list[Spot], fits: Callable[[Spot], bool], amount: Callable[[Spot], Pick]) -> Answer:
    by_index = {spot.device.index: spot for spot in reversed(eligible)}
    chosen = choose(eligible, lambda s: checks.uuid_fits(task, s.device) and fits(s), task.request.count)
    picks = [amount(by_index[index]) for index in chosen if index in by_index]
    if picks:
        return picks, Counter()
    named = sum(not checks.uuid_fits(task, s.device) for s in eligible)
    reasons: Counter[str] = Counter()
    if task.order.mutex and task.facts.family == "even-wings":
        busy = sum(s.used > 0 and _even(task, s) for s in eligible)
        if busy:
            return [], Counter({checks.EXCLUSIVE: busy})
    reasons[checks.UUID if named else checks.NUMA] = named or 1
    return [], reasons


def whole_wings(task: Task, eligible: list[Spot]) -> Answer:
    """Whole devices: free and healthy."""
    return _take(
        task, eligible, lambda s: s.used == 0 and s.healthy, lambda s: Pick(s, s.device.memory_mib, s.device.cores)
    )


def _even(task: Task, spot: Spot) -> bool:
    """All slices of a device are of one size."""
    memory = task.request.memory_mib
    if not spot.healthy or memory + spot.memory_mib > spot.device.memory_mib:
        return False
    return spot.used == 0 or spot.memory_mib // spot.used == memory


def even_wings(task: Task, eligible: list[Spot]) -> Answer:
    """Equal slices of devices in two wings."""

    def fits(spot: Spot) -> bool:
        return _even(task, spot) and not (task.order.mutex and spot.used > 0)

    return _take(task, eligible, fits, lambda s: Pick(s, task.request.memory_mib, task.request.cores))


def bubbles(indexes: Sequence[int]) -> int:
    """HAMi's measure of broken wings."""
    left = sum(i < WING for i in indexes)
    right = len(indexes) - left
    if not indexes:
        return 1
    worth = {4: 0, 1: 2}
    return worth.get(left, 1) + worth.get(right, 1)


def wing_score(before: Sequence[int], taken: Sequence[int]) -> float:
    """What HAMi adds to the node's score: the fewer wings the choice breaks, the more."""
    return {-1: 3000.0, 0: 2000.0, 1: 1000.0, 2: 0.0}.get(bubbles(taken) - bubbles(before), 1000.0)
