"""HAMi's own reading of ResourceQuotas: limits on memory and cores per namespace; the last object wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.ground.hami.books import Booking
from tests.ground.hami.request import integer


@dataclass
class Quotas:
    """Limits by namespace: (memory MiB or None, cores or None)."""

    limits: dict[str, dict[str, int]] = field(default_factory=dict)

    def put(self, quota: Mapping[str, Any], nvidia: Mapping[str, Any]) -> None:
        mine = self.limits.setdefault(quota["metadata"]["namespace"], {})
        for key, resource, factor in (
            ("memory", nvidia["resourceMemoryName"], int(nvidia["memoryFactor"])),
            ("cores", nvidia["resourceCoreName"], 1),
        ):
            raw = (quota["spec"].get("hard") or {}).get(f"limits.{resource}")
            value = None if raw is None else integer(raw)
            if value is not None:
                mine[key] = value * factor

    def allows(self, namespace: str, bookings: Sequence[Booking], memory: int, cores: int) -> bool:
        """Whether a pod of that namespace may take that much besides what is booked there."""
        limit = self.limits.get(namespace)
        if not limit:
            return True
        use = [u for b in bookings if b.namespace == namespace for u in b.use.values()]
        used_memory, used_cores = sum(m for _, m, _ in use), sum(c for _, _, c in use)
        if "memory" in limit and used_memory + memory > limit["memory"]:
            return False
        return not ("cores" in limit and used_cores + cores > limit["cores"])
