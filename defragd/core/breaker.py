"""Oscillation: a known state returns with our moves in between, so moving again would go in circles.

Every run that moves records digests of who held what where (workload, node, device, shape; names and UIDs do not
matter, replicas are alike): one per workload it moves and one per pool. When a new plan wants to move a workload, or
anything of a pool, from a state from which two earlier runs moved it already, the breaker opens for that pool: no run
moves anything there until a person lifts it (approves the run that opened it) or the time is over. The digest of the
pool sees pods that go in circles by turns, that of the workload is not hidden by other workloads' changes. All of it is
read from run records, so restarts forget nothing.
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
"""Annotation of a run: {workload or "pool:NAME": digest} it was planned from, for what it moves."""
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
    return {key: _digest(parts) for key, parts in held.items()}


def pool_states(snapshot: Snapshot, moves: Sequence[Move], pool_of: PoolOf) -> dict[str, str]:
    """Digest of everything that is held in each pool the moves leave, by "pool:NAME"."""
    pools = {pool_of(snapshot.nodes[m.source.node]) for m in moves if m.source.node in snapshot.nodes}
    held: dict[str, list[str]] = {pool: [] for pool in pools}
    of = {node.name: pool_of(node) for node in snapshot.nodes.values() if node.devices}
    for pod in snapshot.pods.values():
        pool = of.get(pod.booked_node, "")
        if pool in held and pod.live and not pod.deleting:
            key = workload_key(snapshot, pod)
            held[pool] += [f"{key}|{a.uuid}|{a.memory_mib}|{a.cores}" for a in pod.allocations]
    return {f"pool:{pool}": _digest(parts) for pool, parts in held.items()}


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()[:12]


def marks(snapshot: Snapshot, moves: Sequence[Move], pool_of: PoolOf) -> dict[str, str]:
    """The annotation for a run with these moves."""
    states = states_of(snapshot, list(dict.fromkeys(m.workload or m.pod for m in moves))[:MOST_STATES])
    states |= pool_states(snapshot, moves, pool_of)
    return {STATES: json.dumps(states, sort_keys=True, separators=(",", ":"))} if states else {}


def judge(
    runs: Iterable[Run], snapshot: Snapshot, moves: Sequence[Move], now: datetime, pool_of: PoolOf
) -> Opening | None:
    """Whether this plan would go in circles."""
    known = [r for r in runs if r.created is not None and now - r.created < LOOK_BACK]
    lifted = _settled(known)
    current = {**states_of(snapshot, {m.workload or m.pod for m in moves}), **pool_states(snapshot, moves, pool_of)}
    history = [(run, _states(run), _moved(run)) for run in known if STATES in run.annotations]
    circles: list[tuple[Move, str, list[Run]]] = []
    for move in moves:
        workload = move.workload or move.pod
        node = snapshot.nodes.get(move.source.node)
        pool = pool_of(node) if node is not None else ""
        since = lifted.get(pool)
        for key in (workload, f"pool:{pool}"):
            earlier = [
                run
                for run, states, moved in history
                if states.get(key, "") == current.get(key)
                and (workload in moved if key == workload else bool(moved))
                and (since is None or (run.created is not None and run.created > since))
            ]
            if len(earlier) >= RETURNS:
                circles.append((move, key, earlier))
                break
    if not circles:
        return None
    pools = sorted({pool_of(snapshot.nodes[m.source.node]) for m, _, _ in circles if m.source.node in snapshot.nodes})
    move, key, earlier = circles[0]
    what = f"pool {key[5:]}" if key.startswith("pool:") else key
    pods = list(dict.fromkeys([*(m.pod for m, _, _ in circles), *_pods(earlier)]))
    names = ", ".join(pods[:5])
    more = f" and {len(pods) - 5} more" if len(pods) > 5 else ""
    text = (
        f"something moves pods back: {names}{more}; {what} is for the {_th(len(earlier) + 1)} time in state "
        f"{current[key]} (with {move.pod} on {move.source.node}), which {', '.join(r.name for r in earlier[-3:])} "
        f"turned into one with pods on {_targets(earlier)}"
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


def _targets(runs: Sequence[Run]) -> str:
    return ", ".join(list(dict.fromkeys(m.target.node for r in runs for m in moves_of(r).values()))[:3])


def _pods(runs: Sequence[Run]) -> list[str]:
    return [m.pod for r in runs for m in moves_of(r).values()]


def _th(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
