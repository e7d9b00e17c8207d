"""Fit procedures of backends that differ from the common check list, by family word (`core.vendor.Vendor.family`).

Where HAMi's choice among several sets of devices is arbitrary, the answer is ``Unpredictable`` unless no choice is left
(an exact pin, or just as many passing devices as are asked).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil

from defragd.core import fit_checks as checks
from defragd.core.fit_state import REPORTED_QUALITY, Pick, Spot, Task
from defragd.core.fit_wings import even_wings, whole_wings
from defragd.core.model import Device

Answer = tuple[list[Pick], "Counter[str]"]
UNPREDICTABLE = "Unpredictable"
UNHEALTHY = "CardUnhealthy"
CLASS = "CardAppClassMismatch"
QUALITY = "CardQosPolicyMismatch"
ONLINE, OFFLINE = "online", "offline"


def unpredictable() -> Answer:
    """HAMi would choose among several sets in a way that cannot be told."""
    return [], Counter({UNPREDICTABLE: 1})


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
        if len(picked) == task.request.count and not task.collect:
            return picked, reasons
    if task.collect:
        return picked, reasons
    if picked:
        reasons[checks.TOO_FEW] += len(picked)
    return [], reasons


def _first_checks(task: Task, spot: Spot) -> str:
    """Health, type, UUID, slots, mutex: what every backend with registered devices begins with."""
    if not spot.healthy:
        return checks.NOT_HEALTHY
    if not checks.type_fits(task, spot.device):
        return checks.TYPE
    if not checks.uuid_fits(task, spot.device):
        return checks.UUID
    if spot.device.slots <= spot.used:
        return checks.SLOTS
    return checks.EXCLUSIVE if task.order.mutex and spot.used > 0 else ""


def whole(task: Task, eligible: list[Spot]) -> Answer:
    """A device is free or it is not; no selection by UUID. Memory and cores are counted in percent."""

    def refuse(spot: Spot) -> str:
        if not spot.healthy:
            return checks.NOT_HEALTHY
        return checks.EXCLUSIVE if spot.used > 0 else ""

    return _walk(task, eligible, refuse, lambda spot: Pick(spot, 100, 100))


def compute_units(task: Task, eligible: list[Spot]) -> Answer:
    """Cores are percent of the device's compute units, at least one; nothing is exclusive."""

    def pick(spot: Spot) -> Pick:
        total = spot.device.cores
        return Pick(spot, task.request.memory_on(spot.device), min(max(total * task.request.cores // 100, 1), total))

    def refuse(spot: Spot) -> str:
        wish = pick(spot)
        refusal = _first_checks(task, spot)
        if refusal:
            return refusal
        if spot.device.memory_mib - spot.memory_mib < wish.memory_mib:
            return checks.MEMORY
        return checks.CORE if spot.device.cores <= 0 or spot.device.cores - spot.cores < wish.cores else ""

    return _walk(task, eligible, refuse, pick)


# -- groups of devices ------------------------------------------------------------------------------------------------


def network_groups(task: Task, eligible: list[Spot]) -> Answer:
    """The common list. Soft slicing needs the node's consent and counts cores to 100; devices that all name a network
    group are chosen by group; modules of two are given whole."""
    facts = task.facts
    if facts.soft_key and task.pod.annotations.get(facts.soft_key) == facts.soft_value:
        allowed = task.node.annotations.get(facts.soft_node_key)
        if not (task.soft_slicing if allowed is None else allowed == "true"):
            return [], Counter({checks.MODE: 1})
        task = replace(task, total_cores=100)
    modules = facts.pairs and task.request.count > 1
    grouped = bool(facts.group_field) and all(facts.group_field in s.device.custom for s in eligible)
    if not modules and not grouped:
        return checks.search(task, eligible)
    picks, reasons = checks.search(replace(task, collect=True), eligible)
    if modules:
        return _modules(task, picks, reasons)
    return best_groups(task, picks, reasons)


def _modules(task: Task, picks: list[Pick], reasons: Counter[str]) -> Answer:
    by_module: dict[int, list[Pick]] = {}
    for pick in picks:
        by_module.setdefault(pick.spot.device.index // 2, []).append(pick)
    full = [pair for pair in by_module.values() if len(pair) == 2]
    if 2 * len(full) < task.request.count:
        reasons[checks.TOO_FEW] = 2 * len(full)
        return [], reasons
    if 2 * len(full) > task.request.count:
        return unpredictable()
    return [pick for pair in full for pick in pair], reasons


def group_of(device: Device, field: str) -> str | int | None:
    """The group a device names: a number or a text, None for anything else."""
    found = device.custom.get(field)
    if isinstance(found, bool) or not isinstance(found, int | float | str):
        return None
    return found if isinstance(found, str) else int(found)


def best_groups(task: Task, picks: list[Pick], reasons: Counter[str]) -> Answer:
    """Devices of the largest groups first. HAMi takes groups of one size in any order, so a tie that matters cannot be
    predicted."""
    wanted = task.request.count
    if len(picks) < wanted:
        if picks:
            reasons[checks.TOO_FEW] = len(picks)
        return [], reasons
    if wanted in (1, len(picks)):
        return picks[:wanted], reasons
    groups: dict[str | int, list[Pick]] = {}
    for pick in picks:
        group = group_of(pick.spot.device, task.facts.group_field)
        if group is not None:
            groups.setdefault(group, []).append(pick)
    out: list[Pick] = []
    for size in sorted({len(g) for g in groups.values()}, reverse=True):
        same = [g for g in groups.values() if len(g) == size]
        room = wanted - len(out)
        if len(same) > 1 and size * len(same) > room:
            return unpredictable()
        for group_picks in same:
            out += group_picks[: wanted - len(out)]
        if len(out) == wanted:
            break
    return out, reasons


def dies(task: Task, eligible: list[Spot]) -> Answer:
    """Devices count by slots only. In die mode several dies share one board: mutex then means the board, and dies of
    one board are preferred."""
    die_mode = bool(eligible) and eligible[0].device.custom.get("DeviceStrategy") == "die"
    field = task.facts.group_field
    busy = {group_of(s.device, field) for s in eligible if s.used > 0} - {None} if die_mode else set()

    def refuse(spot: Spot) -> str:
        refusal = _first_checks(task, spot)
        if not refusal and task.order.mutex and die_mode and group_of(spot.device, field) in busy:
            return checks.EXCLUSIVE
        return refusal

    inner = replace(task, collect=True) if die_mode else task
    picks, reasons = _walk(inner, eligible, refuse, lambda spot: Pick(spot, 0, task.request.cores))
    return best_groups(task, picks, reasons) if die_mode else (picks, reasons)


# -- slices by profile ------------------------------------------------------------------------------------------------


def profiles(task: Task, eligible: list[Spot]) -> Answer:
    """A slice must match one of the node's profiles ((slices, GB) pairs); memory and cores are the profile's.

    ``request.memory_mib`` is the number of slices when the request names slices (cores -1), else the memory asked.
    """
    known = sorted({pair for spot in eligible for pair in spot.device.custom.get("profiles", ())})
    largest = max((size for size, _ in known), default=0)
    ask = task.request
    chosen = None
    for size, gigabytes in known:
        cores = ceil(size * 100 / largest)
        if ask.cores == -1:
            fits = size == ask.memory_mib
        else:
            limit = known[-1][1]
            memory = ceil(ask.memory_mib / 1024) if ask.memory_mib > 2 * limit else ask.memory_mib
            fits = gigabytes >= memory and cores >= ask.cores
        if fits:
            chosen = (gigabytes * 1024, cores, size)
            break
    if chosen is None:
        return [], Counter({checks.MODE: 1})
    memory_mib, percent, slices = chosen

    def refuse(spot: Spot) -> str:
        refusal = _first_checks(task, spot)
        if refusal:
            return refusal
        if spot.device.memory_mib - spot.memory_mib < memory_mib:
            return checks.MEMORY
        return checks.CORE if spot.device.cores > 0 and spot.device.cores - spot.cores < percent else ""

    return _walk(task, eligible, refuse, lambda spot: Pick(spot, memory_mib, percent, slots=slices))


# -- classes and quality of service -----------------------------------------------------------------------------------


def _class_fits(spot: Spot, asked: str) -> bool:
    if spot.used == 0:
        return True
    special = asked in (ONLINE, OFFLINE)
    if bool(spot.wishes & {ONLINE, OFFLINE}) != special:
        return False
    return not (ONLINE in spot.wishes and asked == OFFLINE)


def zones(task: Task, eligible: list[Spot]) -> Answer:
    """Devices that keep to one quality of service and one class of pods; whole ones are chosen by link zone.

    With more passing devices than asked, online pods and whole devices are not predicted; neither is anything that
    would join a device whose quality of service is not settled.
    """
    unsettled: list[Spot] = []
    facts, ask = task.facts, task.request
    asked = task.pod.annotations.get(facts.class_key, "")
    quality = task.pod.annotations.get(facts.quality_key, "")

    def refuse(spot: Spot) -> str:
        device = spot.device
        if not spot.healthy:
            return UNHEALTHY
        if not _class_fits(spot, asked):
            return CLASS
        own = device.custom.get(REPORTED_QUALITY) or ""
        mine = [pick for slot in task.slots for pick in slot.picks if pick.spot is spot]
        if mine and own:  # an earlier container of this pod has it: HAMi goes by that one already
            own = "" if mine[-1].cores == 100 else quality
        if asked != ONLINE and spot.used > 0 and ask.cores != 100:
            if spot.unsettled:
                unsettled.append(spot)
            elif own and own != quality:
                return QUALITY
        refusal = _first_checks(task, spot)
        if refusal:
            return refusal
        if device.memory_mib - spot.memory_mib < ask.memory_on(device):
            return checks.MEMORY
        return "" if asked == ONLINE else checks.core_refusal(task, spot, ask.cores)

    cores = 0 if asked == ONLINE else ask.cores
    picks, reasons = _walk(
        replace(task, collect=True), eligible, refuse, lambda spot: Pick(spot, ask.memory_on(spot.device), cores)
    )
    if unsettled:
        return unpredictable()
    if len(picks) < ask.count:
        if picks:
            reasons[checks.TOO_FEW] = len(picks)
        return [], reasons
    free = len(picks) > ask.count and (asked == ONLINE or (not asked and ask.cores == 100))
    return unpredictable() if free else (picks[: ask.count], reasons)


def unjudged(task: Task, eligible: list[Spot]) -> Answer:
    """Backends whose rules are not known well enough."""
    del task, eligible
    return unpredictable()


FAMILIES: Mapping[str, Callable[[Task, list[Spot]], Answer]] = {
    "shared": checks.search,
    "one-device": checks.search,
    "network-groups": network_groups,
    "dies": dies,
    "whole": whole,
    "compute-units": compute_units,
    "even-wings": even_wings,
    "whole-wings": whole_wings,
    "profiles": profiles,
    "zones": zones,
    "unjudged": unjudged,
}
