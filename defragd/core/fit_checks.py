"""HAMi's search for the devices of one container: which check refuses which device, in HAMi's order.

Every refused device counts under the first check it fails; the sum of these counts is HAMi's reason text. One function
per fit family (`core.vendor.Vendor.family`). Rules: HAMi's own behaviour, judged by its recorded decisions.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from defragd.core.fit_state import Pick, Spot, Task
from defragd.core.model import Device

NOT_HEALTHY = "CardNotHealth"
CORDONED = "CardCordoned"
TYPE = "CardTypeMismatch"
NUMA = "NumaNotFit"
UUID = "CardUuidMismatch"
SLOTS = "CardTimeSlicingExhausted"
EXCLUSIVE = "ExclusiveDeviceAllocateConflict"
QUOTA = "ResourceQuotaNotFit"
MEMORY = "CardInsufficientMemory"
CORE = "CardInsufficientCore"
FULL = "CardComputeUnitsExhausted"
MIG = "CardMigTopologyInfeasible"
RULE = "CardNotFoundCustomFilterRule"
MODE = "ModeNotFit"
TOO_FEW = "AllocatedCardsInsufficientRequest"
NODE_TOO_FEW = "NodeInsufficientDevice"
UNREGISTERED = "node unregistered"


def text_of(reasons: Counter[str], eligible: int) -> str:
    """``1/2 CardInsufficientMemory, 1/2 CardUuidMismatch``: sorted as strings."""
    return ", ".join(sorted(f"{count}/{eligible} {reason}" for reason, count in reasons.items()))


def type_fits(task: Task, device: Device) -> bool:
    """Type lists (case-insensitive parts of the model) and, where the backend has modes, the mode list."""
    model = device.model.lower()
    wish = task.selection
    if wish.use_types and not any(t.lower() in model for t in wish.use_types):
        return False
    if any(t.lower() in model for t in wish.nouse_types):
        return False
    return not (wish.mode and device.mode and device.mode not in wish.mode)


def uuid_fits(task: Task, device: Device) -> bool:
    """The pod's own lists and, when one is asked for, the pin."""
    wish = task.selection
    if wish.use_uuids is not None and device.uuid not in wish.use_uuids:
        return False
    if task.obey_pin and wish.pin_uuids is not None and device.uuid not in wish.pin_uuids:
        return False
    if task.pin is not None and device.uuid not in task.pin:
        return False
    if device.uuid in wish.nouse_uuids:
        return not task.obey_pin and device.uuid in wish.steered_uuids
    return True


def quota_fits(task: Task, picked: list[Pick], memory: int, cores: int) -> bool:
    """Namespace quota with what this pod has picked so far. HAMi 2.10 takes the first slots of the running stage for
    init slots (as many as the pod has init containers) and collapses them, so it may add up too little."""
    limit_memory, limit_cores, used_memory, used_cores = task.quota
    if limit_memory is None and limit_cores is None:
        return True
    mine = [(p.spot.device.uuid, *(p.asked if p.mig else (p.memory_mib, p.cores))) for p in picked]
    slots = [[(p.spot.device.uuid, p.memory_mib, p.cores) for p in slot.picks] for slot in task.slots]
    slots.append([*mine, (task.asking, memory, cores)])
    peak: dict[str, tuple[int, int]] = {}
    total: dict[str, tuple[int, int]] = {}
    for place, slot in enumerate(slots):
        for uuid, mib, core in slot:
            if place < task.pod.init_count:
                old = peak.get(uuid, (0, 0))
                peak[uuid] = (max(old[0], mib), max(old[1], core))
            else:
                old = total.get(uuid, (0, 0))
                total[uuid] = (old[0] + mib, old[1] + core)
    for uuid in {*peak, *total}:
        init, app = peak.get(uuid, (0, 0)), total.get(uuid, (0, 0))
        used_memory += max(init[0], app[0])
        used_cores += max(init[1], app[1])
    if limit_memory is not None and used_memory > limit_memory:
        return False
    return limit_cores is None or used_cores <= limit_cores


def place_mig(spot: Spot, memory: int, extra: list[tuple[int, int]]) -> tuple[int, int, tuple[str, int, int]] | None:
    """(memory, cores, (profile, start, size)) of the smallest profile that has a free placement, or None."""
    busy = [*spot.taken, *extra]
    for profile in sorted(spot.device.mig_profiles, key=lambda p: (p.memory_mib, p.slice_count)):
        if profile.memory_mib < memory:
            continue
        down = profile.name.startswith(("1g.", "3g."))
        for start, size in sorted(profile.placements, reverse=down):
            if all(start + size <= s or s + n <= start for s, n in busy):
                return profile.memory_mib, profile.cores, (profile.name, start, size)
    return None


def core_refusal(task: Task, spot: Spot, cores: int) -> str:
    """Too few cores, a wish for all of a device that is in use, or a device whose cores are all taken; "" = passes."""
    total = spot.device.cores if task.total_cores is None else task.total_cores
    if total - spot.cores < cores:
        return CORE
    if task.facts.exclusive_cores:
        if total == 100 and cores == 100 and spot.used > 0:
            return EXCLUSIVE
        if total and spot.cores == total and cores == 0:
            return FULL
    return ""


def _refusal(task: Task, spot: Spot, picked: list[Pick], memory: int, cores: int) -> str:
    """The first check of NVIDIA's list (after the NUMA step) that refuses the device, "" when it passes."""
    device, facts = spot.device, task.facts
    if not uuid_fits(task, device):
        return UUID
    if device.slots <= spot.used:
        return SLOTS
    if task.order.mutex and spot.used > 0:
        return EXCLUSIVE
    task.asking = device.uuid
    if facts.quota and not quota_fits(task, picked, memory, cores):
        return QUOTA
    if device.memory_mib - spot.memory_mib < memory:
        return MEMORY
    refusal = core_refusal(task, spot, cores)
    if refusal:
        return refusal
    if facts.family == "one-device" and any(
        p.spot.device.uuid != device.uuid for slot in task.slots for p in slot.picks
    ):
        return RULE
    return ""


def search(task: Task, eligible: list[Spot]) -> tuple[list[Pick], Counter[str]]:
    """NVIDIA's procedure, used by all shared families. Empty picks = refused, for the counted reasons."""
    request, facts = task.request, task.facts
    reasons: Counter[str] = Counter()
    picked: list[Pick] = []
    remaining, numa = request.count, -1
    bind = facts.numa_bind and task.selection.numa_bind
    collect = task.collect or (facts.topology and task.order.topology)
    place = len(eligible) - 1
    while place >= 0:
        spot = eligible[place]
        device = spot.device
        place -= 1
        if not spot.healthy:
            reasons[NOT_HEALTHY] += 1
            continue
        if facts.cordon and device.cordoned:
            reasons[CORDONED] += 1
            continue
        if not type_fits(task, device):
            reasons[TYPE] += 1
            continue
        if bind and device.numa != numa:
            if remaining != request.count:
                reasons[NUMA] += len(picked)
            remaining, picked, numa = request.count, [], device.numa
        memory, cores = request.memory_on(device), min(request.cores, 100)
        refusal = _refusal(task, spot, picked, memory, cores)
        if refusal:
            reasons[refusal] += 1
            continue
        pick = Pick(spot, memory, cores)
        again = False
        if facts.mig and device.mode == "mig":
            extra = [(p.mig[1], p.mig[2]) for p in picked if p.mig and p.spot is spot]
            found = place_mig(spot, memory, extra)
            if found is None:
                reasons[MIG] += 1
                continue
            pick = Pick(spot, found[0], found[1], found[2], (memory, cores))
            again = True
        picked.append(pick)
        if not collect:
            remaining -= 1
            if remaining == 0:
                return picked, reasons
        if again:
            place += 1
    if task.collect:
        return picked, reasons
    if collect and len(picked) >= request.count:
        return _best_pairs(task, picked), reasons
    if picked:
        reasons[TOO_FEW] += len(picked)
    return [], reasons


def _best_pairs(task: Task, picked: list[Pick]) -> list[Pick]:
    """Topology-aware choice by the node's pair scores: one device with the weakest ties to the rest, several with the
    strongest among themselves; the first found wins."""
    wanted, scores = task.request.count, task.node.pair_scores
    if len(picked) == wanted:
        return picked

    def pair(a: Pick, b: Pick) -> int:
        return scores.get(a.spot.device.uuid, {}).get(b.spot.device.uuid, 0)

    if wanted == 1:
        return [min(picked, key=lambda p: sum(pair(p, q) for q in picked if q is not p))]
    best = max(combinations(picked, wanted), key=lambda c: sum(pair(a, b) for a, b in combinations(c, 2)))
    return list(best)
