"""The moves of a run as placements: their names, what they ask for, and what state their placements put them in.

A placement's name follows from run and move alone, so creating it twice is harmless, and after a crash a run finds its
placements by label. Nothing here decides whether a move may start (`core.run_checks`, `core.run_progress`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from defragd.core.budget import Claim, Entry, count_places
from defragd.core.model import Expression, Pod, Selector
from defragd.core.placement import (
    GROUP,
    MOVE_LABEL,
    POLICY_LABEL,
    RUN_LABEL,
    Phase,
    Placement,
    PlacementSpec,
)
from defragd.core.plan import Move
from defragd.core.plan_json import move_from_json
from defragd.core.reasons import Reason
from defragd.core.rules import Rules
from defragd.core.run import MoveState, Run, RunMove

ENDED_MOVES = frozenset({MoveState.DONE, MoveState.FAILED, MoveState.REFUSED, MoveState.DROPPED})
LOST_MOVES = frozenset({MoveState.FAILED, MoveState.REFUSED, MoveState.DROPPED})

_UNDISTURBED = frozenset({MoveState.REFUSED, MoveState.DROPPED})

DAY = timedelta(days=1)
UNSEEN = timedelta(seconds=20)
"""A placement that we created but that no watch has shown for so long was never created: the move waits again."""

VOLATILE = (
    "pod-template-hash",
    "controller-revision-hash",
    "pod-template-generation",
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/",
    "job-name",
    "controller-uid",
    "hami.io/",
    f"{GROUP}/",
)
"""Labels (or prefixes) that controllers and schedulers put on one pod: its replacement need not carry them."""


class _Same:
    """A plan by identity: records are never changed in place, and comparing plans would cost what reading does."""

    __slots__ = ("plan",)

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self.plan = plan

    def __hash__(self) -> int:
        return id(self.plan)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.plan is self.plan


def moves_of(run: Run) -> Mapping[str, Move]:
    """The plan's moves by id, in plan order. A move that cannot be read is left out (the run record was edited)."""
    return _read(_Same(run.plan))


@lru_cache(maxsize=64)
def _read(same: _Same) -> Mapping[str, Move]:
    """Every look at a run asks for its moves several times: a plan is read once."""
    found: dict[str, Move] = {}
    for item in same.plan.get("moves") or ():
        try:
            move = move_from_json(item)
        except (KeyError, TypeError, ValueError):
            continue
        found[move.id] = move
    return MappingProxyType(found)


def placement_name(run: str, move: str) -> str:
    """At most 63 characters (it is a label value on pods), a DNS label, the same for the same run and move."""
    tail = re.sub(r"[^a-z0-9-]+", "-", move.lower()).strip("-")[:20] or "move"
    head = re.sub(r"[^a-z0-9-]+", "-", run.lower()).strip("-")[: 62 - len(tail)].rstrip("-")
    return f"{head}-{tail}"


def selector_for(pod: Pod) -> Selector:
    """Labels that the pod's replacement will carry too (the owner's UID is checked apart from them)."""
    lasting = {key: value for key, value in pod.labels.items() if not key.startswith(VOLATILE)}
    return Selector(tuple(Expression(k, "In", (v,)) for k, v in sorted((lasting or pod.labels).items())))


def placement_for(
    run: Run,
    move: Move,
    pod: Pod,
    rules: Rules,
    *,
    group_size: int = 1,
    start_limit: timedelta | None = None,
    alternatives: tuple[str, ...] = (),
) -> Placement:
    """What to create to carry ``move`` out. ``start_limit``: the owner's own limit for its pods to become Ready;
    ``alternatives``: devices that will do as well if the place is lost on the way."""
    name = placement_name(run.name, move.id)
    timeouts = rules.execution.timeouts
    if start_limit is not None:
        timeouts = replace(timeouts, start=start_limit)
    return Placement(
        namespace=pod.namespace,
        name=name,
        labels={RUN_LABEL: run.name, MOVE_LABEL: move.id, POLICY_LABEL: run.policy},
        spec=PlacementSpec(
            req_id=name,
            pod_selector=selector_for(pod),
            node_name=move.target.node,
            gpu_devices=move.target.devices,
            evict_pod=pod.name,
            evict_pod_uid=pod.uid,
            timeouts=timeouts,
            settle=rules.execution.settle,
            handover=rules.execution.handover,
            alternatives=alternatives,
            group=placement_name(run.name, move.group) if move.group else "",
            group_size=group_size,
        ),
    )


def by_move(run: Run, placements: Iterable[Placement]) -> dict[str, Placement]:
    """The run's own placements by move id."""
    return {p.labels.get(MOVE_LABEL, ""): p for p in placements if p.labels.get(RUN_LABEL) == run.name}


def caught_up(state: RunMove, placement: Placement | None, now: datetime) -> RunMove:
    """``state`` after a look at its placement (None: the cache shows none)."""
    if state.state in ENDED_MOVES:
        return state
    if placement is None:
        return _without(state, now)
    started = state.started or placement.created or now
    status = placement.status
    known = replace(state, placement=placement.key, started=started, message=status.message or str(status.phase))
    if placement.open:
        return replace(known, state=MoveState.IN_FLIGHT, reason=status.reason)
    ended = status.ended_at or now
    if status.phase is Phase.COMPLETED:
        return replace(known, state=MoveState.DONE, reason=str(Reason.COMPLETED), finished=ended)
    # before the eviction nothing was disturbed: the placement was refused, the move did not fail
    disturbed = status.eviction_accepted or status.evicted_at is not None or status.pinned_at is not None
    lost = MoveState.FAILED if disturbed else MoveState.REFUSED
    return replace(known, state=lost, reason=status.reason or str(Reason.EXPIRED), finished=ended)


def _without(state: RunMove, now: datetime) -> RunMove:
    if state.state is not MoveState.IN_FLIGHT or state.started is None or now - state.started < UNSEEN:
        return state
    if not state.message:
        return replace(state, state=MoveState.WAITING, placement="", started=None)
    return replace(
        state,
        state=MoveState.FAILED,
        reason=str(Reason.PLACEMENT_DELETED),
        message=f"placement {state.placement} was deleted while the move was under way",
        finished=now,
    )


def claim_of(move: Move, run: str, *, replicas: int = 0) -> Claim:
    return Claim(
        id=f"{run}/{move.id}",
        workload=move.workload or move.pod,
        namespace=move.pod.partition("/")[0],
        source=move.source.node,
        target=move.target.node,
        replicas=replicas,
    )


def arrived(placement: Placement | None) -> bool:
    """The pod is there and Ready: the next one may arrive on that node (HAMi's node lock is free again)."""
    return placement is not None and placement.status.phase is Phase.SETTLING


def entries_of(run: Run, placements: Mapping[str, Placement], *, own: bool) -> list[Entry]:
    """What the run's started moves count in the budgets. A refused move, which disturbed nobody, counts nothing."""
    found = []
    plan = moves_of(run)
    for state in run.moves:
        move = plan.get(state.id)
        if move is None or state.started is None or state.state in (MoveState.REFUSED, MoveState.DROPPED):
            continue
        finished = state.finished if state.state in ENDED_MOVES else None
        landed = finished is None and arrived(placements.get(state.id))
        found.append(Entry(claim_of(move, run.name), state.started, finished, own=own, landed=landed))
    return found


def foreign_entries(placements: Iterable[Placement], pods: Mapping[str, Pod], *, known: frozenset[str]) -> list[Entry]:
    """Open placements that no run in ``known`` accounts for (written by hand, or of a run whose record is gone)."""
    found = []
    for placement in placements:
        if not placement.open or placement.labels.get(RUN_LABEL, "") in known or placement.created is None:
            continue
        pod = pods.get(f"{placement.namespace}/{placement.spec.evict_pod}")
        source = pod.node if pod and pod.uid != placement.status.pod_uid else ""
        found.append(
            Entry(
                Claim(placement.key, placement.key, placement.namespace, source, placement.spec.node_name),
                placement.created,
                own=False,
                landed=arrived(placement),
            )
        )
    return found


def moves_lately(runs: Iterable[Run], now: datetime) -> tuple[dict[str, int], dict[str, datetime]]:
    """Moves of the last 24 h per workload, and when each workload's latest move ended (for the cooldown). A refused
    move disturbed nobody, so it counts nothing."""
    count: dict[str, int] = {}
    last: dict[str, datetime] = {}
    for run in runs:
        plan = moves_of(run)
        for state in run.moves:
            move = plan.get(state.id)
            if move is None or state.started is None or not state.placement or state.state in _UNDISTURBED:
                continue
            workload = move.workload or move.pod
            if now - state.started < DAY:
                count[workload] = count.get(workload, 0) + 1
            ended = state.finished or state.started
            if workload not in last or last[workload] < ended:
                last[workload] = ended
    return count, last


def places_lately(runs: Iterable[Run], now: datetime) -> dict[tuple[str, str], int]:
    """Moves of the last 24 h per source node, target node and namespace; a refused one disturbed nobody."""
    return count_places(
        entry.claim for run in runs for entry in entries_of(run, {}, own=False) if now - entry.started < DAY
    )


def arrivals_lately(runs: Iterable[Run]) -> dict[str, datetime]:
    """When the latest moved pod arrived, per node (for the rest of nodes that received)."""
    last: dict[str, datetime] = {}
    for run in runs:
        plan = moves_of(run) if any(state.state is MoveState.DONE for state in run.moves) else {}
        for state in run.moves:
            move = plan.get(state.id)
            if move is None or state.state is not MoveState.DONE or state.finished is None:
                continue
            node = move.target.node
            if node not in last or last[node] < state.finished:
                last[node] = state.finished
    return last
