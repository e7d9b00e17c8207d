"""HamiPodPlacement as values: what was asked, what is stored, what is shown. The rules are in `core.progress`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from defragd.core.model import EMPTY, Allocation, Resources, Selector
from defragd.core.rules import Timeouts

GROUP = "scheduling.hami.placement.com"
VERSION = "v1"
KIND = "HamiPodPlacement"
PLURAL = "hamipodplacements"

GATE = f"{GROUP}/hold"
"""Scheduling gate that the webhook puts on a replacement; every replica removes it when it is overdue."""
DEADLINE = f"{GROUP}/deadline"
"""Annotation beside the gate: RFC 3339 time after which any replica lets the pod go."""
PLACEMENT = f"{GROUP}/placement"
"""Label on gated and pinned pods: name of the placement (of the pod's namespace)."""
STEERED = f"{GROUP}/steered"
"""Annotation: UUIDs that we added to the pod's nouse list, comma-separated."""
PINNED = f"{GROUP}/pinned"
"""Annotation on a pod whose UUID list and node affinity are our pin: the placement's name."""

CLAIM = f"{GROUP}/claim"
"""Annotation on a pod that was pinned at admission: the token that its placement's status names as the claim."""

COST_BEFORE = f"{GROUP}/cost-before"
"""Annotation on the pod that a surge lets go: the deletion cost that it had before ours ("" = none)."""
SURGE_MANAGER = "defragd-surge."
"""Field manager of a replica count that a surge has raised, followed by the placement's UID: by it the API server
itself knows whether the count is still ours, and which placement's."""
MANAGER = "defragd"

RUN_LABEL = "defragd.io/run"
MOVE_LABEL = "defragd.io/move"
POLICY_LABEL = "defragd.io/policy"


class Phase(StrEnum):
    """For people; derived from the stored step and the world."""

    PENDING = "Pending"
    HELD = "Held"
    EVICTING = "Evicting"
    AWAITING_POD = "AwaitingPod"
    BINDING = "Binding"
    SETTLING = "Settling"
    COMPLETED = "Completed"
    FAILED = "Failed"
    EXPIRED = "Expired"


class Step(StrEnum):
    """What is stored because crash-safety needs it. Each is written before its effect."""

    NEW = ""
    HELD = "Held"
    EVICTING = "Evicting"
    PINNED = "Pinned"
    ENDED = "Ended"


ENDED_PHASES = frozenset({Phase.COMPLETED, Phase.FAILED, Phase.EXPIRED})


@dataclass(frozen=True, slots=True)
class PlacementSpec:
    req_id: str
    pod_selector: Selector
    node_name: str
    gpu_devices: tuple[str, ...]
    """"gpu-<index on the node>" or a device UUID."""
    evict_pod: str = ""
    evict_pod_uid: str = ""
    timeouts: Timeouts = Timeouts()
    settle: timedelta = timedelta(seconds=60)
    ttl: timedelta = timedelta(hours=24)
    suspend: bool = False
    handover: str = "EvictFirst"
    alternatives: tuple[str, ...] = ()
    """Devices of the node that will do as well when the place is lost after the old pod has left."""
    group: str = ""
    """Placements of one group leave together (a cycle): each counts the others' evicted pods as gone and the others'
    arrivals as there, and none evicts before all ``group_size`` of them are held."""
    group_size: int = 1


@dataclass(frozen=True, slots=True)
class Condition:
    type: str
    status: str
    reason: str
    message: str = ""
    last_transition: datetime | None = None
    observed_generation: int = 0


@dataclass(frozen=True, slots=True)
class Assignment:
    pod_name: str
    pod_uid: str
    gpu_device: str
    uuid: str


@dataclass(frozen=True, slots=True)
class PlacementStatus:
    phase: Phase = Phase.PENDING
    step: Step = Step.NEW
    observed_generation: int = 0
    reason: str = ""
    message: str = ""
    devices: tuple[str, ...] = ()
    """gpu_devices resolved to UUIDs when held."""
    owner_uid: str = ""
    """Controller of the evicted pod: only its pods may take the place."""
    evicted_uid: str = ""
    eviction_accepted: bool = False
    pod_name: str = ""
    pod_uid: str = ""
    held_at: datetime | None = None
    evicting_at: datetime | None = None
    evicted_at: datetime | None = None
    pinned_at: datetime | None = None
    consumed_at: datetime | None = None
    ready_at: datetime | None = None
    ended_at: datetime | None = None
    recycled: bool = False
    """Our own pinned pod that never got Ready was evicted once, to start again without its pin."""
    conditions: tuple[Condition, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    hold: tuple[Allocation, ...] = ()
    """Room promised on the target devices, counted by planner and validators while the placement is open. Stored,
    because the pod it was taken from is gone for part of the move."""
    hold_resources: Resources | None = None
    """Host resources promised on the target node; None = none."""
    claim: str = ""
    """Pin at admission: token of the creation that has taken the place; its pod carries the same token."""
    claimed_at: datetime | None = None
    grace_seconds: int = 30
    """Termination grace of the evicted pod; the gate's deadline is this + 60 s after the admission."""


@dataclass(frozen=True, slots=True)
class Placement:
    namespace: str
    name: str
    spec: PlacementSpec
    status: PlacementStatus = PlacementStatus()
    uid: str = ""
    generation: int = 1
    revision: str = ""
    created: datetime | None = None
    deleting: bool = False
    labels: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    annotations: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    finalizers: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def surges(self) -> bool:
        """Make before break: the replacement is Ready before the old pod goes."""
        return self.spec.handover == "SurgeFirst"

    @property
    def open(self) -> bool:
        return self.status.step is not Step.ENDED and self.status.phase not in ENDED_PHASES
