"""A pod's own wishes about devices, from its annotations (reference section 3); our own pin and steering taken out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from defragd.core.model import EMPTY, Selection
from defragd.core.placement import PINNED, STEERED
from defragd.core.placement_pin import USER_UUIDS, user_lists
from defragd.core.vendor import Vendor
from defragd.hami.codec import go_bool
from defragd.hami.keys import DEVICE_POLICY, NODE_POLICY, NUMA_BIND, SCORING_WEIGHTS, VGPU_MODE

NOTHING = Selection()
_WEIGHT_NAMES = ("slot", "core", "memory")


def members(text: str | None) -> tuple[str, ...]:
    """Members of a comma list, trimmed, empty ones left out."""
    return tuple(part for part in (raw.strip() for raw in text.split(",")) if part) if text else ()


def listed(text: str | None) -> tuple[str, ...]:
    """A type list. Blank = no constraint; what is not blank but names nothing (``,``) matches no device."""
    found = members(text)
    return found if found or not (text or "").strip() else (",",)


def weights(text: str | None) -> tuple[tuple[int, int, int] | None, str]:
    """(slot, core, memory) or None for the default, and why HAMi would refuse the pod. Any order, blanks allowed."""
    if text is None:
        return None, ""
    found: dict[str, int] = {}
    for part in text.split(","):
        name, equal, number = (piece.strip() for piece in part.strip().partition("="))
        plain = number.removeprefix("+").isascii() and number.removeprefix("+").isdigit() and len(number) < 19
        if name in found or name not in _WEIGHT_NAMES or not equal or not plain:
            break
        found[name] = int(number)
    if len(found) != 3 or text.count(",") != 2 or not any(found.values()):
        return None, f"{SCORING_WEIGHTS}: expected slot=<int>,core=<int>,memory=<int> with one above 0"
    return (found["slot"], found["core"], found["memory"]), ""


def _raw(annotations: Mapping[str, str], key: str) -> str:
    """The value as HAMi compares it; present but empty is a value that equals nothing, not an absent one."""
    value = annotations.get(key)
    return "" if value is None else value or " "


def _uuids(annotations: Mapping[str, str], facts: Vendor) -> frozenset[str] | None:
    """Devices that the use lists leave; a vendor with two keys obeys both. None = no list."""
    use: frozenset[str] | None = None
    for key in facts.use_keys:
        text = annotations.get(key, "")
        if text.strip():
            wanted = frozenset(members(text))
            use = wanted if use is None else use & wanted
    return use


def select(annotations: Mapping[str, str], facts: Vendor) -> Selection:
    """The selection that applies to requests of one vendor."""
    ours = PINNED in annotations
    steered = frozenset(members(annotations.get(STEERED)))
    use = _uuids(annotations, facts)
    nouse = frozenset(uuid for key in facts.nouse_keys for uuid in members(annotations.get(key)))
    weight, invalid = weights(annotations.get(SCORING_WEIGHTS))
    return Selection(
        use_uuids=_uuids(user_lists(annotations), facts) if ours else use,
        nouse_uuids=nouse,
        use_types=tuple(t for key in facts.use_type_keys for t in listed(annotations.get(key))),
        nouse_types=tuple(t for key in facts.nouse_type_keys for t in members(annotations.get(key))),
        mode=_raw(annotations, VGPU_MODE) if facts.mig else "",
        numa_bind=go_bool(annotations.get(NUMA_BIND, "")) is True,
        node_policy=_raw(annotations, NODE_POLICY),
        device_policy=_raw(annotations, DEVICE_POLICY),
        weights=weight,
        pinned_by_us=ours,
        pin_uuids=use if ours else None,
        steered_uuids=steered & nouse,
        invalid=invalid,
    )


COMMON_KEYS = frozenset(
    {NODE_POLICY, DEVICE_POLICY, SCORING_WEIGHTS, NUMA_BIND, VGPU_MODE, PINNED, STEERED, USER_UUIDS}
)
"""Keys that `select` reads beside those of the vendor."""


def selection_of(
    annotations: Mapping[str, str], words: Iterable[str], table: Mapping[str, Vendor]
) -> tuple[Selection, Mapping[str, Selection]]:
    """The pod's selection, and one per vendor where it asks several."""
    wanted = [word for word in dict.fromkeys(words) if word in table]
    if len(wanted) == 1:
        return select(annotations, table[wanted[0]]), EMPTY
    if not wanted:
        return NOTHING, EMPTY
    each = {word: select(annotations, table[word]) for word in wanted}
    return each[wanted[0]], each
