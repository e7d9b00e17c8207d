"""What the drivers need from the outside, as protocols. Adapters: `defragd.kube` (API server), `defragd.sim`.

Writes answer with values, not exceptions: an outcome is input for the state machine. Only lost leadership raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from defragd.core.model import Pod, Workload
from defragd.core.placement import Placement, PlacementStatus
from defragd.core.plan import PlanReply, PlanRequest
from defragd.core.run import Run
from defragd.core.snapshot import Snapshot


class Outcome(StrEnum):
    OK = "OK"
    BLOCKED = "Blocked"
    """429: a disruption budget (or the server) says not now; try again after ``retry_after`` or a growing pause."""
    REFUSED = "Refused"
    """Will not change by waiting: several PDBs on a pod (500), 403, 422."""
    CONFLICT = "Conflict"
    """409: UID or revision precondition failed; look again before anything else."""
    GONE = "Gone"
    """404."""
    UNKNOWN = "Unknown"
    """Time-out, broken connection, 5xx: the write may or may not have happened."""


@dataclass(frozen=True, slots=True)
class Written:
    outcome: Outcome
    message: str = ""
    retry_after: float | None = None
    revision: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.OK


class Clock(Protocol):
    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...


class ClusterReader(Protocol):
    """Caches fed by watches. ``version`` grows with every change; ``wait`` returns when it has passed ``after``."""

    def synced(self) -> bool: ...

    def age_seconds(self) -> float:
        """Seconds since the most out-of-date watch last proved that it is alive (I9: stale data, no action)."""
        ...

    def version(self) -> int: ...

    def wait(self, after: int, timeout: float) -> int: ...

    def snapshot(self) -> Snapshot:
        """Cheap (immutable parts are shared); includes holds of all open placements."""
        ...


class PodWriter(Protocol):
    def evict(self, pod: Pod, *, dry_run: bool = False, check_revision: bool = False) -> Written:
        """Eviction sub-resource with the UID (and, asked, the resourceVersion) as precondition."""
        ...

    def patch_pod(self, namespace: str, name: str, patch: Mapping[str, Any]) -> Written:
        """RFC 7386 merge patch. ``metadata.uid`` in the patch is a precondition (409 when it is another pod)."""
        ...


class NodeWriter(Protocol):
    def annotate(self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str | None] | None]) -> Written:
        """``change`` turns the annotations as they are now into those to write (None: removed), or None for nothing.
        Conflict when the node was changed meanwhile."""
        ...


class PlacementStore(Protocol):
    def list(self) -> Sequence[Placement]:
        """From the cache."""
        ...

    def get(self, namespace: str, name: str) -> Placement | None: ...

    def create(self, placement: Placement) -> Written: ...

    def write_status(self, placement: Placement, status: PlacementStatus) -> Written:
        """Conflict when ``placement.revision`` is no longer the newest."""
        ...

    def delete(self, placement: Placement) -> Written: ...


class ClaimWriter(Protocol):
    def claim(self, placement: Placement, status: PlacementStatus) -> Written:
        """The status write of an admission (pinning without gates): any replica may make it, in a second at most;
        Conflict when ``placement.revision`` is no longer the newest."""
        ...


class WorkloadWriter(Protocol):
    def scale(self, workload: Workload, replicas: int, *, manager: str) -> Written:
        """The scale sub-resource of a Deployment, with its revision as precondition, under a field manager's name."""
        ...


class RunStore(Protocol):
    def list(self) -> Sequence[Run]: ...

    def get(self, name: str) -> Run | None: ...

    def create(self, run: Run) -> Written: ...

    def write_status(self, run: Run) -> Written:
        """Writes phase, reason, message, wave, moves, started, finished."""
        ...

    def write_desired(self, name: str, desired: str, by: str) -> Written:
        """Approve, pause, resume ("") or cancel; ``by`` is the user for the audit trail."""
        ...

    def delete(self, run: Run) -> Written: ...


@dataclass(frozen=True, slots=True)
class Note:
    """A Kubernetes Event: ``kind`` Pod, HamiPodPlacement or DefragRun; ``warning`` for trouble."""

    kind: str
    namespace: str
    name: str
    uid: str
    reason: str
    message: str
    warning: bool = False


class EventSink(Protocol):
    def emit(self, note: Note) -> None:
        """Never raises, never blocks for long; repeats within two minutes are dropped."""
        ...


class Leadership(Protocol):
    @property
    def identity(self) -> str: ...

    def is_leader(self) -> bool:
        """False as soon as the last renewal is older than the renew deadline (the fence)."""
        ...

    def holder(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Beat:
    """What a replica says of itself: ``seen`` is the newest placement revision its webhook acts on."""

    identity: str
    seen: int
    renewed: datetime
    serving: bool = True


class Heartbeats(Protocol):
    def publish(self, seen: int) -> None: ...

    def others(self) -> Sequence[Beat]:
        """All live replicas but this one (a beat older than its lease duration is a dead replica)."""
        ...


class PlannerRunner(Protocol):
    def run(self, request: PlanRequest, *, time_limit: float) -> PlanReply:
        """Plan in a child process; best so far when time runs out, killed when it does not obey."""
        ...


Hook = Callable[[str, Mapping[str, Any]], None]
"""How adapters report (retries, restarts, drops) without importing logs or metrics: (event, fields)."""
