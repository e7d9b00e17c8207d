"""What can go wrong in the simulated cluster, settable while it runs. Times are seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from defragd.ports import Written


@dataclass(slots=True)
class Faults:
    """Delays and failures. The defaults are those of the measured emulator (protocol notes, section 11)."""

    create: float = 0.02
    """From the eviction (ReplicaSet) or the old object's end (StatefulSet) to the replacement."""
    schedule: float = 0.03
    allocate: float = 0.3
    start: float = 0.3
    terminate: float = 0.5
    budget_lag: float = 0.05
    """How long a budget's status lags behind its pods."""
    cache_lag: float = 0.0
    """How old the data is that readers get."""

    start_of: dict[str, float] = field(default_factory=dict)
    """Per owner name, seconds from Allocate to Ready."""
    terminate_of: dict[str, float] = field(default_factory=dict)
    never_ready: set[str] = field(default_factory=set)
    """Owner names whose new pods run but never get Ready."""
    crash: set[str] = field(default_factory=set)
    """Owner names whose new pods fail at start."""
    fail_allocate: dict[str, int] = field(default_factory=dict)
    """Per owner name, how many Allocate calls fail."""
    no_replacement: set[str] = field(default_factory=set)
    """Owner names whose controller stands still."""
    webhook_down: bool = False
    stale: float = 0.0
    """What the reader reports as the age of its data."""
    forget_wakeups: int = 0
    """So many times a freed place wakes nobody (the lost wake-up)."""
    answers: dict[str, list[Written]] = field(default_factory=dict)
    """Answers to give instead of acting, by operation ("evict", "patch_pod", "create", "write_status"), used up in
    order."""
    on_write: Callable[[str, str], None] | None = None
    """Called with ("before" | "after", operation) around every write; what it raises passes through (kill -9)."""
