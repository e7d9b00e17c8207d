"""How a run goes on: which moves start now, how far it is, why it waits, when it ends. A function of values.

Moves roll: a move starts as soon as what it waits for has landed and every cap has room, waves only give the order.
So a slow replacement delays its own workload and whatever needs its place, not the whole cluster. The run stops
starting moves when it is paused, cancelled, past its deadline, outside its window or failing too often; what is under
way is always brought to its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from defragd.core.duration import format_duration
from defragd.core.placement import Placement
from defragd.core.reasons import Reason
from defragd.core.rules import Rules
from defragd.core.run import MoveState, Run, RunPhase
from defragd.core.run_moves import ENDED_MOVES, by_move, caught_up, moves_of
from defragd.core.run_starts import Around, Starter
from defragd.core.snapshot import Snapshot

__all__ = ["ALONE", "Around", "RunDecision", "advance"]

ALONE = Around()


@dataclass(frozen=True, slots=True)
class RunDecision:
    """``update``: the run as it is to be recorded, with the moves in ``create`` counted as started. A controller that
    crashes between the two loses nothing: placements are found by label again."""

    update: Run
    create: tuple[Placement, ...] = ()
    waiting: str = ""
    """Why no further move starts now."""


def advance(
    run: Run,
    placements: Iterable[Placement],
    snapshot: Snapshot,
    rules: Rules,
    now: datetime,
    *,
    around: Around = ALONE,
) -> RunDecision:
    """One look at a run. ``placements`` are all that exist, the run's own and others."""
    if run.ended:
        return RunDecision(run)
    if run.phase is RunPhase.AWAITING_APPROVAL:
        run = _approval(run, now, around.approval_lasts)
        if run.phase is not RunPhase.RUNNING:
            return RunDecision(run)
    everything = list(placements)
    own = by_move(run, everything)
    run = replace(run, moves=tuple(caught_up(state, own.get(state.id), now) for state in run.moves))
    stop = _stop(run, rules, now, around)
    if stop is not None:
        return RunDecision(_wind_down(run, stop, now))
    if all(state.state in ENDED_MOVES for state in run.moves):
        return RunDecision(_finished(run, snapshot, now))
    if run.desired == "Paused":
        return RunDecision(_with(run, RunPhase.PAUSED, Reason.PAUSED, f"paused by {run.desired_by or 'somebody'}"))
    if not around.hold.ok:
        detail = around.hold.detail
        return RunDecision(_with(run, RunPhase.RUNNING, around.hold.reason or "", detail), waiting=detail)
    starter = Starter(run, own, everything, snapshot, rules, now, around)
    created = starter.start()
    run = replace(run, moves=tuple(starter.states.values()))
    if not created and _stuck(run, rules, now):
        return RunDecision(_given_up(run, starter, now))
    if all(state.state in ENDED_MOVES for state in run.moves):
        return RunDecision(_finished(run, snapshot, now))
    flying = any(s.state is MoveState.IN_FLIGHT for s in run.moves)
    why = f"; waits: {starter.waiting}" if starter.waiting and not flying else ""
    return RunDecision(_with(run, RunPhase.RUNNING, "", _progress(run) + why), tuple(created), starter.waiting)


# -- phases ---------------------------------------------------------------------------------------------------------


def _with(run: Run, phase: RunPhase, reason: Reason | str, message: str) -> Run:
    plan = moves_of(run)
    ahead = [plan[s.id].wave for s in run.moves if s.state not in ENDED_MOVES and s.id in plan]
    return replace(run, phase=phase, reason=str(reason), message=message, wave=min(ahead, default=run.wave))


def _approval(run: Run, now: datetime, lasts: timedelta) -> Run:
    if run.desired == "Approved":
        return replace(run, phase=RunPhase.RUNNING, started=now, reason="", message=f"approved by {run.desired_by}")
    if run.desired == "Cancelled":
        return _end(run, RunPhase.CANCELLED, Reason.CANCELLED, f"declined by {run.desired_by or 'somebody'}", now)
    if run.created is not None and now - run.created > lasts:
        return _end(
            run,
            RunPhase.EXPIRED,
            Reason.APPROVAL_EXPIRED,
            f"nobody approved the plan within {format_duration(lasts)}",
            now,
        )
    return run


def _end(run: Run, phase: RunPhase, reason: Reason | str, message: str, now: datetime) -> Run:
    moves = tuple(
        replace(s, state=MoveState.DROPPED, reason=str(reason), message=message, finished=now)
        if s.state is MoveState.WAITING
        else s
        for s in run.moves
    )
    return replace(run, phase=phase, reason=str(reason), message=message, moves=moves, finished=now)


_STOPPING: Mapping[str, RunPhase] = {
    str(Reason.CANCELLED): RunPhase.CANCELLED,
    str(Reason.FAILURE_RATIO): RunPhase.ABORTED,
    str(Reason.RUN_DEADLINE): RunPhase.ABORTED,
}


@dataclass(frozen=True, slots=True)
class _Stop:
    phase: RunPhase
    reason: Reason
    message: str


def _stop(run: Run, rules: Rules, now: datetime, around: Around) -> _Stop | None:
    """Whether the run must not start anything any more. Once it stopped it stays so (the dropped moves say why)."""
    for state in run.moves:
        phase = _STOPPING.get(state.reason) if state.state is MoveState.DROPPED else None
        if phase is not None:
            return _Stop(phase, Reason(state.reason), state.message)
    if run.desired == "Cancelled":
        return _Stop(RunPhase.CANCELLED, Reason.CANCELLED, f"cancelled by {run.desired_by or 'somebody'}")
    failed = sum(1 for s in run.moves if s.state is MoveState.FAILED)
    ended = failed + sum(1 for s in run.moves if s.state is MoveState.DONE)
    limit = rules.execution.abort_above
    # certain already (of all moves), or likely (of those that ended; one failure alone is no pattern)
    if limit is not None and failed and (failed > limit * len(run.moves) or (failed > 1 and failed > limit * ended)):
        return _Stop(RunPhase.ABORTED, Reason.FAILURE_RATIO, f"{failed} of {ended} moves failed (abortAbove {limit:g})")
    waiting = any(s.state is MoveState.WAITING for s in run.moves)
    if waiting and around.deadline is not None and now + _expected(run, rules) > around.deadline:
        late = now > around.deadline
        what = "is over" if late else "would be over before another move could end"
        return _Stop(RunPhase.ABORTED, Reason.RUN_DEADLINE, f"the time for this run (maxDuration) {what}")
    return None


def _stuck(run: Run, rules: Rules, now: datetime) -> bool:
    """Nothing is under way and nothing could start for as long as a single eviction may wait: the next run's matter."""
    if any(s.state is MoveState.IN_FLIGHT for s in run.moves):
        return False
    marks = [t for s in run.moves for t in (s.started, s.finished) if t is not None]
    last = max([*marks, run.started or now])
    return now - last > rules.execution.timeouts.evict


def _given_up(run: Run, starter: Starter, now: datetime) -> Run:
    ended = _end(run, RunPhase.COMPLETED, starter.reason, starter.waiting, now)
    return replace(ended, message=f"{_progress(ended)}; gave up waiting: {starter.waiting}")


def _expected(run: Run, rules: Rules) -> timedelta:
    """How long a move takes: the slowest of this run so far, at least the settle time."""
    took = [s.finished - s.started for s in run.moves if s.state is MoveState.DONE and s.finished and s.started]
    return max([rules.execution.settle, *took])


def _wind_down(run: Run, stop: _Stop, now: datetime) -> Run:
    """No more starts; ended once nothing is under way."""
    flying = sum(1 for s in run.moves if s.state is MoveState.IN_FLIGHT)
    dropped = _end(run, stop.phase, stop.reason, stop.message, now)
    if not flying:
        return replace(dropped, message=f"{stop.message}; {_progress(dropped)}")
    message = f"{stop.message}; {flying} under way are brought to their end"
    return replace(dropped, phase=RunPhase.RUNNING, message=message, finished=None)


def _finished(run: Run, snapshot: Snapshot, now: datetime) -> Run:
    astray = _astray(run, snapshot)
    message = _progress(run) + (f"; no longer where they were put: {', '.join(astray)}" if astray else "")
    return replace(run, phase=RunPhase.COMPLETED, reason=str(Reason.COMPLETED), message=message, finished=now)


def _astray(run: Run, snapshot: Snapshot) -> list[str]:
    """Moves that are done by their placement's word but whose target device nobody of the namespace holds now."""
    plan = moves_of(run)
    found = []
    for state in run.moves:
        move = plan.get(state.id)
        if move is None or state.state is not MoveState.DONE:
            continue
        namespace = move.pod.partition("/")[0]
        held = {
            uuid for p in snapshot.booked_on.get(move.target.node, ()) if p.namespace == namespace for uuid in p.devices
        }
        if not set(move.target.devices) <= held:
            found.append(move.id)
    return found


def _progress(run: Run) -> str:
    words = (
        (MoveState.DONE, "done"),
        (MoveState.IN_FLIGHT, "under way"),
        (MoveState.WAITING, "waiting"),
        (MoveState.FAILED, "failed"),
        (MoveState.REFUSED, "refused"),
        (MoveState.DROPPED, "dropped"),
    )
    counts = [(sum(1 for s in run.moves if s.state is state), word) for state, word in words]
    return f"{len(run.moves)} moves: " + (", ".join(f"{n} {word}" for n, word in counts if n) or "none planned")
