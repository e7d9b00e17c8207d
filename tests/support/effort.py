"""How much work random tests do: DEFRAGD_EFFORT scales their numbers of examples (`make check` uses a fifth)."""

from __future__ import annotations

import os

EFFORT = float(os.environ.get("DEFRAGD_EFFORT", "1"))


def examples(full: int) -> int:
    """At least five, whatever the effort."""
    return max(5, round(full * EFFORT))
