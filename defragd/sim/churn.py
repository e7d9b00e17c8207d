"""Demand over days: which workloads come, go and scale, and when. Seeded, and the same whoever is simulated on it.

Newcomers are drawn from the mix that runs in the snapshot: a template is a live device pod, its workload gives the
number of replicas. Lives are exponential, so that the load stays about where it was.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from defragd.core.model import Pod
from defragd.core.snapshot import Snapshot
from defragd.core.workloads import workload_key

DAY = 86_400.0
MOST_REPLICAS = 16


@dataclass(frozen=True, slots=True)
class Change:
    """At ``at`` seconds ``pods`` of ``app`` come (> 0), that many go (< 0), or all go (0). ``template``: a pod key."""

    at: float
    app: str
    pods: int
    template: str = ""


@dataclass(frozen=True, slots=True)
class Demand:
    """``turnover``: share of the workloads replaced per day; ``scaling``: scale-ins (and, hours later, scale-outs) per
    day and workload of several replicas; ``growth``: arrivals per departure."""

    turnover: float = 0.1
    scaling: float = 0.2
    growth: float = 1.0
    seed: int = 1


def movable_shape(pod: Pod) -> bool:
    """A pod the simulated scheduler can place again: one request, nothing of init containers, no MIG."""
    return bool(
        pod.live and pod.allocations and not pod.mig and len(pod.requests) == 1 and not pod.requests[0].init
        and pod.scheduler in ("", "hami-scheduler")
    )  # fmt: skip


def apps_of(snapshot: Snapshot) -> dict[str, list[str]]:
    """Device pods by workload."""
    found: dict[str, list[str]] = {}
    for pod in snapshot.pods.values():
        if movable_shape(pod) and pod.booked_node:
            found.setdefault(workload_key(snapshot, pod), []).append(pod.key)
    return found


def changes(snapshot: Snapshot, demand: Demand, days: float) -> list[Change]:
    """Everything that happens within ``days``, in order of time."""
    dice = random.Random(demand.seed)
    apps = apps_of(snapshot)
    if not apps or demand.turnover < 0:
        return []
    names = sorted(apps)
    end = days * DAY
    found: list[Change] = []
    for name in names:
        template = apps[name][0]
        found += _life(dice, name, template, len(apps[name]), 0.0, end, demand)
    rate = len(names) * demand.turnover * demand.growth / DAY
    at = dice.expovariate(rate) if rate > 0 else end
    number = 0
    while at < end:
        number += 1
        drawn = dice.choice(names)
        count = min(len(apps[drawn]), MOST_REPLICAS)
        name = f"ReplicaSet/simulated/app-{number:06d}"
        template = dice.choice(apps[drawn])
        found.append(Change(at, name, count, template))
        found += _life(dice, name, template, count, at, end, demand)
        at += dice.expovariate(rate)
    found.sort(key=lambda change: change.at)
    return found


def _life(
    dice: random.Random, app: str, template: str, count: int, since: float, end: float, demand: Demand
) -> Iterator[Change]:
    gone = since + dice.expovariate(demand.turnover / DAY) if demand.turnover > 0 else end + 1
    if count >= 2 and demand.scaling > 0:
        at = since + dice.expovariate(demand.scaling / DAY)
        while at < min(gone, end):
            back = at + dice.expovariate(2.0 / DAY)
            yield Change(at, app, -1)
            if back < min(gone, end):
                yield Change(back, app, 1, template)
            at = back + dice.expovariate(demand.scaling / DAY)
    if gone < end:
        yield Change(gone, app, 0)
