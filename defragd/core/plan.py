"""What goes into a planning run and what comes out. Values only; `core.planner` computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from defragd.core.rules import Rules
from defragd.core.snapshot import Snapshot
from defragd.core.vendor import Vendor


@dataclass(frozen=True, slots=True)
class Place:
    """A node and devices on it, one UUID per device held (in the order of the pod's allocations)."""

    node: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """One pod from where it is to a proven place. ``after`` names moves that must have left or landed before;
    ``group`` (else "") names a co-evicted component: all its pods are out at once."""

    id: str
    pod: str
    uid: str
    source: Place
    target: Place
    wave: int = 0
    after: tuple[str, ...] = ()
    group: str = ""
    gain: float = 0.0
    cost: float = 1.0
    why: str = ""
    workload: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """``object``: ns/name for pods, Kind/name otherwise. ``reason``: a core.reasons value."""

    object: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Score:
    """L and phi (states/README section 3), whole idle devices and nodes, and copies per class of the request mix."""

    loss: float
    phi: float
    idle_devices: int
    idle_nodes: int
    idle_gpus: float = 0.0
    causes: Mapping[str, float] = field(default_factory=dict)
    """Shares of phi: deviceShape, host, both, type."""
    classes: tuple[ClassScore, ...] = ()


@dataclass(frozen=True, slots=True)
class ClassScore:
    """One request class: weight in the mix, copies that fit now (K), copies if all idle capacity were pooled (K*)."""

    label: str
    weight: float
    fits: int
    pooled: int


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Everything a plan depends on. ``max_steps`` bounds the search reproducibly; time only cuts it (should_stop)."""

    snapshot: Snapshot
    policy: str
    strategy: str
    args: Mapping[str, Any] = field(default_factory=dict)
    rules: Rules = field(default_factory=Rules)
    now: datetime | None = None
    seed: int = 0
    max_steps: int | None = None
    history: Mapping[str, int] = field(default_factory=dict)
    """Moves of the last 24 h per workload (``Move.workload``: the key of the top owner)."""
    moved_places: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Moves of the last 24 h per source node, target node and namespace (`budget.count_places`)."""
    last_moved: Mapping[str, datetime] = field(default_factory=dict)
    """End of the latest move per workload, for the cooldown."""
    arrivals: Mapping[str, datetime] = field(default_factory=dict)
    """When a moved pod last arrived, per node: nodes that received rest too."""
    closed: Mapping[str, str] = field(default_factory=dict)
    """Nodes that take no part, and why (their pool's breaker is open)."""
    vendors: Mapping[str, Vendor] = field(default_factory=dict)
    """Facts of every backend (hami.vendors.VENDORS)."""


@dataclass(frozen=True, slots=True)
class PlanReply:
    """The plan. ``stopped``: complete, time, steps, budget, infeasible. ``score_name`` names the objective."""

    policy: str
    strategy: str
    score_name: str
    before: Score
    after: Score
    moves: tuple[Move, ...] = ()
    waves: tuple[tuple[str, ...], ...] = ()
    refused: tuple[Refusal, ...] = ()
    warnings: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()
    stopped: str = "complete"
    freed_devices: int = 0
    freed_nodes: int = 0
    elapsed_seconds: float = 0.0
    """Filled by the caller that has a clock."""
