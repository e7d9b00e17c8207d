"""Starts runs when they are due. APScheduler only wakes this up; cron, time zones and deadlines are the policy's.

Several policies due at one look go by the time of their start, then by name; one run is carried out at a time, and all
count in one ledger of budgets, which is rebuilt from the run records. A policy that finds another's run under way asks
again until its starting deadline has passed. Policies that nothing can start before their next scheduled time are not
looked at until then, so that a thousand of them cost nothing.

What was started is read from the run records (`Run.scheduled_for`), so a start is never acted on twice, across restarts
and leaders, and a downtime gives at most the last missed start. Requests by people queue beside the scheduled starts
and are planned by the same thread, one after the other.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

from defragd.controllers.planning import Planning, PlanRefused
from defragd.core.reasons import Reason
from defragd.core.run import Run
from defragd.errors import DefragError
from defragd.policy.schedule import Start, due, next_starts
from defragd.ports import Clock, Hook, Leadership, RunStore

EVERY_SECONDS = 5.0
"""Between two looks at what is due; a look right at the next start is scheduled besides."""


P = TypeVar("P", bound=Any)


@dataclass(slots=True)
class _Wish:
    policy: str
    mode: str | None
    trigger: str
    answer: Future[Run]


@dataclass(frozen=True, slots=True)
class _Quiet:
    """Nothing of this version of a policy is due before ``until`` (None: ever), as seen at ``since``."""

    digest: str
    since: datetime
    until: datetime | None


class Scheduler(Generic[P]):
    """One thread that plans what is due. ``policies`` are the live ones, ``job`` makes a policy plannable."""

    def __init__(
        self,
        *,
        policies: Callable[[], Iterable[P]],
        job: Callable[[P], Any],
        planning: Planning,
        runs: RunStore,
        leadership: Leadership,
        clock: Clock,
        hook: Hook,
        every_seconds: float = EVERY_SECONDS,
        signals: Callable[[Iterable[P]], list[tuple[P, str]]] = lambda policies: [],
    ) -> None:
        """``signals`` gives policies that something else than their schedule starts now, and what."""
        self._policies = policies
        self._job = job
        self._planning = planning
        self._runs = runs
        self._leadership = leadership
        self._clock = clock
        self._hook = hook
        self._every = every_seconds
        self._signals = signals
        self._quiet: dict[str, _Quiet] = {}
        self._wake = threading.Event()
        self._wishes: queue.SimpleQueue[_Wish] = queue.SimpleQueue()
        self._acted: dict[str, datetime] = {}
        """Last start acted on by this process, for the moment until the cache shows its record."""
        self._said: dict[str, str] = {}
        self.beat = clock.monotonic()

    def run(self, stop: threading.Event) -> None:
        """Until ``stop``."""
        wakeups = BackgroundScheduler(timezone=UTC, daemon=True)
        options: Mapping[str, Any] = {"max_instances": 1, "coalesce": True, "misfire_grace_time": 60}
        wakeups.add_job(self._wake.set, IntervalTrigger(seconds=self._every, timezone=UTC), id="look", **options)
        wakeups.start()
        try:
            while not stop.is_set():
                self._wake.wait(1.0)
                self._wake.clear()
                if stop.is_set():
                    return
                self.beat = self._clock.monotonic()
                try:
                    self.cycle()
                except Exception as error:  # noqa: BLE001 - a loop that dies would silently stop all schedules
                    self._hook("loop.failed", {"loop": "schedule", "error": f"{type(error).__name__}: {error}"})
                self.beat = self._clock.monotonic()
                at = self.next_start()
                if at is not None and at > datetime.now(UTC):
                    wakeups.add_job(
                        self._wake.set, DateTrigger(at, timezone=UTC), id="start", replace_existing=True, **options
                    )
        finally:
            wakeups.shutdown(wait=False)
            self._refuse_wishes()

    def request(self, policy: str, *, mode: str | None = None, trigger: str = "manual") -> Future[Run]:
        """Plan now, on a person's word. The future gives the run, or `PlanRefused`, or a `DefragError` for an unknown
        policy."""
        wish = _Wish(policy, mode, trigger, Future())
        self._wishes.put(wish)
        self._wake.set()
        return wish.answer

    def cycle(self) -> list[Run]:
        """Plans what was asked for and what is due, in order of time, then name."""
        policies = {p.name: p for p in self._policies()}
        done = self._grant(policies)
        if not self._leadership.is_leader():
            self._acted.clear()
            return done
        now = self._clock.now()
        for start, policy in sorted(self._due(policies, now), key=lambda pair: (pair[0].utc, pair[0].policy)):
            run = self._start(start, policy)
            if run is not None:
                done.append(run)
        for policy, kind in self._signals(policies.values()):
            run = self._plan(policy, kind, None)
            if run is not None:
                done.append(run)
        return done

    def _due(self, policies: Mapping[str, P], now: datetime) -> list[tuple[Start, P]]:
        found: list[tuple[Start, P]] = []
        last: dict[str, datetime] | None = None
        for gone in self._quiet.keys() - policies.keys():
            del self._quiet[gone]
        for name, policy in policies.items():
            quiet = self._quiet.get(name)
            same = quiet is not None and quiet.digest == policy.digest and quiet.since <= now
            if quiet is not None and same and (quiet.until is None or now < quiet.until):
                continue
            last = self._last_starts() if last is None else last
            start = due(policy, last.get(name), now)
            if start is not None:
                self._quiet.pop(name, None)
                found.append((start, policy))
            else:
                # a window that is closed now may open within a start's deadline: asked again when it does
                window = policy.windows.check(now)
                coming = next_starts(policy, now, 1) if policy.suspended or window.allowed else []
                until = coming[0].utc if coming else None
                self._quiet[name] = _Quiet(policy.digest, now, until if window.allowed else window.until)
        return found

    def last_start(self, policy: str) -> datetime | None:
        """Scheduled time of the last start acted on, by records and memory."""
        return self._last_starts().get(policy)

    def _last_starts(self) -> dict[str, datetime]:
        known = dict(self._acted)
        for run in self._runs.list():
            at = run.scheduled_for
            if at is not None and (run.policy not in known or known[run.policy] < at):
                known[run.policy] = at
        return known

    def next_start(self) -> datetime | None:
        """The next start of any policy (UTC)."""
        now = self._clock.now()
        found = []
        for policy in self._policies():
            quiet = self._quiet.get(policy.name)
            if quiet is not None and quiet.digest == policy.digest and quiet.since <= now:
                found += [quiet.until] if quiet.until is not None else []
            else:
                found += [start.utc for start in next_starts(policy, now, 1)]
        return min(found, default=None)

    def _start(self, start: Start, policy: P) -> Run | None:
        run = self._plan(policy, "schedule", start.utc)
        if run is not None:
            self._acted[policy.name] = start.utc
        return run

    def _plan(self, policy: P, trigger: str, at: datetime | None) -> Run | None:
        try:
            run = self._planning.plan_policy(self._job(policy), trigger=trigger, scheduled_for=at)
        except PlanRefused as error:
            if error.reason is Reason.SUPERSEDED and at is not None:
                self._acted[policy.name] = at
            # not settled: asked again at the next look, until the starting deadline has passed
            if self._said.get(policy.name) != str(error):
                self._said[policy.name] = str(error)
                when = at.isoformat() if at is not None else trigger
                self._hook("start.delayed", {"policy": policy.name, "start": when, "reason": str(error)})
            return None
        self._said.pop(policy.name, None)
        return run

    def _grant(self, policies: Mapping[str, P]) -> list[Run]:
        done: list[Run] = []
        while True:
            try:
                wish = self._wishes.get_nowait()
            except queue.Empty:
                return done
            policy = policies.get(wish.policy)
            try:
                if policy is None:
                    raise DefragError(f'there is no policy "{wish.policy}"')
                run = self._planning.plan_policy(self._job(policy), mode=wish.mode, trigger=wish.trigger)
            except Exception as error:  # noqa: BLE001 - the asker gets whatever went wrong
                wish.answer.set_exception(error)
            else:
                wish.answer.set_result(run)
                done.append(run)

    def _refuse_wishes(self) -> None:
        while not self._wishes.empty():
            self._wishes.get_nowait().answer.set_exception(DefragError("the daemon is stopping"))
