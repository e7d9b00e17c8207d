"""Fit procedures of backends that differ from the common check list, by family word (`core.vendor.Vendor.family`).

A family whose choice among devices is not known exactly answers only where no choice is left (an exact pin, or as many
passing devices as are asked); otherwise it refuses with ``Unpredictable``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from defragd.core import fit_checks as checks
from defragd.core.fit_state import Pick, Spot, Task, f32
from defragd.core.model import DeviceRequest, Node, Pod
from defragd.core.vendor import Vendor

Answer = tuple[list[Pick], "Counter[str]"]
UNPREDICTABLE = "Unpredictable"
LOSSES = "metax-tech.com/gpu.topology.losses"


def whole(task: Task, eligible: list[Spot]) -> Answer:
    """A device is free or it is not; no selection by UUID."""
    reasons: Counter[str] = Counter()
    picked: list[Pick] = []
    for spot in reversed(eligible):
        if not spot.healthy:
            reasons[checks.NOT_HEALTHY] += 1
        elif not checks.type_fits(task, spot.device):
            reasons[checks.TYPE] += 1
        elif spot.used > 0:
            reasons[checks.EXCLUSIVE] += 1
        else:
            picked.append(Pick(spot, task.request.memory_on(spot.device), task.request.cores))
            if len(picked) == task.request.count:
                return picked, reasons
    if picked:
        reasons[checks.TOO_FEW] += len(picked)
    return [], reasons


def amd(task: Task, eligible: list[Spot]) -> Answer:
    """Cores are percent of the compute units, at least one; nothing is exclusive."""
    reasons: Counter[str] = Counter()
    picked: list[Pick] = []
    for spot in reversed(eligible):
        device = spot.device
        memory = task.request.memory_on(device)
        cores = max(1, device.cores * task.request.cores // 100)
        if not spot.healthy:
            reasons[checks.NOT_HEALTHY] += 1
        elif not checks.type_fits(task, device):
            reasons[checks.TYPE] += 1
        elif not checks.uuid_fits(task, device):
            reasons[checks.UUID] += 1
        elif device.slots <= spot.used:
            reasons[checks.SLOTS] += 1
        elif task.order.mutex and spot.used > 0:
            reasons[checks.EXCLUSIVE] += 1
        elif device.memory_mib - spot.memory_mib < memory:
            reasons[checks.MEMORY] += 1
        elif device.cores - spot.cores < cores:
            reasons[checks.CORE] += 1
        else:
            picked.append(Pick(spot, memory, cores))
            if len(picked) == task.request.count:
                return picked, reasons
    if picked:
        reasons[checks.TOO_FEW] += len(picked)
    return [], reasons


def ascend(task: Task, eligible: list[Spot]) -> Answer:
    """The common list; chips that all name a network group are chosen by group, which is predicted only when no choice
    is left."""
    picks, reasons = checks.search(task, eligible)
    if picks and task.request.count > 1 and all("NetworkID" in s.device.custom for s in eligible):
        return _no_choice(task, eligible, picks, reasons)
    return picks, reasons


def _no_choice(task: Task, eligible: list[Spot], picks: list[Pick], reasons: Counter[str]) -> Answer:
    """Keep the picks if a search for one device more fails, so that no other set was possible."""
    from dataclasses import replace

    more = replace(task, request=replace(task.request, count=task.request.count + 1))
    if not checks.search(more, eligible)[0]:
        return picks, reasons
    return [], Counter({UNPREDICTABLE: 1})


def xpu(task: Task, eligible: list[Spot]) -> Answer:
    """All slices of a device are of one size."""
    fitting = []
    for spot in reversed(eligible):
        memory = task.request.memory_on(spot.device)
        even = spot.used == 0 or (spot.memory_mib // spot.used == memory)
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


def _topology_map(node: Node, key: str) -> Mapping[str, Any]:
    try:
        found = json.loads(node.annotations.get(key, "") or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def node_bonus(
    node: Node,
    pod: Pod,
    picks: Iterable[tuple[DeviceRequest, list[Pick]]],
    spots: list[Spot],
    vendors: Mapping[str, Vendor],
    policy: str,
) -> np.float32:
    """What a backend adds to the node score; 0 for those that are predicted so far."""
    del node, pod, picks, spots, vendors, policy
    return f32(0)
