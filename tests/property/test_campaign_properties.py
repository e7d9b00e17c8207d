"""Campaign promises under any interleaving: budgets are never exceeded, a start is at most one run, deny is deny."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from defragd.controllers.execution import Terms
from defragd.controllers.planning import PlanRefused
from defragd.controllers.schedule import Scheduler
from defragd.core.budget import Books, Claim, Entry
from defragd.core.pdb import YES, Permit
from defragd.core.reasons import Reason
from defragd.core.rules import Budgets, Cap
from defragd.core.run import Run, RunPhase
from defragd.policy.load import load_text
from defragd.policy.loaded import LoadedPolicy
from defragd.sim.access import SimLeadership
from defragd.sim.clock import EPOCH, SimClock
from defragd.sim.world import GIB, App, build, node
from tests.support.effort import examples
from tests.support.simrun import FAST, World

counts = st.one_of(st.none(), st.integers(1, 4))
caps = st.builds(Cap, in_flight=counts, per_run=counts, per_day=counts)
budgets = st.builds(
    Budgets, total=counts, per_day=counts, concurrent=counts, per_source_node=caps, per_target_node=caps,
    per_namespace=caps, per_workload=caps, spacing=st.just(timedelta(seconds=30)),
    rate=st.one_of(st.none(), st.tuples(st.integers(1, 5), st.just(timedelta(minutes=1)))),
)  # fmt: skip
names = st.sampled_from(["a", "b", "c"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("start"), names, names, names, names),
        st.tuples(st.just("end"), st.integers(0, 20)),
        st.tuples(st.just("arrive"), st.integers(0, 20)),
        st.tuples(st.just("wait"), st.sampled_from([1, 31, 61, 3600, 90_000])),
        st.tuples(st.just("restart")),
    ),
    max_size=60,
)


class Ledger:
    """A second, slow book-keeping: every move ever started, counted anew at each question."""

    def __init__(self, budgets: Budgets) -> None:
        self.budgets = budgets
        self.moves: list[dict[str, Any]] = []

    def check(self, now: datetime) -> None:
        b = self.budgets
        flying = [m for m in self.moves if m["end"] is None]
        day = [m for m in self.moves if now - m["start"] < timedelta(days=1)]
        assert b.total is None or len(self.moves) <= b.total
        assert b.concurrent is None or len(flying) <= b.concurrent
        assert b.per_day is None or len(day) <= b.per_day
        for key, cap in (
            ("source", b.per_source_node),
            ("target", b.per_target_node),
            ("namespace", b.per_namespace),
            ("workload", b.per_workload),
        ):
            air = Counter(m[key] for m in flying if not (key == "target" and m["landed"]))
            assert cap.in_flight is None or max(air.values(), default=0) <= cap.in_flight
            assert cap.per_run is None or max(Counter(m[key] for m in self.moves).values(), default=0) <= cap.per_run
            assert cap.per_day is None or max(Counter(m[key] for m in day).values(), default=0) <= cap.per_day
        if b.rate is not None:
            assert sum(1 for m in self.moves if now - m["start"] < b.rate[1]) <= b.rate[0]

    def entries(self) -> list[Entry]:
        return [Entry(m["claim"], m["start"], m["end"], landed=m["landed"]) for m in self.moves]


@settings(max_examples=examples(200), deadline=None)
@given(budgets, steps)
def test_budgets_are_never_exceeded(limits: Budgets, script: list[tuple[Any, ...]]) -> None:
    """Starts, ends, arrivals, waits and restarts in any order; the books are rebuilt from records at each restart."""
    ledger, now = Ledger(limits), EPOCH
    books = Books.of(limits, now=now)
    for number, (verb, *args) in enumerate(script):
        if verb == "start":
            workload, namespace, source, target = args
            claim = Claim(f"m{number}", workload, namespace, source, target)
            if books.may_start(claim, now).ok:
                books.take(claim, now)
                made = {"claim": claim, "start": now, "end": None, "landed": False}
                ledger.moves.append(
                    {**made, **{k: getattr(claim, k) for k in ("workload", "namespace", "source", "target")}}
                )
        elif verb == "wait":
            # as in the daemon: every look builds its books from the records
            now += timedelta(seconds=args[0])
            books = Books.of(limits, ledger.entries(), now=now)
        elif verb == "restart":
            books = Books.of(limits, ledger.entries(), now=now)
        elif ledger.moves:
            move = ledger.moves[args[0] % len(ledger.moves)]
            if verb == "end" and move["end"] is None:
                move["end"] = now
            elif verb == "arrive" and move["end"] is None:
                move["landed"] = True
            books = Books.of(limits, ledger.entries(), now=now)
        ledger.check(now)
        assert min(books._air.values(), default=0) >= 0, "slots are never negative"
        assert min(books._run.values(), default=0) >= 0


# -- starts ---------------------------------------------------------------------------------------------------------

crons = st.sampled_from(["*/7 * * * *", "0 * * * *", "30 2 * * *", "0 2,3 * * *", "15 */2 * * *", "0 0 1 * *"])
zones = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
begins = st.sampled_from(
    [datetime(2026, 10, 24, 20, tzinfo=UTC), datetime(2027, 3, 27, 20, tzinfo=UTC), datetime(2026, 6, 1, tzinfo=UTC)]
)
windows = st.sampled_from(
    ["[]", '[{deny: {cron: "0 2 * * *", duration: 90m}}]', '[{allow: {cron: "0 1 * * *", duration: 3h}}]',
     '[{allow: {cron: "0 * * * *", duration: 20m}}, {deny: {cron: "10 * * * *", duration: 5m}}]']
)  # fmt: skip


def policy(cron: str, zone: str, deadline: str, windows: str) -> LoadedPolicy:
    found = load_text(
        f"""
apiVersion: defragd/v1
kind: DefragPolicy
metadata: {{name: p}}
spec:
  strategy: {{name: best-fit}}
  mode: Auto
  schedule: {{cron: "{cron}", timeZone: {zone}, startingDeadline: {deadline}}}
  windows: {windows}
"""
    )
    assert not found.errors, found.errors
    return found.policies[0]


class Records:
    """Run records as the API server keeps them; planning may be refused, the cache may lag one look behind."""

    def __init__(self) -> None:
        self.stored: list[Run] = []
        self.seen: list[Run] = []
        self.refuse = self.lag = False

    def list(self) -> list[Run]:
        return self.seen if self.lag else self.stored

    def plan_policy(self, job: Any, *, trigger: str, scheduled_for: datetime | None, mode: str | None = None) -> Run:
        if self.refuse:
            raise PlanRefused(Reason.RUN_IN_PROGRESS, "another")
        if any(r.scheduled_for == scheduled_for for r in self.stored):
            raise PlanRefused(Reason.SUPERSEDED, "recorded already")
        self.seen = list(self.stored)
        run = Run("ns", f"r{len(self.stored)}", "p", "Auto", "s", scheduled_for=scheduled_for, phase=RunPhase.COMPLETED)
        self.stored.append(run)
        return run


looks = st.lists(
    st.tuples(
        st.sampled_from([1, 5, 60, 300, 3600, 5 * 3600, -600, -7200]),
        st.sampled_from(["", "", "restart", "refuse", "lag"]),
    ),
    min_size=5,
    max_size=60,
)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(crons, zones, st.sampled_from(["15m", "0s", "6h", "null"]), windows, begins, looks)
def test_at_most_one_run_per_start_and_none_in_a_denied_window(
    cron: str, zone: str, deadline: str, spans: str, begin: datetime, script: list[tuple[int, str]]
) -> None:
    """Any looks, clock jumps, restarts, refusals and lagging caches: a start gives at most one run, a look at most one,
    and neither the start nor the moment of acting lies in a denied window."""
    made = policy(cron, zone, deadline, spans)
    clock, records = SimClock(begin), Records()

    def boot() -> Scheduler[LoadedPolicy]:
        return Scheduler(
            policies=lambda: [made],
            job=lambda p: SimpleNamespace(name=p.name),
            planning=records,  # type: ignore[arg-type]
            runs=records,  # type: ignore[arg-type]
            leadership=SimLeadership(),
            clock=clock,
            hook=lambda event, fields: None,
        )

    scheduler = boot()
    for seconds, what in script:
        clock.jump(seconds)
        records.refuse, records.lag = what == "refuse", what == "lag"
        if what == "restart":
            scheduler = boot()
        before = len(records.stored)
        scheduler.cycle()
        new = records.stored[before:]
        assert len(new) <= 1, "no burst"
        for run in new:
            assert run.scheduled_for is not None
            assert run.scheduled_for <= clock.now()
            assert made.windows.check(run.scheduled_for).allowed
            assert made.windows.check(clock.now()).allowed
    starts = [run.scheduled_for for run in records.stored]
    assert len(starts) == len(set(starts))


# -- windows and moves ----------------------------------------------------------------------------------------------


@settings(max_examples=examples(6), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(1, 20), st.booleans()), min_size=2, max_size=8))
def test_no_move_starts_while_it_is_denied(spans: list[tuple[int, bool]]) -> None:
    """A window that opens and closes at any times while a run is under way."""
    apps = [App(f"a{i}", [(f"n{i % 3}", i // 3)], memory_mib=8 * GIB) for i in range(6)]
    rules = replace(FAST, protect=replace(FAST.protect, min_replicas=1))
    world = World(build([node(f"n{i}", 3) for i in range(3)], apps), rules=rules)
    is_open = [True]

    def window(now: datetime) -> Permit:
        return YES if is_open[0] else Permit(False, Reason.OUTSIDE_WINDOW, "closed")

    world.replica.terms = lambda run: Terms(rules, window=window)
    world.replica.__post_init__()
    run = world.replica.planning.plan_policy(world.job())
    for ticks, allowed in spans:
        is_open[0] = allowed
        for _ in range(ticks):
            before = set(world.cluster.placements)
            world.step(0.2)
            assert allowed or not set(world.cluster.placements) - before
    is_open[0] = True
    world.until(world.ended(run.name), 900, step=0.2)
    assert world.cluster.overdrawn == []
