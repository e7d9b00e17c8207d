"""Watches what may start runs besides the schedule, for the scheduler's thread. Decisions are `policy.signals`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from defragd.core.vendor import Vendor
from defragd.policy.loaded import LoadedPolicy
from defragd.policy.signals import Memory, look, wants
from defragd.ports import Clock, ClusterReader, Hook, RunStore

EVERY = timedelta(seconds=15)
"""Between two looks: fit questions over a large cluster take a moment."""
MAX_AGE_SECONDS = 90.0


class SignalWatch:
    """Remembers since when things last, per policy; an edited policy starts anew."""

    def __init__(
        self,
        *,
        reader: ClusterReader,
        runs: RunStore,
        clock: Clock,
        hook: Hook,
        vendors: Mapping[str, Vendor],
        fragmentation: Callable[[], float | None],
        every: timedelta = EVERY,
        max_age_seconds: float = MAX_AGE_SECONDS,
    ) -> None:
        self._reader, self._runs, self._clock, self._hook = reader, runs, clock, hook
        self._vendors, self._fragmentation = vendors, fragmentation
        self._every, self._max_age = every, max_age_seconds
        self._memory: dict[str, tuple[str, Memory]] = {}
        self._last: datetime | None = None
        self._said: dict[str, str] = {}

    def due(self, policies: Iterable[LoadedPolicy]) -> list[tuple[LoadedPolicy, str]]:
        """Policies to start now, by name, each with the kind of its signal. Nothing on data that is not fresh."""
        now = self._clock.now()
        if self._last is not None and timedelta(0) <= now - self._last < self._every:
            return []
        wanted = sorted((p for p in policies if wants(p)), key=lambda p: p.name)
        if not wanted or not self._reader.synced() or self._reader.age_seconds() > self._max_age:
            return []
        self._last = now
        snapshot, runs, loss = self._reader.snapshot(), self._runs.list(), self._fragmentation()
        found = []
        for policy in wanted:
            digest, memory = self._memory.get(policy.name, ("", Memory()))
            if digest != policy.digest:
                memory = Memory()
            memory, signal = look(policy, snapshot, memory, runs, now, fragmentation=loss, vendors=self._vendors)
            self._memory[policy.name] = (policy.digest, memory)
            if signal.kind:
                found.append((policy, signal.kind))
            if signal.text and self._said.get(policy.name) != signal.text:
                self._hook("signal", {"policy": policy.name, "kind": signal.kind or "none", "reason": signal.text})
            self._said[policy.name] = signal.text
        for gone in self._memory.keys() - {p.name for p in wanted}:
            del self._memory[gone]
        return found
