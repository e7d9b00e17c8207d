"""From a snapshot and a policy's values to a plan that is proven before anything starts.

`plan` asks the strategy what should move where, orders the moves (`core.graph`, `core.waves`), takes out what no order,
budget or exact rule allows, what gains nothing and what the gates refuse, replays the rest move by move, and says for
every pod that stayed why. Pure: the clock is ``should_stop``, the dice are ``seed``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from defragd.core.arrays import build_arena
from defragd.core.budget import Floor
from defragd.core.cost import move_cost
from defragd.core.eligibility import eligible, workload_key
from defragd.core.exact import Exact
from defragd.core.gangs import gang_of
from defragd.core.mix import given_mix, running_mix
from defragd.core.model import Pod
from defragd.core.pdb import Ledger
from defragd.core.plan import PlanReply, PlanRequest, Refusal
from defragd.core.plan_build import Build
from defragd.core.reasons import Reason
from defragd.core.selectors import matches
from defragd.core.snapshot import Snapshot
from defragd.core.strategy import Scene, Strategy, make_args
from defragd.core.yardstick import make_yardstick
from defragd.errors import ConfigError

_EPOCH_END = datetime.max.replace(tzinfo=UTC)
"""Stands for "now" where nobody says: every pod is old enough, which a file without a clock cannot deny."""
ROUNDS = 4
"""How often a proposal is asked for again when the exact rules refuse part of it."""


def plan(
    request: PlanRequest,
    *,
    strategies: Mapping[str, Strategy],
    should_stop: Callable[[], bool] = lambda: False,
) -> PlanReply:
    """The plan for one policy on one snapshot. The same request gives the same reply, unless time cuts it short.

    ConfigError: unknown strategy or arguments it does not take.
    """
    strategy = strategies.get(request.strategy)
    if strategy is None:
        known = ", ".join(sorted(strategies)) or "none"
        raise ConfigError(f"strategy {request.strategy!r} is not installed; known: {known}")
    try:
        args = make_args(strategy.args_type, request.args)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"strategy {request.strategy}: {error}") from error
    scene = make_scene(request, args, drain=bool(getattr(strategy, "drain", False)), should_stop=should_stop)
    build = Build(scene, request)
    scene.orderable = build.orderable
    best = _ask(strategy, scene, build)
    if best.objective == "auto" and best.reply.moves and not build.lowers_loss(best.reply) and scene.max_steps != 0:
        # idle devices and nodes alone are not worth chains of moves: a search finds other ones on every state
        scene.max_steps = 0
        best = _ask(strategy, scene, build)
    return best.reply


@dataclass(frozen=True)
class _Answer:
    reply: PlanReply
    objective: str
    """"" where the strategy pursues no score."""


def _ask(strategy: Strategy, scene: Scene, build: Build) -> _Answer:
    """The best reply of a few rounds; what the exact rules refuse in one is barred in the next."""
    best: _Answer | None = None
    for _ in range(ROUNDS):
        proposal = strategy.propose(scene)
        reply, barred = build.reply(proposal)
        if best is None or _better(reply, best.reply):
            best = _Answer(reply, proposal.objective if proposal.trim else "")
        if not barred or scene.should_stop():
            break
        scene.barred = scene.barred | barred
    assert best is not None
    return best


def _better(one: PlanReply, other: PlanReply) -> bool:
    return (sum(m.gain for m in one.moves), -len(one.moves)) > (sum(m.gain for m in other.moves), -len(other.moves))


def make_scene(request: PlanRequest, args: object, *, drain: bool, should_stop: Callable[[], bool]) -> Scene:
    """Arrays, mix and pools of the state before the plan, and who may move."""
    snapshot = request.snapshot
    arena = build_arena(snapshot)
    fixed = request.rules.gain.expected_mix
    vendor = request.rules.scope.vendors[0] if request.rules.scope.vendors else ""
    mix = given_mix(fixed, vendor) if fixed else running_mix(snapshot)
    yardstick = make_yardstick(mix, arena.fleet, arena.books)
    selector = request.rules.scope.node_selector
    scope = frozenset(
        name
        for name in arena.fleet.names
        if name not in request.closed and matches(selector, snapshot.nodes[name].labels)
    )
    movable: dict[str, Pod] = {}
    standing: dict[str, Refusal] = {}
    cost: dict[str, float] = {}
    workload: dict[str, str] = {}
    ledger = Ledger.of(snapshot, partial=True)
    floor = Floor.of(snapshot, ledger, partial=True)
    now = request.now or snapshot.taken_at
    for key, pod in snapshot.pods.items():
        if not pod.live or not (pod.allocations or pod.booked_node):
            continue
        why = _stands(snapshot, pod, request, ledger, floor, scope, drain=drain)
        if why is not None:
            standing[key] = why
            continue
        movable[key] = pod
        owner = workload[key] = workload_key(snapshot, pod)
        cost[key] = move_cost(
            snapshot, pod, now=now, moves_today=request.history.get(owner, 0), in_gang=gang_of(pod) is not None
        )
    exact = Exact(snapshot, request.vendors)
    return Scene(
        snapshot=snapshot,
        args=args,
        rules=request.rules,
        now=now,
        seed=request.seed,
        max_steps=request.max_steps,
        should_stop=should_stop,
        arena=arena,
        yardstick=yardstick,
        movable=movable,
        standing=standing,
        cost=cost,
        workload=workload,
        history=request.history,
        moved_places=request.moved_places,
        vendors=request.vendors,
        scope_nodes=scope,
        verify=exact.refusal,
    )


def _stands(
    snapshot: Snapshot,
    pod: Pod,
    request: PlanRequest,
    ledger: Ledger,
    floor: Floor,
    scope: frozenset[str],
    *,
    drain: bool,
) -> Refusal | None:
    """Why a pod must stay, or None."""
    now = request.now or snapshot.taken_at
    if now is None:
        now = _EPOCH_END
    found = eligible(
        snapshot,
        pod,
        request.rules,
        now,
        drain=drain,
        history=request.history,
        last_moved=request.last_moved,
        arrivals=request.arrivals,
        vendors=request.vendors or None,
        # only drains move all members at once; `core.plan_build` holds them to it
        whole_gangs=drain,
    )
    if not found.ok:
        return Refusal(pod.key, found.reason or Reason.OPTED_OUT, found.detail)
    if pod.key in snapshot.moving:
        return Refusal(pod.key, Reason.ALREADY_MOVING, f"placement {snapshot.moving[pod.key]} moves it already")
    for permit in (ledger.may_evict(pod), floor.may_leave(pod)):
        if not permit.ok:
            return Refusal(pod.key, permit.reason or Reason.PDB_BLOCKS, permit.detail)
    if pod.booked_node in request.closed:
        return Refusal(pod.key, Reason.BREAKER_OPEN, request.closed[pod.booked_node])
    if pod.booked_node not in snapshot.nodes:
        return Refusal(pod.key, Reason.NODE_UNKNOWN, f"its node {pod.booked_node} was not read")
    if pod.booked_node not in scope:
        return Refusal(pod.key, Reason.OUT_OF_SCOPE, f"node {pod.booked_node} is outside the policy's scope")
    return None
