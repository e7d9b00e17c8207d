"""How a run goes on: which moves start now, how far it is, why it waits, when it ends. A function of values.

Moves roll: a move starts as soon as what it waits for has landed and every cap has room, waves only give the order.
So a slow replacement delays its own workload and whatever needs its place, not the whole cluster. The run stops
starting moves when it is paused, cancelled, past its deadline, outside its window or failing too often; what is under
way is always brought to its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from defragd.core.annotations import start_limit
from defragd.core.budget import Books, Floor
from defragd.core.model import EMPTY
from defragd.core.pdb import YES, Ledger, Permit
from defragd.core.placement import Placement, Step
from defragd.core.plan import Move
from defragd.core.reasons import Reason
from defragd.core.rules import Rules
from defragd.core.run import MoveState, Run, RunMove, RunPhase
from defragd.core.run_checks import Check, recheck, still_gains
from defragd.core.run_moves import (
    ENDED_MOVES,
    LOST_MOVES,
    by_move,
    caught_up,
    claim_of,
    entries_of,
    foreign_entries,
    moves_of,
    placement_for,
)
from defragd.core.snapshot import Snapshot
from defragd.core.vendor import Vendor

APPROVAL_LASTS = timedelta(hours=24)
"""A plan that nobody approved for so long describes another cluster."""


@dataclass(frozen=True, slots=True)
class Around:
    """What besides the run itself decides how it goes on.

    ``runs``: all run records (budgets per day count over all policies). ``hold``: a refusal keeps new moves from
    starting (global pause, closed window). ``deadline``: the run's own. ``drain``: its strategy empties a place.
    """

    runs: Sequence[Run] = ()
    vendors: Mapping[str, Vendor] = field(default_factory=lambda: EMPTY)
    hold: Permit = YES
    deadline: datetime | None = None
    drain: bool = False


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
    around: Around = Around(),
) -> RunDecision:
    """One look at a run. ``placements`` are all that exist, the run's own and others."""
    if run.ended:
        return RunDecision(run)
    if run.phase is RunPhase.AWAITING_APPROVAL:
        run = _approval(run, now)
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
    starter = _Starter(run, own, everything, snapshot, rules, now, around)
    created = starter.start()
    run = replace(run, moves=tuple(starter.states.values()))
    if all(state.state in ENDED_MOVES for state in run.moves):
        return RunDecision(_finished(run, snapshot, now))
    return RunDecision(_with(run, RunPhase.RUNNING, "", _progress(run)), tuple(created), starter.waiting)


# -- phases ---------------------------------------------------------------------------------------------------------


def _with(run: Run, phase: RunPhase, reason: Reason | str, message: str) -> Run:
    plan = moves_of(run)
    ahead = [plan[s.id].wave for s in run.moves if s.state not in ENDED_MOVES and s.id in plan]
    return replace(run, phase=phase, reason=str(reason), message=message, wave=min(ahead, default=run.wave))


def _approval(run: Run, now: datetime) -> Run:
    if run.desired == "Approved":
        return replace(run, phase=RunPhase.RUNNING, started=now, reason="", message=f"approved by {run.desired_by}")
    if run.desired == "Cancelled":
        return _end(run, RunPhase.CANCELLED, Reason.CANCELLED, f"declined by {run.desired_by or 'somebody'}", now)
    if run.created is not None and now - run.created > APPROVAL_LASTS:
        return _end(run, RunPhase.EXPIRED, Reason.APPROVAL_EXPIRED, "nobody approved the plan within 24 h", now)
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


# -- starting moves -------------------------------------------------------------------------------------------------


class _Starter:
    """One pass over the waiting moves; its books already count what is under way."""

    def __init__(
        self,
        run: Run,
        own: Mapping[str, Placement],
        placements: Sequence[Placement],
        snapshot: Snapshot,
        rules: Rules,
        now: datetime,
        around: Around,
    ) -> None:
        self.run, self.own, self.snapshot, self.rules, self.now, self.around = run, own, snapshot, rules, now, around
        self.plan = moves_of(run)
        self.states: dict[str, RunMove] = {s.id: s for s in run.moves}
        self.waiting = ""
        self.books = self._books(placements)
        self.ledger = Ledger.of(snapshot)
        self.floor = Floor.of(snapshot, self.ledger)
        self._count_leaving(placements)

    def _books(self, placements: Sequence[Placement]) -> Books:
        others = [r for r in self.around.runs if r.name != self.run.name]
        entries = entries_of(self.run, self.own, own=True)
        for other in others:
            entries += entries_of(other, by_move(other, placements), own=False)
        known = frozenset({self.run.name, *(r.name for r in others)})
        entries += foreign_entries(placements, self.snapshot.pods, known=known)
        return Books.of(self.rules.budgets, entries, now=self.now)

    def _count_leaving(self, placements: Sequence[Placement]) -> None:
        """Pods that open placements will evict, or have evicted without our having seen it yet."""
        claimed = {
            f"{p.namespace}/{p.spec.evict_pod}": p.spec.evict_pod_uid or p.status.evicted_uid
            for p in placements
            if p.open and p.spec.evict_pod and p.status.step is not Step.PINNED
        }
        # started by us, but not in the cache yet
        claimed |= {
            self.plan[s.id].pod: self.plan[s.id].uid
            for s in self.states.values()
            if s.state is MoveState.IN_FLIGHT and s.id in self.plan and s.id not in self.own
        }
        for key, uid in claimed.items():
            pod = self.snapshot.pods.get(key)
            if pod is not None and not pod.deleting and uid in ("", pod.uid):
                self.ledger.take(pod)
                self.floor.take(pod)

    def start(self) -> list[Placement]:
        created: list[Placement] = []
        groups: dict[str, list[Move]] = {}
        for move in self._waiting():
            if move.group:
                groups.setdefault(move.group, []).append(move)
        lost = any(s.state in LOST_MOVES for s in self.states.values())
        if lost and not self.around.drain and not self._gains():
            self._drop_rest(Reason.NO_GAIN, "without the moves that were lost the rest gains nothing")
            return created
        seen: set[str] = set()
        for move in self._waiting():
            if move.group in seen or self.states[move.id].state is not MoveState.WAITING:
                continue
            batch = groups[move.group] if move.group else [move]
            if move.group:
                seen.add(move.group)
            created += self._try(batch)
        return created

    def _waiting(self) -> list[Move]:
        """By wave, then plan order. States whose move cannot be read are dropped at once."""
        for state in list(self.states.values()):
            if state.state is MoveState.WAITING and state.id not in self.plan:
                self._drop(state.id, Reason.POD_UNKNOWN, "the run record does not describe this move")
        todo = [m for m in self.plan.values() if self.states.get(m.id, _NONE).state is MoveState.WAITING]
        return sorted(todo, key=lambda m: m.wave)

    def _gains(self) -> bool:
        flying = [self.plan[s.id] for s in self.states.values() if s.state is MoveState.IN_FLIGHT and s.id in self.plan]
        if flying:
            # judged when they have landed: what they do to the cluster is not settled yet
            return True
        return still_gains(self.snapshot, self.rules, self._waiting(), vendors=self.around.vendors)

    def _try(self, batch: list[Move]) -> list[Placement]:
        """Starts all moves of the batch or none."""
        for move in batch:
            pending = [a for a in move.after if self.states.get(a, _NONE).state not in ENDED_MOVES]
            if pending and not set(pending) <= {m.id for m in batch}:
                return self._later(f"{move.id} waits for {', '.join(pending)}")
        if batch[0].group and len(batch) < sum(1 for m in self.plan.values() if m.group == batch[0].group):
            # a member was lost before the others started: they must not leave without it
            for move in batch:
                self._drop(move.id, Reason.CYCLE_NEEDS_BOTH_OUT, "another move of its group was lost")
            return []
        checks = [self._recheck(move, batch) for move in batch]
        bad = next((c for c in checks if not c.ok), None)
        if bad is not None:
            if bad.wait:
                return self._later(bad.detail)
            for move in batch:
                self._drop(move.id, bad.reason, bad.detail)
            return []
        books, ledger = self.books.copy(), self.ledger.copy()
        floor = self.floor.copy(ledger)
        for move, check in zip(batch, checks, strict=True):
            assert check.pod is not None
            claim = claim_of(move, self.run.name)
            refusal = _first_refusal(
                books.may_start(claim, self.now), ledger.may_evict(check.pod), floor.may_leave(check.pod)
            )
            if refusal is not None and refusal.reason is Reason.SEVERAL_PDBS:
                for member in batch:
                    self._drop(member.id, Reason.SEVERAL_PDBS, refusal.detail)
                return []
            if refusal is not None:
                return self._later(refusal.detail)
            books.take(claim, self.now)
            ledger.take(check.pod)
            floor.take(check.pod)
        self.books, self.ledger, self.floor = books, ledger, floor
        return [self._create(m, c, len(batch)) for m, c in zip(batch, checks, strict=True)]

    def _recheck(self, move: Move, batch: list[Move]) -> Check:
        flying = any(s.state is MoveState.IN_FLIGHT for s in self.states.values())
        return recheck(
            move,
            self.snapshot,
            self.rules,
            self.now,
            vendors=self.around.vendors,
            drain=self.around.drain,
            leaving=frozenset(m.pod for m in batch),
            unsettled=flying,
        )

    def _create(self, move: Move, check: Check, size: int) -> Placement:
        assert check.pod is not None
        limit = start_limit(self.snapshot, check.pod, self.now)
        placement = placement_for(self.run, move, check.pod, self.rules, group_size=size, start_limit=limit)
        self.states[move.id] = replace(
            self.states[move.id],
            state=MoveState.IN_FLIGHT,
            placement=placement.key,
            started=self.now,
            reason="",
            message="",
        )
        return placement

    def _later(self, why: str) -> list[Placement]:
        self.waiting = self.waiting or why
        return []

    def _drop(self, move_id: str, reason: Reason | str, detail: str) -> None:
        self.states[move_id] = replace(
            self.states[move_id], state=MoveState.DROPPED, reason=str(reason), message=detail, finished=self.now
        )

    def _drop_rest(self, reason: Reason, detail: str) -> None:
        for move in self._waiting():
            self._drop(move.id, reason, detail)


def _first_refusal(*permits: Permit) -> Permit | None:
    return next((permit for permit in permits if not permit.ok), None)


_NONE = RunMove("", state=MoveState.DROPPED)
