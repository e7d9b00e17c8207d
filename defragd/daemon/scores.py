"""Keeps the fragmentation score of the cluster and its pools at hand for API and metrics, and sums up once in a while.

Scoring is a computation, and this process also answers the webhook: it is done seldom, and only when something changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from defragd.core.plan import Score
from defragd.core.run import RunPhase
from defragd.core.score import score
from defragd.core.snapshot import Snapshot
from defragd.obs.pools import pool_of
from defragd.ports import Clock, ClusterReader, Hook, Leadership, PlacementStore, RunStore

RESCORE_SECONDS = 15.0
SUMMARY_SECONDS = 60.0


class Scores:
    """``current`` and ``pools`` never compute; ``refresh`` does."""

    def __init__(
        self,
        *,
        reader: ClusterReader,
        placements: PlacementStore,
        runs: RunStore,
        leadership: Leadership,
        clock: Clock,
        hook: Hook,
        waiting: Callable[[], str] = lambda: "",
        rescore_seconds: float = RESCORE_SECONDS,
        summary_seconds: float = SUMMARY_SECONDS,
    ) -> None:
        self._reader, self._placements, self._runs = reader, placements, runs
        self._leadership, self._clock, self._hook, self._waiting = leadership, clock, hook, waiting
        self._rescore, self._summary = rescore_seconds, summary_seconds
        self._score: Score | None = None
        self._pools: Mapping[str, Score] = {}
        self._version = -1
        self.beat = clock.monotonic()

    def current(self) -> Score | None:
        return self._score

    def pools(self) -> Mapping[str, Score]:
        return self._pools

    def refresh(self) -> None:
        """Scores the cluster as it is now, unless nothing changed."""
        version = self._reader.version()
        if not self._reader.synced() or version == self._version:
            return
        snapshot = self._reader.snapshot()
        self._score = score(snapshot)
        self._pools = self._by_pool(snapshot)
        self._version = version

    def _by_pool(self, snapshot: Snapshot) -> Mapping[str, Score]:
        pools: dict[str, list[str]] = {}
        for node in snapshot.nodes.values():
            if node.devices:
                pools.setdefault(pool_of(node), []).append(node.name)
        if len(pools) <= 1:
            return {name: self._score for name in pools if self._score is not None}
        return {name: score(snapshot, nodes=members) for name, members in pools.items()}

    def summarize(self) -> None:
        """One line about everything."""
        if not self._reader.synced():
            return
        snapshot, found = self._reader.snapshot(), self._score
        active = [r for r in self._runs.list() if r.phase in (RunPhase.RUNNING, RunPhase.PAUSED)]
        self._hook(
            "cycle",
            {
                "loop": "summary",
                "nodes": len(snapshot.nodes),
                "devices": len(snapshot.devices),
                "pods": len(snapshot.pods),
                "fragmentation": round(found.loss, 4) if found else None,
                "idle_devices": found.idle_devices if found else None,
                "placements_open": sum(1 for p in self._placements.list() if p.open),
                "run": active[0].name if active else "",
                "waiting": self._waiting() if active else "",
                "problems": len(snapshot.problems),
                "age_seconds": round(self._reader.age_seconds(), 1),
                "leader": self._leadership.is_leader(),
            },
        )

    def run(self, stop: threading.Event) -> None:
        said = float("-inf")
        while not stop.is_set():
            try:
                self.refresh()
                tick = self._clock.monotonic()
                if tick - said >= self._summary:
                    self.summarize()
                    said = tick
            except Exception as error:  # noqa: BLE001 - figures for people must not end anything
                self._hook("loop.failed", {"loop": "scores", "error": f"{type(error).__name__}: {error}"})
            self.beat = self._clock.monotonic()
            stop.wait(self._rescore)
