"""One run of a policy as a value: what the plan was, how far it is, why it waits or stopped (stored as a DefragRun)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from defragd.core.model import EMPTY


class RunPhase(StrEnum):
    PLANNED = "Planned"
    """A dry run ends here: the plan is the result."""
    AWAITING_APPROVAL = "AwaitingApproval"
    RUNNING = "Running"
    PAUSED = "Paused"
    COMPLETED = "Completed"
    ABORTED = "Aborted"
    CANCELLED = "Cancelled"
    EXPIRED = "Expired"
    FAILED = "Failed"


ENDED_RUNS = frozenset(
    {RunPhase.PLANNED, RunPhase.COMPLETED, RunPhase.ABORTED, RunPhase.CANCELLED, RunPhase.EXPIRED, RunPhase.FAILED}
)


class MoveState(StrEnum):
    WAITING = "Waiting"
    IN_FLIGHT = "InFlight"
    DONE = "Done"
    FAILED = "Failed"
    REFUSED = "Refused"
    DROPPED = "Dropped"


@dataclass(frozen=True, slots=True)
class RunMove:
    """``id`` is the plan's move id; ``placement`` is ns/name once created."""

    id: str
    state: MoveState = MoveState.WAITING
    placement: str = ""
    reason: str = ""
    message: str = ""
    started: datetime | None = None
    finished: datetime | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """``plan`` is the plan's JSON object (design section 2.1); ``mode`` DryRun, Approve or Auto; ``trigger`` says what
    started it (schedule, manual, pending-pods, ...). ``desired`` is what people ask of it: "", Paused, Cancelled or
    Approved."""

    namespace: str
    name: str
    policy: str
    mode: str
    strategy: str
    plan: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    trigger: str = "schedule"
    scheduled_for: datetime | None = None
    settings: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    """The policy as it was when the run was planned (its JSON), so that a restart executes what was approved."""
    desired: str = ""
    desired_by: str = ""
    phase: RunPhase = RunPhase.PLANNED
    reason: str = ""
    message: str = ""
    wave: int = 0
    moves: tuple[RunMove, ...] = ()
    created: datetime | None = None
    started: datetime | None = None
    finished: datetime | None = None
    uid: str = ""
    revision: str = ""
    annotations: Mapping[str, str] = field(default_factory=lambda: EMPTY)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def ended(self) -> bool:
        return self.phase in ENDED_RUNS
