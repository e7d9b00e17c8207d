"""A policy's values as plain data: scope, protections, gain gates, budgets, execution. Defaults are design section 4's.

The pydantic model in `defragd.policy.schema` turns into these; the core never sees YAML. None means unlimited.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from defragd.core.model import Expression, Selector


@dataclass(frozen=True, slots=True)
class Scope:
    node_selector: Selector = field(default_factory=Selector)
    pod_selector: Selector = field(default_factory=Selector)
    namespaces_include: tuple[str, ...] = ()
    namespaces_exclude: tuple[str, ...] = ("kube-system",)
    vendors: tuple[str, ...] = ("NVIDIA",)
    device_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Protection:
    min_pod_age: timedelta = timedelta(minutes=30)
    min_replicas: int = 2
    priority_at_most: int | None = 100_000
    owner_kinds_exclude: tuple[str, ...] = ("Job", "DaemonSet")
    owner_kinds_include: tuple[str, ...] = ()
    require_pdb: bool = False
    local_storage: bool = False
    """True: pods with emptyDir or hostPath data may move."""
    volumes: bool = True
    """True: pods with claims may move where the claim allows it."""
    not_ready: bool = False
    """True: pods that are not Ready may move (drains always may)."""
    gangs: str = "Whole"
    """Whole (all members or none), Members (one by one above the minimum), Never."""


@dataclass(frozen=True, slots=True)
class Gain:
    per_move: float = 0.0
    total: float = 0.0
    expected_mix: tuple[MixClass, ...] | None = None
    """None = the running mix (states/README section 3.2)."""


@dataclass(frozen=True, slots=True)
class MixClass:
    """One class of a fixed request mix; the fields and their order are the class key of states/README section 3.2."""

    cpu_milli: int
    memory_bytes: int
    gpus: int
    cores: int
    memory_pct: int
    memory_mib: int
    use_types: str = ""
    nouse_types: str = ""
    weight: float = 0.0


@dataclass(frozen=True, slots=True)
class Cap:
    """A budget as (in flight at once, per run, per day); a bare number in a policy is in flight."""

    in_flight: int | None = None
    per_run: int | None = None
    per_day: int | None = None
    in_flight_pct: int | None = None
    """Share of a workload's replicas that may be in flight, percent (rounded down, at least one)."""


@dataclass(frozen=True, slots=True)
class Budgets:
    total: int | None = 50
    per_day: int | None = None
    concurrent: int | None = 5
    per_source_node: Cap = Cap(in_flight=2)
    per_target_node: Cap = Cap(in_flight=1)
    per_namespace: Cap = Cap(in_flight=10)
    per_workload: Cap = Cap(in_flight=1)
    spacing: timedelta = timedelta(seconds=30)
    rate: tuple[int, timedelta] | None = (10, timedelta(minutes=1))


@dataclass(frozen=True, slots=True)
class Timeouts:
    hold: timedelta = timedelta(minutes=2)
    evict: timedelta = timedelta(minutes=10)
    start: timedelta = timedelta(minutes=5)
    pod: timedelta = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Execution:
    handover: str = "EvictFirst"
    timeouts: Timeouts = Timeouts()
    settle: timedelta = timedelta(seconds=60)
    abort_above: float | None = 0.3
    cooldown: timedelta = timedelta(hours=6)
    node_cooldown: timedelta = timedelta(hours=1)
    """Pods of a node that received a moved pod stay for so long."""


@dataclass(frozen=True, slots=True)
class Rules:
    scope: Scope = Scope()
    protect: Protection = Protection()
    gain: Gain = Gain()
    budgets: Budgets = Budgets()
    execution: Execution = Execution()
    partial: bool = False
    """Accept partial goals where a strategy is all-or-nothing."""


def equals(labels: dict[str, str]) -> Selector:
    """A selector of exact label values."""
    return Selector(tuple(Expression(key, "In", (value,)) for key, value in sorted(labels.items())))
