"""Our own two kinds on the wire: HamiPodPlacement and DefragRun (see crds/), as msgspec structs."""

from __future__ import annotations

from typing import Any

import msgspec

from defragd.kube.wire import LabelSelector, ObjectMeta, Wire


class TimeoutsWire(Wire):
    hold: str | None = None
    evict: str | None = None
    start: str | None = None
    pod: str | None = None


class PlacementSpecWire(Wire):
    req_id: str = msgspec.field(default="", name="reqID")
    pod_selector: LabelSelector | None = None
    node_name: str = ""
    gpu_devices: list[str] | None = None
    evict_pod: str | None = None
    evict_pod_uid: str | None = msgspec.field(default=None, name="evictPodUID")
    suspend: bool | None = None
    timeouts: TimeoutsWire | None = None
    settle: str | None = None
    ttl: str | None = None
    handover: str | None = None
    alternatives: list[str] | None = None
    group: str | None = None
    group_size: int | None = None


class ConditionWire(Wire, omit_defaults=False):
    type: str = ""
    status: str = "Unknown"
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int = 0


class AssignmentWire(Wire):
    pod_name: str = ""
    pod_uid: str = msgspec.field(default="", name="podUID")
    gpu_device: str = ""
    uuid: str = ""


class HeldWire(Wire, omit_defaults=False):
    """One `core.model.Allocation` of the hold."""

    slot: int = 0
    uuid: str = ""
    memory_mib: int = msgspec.field(default=0, name="memoryMiB")
    cores: int = 0
    vendor: str = "NVIDIA"
    init: bool = False


class HeldResourcesWire(Wire, omit_defaults=False):
    cpu_milli: int = 0
    memory_bytes: int = 0
    pods: int = 1
    ephemeral_bytes: int = 0
    extended: dict[str, int] = msgspec.field(default_factory=dict)


class PlacementStatusWire(Wire):
    phase: str = ""
    step: str = ""
    observed_generation: int = 0
    reason: str = ""
    message: str = ""
    devices: list[str] | None = None
    owner_uid: str = msgspec.field(default="", name="ownerUID")
    evicted_uid: str = msgspec.field(default="", name="evictedUID")
    eviction_accepted: bool = False
    pod_name: str = ""
    pod_uid: str = msgspec.field(default="", name="podUID")
    held_at: str | None = None
    evicting_at: str | None = None
    evicted_at: str | None = None
    pinned_at: str | None = None
    consumed_at: str | None = None
    ready_at: str | None = None
    ended_at: str | None = None
    recycled: bool = False
    claim: str = ""
    claimed_at: str | None = None
    assignment_details: list[AssignmentWire] | None = None
    conditions: list[ConditionWire] | None = None
    hold: list[HeldWire] | None = None
    hold_resources: HeldResourcesWire | None = None
    grace_seconds: int = 30


class PlacementWire(Wire):
    metadata: ObjectMeta
    spec: PlacementSpecWire = msgspec.field(default_factory=PlacementSpecWire)
    status: PlacementStatusWire = msgspec.field(default_factory=PlacementStatusWire)


class RunSpecWire(Wire):
    policy: str = ""
    mode: str = ""
    strategy: str = ""
    trigger: str = ""
    scheduled_for: str | None = None
    plan: dict[str, Any] | None = None
    settings: dict[str, Any] | None = None
    desired: str = ""
    desired_by: str = ""


class RunMoveWire(Wire):
    id: str = ""
    state: str = ""
    placement: str = ""
    reason: str = ""
    message: str = ""
    started: str | None = None
    finished: str | None = None


class CountsWire(Wire, omit_defaults=False):
    planned: int = 0
    done: int = 0
    failed: int = 0
    refused: int = 0


class RunStatusWire(Wire):
    phase: str = ""
    reason: str = ""
    message: str = ""
    observed_generation: int = 0
    wave: int = 0
    counts: CountsWire | None = None
    moves: list[RunMoveWire] | None = None
    started: str | None = None
    finished: str | None = None
    conditions: list[ConditionWire] | None = None


class RunWire(Wire):
    metadata: ObjectMeta
    spec: RunSpecWire = msgspec.field(default_factory=RunSpecWire)
    status: RunStatusWire = msgspec.field(default_factory=RunStatusWire)
