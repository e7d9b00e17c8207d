"""Oscillation: a known state returns with our moves in between, so moving again would go in circles.

Every run that moves records, per workload it moves, a digest of where that workload's pods held which devices (node,
device, shape; names and UIDs do not matter, replicas are alike). When a new plan wants to move a workload from a state
from which two earlier runs moved it already, the breaker opens for the pools it stands in: no run moves anything there
until a person lifts it (approves the run that opened it) or the time is over. Other workloads' changes do not hide a
return. All of it is read from run records, so restarts forget nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from defragd.core.model import Node
from defragd.core.plan import Move
from defragd.core.run import MoveState, Run
from defragd.core.run_moves import moves_of
from defragd.core.snapshot import Snapshot
from defragd.core.workloads import workload_key

STATES = "defragd.io/states"
"""Annotation of a run: {workload: digest} it was planned from, for the workloads it moves."""
BREAKER = "defragd.io/breaker"
"""Annotation of the run that opened a breaker: the pools, separated by commas."""
OPEN_FOR = timedelta(hours=24)
LOOK_BACK = timedelta(days=7)
RETURNS = 2
"""So many earlier runs moved the workload from this very state: it returned that often."""
MOST_STATES = 300
PoolOf = Callable[[Node], str]


@dataclass(frozen=True, slots=True)
class Opening:
    """A breaker that is to open: for which pools, and what goes in circles, in words."""

    pools: tuple[str, ...]
    text: str


def states_of(snapshot: Snapshot, workloads: Iterable[str]) -> dict[str, str]:
    """Digest of where each of these workloads holds what."""
    wanted = set(workloads)
    held: dict[str, list[str]] = {key: [] for key in wanted}
    for pod in snapshot.pods.values():
        if pod.live and pod.allocations and not pod.deleting:
            key = workload_key(snapshot, pod)
            if key in wanted:
                held[key] += [f"{pod.booked_node}|{a.uuid}|{a.memory_mib}|{a.cores}" for a in pod.allocations]
    return {key: hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()[:12] for key, parts in held.items()}


def marks(snapshot: Snapshot, moves: Sequence[Move]) -> dict[str, str]:
    """The annotation for a run with these moves."""
    states = states_of(snapshot, list(dict.fromkeys(m.workload or m.pod for m in moves))[:MOST_STATES])
    return {STATES: json.dumps(states, sort_keys=True, separators=(",", ":"))} if states else {}


def judge(
    runs: Iterable[Run], snapshot: Snapshot, moves: Sequence[Move], now: datetime, pool_of: PoolOf
) -> Opening | None:
    """Whether this plan would go in circles."""
    known = [r for r in runs if r.created is not None and now - r.created < LOOK_BACK]
    lifted = _settled(known)
    current = states_of(snapshot, {m.workload or m.pod for m in moves})
    history = [(run, _states(run), _moved(run)) for run in known if STATES in run.annotations]
    circles: list[tuple[Move, list[Run]]] = []
    for move in moves:
        workload = move.workload or move.pod
        node = snapshot.nodes.get(move.source.node)
        since = lifted.get(pool_of(node)) if node is not None else None
        earlier = [
            run
            for run, states, moved in history
            if states.get(workload) == current.get(workload)
            and workload in moved
            and (since is None or (run.created is not None and run.created > since))
        ]
        if len(earlier) >= RETURNS:
            circles.append((move, earlier))
    if not circles:
        return None
    pools = sorted({pool_of(snapshot.nodes[m.source.node]) for m, _ in circles if m.source.node in snapshot.nodes})
    move, earlier = circles[0]
    workload = move.workload or move.pod
    names = ", ".join(dict.fromkeys(m.pod for m, _ in circles[:5]))
    more = f" and {len(circles) - 5} more" if len(circles) > 5 else ""
    text = (
        f"something moves pods back: {names}{more} in pool {', '.join(pools)}; {workload} stands for the "
        f"{_th(len(earlier) + 1)} time in state {current[workload]} (on {move.source.node}), from which "
        f"{', '.join(r.name for r in earlier[-3:])} moved it to {_targets(earlier, workload)}"
    )
    return Opening(tuple(pools), text[:1000])


def open_breakers(runs: Iterable[Run], now: datetime) -> dict[str, Run]:
    """Pool -> the run that opened its breaker, for those neither lifted nor timed out."""
    found: dict[str, Run] = {}
    for run in runs:
        if keeps(run, now) and run.desired != "Approved":
            for pool in run.annotations[BREAKER].split(","):
                found[pool] = run
    return found


def closed_nodes(snapshot: Snapshot, open_: Mapping[str, Run], pool_of: PoolOf) -> dict[str, str]:
    """Nodes of pools whose breaker is open, and why."""
    closed = {}
    for node in snapshot.nodes.values():
        run = open_.get(pool_of(node)) if node.devices else None
        if run is not None:
            closed[node.name] = told(run)
    return closed


def told(run: Run) -> str:
    """Why it is open and how to lift it."""
    assert run.created is not None
    since = f"open since {run.created:%Y-%m-%d %H:%M} UTC; set spec.desired: Approved on run {run.name} to lift it"
    return f"breaker of pool {run.annotations[BREAKER]}: {run.message} ({since})"


def keeps(run: Run, now: datetime) -> bool:
    """The record holds a breaker open, so it must not be tidied away."""
    return BREAKER in run.annotations and run.created is not None and now - run.created < OPEN_FOR


def _settled(runs: Iterable[Run]) -> dict[str, datetime]:
    """When each pool's breaker was opened last: what was before does not open it again."""
    found: dict[str, datetime] = {}
    for run in runs:
        for pool in run.annotations.get(BREAKER, "").split(","):
            if pool and run.created is not None and (pool not in found or found[pool] < run.created):
                found[pool] = run.created
    return found


def _states(run: Run) -> Mapping[str, str]:
    try:
        found = json.loads(run.annotations.get(STATES, "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _moved(run: Run) -> set[str]:
    """Workloads of which the run moved a pod."""
    done = {state.id for state in run.moves if state.state is MoveState.DONE}
    return {move.workload or move.pod for move in moves_of(run).values() if move.id in done} if done else set()


def _targets(runs: Sequence[Run], workload: str) -> str:
    names = [m.target.node for r in runs for m in moves_of(r).values() if (m.workload or m.pod) == workload]
    return ", ".join(list(dict.fromkeys(names))[:3])


def _th(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
