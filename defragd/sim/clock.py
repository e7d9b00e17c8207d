"""Two clocks for the simulated cluster: one that only moves when told, one that follows the wall clock, faster."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

EPOCH = datetime(2026, 3, 2, 1, 0, tzinfo=UTC)
"""A Monday night; any instant would do."""


class SimClock:
    """Stands still until `advance`; tests and fast simulations own the time."""

    def __init__(self, start: datetime = EPOCH) -> None:
        self._start = start
        self._passed = 0.0

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._passed)

    def monotonic(self) -> float:
        return self._passed

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError("time does not go back; use jump() for a wall clock that is set back")
        self._passed += seconds

    def jump(self, seconds: float) -> None:
        """The wall clock is set, in either direction; the monotonic one does not notice."""
        self._start += timedelta(seconds=seconds)


class LiveClock:
    """Wall time from now on, ``speed`` times as fast (the demo)."""

    def __init__(self, speed: float = 1.0, start: datetime | None = None) -> None:
        self.speed = speed
        self._start = start or datetime.now(UTC)
        self._began = time.monotonic()

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        return (time.monotonic() - self._began) * self.speed

    def advance(self, seconds: float) -> None:
        """Waits until so much simulated time has passed."""
        time.sleep(seconds / self.speed)
