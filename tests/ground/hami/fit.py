"""One container on one node: the card order, the checks in HAMi's order, the reasons it counts."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.ground.hami.books import Card, Pair, Piece
from tests.ground.hami.request import Ask

TRUE = {"1", "t", "T", "true", "TRUE", "True"}
USE, NOUSE = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
USE_TYPE, NOUSE_TYPE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
NUMA_BIND, MODE = "nvidia.com/numa-bind", "nvidia.com/vgpu-mode"
GPU_POLICY, NODE_POLICY = "hami.io/gpu-scheduler-policy", "hami.io/node-scheduler-policy"
WEIGHTS = "hami.io/device-scoring-weights"

QuotaCheck = Callable[[list[Piece]], bool]
"""What this container would hold, the cards picked so far and this one -> within the namespace's quota."""


@dataclass
class Picked:
    """A card chosen for a container; ``placement`` and ``profile`` for MIG, ``asked`` (MiB, cores) where the profile
    gives more: while the container is fitted HAMi holds that against the quota."""

    piece: Piece
    profile: str = ""
    placement: Pair | None = None
    asked: Pair = (0, 0)


@dataclass
class Pod:
    """What a pod's annotations say about selection."""

    annotations: Mapping[str, str]
    policy: str
    weights: tuple[int, int, int] = (1, 1, 1)
    numa_bind: bool = field(init=False)

    def __post_init__(self) -> None:
        self.numa_bind = self.annotations.get(NUMA_BIND, "") in TRUE


def _members(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def order(cards: list[Card], pod: Pod) -> None:
    """Sorts in place; cards are then tried from the end."""
    score = {card.uuid: _score(card, pod.weights) for card in cards}
    policy = pod.policy
    if policy == "numa" or "," in policy:
        keys = [k.strip() for k in policy.split(",")]
        keys = list(dict.fromkeys(k for k in keys if k in ("binpack", "spread", "numa"))) or ["spread"]
        if pod.numa_bind:
            keys = ["numa", *(k for k in keys if k != "numa")]
        by: dict[str, Callable[[Card], float]] = {
            "binpack": lambda c: float(score[c.uuid]),
            "spread": lambda c: -float(score[c.uuid]),
            "numa": lambda c: c.numa,
        }
        cards.sort(key=lambda c: (*(by[k](c) for k in keys), c.index))
    elif policy == "mutex":
        cards.sort(key=lambda c: (-c.used, c.numa))
    elif pod.numa_bind and policy == "binpack":
        cards.sort(key=lambda c: (-c.numa, score[c.uuid]))
    elif pod.numa_bind:
        cards.sort(key=lambda c: (c.numa, -score[c.uuid]))
    elif policy == "binpack":
        cards.sort(key=lambda c: (score[c.uuid], c.numa))
    else:
        cards.sort(key=lambda c: (-score[c.uuid], c.numa))


def _score(card: Card, weights: tuple[int, int, int]) -> np.float32:
    """In float32 as HAMi computes it. NVIDIA: the request itself never counts."""
    if not (card.slots and card.cores and card.memory):
        return np.float32(0)
    f = np.float32
    slot, core, memory = (f(w) for w in weights)
    parts = (
        slot * (f(card.used) / f(card.slots)),
        core * (f(card.used_cores) / f(card.cores)),
        memory * (f(card.used_memory) / f(card.memory)),
    )
    return f(10) * (parts[0] + parts[1] + parts[2])


def fit_container(
    cards: list[Card],
    ask: Ask,
    pod: Pod,
    cordoned: Sequence[str],
    scores: Mapping[str, Mapping[str, int]],
    quota: QuotaCheck,
) -> tuple[list[Picked], str]:
    """(chosen cards, "") or ([], reason text). Chosen cards are booked on ``cards``, whose order changes."""
    order(cards, pod)
    eligible = [card for card in cards if "nvidia" in card.model.lower()]
    mode = pod.annotations.get(MODE)
    mig_request = any(c.mode == "mig" for c in eligible) and (mode is None or "mig" in mode)
    if ask.count > len(eligible) and not mig_request:
        return [], "NodeInsufficientDevice"
    picked, reasons = _walk(eligible, ask, pod, cordoned, quota)
    if "topology-aware" in pod.policy:
        picked = _best_set(picked, ask.count, scores)
    if len(picked) < ask.count:
        if picked:
            reasons["AllocatedCardsInsufficientRequest"] = len(picked)
        return [], ", ".join(sorted(f"{n}/{len(eligible)} {reason}" for reason, n in reasons.items()))
    by_uuid = {card.uuid: card for card in cards}
    for choice in picked:
        card = by_uuid[choice.piece.uuid]
        card.used += 1
        card.used_memory += choice.piece.memory
        card.used_cores += choice.piece.cores
        if choice.placement:
            card.occupied.append(choice.placement)
    return picked, ""


def _walk(
    eligible: Sequence[Card], ask: Ask, pod: Pod, cordoned: Sequence[str], quota: QuotaCheck
) -> tuple[list[Picked], Counter[str]]:
    reasons: Counter[str] = Counter()
    picked: list[Picked] = []
    numa = -1
    collect_all = "topology-aware" in pod.policy
    for card in reversed(eligible):
        while True:
            early = _unusable(card, pod, cordoned)
            if early:
                reasons[early] += 1
                break
            if pod.numa_bind and card.numa != numa:
                if picked and not collect_all:
                    # HAMi looks at the count that is left, which topology mode never lowers.
                    reasons["NumaNotFit"] += len(picked)
                picked, numa = [], card.numa
            choice = _examine(card, ask, pod, picked, quota)
            if isinstance(choice, str):
                reasons[choice] += 1
                break
            picked.append(choice)
            if len(picked) == ask.count and not collect_all:
                return picked, reasons
            if card.mode != "mig":
                break
    return picked, reasons


def _unusable(card: Card, pod: Pod, cordoned: Sequence[str]) -> str:
    if not card.healthy:
        return "CardNotHealth"
    if card.uuid in cordoned:
        return "CardCordoned"
    model = card.model.lower()
    wanted, unwanted = _members(pod.annotations.get(USE_TYPE)), _members(pod.annotations.get(NOUSE_TYPE))
    if wanted and not any(word.lower() in model for word in wanted):
        return "CardTypeMismatch"
    if any(word.lower() in model for word in unwanted):
        return "CardTypeMismatch"
    mode = pod.annotations.get(MODE)
    if mode is not None and card.mode not in mode:
        return "CardTypeMismatch"
    return ""


def _examine(card: Card, ask: Ask, pod: Pod, picked: Sequence[Picked], quota: QuotaCheck) -> Picked | str:
    use, nouse = _members(pod.annotations.get(USE)), _members(pod.annotations.get(NOUSE))
    if (use and card.uuid not in use) or card.uuid in nouse:
        return "CardUuidMismatch"
    if card.slots <= card.used:
        return "CardTimeSlicingExhausted"
    if "mutex" in pod.policy and card.used > 0:
        return "ExclusiveDeviceAllocateConflict"
    cores = min(ask.cores, 100)
    memory = ask.memory or card.memory * ask.percent // 100
    mine = [Piece(p.piece.uuid, *p.asked) for p in picked]
    if not quota([*mine, Piece(card.uuid, memory, cores)]):
        return "ResourceQuotaNotFit"
    if card.memory - card.used_memory < memory:
        return "CardInsufficientMemory"
    if card.cores - card.used_cores < cores:
        return "CardInsufficientCore"
    if card.cores == 100 and cores == 100 and card.used > 0:
        return "ExclusiveDeviceAllocateConflict"
    if card.cores and card.used_cores == card.cores and cores == 0:
        return "CardComputeUnitsExhausted"
    if card.mode != "mig":
        return Picked(Piece(card.uuid, memory, cores), asked=(memory, cores))
    here = [p.placement for p in picked if p.piece.uuid == card.uuid and p.placement]
    found = _instance(card, memory, [*card.occupied, *here])
    if not found:
        return "CardMigTopologyInfeasible"
    profile, placement = found
    piece = Piece(card.uuid, profile["memoryMB"], profile["core"])
    return Picked(piece, profile["name"], placement, asked=(memory, cores))


def _instance(card: Card, memory: int, occupied: Sequence[Pair]) -> tuple[dict[str, object], Pair] | None:
    """The smallest profile that holds ``memory`` and has room: 1g and 3g from the top, others from the bottom."""
    for profile in sorted(card.profiles, key=lambda p: (p["memoryMB"], p.get("sliceCount", 0))):
        if profile["memoryMB"] < memory:
            continue
        places = sorted((p.get("start", 0), p["size"]) for p in profile["placements"])
        if profile["name"].startswith(("1g.", "3g.")):
            places.reverse()
        for start, size in places:
            if all(start + size <= s or s + n <= start for s, n in occupied):
                return profile, (start, size)
    return None


def _best_set(found: list[Picked], count: int, scores: Mapping[str, Mapping[str, int]]) -> list[Picked]:
    """Topology mode: the set with the best pair scores; too few: all that were found."""
    if len(found) <= count:
        return found

    def pair(a: Picked, b: Picked) -> int:
        return scores.get(a.piece.uuid, {}).get(b.piece.uuid, 0)

    if count == 1:
        return [min(found, key=lambda a: sum(pair(a, b) for b in found if b is not a))]
    sets = itertools.combinations(found, count)
    return list(max(sets, key=lambda chosen: sum(pair(a, b) for a, b in itertools.combinations(chosen, 2))))
