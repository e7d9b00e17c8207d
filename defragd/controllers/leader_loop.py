"""A loop of the leader that looks at what is and puts it right; it remembers only what it wrote a moment ago."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import ClassVar

from defragd.errors import NotLeader
from defragd.ports import Clock, ClusterReader, Hook, Leadership

MAX_AGE_SECONDS = 90.0
AGAIN = 2.0
"""Seconds before the same object is written again (the cache may be behind)."""


class LeaderLoop(ABC):
    """``cycle`` is one pass; ``run`` passes every ``EVERY`` seconds until it is stopped, whatever a pass raises."""

    NAME: ClassVar[str]
    EVERY: ClassVar[float]

    def __init__(
        self, reader: ClusterReader, leadership: Leadership, clock: Clock, hook: Hook, max_age_seconds: float
    ) -> None:
        self._reader, self._leadership, self._clock, self._hook = reader, leadership, clock, hook
        self._max_age = max_age_seconds
        self._resting: dict[str, float] = {}
        """What was written -> the monotonic second from which it may be written again."""
        self.beat = clock.monotonic()

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self.cycle()
            except NotLeader:
                self._resting.clear()
            except Exception as error:  # noqa: BLE001 - the next pass must come
                self._hook("loop.failed", {"loop": self.NAME, "error": f"{type(error).__name__}: {error}"})
                stop.wait(2.0)
            self.beat = self._clock.monotonic()
            stop.wait(self.EVERY)

    def cycle(self) -> int:
        """One pass; returns the number of writes: 0 without the lease or on old data."""
        if not self._leadership.is_leader():
            self._forget()
            return 0
        if not self._reader.synced() or self._reader.age_seconds() > self._max_age:
            return 0
        tick = self._clock.monotonic()
        self._resting = {what: until for what, until in self._resting.items() if until > tick}
        return self._pass(tick)

    @abstractmethod
    def _pass(self, tick: float) -> int:
        """The work of one pass that began at the monotonic second ``tick``; returns the number of writes."""

    def _forget(self) -> None:
        """Somebody else leads: what we knew of our own writes is worth nothing."""
        self._resting.clear()
