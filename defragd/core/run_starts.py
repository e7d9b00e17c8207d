"""Which waiting moves of a run start now: fresh checks, then budgets, disruption budgets and the floor.

Every look builds its books anew from what is under way, so that nothing has to be remembered between looks. Moves of a
co-evicted group start together or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from defragd.core.annotations import start_limit
from defragd.core.budget import Books, Claim, Floor
from defragd.core.model import EMPTY
from defragd.core.pdb import YES, Ledger, Permit
from defragd.core.placement import Placement, Step
from defragd.core.placement_retarget import alternatives
from defragd.core.plan import Move
from defragd.core.reasons import Reason
from defragd.core.rules import Rules
from defragd.core.run import MoveState, Run, RunMove
from defragd.core.run_checks import Check, recheck, still_gains
from defragd.core.run_moves import (
    ENDED_MOVES,
    LOST_MOVES,
    arrivals_lately,
    by_move,
    claim_of,
    entries_of,
    foreign_entries,
    moves_lately,
    moves_of,
    placement_for,
)
from defragd.core.snapshot import Snapshot
from defragd.core.vendor import Vendor
from defragd.core.workloads import replicas_of

MOST_UNHELD = 32
"""Placements of a run that wait for their proof at once, whatever its budgets: more would only use up their time."""


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
    approval_lasts: timedelta = timedelta(hours=24)
    """A plan that nobody approved for so long describes another cluster."""


class Starter:
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
        self.waiting = self.reason = ""
        self._examined = False
        self._surges = rules.execution.handover == "SurgeFirst"
        self._known: dict[str, Check] = {}
        others = [r for r in around.runs if r.name != run.name]
        self._last_moved, self._arrivals = moves_lately(others, now)[1], arrivals_lately(others)
        self.books = self._books(placements)
        self._placements = placements
        self._limits: tuple[Ledger, Floor] | None = None

    def _books(self, placements: Sequence[Placement]) -> Books:
        others = [r for r in self.around.runs if r.name != self.run.name]
        entries = entries_of(self.run, self.own, own=True)
        for other in others:
            entries += entries_of(other, by_move(other, placements), own=False)
        known = frozenset({self.run.name, *(r.name for r in others)})
        entries += foreign_entries(placements, self.snapshot.pods, known=known)
        return Books.of(self.rules.budgets, entries, now=self.now)

    def _standing(self) -> tuple[Ledger, Floor]:
        """Disruption budgets and floors as they are; built when first asked for, which in most looks is never."""
        if self._limits is None:
            ledger = Ledger.of(self.snapshot)
            self._limits = ledger, Floor.of(self.snapshot, ledger)
            self._count_leaving(*self._limits)
        return self._limits

    def _count_leaving(self, ledger: Ledger, floor: Floor) -> None:
        """Pods that open placements will evict, or have evicted without our having seen it yet."""
        placements = self._placements
        claimed = {
            f"{p.namespace}/{p.spec.evict_pod}": p.spec.evict_pod_uid or p.status.evicted_uid
            for p in placements
            if p.open and p.spec.evict_pod and p.status.step is not Step.PINNED and not p.surges
        }
        # started by us, but not in the cache yet
        claimed |= {
            self.plan[s.id].pod: self.plan[s.id].uid
            for s in self.states.values()
            if s.state is MoveState.IN_FLIGHT and s.id in self.plan and s.id not in self.own and not self._surges
        }
        for key, uid in claimed.items():
            pod = self.snapshot.pods.get(key)
            if pod is not None and not pod.deleting and uid in ("", pod.uid):
                ledger.take(pod)
                floor.take(pod)

    def start(self) -> list[Placement]:
        created: list[Placement] = []
        groups: dict[str, list[Move]] = {}
        for move in self._waiting():
            if move.group:
                groups.setdefault(move.group, []).append(move)
        self._rest_failed()
        seen: set[str] = set()
        unheld = sum(1 for s in self.states.values() if s.state is MoveState.IN_FLIGHT and self._unheld(s.id))
        for move in self._waiting():
            if unheld + len(created) >= MOST_UNHELD:
                self._later(f"{unheld} placements are being proven", Reason.OVER_BUDGET)
                break
            if move.group in seen or self.states[move.id].state is not MoveState.WAITING:
                continue
            batch = groups[move.group] if move.group else [move]
            if move.group:
                seen.add(move.group)
            created += self._try(batch, groups)
        return created

    def _unheld(self, move_id: str) -> bool:
        """Not proven yet, or not even seen."""
        placement = self.own.get(move_id)
        return placement is None or (placement.open and placement.status.step is Step.NEW)

    def _rest_failed(self) -> None:
        """A workload of which a move failed is left alone for the rest of the run."""
        plan = self.plan
        failed = {plan[s.id].workload for s in self.states.values() if s.state is MoveState.FAILED and s.id in plan}
        for move in self._waiting() if failed else ():
            if move.workload and move.workload in failed:
                self._drop(move.id, Reason.COOLING_DOWN, f"a move of {move.workload} failed in this run")

    def _examine(self, groups: Mapping[str, list[Move]]) -> None:
        """Before the first start of a look: drop what is not right any more, then ask whether the rest still gains.

        Otherwise a move could start in the very moment in which the one that gave it its sense is dropped."""
        self._examined = True
        for move in self._waiting():
            if any(self.states.get(a, _NONE).state not in ENDED_MOVES for a in move.after):
                continue
            check = self._recheck(move, groups.get(move.group) or [move])
            if not check.ok and not check.wait:
                self._drop(move.id, check.reason, check.detail)
        lost = any(s.state in LOST_MOVES for s in self.states.values())
        if lost and not self.around.drain and not self._gains():
            for move in self._waiting():
                self._drop(move.id, Reason.NO_GAIN, "without the moves that were lost the rest gains nothing")

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

    def _try(self, batch: list[Move], groups: Mapping[str, list[Move]]) -> list[Placement]:
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
        for move in batch:  # the cheap question first: in a large run most looks end here
            permit = self.books.may_start(self._claim(move), self.now)
            if not permit.ok:
                return self._later(permit.detail, permit.reason)
        if not self._examined:
            self._examine(groups)
            if any(self.states[m.id].state is not MoveState.WAITING for m in batch):
                return []
        checks = [self._recheck(move, batch) for move in batch]
        bad = next((c for c in checks if not c.ok), None)
        if bad is not None:
            if bad.wait:
                return self._later(bad.detail, bad.reason)
            for move in batch:
                self._drop(move.id, bad.reason, bad.detail)
            return []
        standing, below = self._standing()
        books, ledger = self.books.copy(), standing.copy()
        floor = below.copy(ledger)
        for move, check in zip(batch, checks, strict=True):
            assert check.pod is not None
            claim = self._claim(move)
            refusal = _first_refusal(books.may_start(claim, self.now))
            if not self._surges:  # else no pod leaves before its successor is Ready
                refusal = refusal or _first_refusal(ledger.may_evict(check.pod), floor.may_leave(check.pod))
            if refusal is not None and refusal.reason is Reason.SEVERAL_PDBS:
                for member in batch:
                    self._drop(member.id, Reason.SEVERAL_PDBS, refusal.detail)
                return []
            if refusal is not None:
                return self._later(refusal.detail, refusal.reason)
            books.take(claim, self.now)
            if not self._surges:
                ledger.take(check.pod)
                floor.take(check.pod)
        self.books, self._limits = books, (ledger, floor)
        return [self._create(m, c, len(batch)) for m, c in zip(batch, checks, strict=True)]

    def _claim(self, move: Move) -> Claim:
        share = self.rules.budgets.per_workload.in_flight_pct is not None
        pod = self.snapshot.pods.get(move.pod) if share else None
        return claim_of(move, self.run.name, replicas=replicas_of(self.snapshot, pod)[0] if pod else 0)

    def _recheck(self, move: Move, batch: list[Move]) -> Check:
        if move.id in self._known:
            return self._known[move.id]
        flying = any(s.state is MoveState.IN_FLIGHT for s in self.states.values())
        found = self._known[move.id] = recheck(
            move,
            self.snapshot,
            self.rules,
            self.now,
            vendors=self.around.vendors,
            drain=self.around.drain,
            leaving=frozenset(m.pod for m in batch),
            unsettled=flying,
            last_moved=self._last_moved,
            arrivals=self._arrivals,
        )
        return found

    def _create(self, move: Move, check: Check, size: int) -> Placement:
        assert check.pod is not None
        limit = start_limit(self.snapshot, check.pod, self.now)
        others = () if move.group else alternatives(self.snapshot, move, self.plan.values())
        placement = placement_for(
            self.run, move, check.pod, self.rules, group_size=size, start_limit=limit, alternatives=others
        )
        self.states[move.id] = replace(
            self.states[move.id],
            state=MoveState.IN_FLIGHT,
            placement=placement.key,
            started=self.now,
            reason="",
            message="",
        )
        return placement

    def _later(self, why: str, reason: Reason | str | None = Reason.OVER_BUDGET) -> list[Placement]:
        if not self.waiting:
            self.waiting, self.reason = why, str(reason or "")
        return []

    def _drop(self, move_id: str, reason: Reason | str, detail: str) -> None:
        self.states[move_id] = replace(
            self.states[move_id], state=MoveState.DROPPED, reason=str(reason), message=detail, finished=self.now
        )


def _first_refusal(*permits: Permit) -> Permit | None:
    return next((permit for permit in permits if not permit.ok), None)


_NONE = RunMove("", state=MoveState.DROPPED)
