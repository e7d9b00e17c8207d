"""The daemon's threads: started in order, watched by their beats, stopped together.

A loop is a function of a stop event. It proves to be alive by a beat (monotonic time of its last pass); `health` is
the liveness probe, so that a loop that hangs gets the process restarted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from defragd.ports import Clock, Hook

Body = Callable[[threading.Event], None]


@dataclass(slots=True)
class _Loop:
    thread: threading.Thread
    beat: Callable[[], float] | None
    limit: float


class Loops:
    """Threads with one common stop event."""

    def __init__(self, clock: Clock, hook: Hook) -> None:
        self.stopping = threading.Event()
        self._clock = clock
        self._hook = hook
        self._loops: dict[str, _Loop] = {}

    def start(self, name: str, body: Body, *, beat: Callable[[], float] | None = None, limit: float = 120.0) -> None:
        """``beat`` gives the monotonic time of the last pass; older than ``limit`` seconds fails the liveness probe."""

        def guarded() -> None:
            try:
                body(self.stopping)
            except Exception as error:  # noqa: BLE001 - said here, and the liveness probe sees the dead thread
                self._hook("loop.died", {"loop": name, "error": f"{type(error).__name__}: {error}"})

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self._loops[name] = _Loop(thread, beat, limit)
        thread.start()

    def health(self) -> str:
        """ "" while every loop beats, else which ones do not and why (a liveness check)."""
        bad = [f"{name}: {why}" for name in tuple(self._loops) if (why := self._check(name))]
        return "; ".join(bad)

    def _check(self, name: str) -> str:
        loop = self._loops[name]
        if self.stopping.is_set():
            return ""
        if not loop.thread.is_alive():
            return "its thread has ended"
        silent = self._clock.monotonic() - loop.beat() if loop.beat else 0.0
        return f"no pass for {silent:.0f} s" if silent > loop.limit else ""

    def stop(self, timeout: float) -> list[str]:
        """Asks all loops to end and waits; names of those that did not within ``timeout`` seconds."""
        self.stopping.set()
        end = time.monotonic() + timeout
        for loop in self._loops.values():
            loop.thread.join(max(0.0, end - time.monotonic()))
        return [name for name, loop in self._loops.items() if loop.thread.is_alive()]
