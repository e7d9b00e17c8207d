"""What a backend adds to HAMi's node score for the devices it would give."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from itertools import combinations

import numpy as np

from defragd.core.fit_families import ONLINE, group_of
from defragd.core.fit_state import Pick, Slot, Spot, f32
from defragd.core.fit_wings import wing_score
from defragd.core.model import Device, Node, Pod
from defragd.core.vendor import Vendor

_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})


def _rated(node: Node, key: str, count: int) -> float | None:
    """The node's own figure for ``count`` devices (JSON map "number of devices" -> int); None where it has none."""
    text = node.annotations.get(key)
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return 0.0
    value = found.get(str(count)) if isinstance(found, dict) else None
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else 0.0


def _group_score(rows: list[Slot], field: str, weight: int) -> np.float32:
    """Share of the largest group, per container."""
    score = f32(0)
    for row in rows:
        if not row.picks:
            continue
        devices = [pick.spot.device for pick in row.picks]
        if any(field not in d.custom or d.custom.get("DeviceStrategy", "die") != "die" for d in devices):
            return f32(0)
        counts = Counter(g for d in devices if (g := group_of(d, field)) is not None)
        if counts:
            score += f32(max(counts.values())) / f32(counts.total())
    return f32(score * f32(weight))


def _wing_bonus(rows: list[Slot], word: str, spots: list[Spot]) -> np.float32:
    if any(word not in spot.device.model for spot in spots):
        return f32(0)
    before = [s.device.index for s in spots if s.used > 0]
    taken = list(dict.fromkeys(pick.spot.device.index for row in rows for pick in row.picks))
    return f32(wing_score(before, taken))


def _link_score(devices: list[Device]) -> int:
    zones = [d.custom.get("LinkZone") or 0 for d in devices]
    return sum(10 for a, b in combinations(zones, 2) if a == b and a)


def _zone_bonus(facts: Vendor, pod: Pod, picks: list[Pick], spots: list[Spot]) -> int:
    if pod.annotations.get(facts.class_key) == ONLINE:
        return sum(_class_bonus(pick.spot) for pick in picks)
    whole = [pick.spot.device for pick in picks if pick.cores == 100]
    if not whole or pod.annotations.get(facts.link_key) not in _TRUE:
        return 0
    idle = [s.device for s in spots if s.used == 0]
    rest = [d for d in idle if d not in whole]
    given = _link_score(whole)
    return 10 * given - (_link_score(idle) - given - _link_score(rest))


def _class_bonus(spot: Spot) -> int:
    online, offline = spot.classes
    return -100 * offline if offline and not online else -20 * online - 2 * offline


def node_bonus(
    node: Node, pod: Pod, slots: Mapping[str, list[Slot]], spots: list[Spot], vendors: Mapping[str, Vendor], policy: str
) -> np.float32:
    """The sum over the backends in the result. ``spots``: the node before the pod."""
    bonus = f32(0)
    for word, rows in slots.items():
        facts = vendors[word]
        if facts.group_field:
            bonus += _group_score(rows, facts.group_field, facts.group_weight)
        elif facts.loss_key and policy in ("binpack", "spread"):
            key = facts.score_key if policy == "spread" else facts.loss_key
            rated = _rated(node, key, sum(len(row.picks) for row in rows))
            bonus += f32(0 if rated is None else 2000 - rated)
        elif facts.family == "whole-wings":
            bonus += _wing_bonus(rows, word, spots)
        elif facts.family == "zones":
            picks = [pick for row in rows for pick in row.picks]
            sign = -10000 if policy == "spread" else 10000
            bonus += f32(sign * _zone_bonus(facts, pod, picks, spots))
    return f32(bonus)
