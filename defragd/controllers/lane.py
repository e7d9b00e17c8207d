"""Lanes: where jobs that wait for the API server run, so that one call that hangs does not delay the others.

A job has a key, and a key has at most one job at a time: what is done for one placement stays in order. Results are
collected by the thread that decides; nothing of a job touches its state. `InlineLane` runs a job at once (simulation,
tests: everything stays deterministic), `PoolLane` in one of a few threads.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

WORKERS = 8
"""Writes in flight at once. More would only queue in the API server, which shares its seats fairly among clients."""


AHEAD = 2
"""Jobs per worker, the one under way included."""


@dataclass(frozen=True, slots=True)
class Done:
    """``error`` is what the job raised (lost leadership, a defect); then there is no ``value``."""

    key: str
    value: Any = None
    error: Exception | None = None


class Lane(Protocol):
    def submit(self, key: str, job: Callable[[], Any]) -> None: ...

    def busy(self) -> Collection[str]:
        """Keys whose job has not been collected yet."""
        ...

    def full(self) -> bool:
        """As much is under way or waits for its turn as is worth deciding ahead: what is decided now would be carried
        out late, and nothing more urgent could overtake it."""
        ...

    def collect(self) -> list[Done]:
        """What has ended since the last call."""
        ...

    def ready(self) -> bool:
        """Something can be collected."""
        ...

    def wait(self, timeout: float) -> None:
        """Until something can be collected, or for so many seconds."""
        ...

    def close(self) -> None: ...


class InlineLane:
    """Runs a job while it is submitted."""

    def __init__(self) -> None:
        self._done: list[Done] = []

    def submit(self, key: str, job: Callable[[], Any]) -> None:
        self._done.append(_run(key, job))

    def busy(self) -> Collection[str]:
        return ()

    def full(self) -> bool:
        return False

    def collect(self) -> list[Done]:
        done, self._done = self._done, []
        return done

    def ready(self) -> bool:
        return bool(self._done)

    def wait(self, timeout: float) -> None:
        """Nothing is ever under way."""

    def close(self) -> None:
        pass


class PoolLane:
    """A few threads, made when they are first needed; jobs that find none free wait in order."""

    def __init__(self, workers: int = WORKERS, *, name: str = "lane") -> None:
        self._limit, self._name = workers, name
        self._jobs: queue.SimpleQueue[tuple[str, Callable[[], Any]] | None] = queue.SimpleQueue()
        self._done: deque[Done] = deque()
        self._ended = threading.Event()
        self._busy: set[str] = set()
        self._threads: list[threading.Thread] = []

    def submit(self, key: str, job: Callable[[], Any]) -> None:
        """From one thread only, the one that collects."""
        if key in self._busy:
            raise ValueError(f"{key} is busy")
        self._busy.add(key)
        self._jobs.put((key, job))
        if len(self._threads) < min(self._limit, len(self._busy)):
            thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def busy(self) -> Collection[str]:
        return self._busy

    def full(self) -> bool:
        return len(self._busy) >= AHEAD * self._limit

    def collect(self) -> list[Done]:
        self._ended.clear()
        found = []
        while self._done:
            found.append(self._done.popleft())
        self._busy.difference_update(done.key for done in found)
        return found

    def ready(self) -> bool:
        return bool(self._done)

    def wait(self, timeout: float) -> None:
        self._ended.wait(timeout)

    def close(self) -> None:
        """The threads end after their present job; nobody waits for them."""
        for _ in self._threads:
            self._jobs.put(None)

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            self._done.append(_run(*item))
            self._ended.set()


def _run(key: str, job: Callable[[], Any]) -> Done:
    try:
        return Done(key, job())
    except Exception as error:  # noqa: BLE001 - told to the thread that decides, which raises it
        return Done(key, error=error)
