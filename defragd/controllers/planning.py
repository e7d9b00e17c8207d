"""Plans one policy and records the run: is the data good, is there cause, what would be moved, who lets it go.

The planner itself runs in a child process. A scheduled start gives the run its name, so the same start cannot be
recorded twice, whatever restarts or leader changes come between. What stands in the way for a moment (no data yet,
another run under way) is raised as `PlanRefused`, so that the caller may try again within the start's deadline; what
settles the start (nothing to do, too many pending pods, a closed window) is a run record that says so.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from defragd.core.breaker import BREAKER, closed_nodes, judge, keeps, marks, open_breakers
from defragd.core.mix import given_mix
from defragd.core.model import EMPTY
from defragd.core.pdb import YES, Permit
from defragd.core.plan import PlanReply, PlanRequest
from defragd.core.plan_json import plan_to_json
from defragd.core.reasons import Reason
from defragd.core.rules import Rules
from defragd.core.run import MoveState, Run, RunMove, RunPhase
from defragd.core.run_moves import DAY, arrivals_lately, moves_lately, places_lately
from defragd.core.score import score
from defragd.core.snapshot import Snapshot
from defragd.core.vendor import Vendor
from defragd.errors import DefragError
from defragd.obs.pools import pool_of
from defragd.policy.schema import TriggerSpec
from defragd.policy.triggers import evaluate
from defragd.ports import Clock, ClusterReader, Hook, Leadership, Outcome, PlannerRunner, RunStore

MAX_AGE_SECONDS = 90.0
KEEP_WITH_MOVES = 20
"""Run records kept per policy; those without a move only as long as they are among the last few."""
KEEP_MOST = 300
KEEP_EMPTY = 5
REFUSED_KEPT = 50
WARNINGS_KEPT = 100
BUSY = frozenset({RunPhase.RUNNING, RunPhase.PAUSED})


class PlanRefused(DefragError):
    """Not now: no fresh data, not the leader, another run under way. Asking again later may succeed."""

    def __init__(self, reason: Reason, detail: str) -> None:
        self.reason, self.detail = reason, detail
        super().__init__(f"{reason}: {detail}")


@dataclass(frozen=True, slots=True)
class Job:
    """One policy as planning needs it (made from a `LoadedPolicy` by the composition root).

    ``settings`` is the policy's JSON, recorded with the run. ``window`` says whether moves may start at an instant.
    ``trigger`` holds scheduled starts back; people are not asked for a reason.
    """

    name: str
    strategy: str
    args: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    rules: Rules = field(default_factory=Rules)
    mode: str = "DryRun"
    trigger: TriggerSpec | None = None
    settings: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    time_limit: float = 30.0
    window: Callable[[datetime], Permit] = field(default=lambda now: YES)


class Planning:
    """Makes run records. One plan at a time; callers from several threads queue."""

    def __init__(
        self,
        *,
        reader: ClusterReader,
        runs: RunStore,
        planner: PlannerRunner,
        leadership: Leadership,
        clock: Clock,
        hook: Hook,
        vendors: Mapping[str, Vendor],
        namespace: str,
        max_age_seconds: float = MAX_AGE_SECONDS,
    ) -> None:
        self._reader = reader
        self._runs = runs
        self._planner = planner
        self._leadership = leadership
        self._clock = clock
        self._hook = hook
        self._vendors = vendors
        self._namespace = namespace
        self._max_age = max_age_seconds
        self._lock = threading.Lock()
        self._open: set[str] = set()
        """Policies whose breaker was open at the last look."""

    def plan_policy(
        self, job: Job, *, mode: str | None = None, trigger: str = "schedule", scheduled_for: datetime | None = None
    ) -> Run:
        """Plans and records. Raises `PlanRefused` (try again later); a planner that fails is a run that Failed."""
        with self._lock:
            return self._plan(job, mode or job.mode, trigger, scheduled_for)

    def _plan(self, job: Job, mode: str, trigger: str, scheduled_for: datetime | None) -> Run:
        snapshot = self._fresh()
        now = self._clock.now()
        runs = list(self._runs.list())
        if mode != "DryRun" and (other := next((r for r in runs if r.phase in BUSY), None)):
            raise PlanRefused(Reason.RUN_IN_PROGRESS, f"run {other.name} is under way, one runs at a time")
        draft = Run(
            namespace=self._namespace,
            name=run_name(job.name, scheduled_for or now, scheduled=scheduled_for is not None),
            policy=job.name,
            mode=mode,
            strategy=job.strategy,
            trigger=trigger,
            scheduled_for=scheduled_for,
            settings=job.settings,
            created=now,
        )
        held = self._held_back(job, draft, snapshot, runs)
        if not held.ok:
            return self._record(replace(draft, plan={"policy": job.name, "strategy": job.strategy, "moves": []}), held)
        closed = closed_nodes(snapshot, open_breakers(runs, now), pool_of) if mode != "DryRun" else {}
        self._tell_breaker(job.name, next(iter(closed.values()), ""))
        if closed and all(name in closed for name, node in snapshot.nodes.items() if node.devices):
            return self._stopped(draft, next(iter(closed.values())))
        request = replace(self._request(job, snapshot, runs, now), closed=closed)
        began = self._clock.monotonic()
        try:
            reply = self._planner.run(request, time_limit=job.time_limit)
        except DefragError as error:
            self._hook(
                "plan.failed",
                {"policy": job.name, "strategy": job.strategy, "dry_run": mode == "DryRun", "error": str(error)},
            )
            failed = replace(draft, plan={"policy": job.name, "strategy": job.strategy, "moves": []})
            return self._record(failed, Permit(False, Reason.PLAN_FAILED, str(error)), phase=RunPhase.FAILED)
        reply = replace(reply, elapsed_seconds=self._clock.monotonic() - began)
        # the run begins now: planning may have taken half a minute, and its time limit counts from here
        draft = replace(draft, created=self._clock.now())
        self._hook(
            "plan.done",
            {
                "policy": job.name,
                "mode": mode,
                "dry_run": mode == "DryRun",
                "strategy": job.strategy,
                "seconds": reply.elapsed_seconds,
                "moves": len(reply.moves),
                "stopped": reply.stopped,
                "before": reply.before.loss,
                "after": reply.after.loss,
            },
        )
        opening = judge(runs, snapshot, reply.moves, now, pool_of) if mode != "DryRun" and reply.moves else None
        if opening is not None:
            self._tell_breaker(job.name, opening.text)
            return self._stopped(draft, opening.text, {BREAKER: ",".join(opening.pools)})
        return self._record(_planned(replace(draft, annotations=marks(snapshot, reply.moves, pool_of)), reply))

    def _stopped(self, draft: Run, why: str, annotations: Mapping[str, str] = EMPTY) -> Run:
        empty = {"policy": draft.policy, "strategy": draft.strategy, "moves": []}
        draft = replace(draft, plan=empty, annotations=annotations)
        return self._record(draft, Permit(False, Reason.BREAKER_OPEN, why), phase=RunPhase.ABORTED)

    def _tell_breaker(self, policy: str, why: str) -> None:
        """Said when it opens, while it is open, and once when it has closed ("")."""
        if why or policy in self._open:
            self._hook("breaker", {"policy": policy, "open": bool(why), "reason": why, "level": "warning"})
        (self._open.add if why else self._open.discard)(policy)

    def _fresh(self) -> Snapshot:
        if not self._leadership.is_leader():
            raise PlanRefused(Reason.STALE_DATA, "this replica does not lead; the leader plans")
        if not self._reader.synced():
            raise PlanRefused(Reason.STALE_DATA, "the caches are not filled yet")
        age = self._reader.age_seconds()
        if age > self._max_age:
            raise PlanRefused(Reason.STALE_DATA, f"a watch has not proved to be alive for {age:.0f} s")
        return self._reader.snapshot()

    def _held_back(self, job: Job, draft: Run, snapshot: Snapshot, runs: Sequence[Run]) -> Permit:
        """Window and trigger: what settles this start without a plan."""
        assert draft.created is not None
        window = job.window(draft.created) if draft.mode == "Auto" else YES
        if not window.ok or job.trigger is None or draft.trigger.startswith("manual"):
            return window
        mix = given_mix(job.rules.gain.expected_mix) if job.rules.gain.expected_mix else None
        verdict = evaluate(
            job.trigger,
            snapshot,
            fragmentation=score(snapshot, mix=mix).loss if job.trigger.min_fragmentation else 0.0,
            now=draft.created,
            last_eviction=max(moves_lately(runs, draft.created)[1].values(), default=None),
            failed=[m.finished for r in runs for m in r.moves if m.state is MoveState.FAILED and m.finished],
        )
        return YES if verdict.ok else Permit(False, verdict.reason, str(verdict))

    def _request(self, job: Job, snapshot: Snapshot, runs: Sequence[Run], now: datetime) -> PlanRequest:
        history, last = moves_lately(runs, now)
        return PlanRequest(
            snapshot=snapshot,
            policy=job.name,
            strategy=job.strategy,
            args=job.args,
            rules=job.rules,
            now=now,
            history=history,
            moved_places=places_lately(runs, now),
            last_moved=last,
            arrivals=arrivals_lately(runs),
            vendors=self._vendors,
        )

    def _record(self, run: Run, held: Permit = YES, *, phase: RunPhase = RunPhase.COMPLETED) -> Run:
        if not held.ok:
            run = replace(run, phase=phase, reason=str(held.reason or ""), message=held.detail, finished=run.created)
        written = self._runs.create(run)
        if written.outcome is Outcome.CONFLICT:
            raise PlanRefused(Reason.SUPERSEDED, f"run {run.name} is recorded already")
        if not written.ok:
            raise PlanRefused(Reason.API_ERROR, f"the run could not be recorded: {written.message}")
        meta = written.body.get("metadata") or {}
        run = replace(run, revision=written.revision or run.revision, uid=str(meta.get("uid") or run.uid))
        self._hook(
            "run.phase",
            {
                "run": run.name,
                "policy": run.policy,
                "phase": str(run.phase),
                "reason": run.reason,
                "message": run.message,
            },
        )
        self._prune(run)
        return run

    def _prune(self, latest: Run) -> None:
        """Keeps the last runs of a policy; those that had nothing to do only while they are recent."""
        ended = [r for r in self._runs.list() if r.policy == latest.policy and r.ended and r.name != latest.name]
        ended.sort(key=lambda r: (r.created.isoformat() if r.created else "", r.name), reverse=True)
        now = self._clock.now()
        # limits per day and cooldowns are counted from these records, so a day of them stays, whatever their number
        moving = [r for r in ended if r.plan.get("moves")]
        recent = sum(1 for r in moving if r.mode != "DryRun" and r.created is not None and now - r.created < DAY)
        empty = [r for r in ended if not r.plan.get("moves") and not keeps(r, now)]
        for old in moving[max(KEEP_WITH_MOVES - 1, min(recent, KEEP_MOST)) :] + empty[KEEP_EMPTY - 1 :]:
            self._runs.delete(old)


def _planned(draft: Run, reply: PlanReply) -> Run:
    run = replace(draft, plan=for_record(plan_to_json(reply)), moves=tuple(RunMove(move.id) for move in reply.moves))
    if not reply.moves:
        why = reply.refused[0].detail if reply.stopped == "infeasible" and reply.refused else "nothing to gain"
        reason = Reason.GOAL_UNREACHABLE if reply.stopped == "infeasible" else Reason.NO_GAIN
        return replace(run, phase=RunPhase.COMPLETED, reason=str(reason), message=why, finished=draft.created)
    gain = f"{len(reply.moves)} moves, L {reply.before.loss:.3f} to {reply.after.loss:.3f}"
    if draft.mode == "Auto":
        return replace(run, phase=RunPhase.RUNNING, started=draft.created, message=gain)
    if draft.mode == "Approve":
        return replace(run, phase=RunPhase.AWAITING_APPROVAL, message=f"{gain}; waits for approval")
    return replace(run, phase=RunPhase.PLANNED, message=f"dry run: {gain}", finished=draft.created)


def for_record(plan: dict[str, Any]) -> dict[str, Any]:
    """The plan as it is stored: of the pods that stay only some per reason, and how many more there are.

    On 1,213 nodes with 7,000 pods the whole list is 0.8 MB; an object may have 1.5 MB, and a policy keeps 20 runs."""
    kept: list[dict[str, str]] = []
    seen: Counter[str] = Counter()
    for item in plan["refused"]:
        seen[item["reason"]] += 1
        if seen[item["reason"]] <= REFUSED_KEPT:
            kept.append(item)
    more = [f"{n - REFUSED_KEPT} more objects: {why}" for why, n in sorted(seen.items()) if n > REFUSED_KEPT]
    warnings = plan["warnings"][:WARNINGS_KEPT]
    if len(plan["warnings"]) > WARNINGS_KEPT:
        more.append(f"{len(plan['warnings']) - WARNINGS_KEPT} more warnings")
    return {**plan, "refused": kept, "warnings": warnings, "notes": [*plan["notes"], *more]}


def run_name(policy: str, at: datetime, *, scheduled: bool = True) -> str:
    """At most 50 characters: placements and labels are named after it. The same for the same scheduled start; runs
    that people ask for are told apart by the millisecond."""
    stem = re.sub(r"[^a-z0-9-]+", "-", policy.lower()).strip("-")[:32].rstrip("-") or "policy"
    tail = "" if scheduled else f"-{at.microsecond // 1000:03d}"
    return f"{stem}-{at:%y%m%d-%H%M%S}{tail}"
