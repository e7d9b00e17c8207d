"""HAMi's bad habits, switchable while the stand-in runs. The defaults are a HAMi on a good day, at full speed."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(frozen=True)
class Habits:
    """Measured values of the real scheduler in the comments."""

    deletion_lag: float = 0.0
    """Seconds until a deleted pod is noticed: kube-scheduler asks too early and the wake-up is lost."""
    deletion_lag_every: int = 1
    """Only every n-th deletion is late (5 of 30 on the real one: 6)."""
    start_delay: float = 0.0
    """Seconds after a start before any node is known and `/filter` answers (15 on the real one)."""
    forget_terminating: bool = True
    """A scheduler that starts never counts pods that are already on their way out (2.9 to 2.10)."""
    phantom: bool = True
    """A failed second attempt drops the booking, the pod's next event brings it back from the stale annotations."""
    tick: float = 15.0
    """Seconds between looks at the nodes; a changed cordon needs a reset of the handshake as well."""
    filter_delay: float = 0.0
    """Every answer of `/filter` takes that much longer."""
    hang: bool = False
    """`/filter`, `/bind` and `/webhook` do not answer at all."""
    qps: float | None = None
    """Requests per second to the API server; None: what the flags say (5, burst 10 without flags)."""

    def change(self, changes: dict[str, Any]) -> Habits:
        """With some values changed; raises ValueError for a name that is none."""
        known = {f.name for f in fields(self)}
        if unknown := set(changes) - known:
            raise ValueError(f"unknown habits {sorted(unknown)}; known: {sorted(known)}")
        return replace(self, **changes)
