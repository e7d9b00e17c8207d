"""Which pool a node belongs to: the unit in which people buy, label and read devices. Bounded, for metrics and UI."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from defragd.core.model import Node

OTHER = "other"
NONE = "none"
PoolOf = Callable[[Node], str]


def pool_of(node: Node) -> str:
    """The model of the node's devices ("a+b" when mixed), "none" without devices. HAMi puts its backend's word before
    the model ("NVIDIA-Tesla T4"); it is left out."""
    models = sorted({device.model.removeprefix(f"{device.vendor}-") or device.model for device in node.devices})
    return "+".join(models[:3]) if models else NONE


def pool_by_label(label: str) -> PoolOf:
    """Pools by a node label; nodes without it fall back to the model."""

    def pool(node: Node) -> str:
        return node.labels.get(label) or pool_of(node)

    return pool


class Bounded:
    """At most ``limit`` distinct label values; every later one becomes "other", so a metric cannot grow for ever."""

    def __init__(self, limit: int, known: Iterable[str] = ()) -> None:
        self._limit = limit
        self._seen = set(known)

    def __call__(self, value: str) -> str:
        if value in self._seen:
            return value
        if len(self._seen) >= self._limit:
            return OTHER
        self._seen.add(value)
        return value
