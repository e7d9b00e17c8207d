"""The API server as one bundle: watches, caches, snapshots and writers. Everything above reads from here.

`KubeCluster` is ports.ClusterReader; its parts ``pods``, ``placements`` and ``runs`` are PodWriter, PlacementStore and
RunStore. In steady state nothing is listed: every kind is one watch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from defragd.core.placement import PLACEMENT, Placement
from defragd.core.placement import PLURAL as PLACEMENTS
from defragd.core.run import Run
from defragd.core.snapshot import Snapshot
from defragd.errors import ClusterError, DefragError, Unreachable
from defragd.hami.config import HamiConfig
from defragd.hami.scheduler_books import Place
from defragd.kube import kinds, wire
from defragd.kube.client import Client, no_hook
from defragd.kube.placements import placement_from_wire
from defragd.kube.reflector import SILENCE, WATCH_SECONDS, Kind, Reflector, list_all
from defragd.kube.runs import KIND as RUN_KIND
from defragd.kube.runs import PLURAL as RUNS
from defragd.kube.runs import run_from_wire
from defragd.kube.store import Hub, Store
from defragd.kube.translation import Translation
from defragd.kube.view import View
from defragd.kube.wire_custom import PlacementWire, RunWire
from defragd.kube.writes import Fence, KubePlacements, KubePods, KubeRuns, KubeWorkloads
from defragd.ports import Clock, Hook, Leadership

FINISHED_KEPT = 600.0
"""Seconds for which a pod of ours that Succeeded is still shown after it left the watch's selection."""


class SystemClock:
    """ports.Clock of the machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class KubeCluster:
    """``namespace`` is the daemon's own. Give ``leadership`` before the first write of a leader (`fence`)."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        config: HamiConfig | None = None,
        clock: Clock | None = None,
        hook: Hook = no_hook,
        leadership: Leadership | None = None,
        watch_seconds: float = WATCH_SECONDS,
        silence: float = SILENCE,
    ) -> None:
        self.client, self.namespace = client, namespace
        self._clock: Clock = clock or SystemClock()
        self._hub = Hub()
        self._finished: dict[str, float] = {}
        self._guard = threading.Lock()
        self._snapshot: tuple[int, Snapshot] | None = None
        self._kinds: list[Kind[Any]] = [
            *kinds.world_kinds(),
            kinds.placements_kind(optional=False),
            kinds.runs_kind(namespace),
        ]
        self._stores: dict[str, Store[Any]] = {kind.name: Store(self._hub) for kind in self._kinds}
        self._stores[kinds.NODES.name] = Store(self._hub, kinds.same_node)
        self._reflectors = [
            Reflector(
                client,
                kind,
                self._stores[kind.name],
                hook=hook,
                on_vanished=self._pod_vanished if kind is kinds.PODS else None,
                watch_seconds=watch_seconds,
                silence=silence,
            )
            for kind in self._kinds
        ]
        placements: View[PlacementWire, Placement] = View(
            self._stores[PLACEMENTS], placement_from_wire, "HamiPodPlacement"
        )
        runs: View[RunWire, Run] = View(self._stores[RUNS], run_from_wire, RUN_KIND)
        world = {name: store for name, store in self._stores.items() if name != RUNS}
        self._translation = Translation(world, placements, config or HamiConfig())
        self.fence = Fence()
        self.fence.leadership = leadership
        self.pods = KubePods(client, self.fence, self._stores[kinds.PODS.name])
        self.workloads = KubeWorkloads(client, self.fence)
        self.placements = KubePlacements(client, self.fence, self._stores[PLACEMENTS], placements)
        self.runs = KubeRuns(client, self.fence, namespace, self._stores[RUNS], runs)
        self._pod_decoder = kinds.PODS.decoder()

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the watches and returns at once; see ``wait_synced``."""
        for reflector in self._reflectors:
            reflector.start()

    def wait_synced(self, timeout: float, stop: threading.Event | None = None) -> None:
        """Until everything required has been read. Raises the first lasting error (Forbidden, MissingResource,
        Unreachable) when time is up, so that the user reads the cause and not "timed out"."""
        end = time.monotonic() + timeout
        version = -1
        while not self.synced():
            left = end - time.monotonic()
            if stop is not None and stop.is_set():
                return
            if left <= 0:
                raise self._why_not()
            version = self._hub.wait(version, min(left, 0.2))

    def stop(self) -> None:
        """Closes every watch's socket and waits a moment for the threads."""
        for reflector in self._reflectors:
            reflector.stop()
        for reflector in self._reflectors:
            reflector.join(2.0)

    # -- ports.ClusterReader --------------------------------------------------------------------------------------

    def synced(self) -> bool:
        return all(
            (store := self._stores[kind.name]).synced or (kind.optional and store.unavailable) for kind in self._kinds
        )

    def age_seconds(self) -> float:
        """Of the most out-of-date watch that counts. A quiet, healthy one is proven by a bookmark about every 60 s."""
        counting = (r for r in self._reflectors if not (r.kind.optional and self._stores[r.kind.name].unavailable))
        return max((reflector.age_seconds() for reflector in counting), default=float("inf"))

    def version(self) -> int:
        return self._hub.version

    def wait(self, after: int, timeout: float) -> int:
        return self._hub.wait(after, timeout)

    def snapshot(self) -> Snapshot:
        """The same object as long as nothing changed, with the indexes its readers have built."""
        with self._guard:
            self._forget_finished()
            version = self._hub.version
            if self._snapshot is None or self._snapshot[0] != version:
                self._snapshot = (version, self._translation.snapshot(self._clock.now()))
            return self._snapshot[1]

    # -- beside the port ------------------------------------------------------------------------------------------

    def unknown_kinds(self) -> dict[str, str]:
        """Kinds that cannot be read, with the reason; for cluster-info and a line at start."""
        return {name: store.unavailable for name, store in self._stores.items() if store.unavailable}

    def watches(self) -> dict[str, bool]:
        """Whether each kind was listed completely; kinds that this cluster does not have are left out."""
        return {name: store.synced for name, store in self._stores.items() if not store.unavailable}

    def stores(self) -> dict[str, Store[Any]]:
        """The wire objects, for `kube.snapshot_file.save`."""
        return dict(self._stores)

    def ages(self) -> Sequence[tuple[str, float]]:
        return [(r.kind.name, r.age_seconds()) for r in self._reflectors]

    def doubt(self, doubts: Mapping[Place, str]) -> None:
        """From now on the books on exactly these devices are not believed (see `hami.scheduler_books`)."""
        if doubts != self._translation.doubts:
            self._translation.doubts = dict(doubts)
            self._hub.bump()

    def lead(self, leadership: Leadership) -> None:
        """From now on writes of a leader need its lease."""
        self.fence.leadership = leadership

    # -- inside ---------------------------------------------------------------------------------------------------

    def _why_not(self) -> DefragError:
        for reflector in self._reflectors:
            if not self._stores[reflector.kind.name].synced and reflector.error is not None:
                return reflector.error
        missing = [kind.name for kind in self._kinds if not self._stores[kind.name].synced]
        return Unreachable(f"{self.client.server} did not answer the first lists in time ({', '.join(missing)})")

    def _pod_vanished(self, pod: wire.Pod) -> None:
        """A pod of ours left the selection without a deletion: it Succeeded. Whoever watches over it must see that."""
        meta = pod.metadata
        if PLACEMENT not in (meta.labels or {}) or meta.deletion_timestamp is not None:
            return
        try:
            data = self.client.get(f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}", timeout=5.0).data
            found = self._pod_decoder.item(data)
        except (ClusterError, ValueError):
            return
        if found.metadata.uid == meta.uid:
            key = f"{meta.namespace}/{meta.name}"
            self._finished[key] = time.monotonic()
            self._stores[kinds.PODS.name].upsert(key, found, found.metadata.resource_version, force=True)

    def _forget_finished(self) -> None:
        if not self._finished:
            return
        store = self._stores[kinds.PODS.name]
        for key, since in list(self._finished.items()):
            pod = store.get(key)
            if pod is None or pod.status.phase != "Succeeded":
                self._finished.pop(key, None)
            elif time.monotonic() - since > FINISHED_KEPT:
                self._finished.pop(key, None)
                store.remove(key, pod.metadata.resource_version)


def read_snapshot(client: Client, *, config: HamiConfig | None = None, now: datetime | None = None) -> Snapshot:
    """One consistent-enough look at a cluster for `plan`, `score` and `explain`: lists only, no watch, no custom
    resource needed. Raises Forbidden, MissingResource or Unreachable for nodes and pods; other kinds become unknown."""
    stores = read_stores(client)
    placements: View[PlacementWire, Placement] = View(stores[PLACEMENTS], placement_from_wire, "HamiPodPlacement")
    return Translation(stores, placements, config or HamiConfig()).snapshot(now or datetime.now(UTC))


def read_stores(client: Client) -> dict[str, Store[Any]]:
    """One list of every kind that a plan needs (also for `defragd snapshot`)."""
    hub = Hub()
    stores: dict[str, Store[Any]] = {}
    for kind in (*kinds.world_kinds(), kinds.placements_kind(optional=True)):
        store: Store[Any] = Store(hub)
        stores[kind.name] = store
        try:
            store.replace(*list_all(client, kind, kind.decoder()))
        except ClusterError as err:
            if not kind.optional or isinstance(err, Unreachable):
                raise
            store.mark_unavailable(str(err))
    return stores
