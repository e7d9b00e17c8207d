"""Fit procedures of backends that differ from the common check list, by family word (`core.vendor.Vendor.family`).

Where HAMi's choice among several sets of devices is arbitrary or not known, the answer is ``Unpredictable`` unless no
choice is left (an exact pin, or just as many passing devices as are asked).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from defragd.core import fit_checks as checks
from defragd.core.fit_state import Pick, Slot, Spot, Task, f32
from defragd.core.model import Node
from defragd.core.vendor import Vendor

Answer = tuple[list[Pick], "Counter[str]"]
UNPREDICTABLE = "Unpredictable"
SOFT_MODE_KEY = "huawei.com/vnpu-mode"
SOFT_NODE_KEY = "hami-vnpu-core"
LOSSES = "metax-tech.com/gpu.topology.losses"
SCORES = "metax-tech.com/gpu.topology.scores"


def _walk(task: Task, eligible: list[Spot], refuse: Callable[[Spot], str], amount: Callable[[Spot], Pick]) -> Answer:
    """The common walk from the end of the list with other checks."""
    reasons: Counter[str] = Counter()
    picked: list[Pick] = []
    for spot in reversed(eligible):
        refusal = refuse(spot)
        if refusal:
            reasons[refusal] += 1
            continue
        picked.append(amount(spot))
        if len(picked) == task.request.count:
            return picked, reasons
    if picked:
        reasons[checks.TOO_FEW] += len(picked)
    return [], reasons


def whole(task: Task, eligible: list[Spot]) -> Answer:
    """A device is free or it is not; no selection by UUID."""

    def refuse(spot: Spot) -> str:
        if not spot.healthy:
            return checks.NOT_HEALTHY
        if not checks.type_fits(task, spot.device):
            return checks.TYPE
        return checks.EXCLUSIVE if spot.used > 0 else ""

    return _walk(task, eligible, refuse, lambda s: Pick(s, task.request.memory_on(s.device), task.request.cores))


def amd(task: Task, eligible: list[Spot]) -> Answer:
    """Cores are percent of the compute units, at least one; nothing is exclusive."""

    def pick(spot: Spot) -> Pick:
        cores = max(1, spot.device.cores * task.request.cores // 100)
        return Pick(spot, task.request.memory_on(spot.device), cores)

    def refuse(spot: Spot) -> str:
        wish = pick(spot)
        if not spot.healthy:
            return checks.NOT_HEALTHY
        if not checks.type_fits(task, spot.device):
            return checks.TYPE
        if not checks.uuid_fits(task, spot.device):
            return checks.UUID
        if spot.device.slots <= spot.used:
            return checks.SLOTS
        if task.order.mutex and spot.used > 0:
            return checks.EXCLUSIVE
        if spot.device.memory_mib - spot.memory_mib < wish.memory_mib:
            return checks.MEMORY
        return checks.CORE if spot.device.cores - spot.cores < wish.cores else ""

    return _walk(task, eligible, refuse, pick)


# -- Ascend -----------------------------------------------------------------------------------------------------------


def ascend(task: Task, eligible: list[Spot]) -> Answer:
    """The common list. Soft slicing needs the node's consent and counts cores to 100; devices that all name a network
    group are chosen by group; modules of two are given whole."""
    soft = task.pod.annotations.get(SOFT_MODE_KEY) == "hami-core"
    if soft:
        allowed = task.node.annotations.get(SOFT_NODE_KEY)
        if not (task.soft_slicing if allowed is None else allowed == "true"):
            return [], Counter({checks.MODE: 1})
        task = replace(task, total_cores=100)
    modules = task.facts.pairs and task.request.count > 1
    grouped = task.facts.groups and all("NetworkID" in s.device.custom for s in eligible)
    if not modules and not grouped:
        return checks.search(task, eligible)
    picks, reasons = checks.search(replace(task, collect=True), eligible)
    if modules:
        return _modules(task, picks, reasons)
    if len(picks) < task.request.count:
        if picks:
            reasons[checks.TOO_FEW] = len(picks)
        return [], reasons
    if task.request.count in (1, len(picks)):
        return picks[: task.request.count], reasons
    return _groups(task, picks)


def _modules(task: Task, picks: list[Pick], reasons: Counter[str]) -> Answer:
    by_module: dict[int, list[Pick]] = {}
    for pick in picks:
        by_module.setdefault(pick.spot.device.index // 2, []).append(pick)
    full = [pair for pair in by_module.values() if len(pair) == 2]
    if 2 * len(full) < task.request.count:
        reasons[checks.TOO_FEW] = 2 * len(full)
        return [], reasons
    if 2 * len(full) > task.request.count:
        return [], Counter({UNPREDICTABLE: 1})
    return [pick for pair in full for pick in pair], reasons


def _network(pick: Pick) -> int | None:
    found = pick.spot.device.custom.get("NetworkID")
    return int(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def _groups(task: Task, picks: list[Pick]) -> Answer:
    """The largest groups first. HAMi takes groups of one size in any order, so a tie that matters is Unpredictable."""
    groups: dict[int, list[Pick]] = {}
    for pick in picks:
        network = _network(pick)
        if network is not None:
            groups.setdefault(network, []).append(pick)
    ranked = sorted(groups.values(), key=len, reverse=True)
    out: list[Pick] = []
    for place, group in enumerate(ranked):
        twins = [g for g in ranked if len(g) == len(group)]
        room = task.request.count - len(out)
        if len(twins) > 1 and sum(map(len, twins)) > room and place == ranked.index(group):
            return [], Counter({UNPREDICTABLE: 1})
        out += group[:room]
        if len(out) == task.request.count:
            return out, Counter()
    return out, Counter()


# -- others -----------------------------------------------------------------------------------------------------------


def xpu(task: Task, eligible: list[Spot]) -> Answer:
    """All slices of a device are of one size."""
    fitting = []
    for spot in reversed(eligible):
        memory = task.request.memory_on(spot.device)
        even = spot.used == 0 or spot.memory_mib // spot.used == memory
        if not spot.healthy or not checks.uuid_fits(task, spot.device) or (task.order.mutex and spot.used):
            continue
        if even and spot.device.memory_mib - spot.memory_mib >= memory:
            fitting.append(Pick(spot, memory, task.request.cores))
    return _only(task, eligible, fitting)


def kunlun(task: Task, eligible: list[Spot]) -> Answer:
    """Whole devices in two wings; which of several free sets is taken is not predicted."""
    if task.request.count not in (1, 2, 4, 8):
        return [], Counter({checks.NUMA: len(eligible)})
    fitting = [
        Pick(spot, task.request.memory_on(spot.device), task.request.cores)
        for spot in reversed(eligible)
        if spot.healthy and spot.used == 0 and checks.uuid_fits(task, spot.device)
    ]
    return _only(task, eligible, fitting)


def _only(task: Task, eligible: list[Spot], fitting: list[Pick]) -> Answer:
    if len(fitting) == task.request.count:
        return fitting, Counter()
    if len(fitting) > task.request.count:
        return [], Counter({UNPREDICTABLE: 1})
    named = any(not checks.uuid_fits(task, s.device) for s in eligible)
    return [], Counter({checks.UUID if named else checks.NUMA: len(eligible)})


def unjudged(task: Task, eligible: list[Spot]) -> Answer:
    """Backends whose rules are not known well enough."""
    del task, eligible
    return [], Counter({UNPREDICTABLE: 1})


FAMILIES: Mapping[str, Callable[[Task, list[Spot]], Answer]] = {
    "shared": checks.search,
    "one-device": checks.search,
    "plain": checks.search,
    "ascend": ascend,
    "whole": whole,
    "amd": amd,
    "xpu": xpu,
    "kunlun": kunlun,
    "metax-shared": unjudged,
    "enflame": unjudged,
    "neuron": unjudged,
}


# -- node score -------------------------------------------------------------------------------------------------------


def _topology_value(node: Node, key: str, count: int) -> float:
    """The node's own figure for ``count`` devices (JSON map "number of devices" -> int), 0 where there is none."""
    try:
        found = json.loads(node.annotations.get(key, "") or "{}")
    except (ValueError, RecursionError):
        return 0.0
    value = found.get(str(count)) if isinstance(found, dict) else None
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else 0.0


def _network_score(rows: list[Slot]) -> np.float32:
    score = f32(0)
    for row in rows:
        if not row.picks:
            continue
        if any("NetworkID" not in pick.spot.device.custom for pick in row.picks):
            return f32(0)
        counts = Counter(n for n in map(_network, row.picks) if n is not None)
        if counts:
            score += f32(max(counts.values())) / f32(counts.total())
    return f32(score * f32(10))


def node_bonus(
    node: Node, slots: Mapping[str, list[Slot]], spots: list[Spot], vendors: Mapping[str, Vendor], policy: str
) -> np.float32:
    """What backends add to the node score."""
    del spots
    bonus = f32(0)
    for word, rows in slots.items():
        facts = vendors[word]
        if facts.groups:
            bonus += _network_score(rows)
        elif facts.topology_maps and any(row.picks for row in rows):
            count = sum(len(row.picks) for row in rows)
            key = SCORES if policy == "spread" else LOSSES
            bonus += f32(2000 - _topology_value(node, key, count))
    return f32(bonus)
