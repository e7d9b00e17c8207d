"""What a strategy is: a pure function from a scene to a proposal. Plug-ins implement exactly this.

A strategy decides *what* should move *where*. Order, waves, budgets in flight, exact fit rules, gates and proof are the
planner's, the same for all strategies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

import numpy as np

from defragd.core.aims import GUARDED, Aim, make_aim
from defragd.core.arrays import Arena, Bools, Floats
from defragd.core.budget import Books, Claim
from defragd.core.model import Pod
from defragd.core.plan import Place, Refusal
from defragd.core.rules import Rules
from defragd.core.score import idle_nodes
from defragd.core.shapes import Shapes, build_shapes
from defragd.core.snapshot import Snapshot
from defragd.core.tables import Spot, World
from defragd.core.vendor import Vendor
from defragd.core.workloads import replicas_of
from defragd.core.yardstick import Yardstick


@dataclass(frozen=True)
class Proposal:
    """Where pods should go. ``goals``: sets of pod keys that make sense together only (all or none, unless the policy
    accepts partial goals). ``trim``: moves that gain nothing may be taken out again (not for drains)."""

    moves: tuple[tuple[str, Place], ...] = ()
    goals: tuple[frozenset[str], ...] = ()
    refused: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()
    stopped: str = "complete"
    objective: str = "auto"
    score_name: str = ""
    """"" = by objective (`aims.SCORE_NAMES`)."""
    trim: bool = True
    why: Mapping[str, str] = field(default_factory=dict)
    """Pod key -> why it moves, where the strategy has more to say than the planner."""


@dataclass
class Scene:
    """What a strategy may look at. ``movable``: pods that rules, owners and budgets let go; ``standing``: the others,
    with their reason. ``verify`` asks the exact fit rules (HAMi's and kube-scheduler's) about one move, given the pods
    moved so far."""

    snapshot: Snapshot
    args: Any
    rules: Rules
    now: datetime | None
    seed: int
    max_steps: int | None
    should_stop: Callable[[], bool]
    arena: Arena
    yardstick: Yardstick
    movable: Mapping[str, Pod]
    standing: Mapping[str, Refusal]
    cost: Mapping[str, float]
    workload: Mapping[str, str]
    history: Mapping[str, int]
    vendors: Mapping[str, Vendor]
    scope_nodes: frozenset[str]
    """Nodes the policy's scope covers: sources and targets."""
    barred: frozenset[tuple[str, str]] = frozenset()
    """(pod, node) pairs that an earlier round found impossible."""
    moved_places: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """See `PlanRequest.moved_places`."""
    verify: Callable[[Pod, Place, Mapping[str, Pod]], Refusal | None] = lambda pod, place, moved: None
    orderable: Callable[[Mapping[str, Place]], int | None] = lambda moves: 0
    """How many pods of these moves would have to be out together because they wait for each other; None = the moves
    cannot be ordered at all within budgets in flight and disruption budgets."""

    def aim(self, objective: str) -> Aim:
        return make_aim(objective, self.yardstick, self.arena.fleet)

    def shapes(self, pods: Mapping[str, Pod] | None = None, wanted: Sequence[Pod] = ()) -> Shapes:
        exclusive = {word: vendor.exclusive_cores for word, vendor in self.vendors.items()}
        chosen = self.movable if pods is None else pods
        return build_shapes(self.snapshot, self.arena.fleet, chosen.values(), vendor_exclusive=exclusive, wanted=wanted)

    def world(self, aim: Aim, shapes: Shapes, *, use_idle_nodes: bool, closed: Bools | None = None) -> World:
        """The what-if state. Idle nodes of `aims.GUARDED` or more devices receive only when asked; ``closed``: devices
        that must not receive."""
        fleet = self.arena.fleet
        barred = np.array([name not in self.scope_nodes for name in fleet.names], dtype=np.bool_)
        if not use_idle_nodes:
            barred |= idle_nodes(fleet, self.arena.books) & (fleet.size >= GUARDED)
        devices = np.zeros(len(fleet.devices), dtype=np.bool_) if closed is None else closed
        held = self.arena.held
        if held:
            devices = devices | np.array([d.uuid in held for d in fleet.devices], dtype=np.bool_)
        return World(self.arena, aim, shapes, barred_nodes=barred, barred_devices=devices)

    def costs(self, shapes: Shapes) -> Floats:
        return np.array([self.cost.get(pod.key, 1.0) for pod in shapes.pods], dtype=np.float64)

    def place(self, spot: Spot) -> Place:
        """Node and one UUID per distinct device, in array terms turned back into names."""
        fleet = self.arena.fleet
        return Place(fleet.names[spot.node], tuple(fleet.devices[d].uuid for d in spot.devices))

    def claim(self, pod: Pod, node: str) -> Claim:
        share = self.rules.budgets.per_workload.in_flight_pct is not None
        replicas = replicas_of(self.snapshot, pod)[0] if share else 0
        return Claim(pod.key, self.workload.get(pod.key, pod.key), pod.namespace, pod.booked_node, node, replicas)

    def budget_books(self) -> Books:
        """Fresh counters of the caps of a whole run."""
        return Books.for_plan(self.rules.budgets, dict(self.history), self.moved_places)


@runtime_checkable
class Strategy(Protocol):
    """Registered by entry point group ``defragd.strategies``. ``args_type`` is a frozen dataclass whose fields are
    the policy's ``strategy.args`` in snake case; ``drain``: it empties places, so pods that are not Ready may go."""

    @property
    def name(self) -> str: ...

    @property
    def args_type(self) -> type: ...

    @property
    def drain(self) -> bool: ...

    def propose(self, scene: Scene) -> Proposal: ...


def make_args(args_type: type, given: Mapping[str, Any]) -> Any:
    """The strategy's arguments from a policy's mapping (camelCase or snake_case). TypeError names an unknown one."""
    names = {f.name: f for f in args_type.__dataclass_fields__.values()}  # type: ignore[attr-defined]
    spelt = {spelling: name for name, f in names.items() for spelling in (name, _spelt(f))}
    values: dict[str, Any] = {}
    for key, value in given.items():
        snake = spelt.get(key)
        if snake is None:
            known = ", ".join(sorted(_spelt(f) for f in names.values())) or "none"
            raise TypeError(f"unknown argument {key!r}; known: {known}")
        kind = names[snake].metadata.get("type")
        if kind is not None and isinstance(value, Mapping):
            value = make_args(kind, value)
        elif not _right(names[snake].type, value):
            raise TypeError(f"argument {key!r} must be {_WORDS[str(names[snake].type)]}, not {value!r}")
        values[snake] = value
    return args_type(**values)


_WORDS = {"int": "a whole number", "bool": "true or false", "str": "text"}
_TYPES: Mapping[str, type] = {"int": int, "bool": bool, "str": str}


def _right(wanted: object, value: object) -> bool:
    """Whether a plain value has the annotated type (annotations are text here; others are the dataclass's own)."""
    kind = _TYPES.get(str(wanted))
    return kind is None or (isinstance(value, kind) and (kind is bool or not isinstance(value, bool)))


def _spelt(field: Any) -> str:
    """How a policy spells the argument: camelCase, or what the field's metadata says under "key"."""
    head, *rest = str(field.name).split("_")
    return str(field.metadata.get("key") or head + "".join(part.capitalize() for part in rest))
