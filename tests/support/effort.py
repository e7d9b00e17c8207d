"""How much work random tests do, and whether they go the same way every time.

DEFRAGD_EFFORT scales their numbers of examples (`make check` uses a fifth). Long suites run a sample; DEFRAGD_FULL=1
(`make full`) asks for the whole numbers that are promised. A gate has to give one verdict twice, so
examples and the order of tests follow from the code alone; DEFRAGD_EXPLORE=1 (`make explore`) draws new ones.
"""

from __future__ import annotations

import os

from hypothesis import settings

EFFORT = float(os.environ.get("DEFRAGD_EFFORT", "1"))
FULL = os.environ.get("DEFRAGD_FULL", "") == "1"
EXPLORE = os.environ.get("DEFRAGD_EXPLORE", "") == "1"

settings.register_profile("gate", derandomize=True)
settings.register_profile("explore", print_blob=True)
settings.load_profile("explore" if EXPLORE else "gate")


def amount(full: int, sample: int) -> int:
    """Of long suites: the whole number with DEFRAGD_FULL=1, else a sample that is good for a gate."""
    return full if FULL else sample


def examples(full: int) -> int:
    """At least five, whatever the effort."""
    return max(5, round(full * EFFORT))
