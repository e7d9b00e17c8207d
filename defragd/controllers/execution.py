"""Carries a run out: the leader's loop that turns moves into placements and records how far the run is.

`core.run_progress` decides; this reads, creates and writes. Truth is the run record plus its placements, found by
label, so a new leader goes on where the last one stopped. In between the controller trusts its own last word over a
cache that lags: a move it has started counts as under way before any watch shows its placement.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

from defragd.controllers.lane import InlineLane, Lane
from defragd.core.pdb import YES, Permit
from defragd.core.placement import Placement
from defragd.core.reasons import Reason
from defragd.core.rules import Rules
from defragd.core.run import ENDED_RUNS, MoveState, Run, RunMove, RunPhase
from defragd.core.run_moves import ENDED_MOVES, moves_of
from defragd.core.run_progress import Around, RunDecision, advance
from defragd.core.snapshot import Snapshot
from defragd.core.vendor import Vendor
from defragd.errors import NotLeader
from defragd.ports import (
    Clock,
    ClusterReader,
    EventSink,
    Hook,
    Leadership,
    Note,
    Outcome,
    PlacementStore,
    RunStore,
    Written,
)

MAX_AGE_SECONDS = 90.0
"""Older data than this is no ground for action (invariant I9)."""
RECORD_EVERY = timedelta(seconds=10)
"""Progress within a phase is recorded this often: it can be found again from the placements, so it may lag."""
UNBEGUN = timedelta(seconds=5)
ACTIVE = frozenset({RunPhase.AWAITING_APPROVAL, RunPhase.RUNNING, RunPhase.PAUSED})


@dataclass(frozen=True, slots=True)
class Terms:
    """What a run was approved with: its policy's rules, how long it may take, whether its strategy drains."""

    rules: Rules
    max_duration: timedelta | None = None
    drain: bool = False
    approval_lasts: timedelta = timedelta(hours=24)
    window: Callable[[datetime], Permit] = field(default=lambda now: YES)


class RunController:
    """Advances the oldest running run (one at a time: budgets and the plan's proofs assume a single hand)."""

    def __init__(
        self,
        *,
        reader: ClusterReader,
        placements: PlacementStore,
        runs: RunStore,
        events: EventSink,
        leadership: Leadership,
        clock: Clock,
        hook: Hook,
        vendors: Mapping[str, Vendor],
        terms: Callable[[Run], Terms],
        paused: Callable[[], str] = lambda: "",
        max_age_seconds: float = MAX_AGE_SECONDS,
        lane: Lane | None = None,
    ) -> None:
        """``terms`` gives the rules a run was planned with (from its own record, not from today's policy);
        ``paused`` says why everything stands still ("" = it does not). ``lane``: where placements are created (default:
        in this thread)."""
        self._reader = reader
        self._placements = placements
        self._runs = runs
        self._events = events
        self._leadership = leadership
        self._clock = clock
        self._hook = hook
        self._vendors = vendors
        self._terms = terms
        self._paused = paused
        self._lane = lane or InlineLane()
        self._max_age = max_age_seconds
        self._mine: dict[str, Run] = {}
        """Our last word per run UID, newer than the cache."""
        self._recorded: dict[str, datetime] = {}
        self.beat = clock.monotonic()
        self.waiting = ""

    def run(self, stop: threading.Event) -> None:
        """Until ``stop``. A lost lease is not an error here: the loop looks again, the new leader goes on."""
        seen = -1
        while not stop.is_set():
            try:
                busy = self.cycle()
            except NotLeader:
                busy = False
            except Exception as error:  # noqa: BLE001 - a loop that dies would silently stop all moves
                self._hook("loop.failed", {"loop": "runs", "error": f"{type(error).__name__}: {error}"})
                busy = False
                stop.wait(2.0)
            self.beat = self._clock.monotonic()
            seen = self._reader.wait(seen, 1.0 if busy else 2.0)
            stop.wait(0.2)
        self._lane.close()

    def cycle(self) -> bool:
        """One look at all runs that have not ended. True when there is one under way."""
        if not self._leadership.is_leader():
            self._mine.clear()
            return False
        if not self._reader.synced() or self._reader.age_seconds() > self._max_age:
            return False
        records = self._current()
        active = sorted((r for r in records if r.phase in ACTIVE), key=_age)
        snapshot = self._reader.snapshot() if active else None
        moving = False
        self._write_ends(records)
        for run in active:
            assert snapshot is not None
            if run.phase is RunPhase.AWAITING_APPROVAL:
                if run.desired == "Approved" and moving:
                    continue
            elif moving:
                self.waiting = f"run {run.name} waits for another run to end"
                continue
            decision = self._advance(run, records, snapshot)
            moving = moving or decision.update.phase in (RunPhase.RUNNING, RunPhase.PAUSED)
        return moving

    def _current(self) -> list[Run]:
        """Run records with our own last word where the cache is behind; what people ask for always from the cache."""
        found = []
        now = self._clock.now()
        for stored in (begun(run, now) for run in self._runs.list()):
            mine = self._mine.get(stored.uid)
            if mine is None or stored.phase in ENDED_RUNS:
                self._mine.pop(stored.uid, None)
                found.append(stored)
                continue
            found.append(
                replace(
                    stored,
                    phase=mine.phase,
                    reason=mine.reason,
                    message=mine.message,
                    wave=mine.wave,
                    moves=mine.moves,
                    started=mine.started,
                    finished=mine.finished,
                )
            )
        return found

    def _write_ends(self, records: list[Run]) -> None:
        """Ends that could not be recorded when they came about (conflict, lost answer) are written again."""
        for run in records:
            stored = self._runs.get(run.name) if run.ended and run.uid in self._mine else None
            if stored is not None and not stored.ended and self._runs.write_status(run).ok:
                self._note(run)

    def _advance(self, run: Run, records: list[Run], snapshot: Snapshot) -> RunDecision:
        now = self._clock.now()
        terms = self._terms(run)
        reason = self._paused()
        hold = Permit(False, Reason.PAUSED, reason) if reason else terms.window(now)
        started = run.started or (now if run.phase is RunPhase.RUNNING else None)
        around = Around(
            runs=records,
            vendors=self._vendors,
            hold=hold,
            deadline=started + terms.max_duration if started and terms.max_duration else None,
            drain=terms.drain,
            approval_lasts=terms.approval_lasts,
        )
        decision = advance(run, self._placements.list(), snapshot, terms.rules, now, around=around)
        update = decision.update
        if update.phase is RunPhase.RUNNING and update.started is None:
            update = replace(update, started=now)
        # from here on the moves count as under way for every later look, whatever the cache says
        self._mine[run.uid] = update
        self.waiting = decision.waiting
        for key, written in self._create(decision.create):
            update = self._mine[run.uid] = _created(update, key, written, now)
        self._report(run, update)
        self._record(run, update, now)
        return decision

    def _create(self, placements: Sequence[Placement]) -> Iterator[tuple[str, Written]]:
        """Creates placements beside each other and gives the answers as they come. Raises NotLeader at the end when one
        of them was not sent for that reason."""
        for placement in placements:
            self._lane.submit(placement.key, partial(self._placements.create, placement))
        left, failed = len(placements), None
        while left:
            for done in self._lane.collect():
                left -= 1
                if done.error is not None:
                    failed = failed or done.error
                else:
                    yield done.key, done.value
            if left:
                self._lane.wait(1.0)
        if failed is not None:
            raise failed

    def _report(self, before: Run, after: Run) -> None:
        old = {state.id: state.state for state in before.moves}
        for state in after.moves:
            if state.state in ENDED_MOVES and old.get(state.id) not in ENDED_MOVES:
                self._hook(
                    "move.ended",
                    {
                        "policy": after.policy,
                        "run": after.name,
                        "move": state.id,
                        "result": str(state.state),
                        "reason": state.reason,
                        "message": state.message,
                        "placement": state.placement,
                    },
                )
                if state.state in (MoveState.REFUSED, MoveState.DROPPED):
                    refused = {"policy": after.policy, "run": after.name, "move": state.id, "reason": state.reason}
                    self._hook("move.refused", refused)
        if after.phase is not before.phase or after.reason != before.reason:
            self._hook(
                "run.phase",
                {
                    "run": after.name,
                    "policy": after.policy,
                    "phase": str(after.phase),
                    "reason": after.reason,
                    "message": after.message,
                },
            )

    def _record(self, before: Run, after: Run, now: datetime) -> None:
        turned = after.phase is not before.phase or after.reason != before.reason
        progressed = _states(after) != _states(before) or after.message != before.message
        stored = self._runs.get(before.name)
        behind = stored is not None and (stored.phase, _states(stored)) != (after.phase, _states(after))
        due = now - self._recorded.get(after.uid, datetime.min.replace(tzinfo=now.tzinfo)) >= RECORD_EVERY
        if not (turned or ((progressed or behind) and due)):
            return
        written = self._runs.write_status(after)
        if written.ok:
            self._recorded[after.uid] = now
            if turned:
                self._note(after)
        # anything else: the next look finds the record behind and writes again

    def _note(self, run: Run) -> None:
        trouble = run.phase in (RunPhase.ABORTED, RunPhase.FAILED)
        reason = run.reason or str(run.phase)
        message = f"{run.phase}: {run.message}" if run.message else str(run.phase)
        self._events.emit(Note("DefragRun", run.namespace, run.name, run.uid, reason, message, warning=trouble))


def begun(run: Run, now: datetime) -> Run:
    """A run whose creator died between the record and its first status: taken up as its mode says. A young one is left
    to its creator, who may be about to write."""
    if run.created is None or now - run.created < UNBEGUN:
        return run
    if run.moves or run.finished is not None or run.reason or run.mode == "DryRun" or not run.plan.get("moves"):
        return run
    moves = tuple(RunMove(move_id) for move_id in moves_of(run))
    if run.phase is RunPhase.PLANNED:
        return replace(run, moves=moves, phase=RunPhase.RUNNING if run.mode == "Auto" else RunPhase.AWAITING_APPROVAL)
    return replace(run, moves=moves)


def _created(run: Run, key: str, written: Written, now: datetime) -> Run:
    """Only a clear refusal of a placement changes the run: an unclear answer shows itself in the cache."""
    if written.ok or written.outcome in (Outcome.CONFLICT, Outcome.UNKNOWN):
        return run
    if written.outcome is Outcome.BLOCKED:
        return _changed(run, key, state=MoveState.WAITING, placement="", started=None)
    return _changed(
        run,
        key,
        state=MoveState.REFUSED,
        reason=str(Reason.API_ERROR),
        message=f"the API server refused the placement: {written.message}",
        finished=now,
    )


def _age(run: Run) -> tuple[str, str]:
    return (run.created.isoformat() if run.created else "", run.name)


def _states(run: Run) -> tuple[tuple[str, MoveState], ...]:
    return tuple((state.id, state.state) for state in run.moves)


def _changed(run: Run, key: str, **changes: object) -> Run:
    def change(state: RunMove) -> RunMove:
        return replace(state, **changes) if state.placement == key else state  # type: ignore[arg-type]

    return replace(run, moves=tuple(change(state) for state in run.moves))
