"""The simulated cluster behind the ports: what the controllers see of it, and what they may write.

One `SimAccess` is one replica of the daemon; several can share a cluster. Answers are those of the API server as
measured (protocol notes, section 11.5). Faults: lagging caches, scripted answers, a hook around every write.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from defragd.core.model import Pod, Workload
from defragd.core.pdb import asks_budget
from defragd.core.placement import Placement, PlacementStatus
from defragd.core.run import Run
from defragd.core.selectors import matches
from defragd.core.snapshot import Snapshot
from defragd.errors import NotLeader
from defragd.ports import Beat, Note, Outcome, Written
from defragd.sim.cluster import SimCluster
from defragd.sim.patches import PatchRefused, merged

BEAT_LASTS = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class _Cache:
    at: float
    snapshot: Snapshot
    placements: tuple[Placement, ...]
    runs: tuple[Run, ...]
    version: int


class SimLeadership:
    """Set ``leading``; nothing is elected."""

    def __init__(self, identity: str = "sim-0", *, leading: bool = True) -> None:
        self._identity = identity
        self.leading = leading

    @property
    def identity(self) -> str:
        return self._identity

    def is_leader(self) -> bool:
        return self.leading

    def holder(self) -> str:
        return self._identity if self.leading else ""


class SimAccess:
    """ClusterReader, PodWriter and EventSink of one replica; stores and heartbeats are its attributes."""

    def __init__(self, cluster: SimCluster, *, identity: str = "sim-0", leading: bool = True) -> None:
        self.cluster = cluster
        self.clock = cluster.clock
        self.leadership = SimLeadership(identity, leading=leading)
        self.placements = SimPlacements(self)
        self.runs = SimRuns(self)
        self.heartbeats = SimHeartbeats(self)
        self.notes: list[Note] = []
        self.writes: list[str] = []
        """Names of the writes made, in order."""
        self._caches: list[_Cache] = []
        self._closed = threading.Event()

    # -- ClusterReader ------------------------------------------------------------------------------------------

    def synced(self) -> bool:
        return True

    def age_seconds(self) -> float:
        return self.cluster.faults.stale

    def version(self) -> int:
        return self.cache().version

    def wait(self, after: int, timeout: float) -> int:
        with self.cluster.changed:
            if self.cluster.version <= after:
                self.cluster.changed.wait(timeout)
            return self.cluster.version

    def snapshot(self) -> Snapshot:
        return self.cache().snapshot

    def cache(self) -> _Cache:
        """What this replica knows: the present, or with ``cache_lag`` the state of so long ago."""
        cluster, lag = self.cluster, self.cluster.faults.cache_lag
        with cluster.lock:
            now = cluster.clock.monotonic()
            if not self._caches or self._caches[-1].version != cluster.version:
                self._caches.append(
                    _Cache(
                        now,
                        cluster.snapshot(),
                        tuple(cluster.placements.values()),
                        tuple(cluster.runs.values()),
                        cluster.version,
                    )
                )
            if not lag:
                del self._caches[:-1]
                return self._caches[-1]
            while len(self._caches) > 1 and self._caches[1].at <= now - lag:
                del self._caches[0]
            return self._caches[0]

    # -- writes -------------------------------------------------------------------------------------------------

    def write(self, operation: str, act: Callable[[], Written], *, fenced: bool = True) -> Written:
        """One write: the fence, scripted answers, the hook before and after, and all of it under the lock."""
        if fenced and not self.leadership.is_leader():
            raise NotLeader("the lease is lost")
        faults = self.cluster.faults
        if faults.on_write:
            faults.on_write("before", operation)
        self.writes.append(operation)
        with self.cluster.lock:
            scripted = faults.answers.get(operation)
            answer = scripted.pop(0) if scripted else act()
        if faults.on_write:
            faults.on_write("after", operation)
        return answer

    def evict(self, pod: Pod, *, dry_run: bool = False, check_revision: bool = False) -> Written:
        def act() -> Written:
            cluster = self.cluster
            live = cluster.pods.get(pod.key)
            if live is None:
                return Written(Outcome.GONE, f'pods "{pod.name}" not found')
            if pod.uid and live.uid != pod.uid:
                return Written(Outcome.CONFLICT, "the UID in the precondition does not match")
            if check_revision and pod.revision and live.revision != pod.revision:
                return Written(Outcome.CONFLICT, "the resourceVersion in the precondition does not match")
            if live.deleting:
                return Written(Outcome.OK)
            refusal = self._budgets_refuse(live)
            if refusal is not None:
                return refusal
            if not dry_run:
                cluster.begin_eviction(live)
            return Written(Outcome.OK)

        return self.write("evict_dry_run" if dry_run else "evict", act)

    def _budgets_refuse(self, pod: Pod) -> Written | None:
        if not asks_budget(pod):
            return None
        cluster = self.cluster
        found = [
            b for b in cluster.budgets.values() if b.namespace == pod.namespace and matches(b.selector, pod.labels)
        ]
        if len(found) > 1:
            text = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            return Written(Outcome.REFUSED, text)
        for budget in found:
            if not pod.ready and (budget.always_allow_unhealthy or budget.healthy >= budget.desired > 0):
                continue
            if not budget.observed:
                return Written(Outcome.BLOCKED, "The disruption budget is still being processed", retry_after=10.0)
            if budget.allowed < 1:
                return Written(
                    Outcome.BLOCKED,
                    f"Cannot evict pod as it would violate the pod's disruption budget. The disruption budget "
                    f"{budget.name} needs {budget.desired} healthy pods and has {budget.healthy} currently",
                )
        return None

    def patch_pod(self, namespace: str, name: str, patch: Mapping[str, Any]) -> Written:
        def act() -> Written:
            cluster = self.cluster
            pod = cluster.pods.get(f"{namespace}/{name}")
            if pod is None:
                return Written(Outcome.GONE, f'pods "{name}" not found')
            uid = (patch.get("metadata") or {}).get("uid")
            if uid and uid != pod.uid:
                return Written(Outcome.CONFLICT, "the UID in the precondition does not match")
            try:
                changed = merged(pod, patch)
            except PatchRefused as error:
                return Written(Outcome.REFUSED, str(error))
            stored = cluster.set_pod(changed)
            if not stored.gates and not stored.node:
                cluster.scheduler.add(stored.key)
            return Written(Outcome.OK, revision=stored.revision)

        return self.write("patch_pod", act, fenced=False)

    def scale(self, workload: Workload, replicas: int, *, manager: str) -> Written:
        """ports.WorkloadWriter."""
        return self.write("scale", lambda: self.cluster.counts.scale(workload, replicas, manager))

    # -- EventSink ----------------------------------------------------------------------------------------------

    def emit(self, note: Note) -> None:
        self.notes.append(note)


class SimPlacements:
    def __init__(self, access: SimAccess) -> None:
        self._access = access

    def list(self) -> Sequence[Placement]:
        return self._access.cache().placements

    def get(self, namespace: str, name: str) -> Placement | None:
        return next((p for p in self.list() if p.namespace == namespace and p.name == name), None)

    def create(self, placement: Placement) -> Written:
        def act() -> Written:
            cluster = self._access.cluster
            if placement.key in cluster.placements:
                return Written(Outcome.CONFLICT, f'hamipodplacements "{placement.name}" already exists')
            cluster.touch()
            cluster.placements[placement.key] = replace(
                placement,
                uid=f"hpp-{cluster.version}",
                revision=str(cluster.version),
                created=cluster.clock.now(),
                status=PlacementStatus(),
            )
            return Written(Outcome.OK, revision=str(cluster.version))

        return self._access.write("create", act)

    def write_status(self, placement: Placement, status: PlacementStatus) -> Written:
        def act() -> Written:
            cluster = self._access.cluster
            stored = cluster.placements.get(placement.key)
            if stored is None or (placement.uid and stored.uid != placement.uid):
                return Written(Outcome.GONE, f'hamipodplacements "{placement.name}" not found')
            if stored.revision != placement.revision:
                return Written(Outcome.CONFLICT, "the object has been modified")
            cluster.touch()
            cluster.placements[placement.key] = replace(stored, status=status, revision=str(cluster.version))
            return Written(Outcome.OK, revision=str(cluster.version))

        return self._access.write("write_status", act)

    def delete(self, placement: Placement) -> Written:
        def act() -> Written:
            cluster = self._access.cluster
            if cluster.placements.pop(placement.key, None) is None:
                return Written(Outcome.GONE)
            cluster.touch()
            return Written(Outcome.OK)

        return self._access.write("delete", act)


class SimRuns:
    def __init__(self, access: SimAccess) -> None:
        self._access = access

    def list(self) -> Sequence[Run]:
        return self._access.cache().runs

    def get(self, name: str) -> Run | None:
        return next((r for r in self.list() if r.name == name), None)

    def create(self, run: Run) -> Written:
        def act() -> Written:
            cluster = self._access.cluster
            if run.name in cluster.runs:
                return Written(Outcome.CONFLICT, f'defragruns "{run.name}" already exists')
            cluster.touch()
            uid = f"run-{cluster.version}"
            cluster.runs[run.name] = replace(run, uid=uid, created=cluster.clock.now(), revision=str(cluster.version))
            return Written(Outcome.OK, revision=str(cluster.version), body={"metadata": {"uid": uid}})

        return self._access.write("create_run", act)

    def write_status(self, run: Run) -> Written:
        def act() -> Written:
            cluster = self._access.cluster
            stored = cluster.runs.get(run.name)
            if stored is None:
                return Written(Outcome.GONE)
            if run.revision and stored.revision != run.revision:
                return Written(Outcome.CONFLICT, "the object has been modified")
            cluster.touch()
            cluster.runs[run.name] = replace(
                stored,
                phase=run.phase,
                reason=run.reason,
                message=run.message,
                wave=run.wave,
                moves=run.moves,
                started=run.started,
                finished=run.finished,
                revision=str(cluster.version),
            )
            return Written(Outcome.OK, revision=str(cluster.version))

        return self._access.write("write_run", act)

    def write_desired(self, name: str, desired: str, by: str) -> Written:
        def act() -> Written:
            cluster = self._access.cluster
            stored = cluster.runs.get(name)
            if stored is None:
                return Written(Outcome.GONE)
            cluster.touch()
            cluster.runs[name] = replace(stored, desired=desired, desired_by=by, revision=str(cluster.version))
            return Written(Outcome.OK, revision=str(cluster.version))

        return self._access.write("write_desired", act, fenced=False)

    def delete(self, run: Run) -> Written:
        def act() -> Written:
            cluster = self._access.cluster
            found = cluster.runs.pop(run.name, None)
            if found is None:
                return Written(Outcome.GONE)
            cluster.touch()
            return Written(Outcome.OK)

        return self._access.write("delete_run", act)


class SimHeartbeats:
    """Beats of all replicas of one cluster, kept on the cluster object."""

    def __init__(self, access: SimAccess) -> None:
        self._access = access

    def _shared(self) -> dict[str, Beat]:
        return self._access.cluster.beats

    def publish(self, seen: int) -> None:
        identity = self._access.leadership.identity
        self._shared()[identity] = Beat(identity, seen, self._now())

    def others(self) -> Sequence[Beat]:
        now, own = self._now(), self._access.leadership.identity
        return [b for b in self._shared().values() if b.identity != own and now - b.renewed <= BEAT_LASTS]

    def _now(self) -> datetime:
        return self._access.cluster.clock.now()
