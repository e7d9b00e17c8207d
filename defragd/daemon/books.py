"""Cross-checks the books with the metrics of HAMi's scheduler, in every replica: what each shows and does agrees.

A page that cannot be read is said once and harms nothing: what was doubted stays so for a while, then the check is off
until the page is back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import timedelta

from defragd.errors import DefragError
from defragd.hami.scheduler_books import LAG, BookCheck, Page, Place
from defragd.ports import Clock, ClusterReader, Hook

FORGET = timedelta(minutes=10)
"""Doubts outlive their evidence by so long."""
EMPTY = "it shows no device (HAMi has just started, or this replica of it does not lead)"


class BookLoop:
    """``read`` gives a page or raises DefragError; ``doubt`` takes the devices whose books are not believed."""

    def __init__(
        self,
        *,
        read: Callable[[], Page],
        reader: ClusterReader,
        doubt: Callable[[Mapping[Place, str]], None],
        clock: Clock,
        hook: Hook,
        every: timedelta,
        grace: timedelta,
    ) -> None:
        self._read, self._reader, self._doubt = read, reader, doubt
        self._clock, self._hook, self._every = clock, hook, every.total_seconds()
        self._check = BookCheck(grace=grace, lag=min(LAG, grace))
        self._doubts: Mapping[Place, str] = {}
        self._trouble: str | None = None
        """Why the last look failed; "" = it did not, None = there was none yet."""
        self._answered = clock.now()
        self.beat = clock.monotonic()

    @property
    def up(self) -> bool | None:
        """Whether the last look could compare; None before the first."""
        return None if self._trouble is None else not self._trouble

    def cycle(self) -> None:
        """One look."""
        if not self._reader.synced():
            return
        try:
            page = self._read()
        except DefragError as error:
            self._failed(str(error))
            return
        if not page.entries:
            self._failed(EMPTY)
            return
        now = self._clock.now()
        found = self._check.look(self._reader.snapshot(), page, now)
        if self._trouble != "":
            self._hook("hami_metrics.read", {"devices": len(page.entries), "compared": self._check.compared})
        self._trouble, self._answered = "", now
        self._settle(found)

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self.cycle()
            except Exception as error:  # noqa: BLE001 - a check must not end anything
                self._hook("loop.failed", {"loop": "books", "error": f"{type(error).__name__}: {error}"})
            self.beat = self._clock.monotonic()
            stop.wait(self._every)

    def _failed(self, why: str) -> None:
        if not self._trouble:
            self._hook("hami_metrics.trouble", {"reason": why, "effect": "the books are not cross-checked"})
        self._trouble = why
        if self._doubts and self._clock.now() - self._answered > FORGET:
            self._settle({})

    def _settle(self, found: Mapping[Place, str]) -> None:
        for place in sorted(found.keys() - self._doubts.keys()):
            fields = {"node": place[0], "device": place[1], "reason": found[place], "level": "warning"}
            self._hook("books.differ", fields)
        for place in sorted(self._doubts.keys() - found.keys()):
            self._hook("books.agree", {"node": place[0], "device": place[1]})
        self._doubts = found
        self._doubt(found)
