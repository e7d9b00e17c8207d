"""What must hold at every instant, looked at ten times a second while a test runs."""

from __future__ import annotations

import threading
import time
from typing import Any

from tests.ground.cluster import Cluster, is_ready

GATE = "scheduling.hami.placement.com/hold"


def gated(pod: dict[str, Any]) -> bool:
    """The pod waits at our gate."""
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates") or [])


class Sampler:
    """Counts Ready pods per app label, and how long each gated pod stays gated.

    with Sampler(cluster, floors={"guarded": 2}) as sampler: ...
    assert not sampler.overdrawn and sampler.rate() >= 5
    """

    def __init__(self, cluster: Cluster, floors: dict[str, int], *, every: float = 0.1) -> None:
        self.cluster, self.floors, self.every = cluster, floors, every
        self.overdrawn: list[str] = []
        self.samples, self.seconds = 0, 0.0
        self.least: dict[str, int] = dict.fromkeys(floors, 10**6)
        self.gated_since: dict[str, float] = {}
        self.longest_gate: dict[str, float] = {}
        self.most_gated = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="sampler")

    def __enter__(self) -> Sampler:
        self._begin = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(5)
        self.seconds = time.monotonic() - self._begin

    def rate(self) -> float:
        """Samples per second."""
        return self.samples / max(self.seconds or time.monotonic() - self._begin, 0.001)

    def _run(self) -> None:
        while not self._stop.wait(self.every):
            try:
                self._look(self.cluster.pods())
            except RuntimeError:
                continue  # the API server is down for a moment: the test's own fault
        self.cluster.api.close()

    def _look(self, pods: list[dict[str, Any]]) -> None:
        self.samples += 1
        now = time.monotonic()
        for app, floor in self.floors.items():
            ready = sum(
                1
                for pod in pods
                if pod["metadata"]["labels"].get("app") == app
                and is_ready(pod)
                and not pod["metadata"].get("deletionTimestamp")
            )
            self.least[app] = min(self.least[app], ready)
            if ready < floor:
                self.overdrawn.append(f"{app}: {ready} Ready, {floor} wanted")
        waiting = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in pods if gated(pod)}
        self.most_gated = max(self.most_gated, len(waiting))
        for uid in waiting:
            since = self.gated_since.setdefault(uid, now)
            self.longest_gate[uid] = now - since
