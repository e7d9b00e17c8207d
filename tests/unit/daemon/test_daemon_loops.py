"""Threads that beat, hang, die and end."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from defragd.daemon.loops import Loops
from defragd.sim.clock import SimClock


def wait_for(condition: Any, seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_health_names_what_hangs_and_what_died() -> None:
    clock = SimClock()
    events: list[tuple[str, Mapping[str, Any]]] = []
    loops = Loops(clock, lambda event, fields: events.append((event, fields)))
    beats = {"fine": 0.0, "hangs": 0.0}
    loops.start("fine", lambda stop: stop.wait() and None, beat=lambda: beats["fine"], limit=60)
    loops.start("hangs", lambda stop: stop.wait() and None, beat=lambda: beats["hangs"], limit=60)
    assert loops.health() == ""

    def dies(_stop: threading.Event) -> None:
        raise ValueError("no more")

    loops.start("dies", dies)
    wait_for(lambda: events)
    clock.advance(100)
    beats["fine"] = 90.0
    wait_for(lambda: "dies" in loops.health())
    assert loops.health() == "hangs: no pass for 100 s; dies: its thread has ended"
    assert events == [("loop.died", {"loop": "dies", "error": "ValueError: no more"})]
    assert loops.stop(5.0) == []
    assert loops.health() == "", "a daemon that stops is not ill"


def test_a_loop_that_does_not_end_is_named() -> None:
    free = threading.Event()
    loops = Loops(SimClock(), lambda event, fields: None)
    loops.start("deaf", lambda stop: free.wait() and None)
    assert loops.stop(0.05) == ["deaf"]
    free.set()
    assert loops.stop(5.0) == []
