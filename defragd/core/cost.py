"""What disturbing a pod costs. An ordinary pod costs 1; more where a move hurts more. Gain per cost decides.

A pod that nobody would miss for a moment and one that costs an owner an hour must not weigh the same: a move of a pod
with cost 3 is taken only where it gains three times as much as one of an ordinary pod.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime

from defragd.core.model import Pod
from defragd.core.snapshot import Snapshot
from defragd.core.workloads import replicas_of

PER_MOVE_TODAY = 1.0
"""Each move of the same workload within the last 24 h."""
PER_PRIORITY_BIT = 0.1
"""Per doubling of the priority: 1,000 costs one ordinary pod more, 100,000 costs 1.7."""
SLOW_START = 0.05
"""Per minute from creation to Ready, up to ten."""
GANG_MEMBER = 1.0
FEW_REPLICAS = 0.002
"""Divided by the number of replicas: decides between otherwise equal pods."""
LONG_RUNNING = 0.0005
"""Per doubling of the age in days: decides between otherwise equal pods."""


def move_cost(
    snapshot: Snapshot, pod: Pod, *, now: datetime | None, moves_today: int = 0, in_gang: bool = False
) -> float:
    """Cost of one move, at least 1."""
    cost = 1.0 + PER_MOVE_TODAY * moves_today
    if pod.priority > 0:
        cost += PER_PRIORITY_BIT * math.log2(1 + pod.priority)
    if pod.created is not None and pod.ready_since is not None:
        minutes = (pod.ready_since - pod.created).total_seconds() / 60
        cost += SLOW_START * min(max(minutes, 0.0), 10.0)
    if now is not None and pod.created is not None:
        days = (now - pod.created).total_seconds() / 86400
        cost += LONG_RUNNING * math.log2(1 + max(days, 0.0))
    if in_gang:
        cost += GANG_MEMBER
    replicas, _ = replicas_of(snapshot, pod)
    return cost + FEW_REPLICAS / max(replicas, 1)


def moves_today(history: Mapping[str, int], workload: str) -> int:
    return history.get(workload, 0)
