"""What this replica's webhook acts on is told to the others, and what the others act on is read from their words.

No pod is evicted before every serving webhook replica is known to gate its replacement; a replica that does not answer
delays a move, and the move ends in time, without harm.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from defragd.ports import Clock, ClusterReader, Heartbeats, PlacementStore


def newest(placements: PlacementStore) -> int:
    """The newest revision among the placements in the cache."""
    return max((int(p.revision) for p in placements.list() if p.revision.isdecimal()), default=0)


def lowest_seen(heartbeats: Heartbeats, own: int) -> tuple[int, str]:
    """The lowest revision that all serving replicas act on, this one included, and whose word is the lowest."""
    lowest, who = own, "this replica"
    for beat in heartbeats.others():
        if beat.serving and beat.seen < lowest:
            lowest, who = beat.seen, f"webhook replica {beat.identity}"
    return lowest, who


class HeartbeatLoop:
    """Publishes what the webhook's cache has seen, as soon as it changes. Runs on every replica, leader or not.

    ``seen`` gives the newest placement revision taken in (default: the newest among those in the cache). It never goes
    back: a deletion of the newest placement does not make the others unknown.
    """

    def __init__(
        self,
        *,
        heartbeats: Heartbeats,
        placements: PlacementStore,
        reader: ClusterReader,
        clock: Clock,
        seen: Callable[[], int] | None = None,
        every: float = 5.0,
    ) -> None:
        self._heartbeats, self._placements, self._reader, self._clock = heartbeats, placements, reader, clock
        self._seen = seen or (lambda: newest(placements))
        self._every = every
        self._published = -1
        self._last = float("-inf")

    def publish(self) -> int:
        """One look; returns the revision published so far. Says nothing before the caches are filled."""
        if not self._reader.synced():
            return self._published
        seen = max(self._seen(), self._published)
        tick = self._clock.monotonic()
        if seen != self._published or tick - self._last >= self._every:
            self._heartbeats.publish(seen)
            self._published, self._last = seen, tick
        return self._published

    def run(self, stop: threading.Event) -> None:
        version = -1
        while not stop.is_set():
            self.publish()
            version = self._reader.wait(version, 1.0)
