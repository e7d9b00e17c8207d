"""Caps on moves: how many in all, at once, per node, namespace and workload, how far apart, how many a day.

One `Books` value counts one policy's caps over what has been started already (by this run and, for the caps per day
and in flight, by everybody). The planner asks `may_plan` (caps of the whole run) and `may_fly` (caps at once, to cut
waves), the run asks `may_start` (all of them, with spacing and rate). A refusal names the cap that binds, as the policy
spells it. `Floor` is the one limit no policy lifts: never all replicas of a workload out at once.

Slots are taken before the write that starts a move and given back only at the move's end; after a restart the books are
rebuilt from placements and run records (`Entry`) before anything starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from defragd.core.model import Owner, Pod
from defragd.core.pdb import YES, Ledger, Permit
from defragd.core.reasons import Reason
from defragd.core.rules import Budgets, Cap
from defragd.core.snapshot import Snapshot

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Claim:
    """What a move counts against."""

    id: str
    workload: str
    namespace: str
    source: str
    target: str
    replicas: int = 0
    """Of the workload, for caps that are a share of it; 0 = not known, such a cap then lets one go at a time."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A move that was started: still in flight while ``finished`` is None. ``own`` = by the run being judged.

    ``landed``: its pod is Ready on the target and settles; it no longer counts as an arrival there, only elsewhere.
    """

    claim: Claim
    started: datetime
    finished: datetime | None = None
    own: bool = True
    landed: bool = False


def count_places(claims: Iterable[Claim]) -> dict[tuple[str, str], int]:
    """How many of the moves left each node, went to it, and were in each namespace."""
    return Counter(
        key for c in claims for key in (("source", c.source), ("target", c.target), ("namespace", c.namespace))
    )


class Books:
    """Counts of one policy's budgets. ``copy`` for what-if; `take`/`land`/`undo` change it."""

    def __init__(self, budgets: Budgets) -> None:
        self.budgets = budgets
        self.flying: dict[str, Claim] = {}
        self._landed: set[str] = set()
        self._run: Counter[tuple[str, str]] = Counter()
        self._day: Counter[tuple[str, str]] = Counter()
        self._air: Counter[tuple[str, str]] = Counter()
        self._last: dict[str, datetime] = {}
        """Per workload, when its last move started (in flight) or, if later, ended: spacing counts from there."""
        self._starts: list[datetime] = []

    @classmethod
    def of(cls, budgets: Budgets, entries: Iterable[Entry] = (), *, now: datetime | None = None) -> Books:
        """Books after ``entries``; those older than a day count for the run only."""
        books = cls(budgets)
        for entry in entries:
            books.enter(entry, now=now)
        return books

    @classmethod
    def for_plan(
        cls,
        budgets: Budgets,
        history: dict[str, int] | None = None,
        places: Mapping[tuple[str, str], int] | None = None,
    ) -> Books:
        """Books of a plan yet to run; ``history`` is moves of the last 24 h per workload, ``places`` the same per
        source node, target node and namespace (see `count_places`)."""
        books = cls(budgets)
        books._day.update(places or {})
        for workload, count in (history or {}).items():
            books._day["workload", workload] += count
            books._day["total", ""] += count
        return books

    def enter(self, entry: Entry, *, now: datetime | None = None) -> None:
        claim = entry.claim
        if entry.own:
            self._count(self._run, claim, 1)
        if now is None or now - entry.started < DAY:
            self._count(self._day, claim, 1)
        if entry.finished is None and claim.id not in self.flying:
            self.flying[claim.id] = claim
            self._count(self._air, claim, 1)
            if entry.landed:
                self._landed.add(claim.id)
                self._air["target", claim.target] -= 1
        self._starts.append(entry.started)
        self._touch(claim.workload, entry.finished or entry.started)

    def copy(self) -> Books:
        twin = Books(self.budgets)
        twin.flying, twin._landed = dict(self.flying), set(self._landed)
        twin._run, twin._day, twin._air = self._run.copy(), self._day.copy(), self._air.copy()
        twin._last, twin._starts = dict(self._last), list(self._starts)
        return twin

    def may_plan(self, claim: Claim) -> Permit:
        """Caps of the whole run and of the day: one more move of this kind may be in the plan."""
        budgets = self.budgets
        checks: list[tuple[str, int | None, int]] = [
            ("budgets.total", budgets.total, self._run["total", ""]),
            ("budgets.perDay", budgets.per_day, self._day["total", ""]),
        ]
        for kind, key, cap, name in _caps(budgets, claim):
            checks.append((f"budgets.{name}.perRun", cap.per_run, self._run[kind, key]))
            checks.append((f"budgets.{name}.perDay", cap.per_day, self._day[kind, key]))
        return _judge(checks, claim)

    def may_fly(self, claim: Claim) -> Permit:
        """Caps in flight: this move may be under way together with those that are."""
        checks: list[tuple[str, int | None, int]] = [
            ("budgets.concurrent", self.budgets.concurrent, self._air["total", ""])
        ]
        checks += [
            (f"budgets.{name}.inFlight", _at_once(cap, claim), self._air[kind, key])
            for kind, key, cap, name in _caps(self.budgets, claim)
        ]
        return _judge(checks, claim)

    def may_start(self, claim: Claim, now: datetime) -> Permit:
        """All caps, then spacing within the workload, then the rate."""
        for permit in (self.may_plan(claim), self.may_fly(claim)):
            if not permit.ok:
                return permit
        last = self._last.get(claim.workload)
        if last is not None and now - last < self.budgets.spacing:
            until = last + self.budgets.spacing
            return Permit(
                False,
                Reason.OVER_BUDGET,
                f"{claim.workload} was moved a moment ago; its next move may start at {until:%H:%M:%S} UTC",
                "budgets.spacing",
            )
        if self.budgets.rate is not None:
            count, per = self.budgets.rate
            recent = sum(1 for start in self._starts if now - start < per)
            if recent >= count:
                return Permit(
                    False,
                    Reason.OVER_BUDGET,
                    f"{recent} moves were started within {per.total_seconds():.0f} s",
                    "budgets.rate",
                )
        return YES

    def ever_flies(self, claim: Claim) -> Permit:
        """Whether the in-flight caps let this move go at all, with nothing else under way (a cap of 0 does not)."""
        empty = Books(self.budgets)
        return empty.may_fly(claim)

    def take(self, claim: Claim, now: datetime | None = None) -> None:
        """The move is about to be started: call before the write."""
        self._count(self._run, claim, 1)
        self._count(self._day, claim, 1)
        if claim.id not in self.flying:
            self.flying[claim.id] = claim
            self._count(self._air, claim, 1)
        if now is not None:
            self._starts.append(now)
            self._touch(claim.workload, now)

    def land(self, claim: Claim, now: datetime | None = None) -> None:
        """The move ended: its place in flight is free, it still counts for the run and the day."""
        if self.flying.pop(claim.id, None) is not None:
            self._count(self._air, claim, -1)
            if claim.id in self._landed:
                self._landed.discard(claim.id)
                self._air["target", claim.target] += 1
        if now is not None:
            self._touch(claim.workload, now)

    def undo(self, claim: Claim) -> None:
        """The move was never started after all (what-if, or its creation was refused)."""
        self.land(claim)
        self._count(self._run, claim, -1)
        self._count(self._day, claim, -1)

    def _touch(self, workload: str, at: datetime) -> None:
        if workload not in self._last or self._last[workload] < at:
            self._last[workload] = at

    @staticmethod
    def _count(counter: Counter[tuple[str, str]], claim: Claim, by: int) -> None:
        for key in (
            ("total", ""),
            ("source", claim.source),
            ("target", claim.target),
            ("namespace", claim.namespace),
            ("workload", claim.workload),
        ):
            counter[key] += by


def _caps(budgets: Budgets, claim: Claim) -> tuple[tuple[str, str, Cap, str], ...]:
    return (
        ("source", claim.source, budgets.per_source_node, "perSourceNode"),
        ("target", claim.target, budgets.per_target_node, "perTargetNode"),
        ("namespace", claim.namespace, budgets.per_namespace, "perNamespace"),
        ("workload", claim.workload, budgets.per_workload, "perWorkload"),
    )


def _at_once(cap: Cap, claim: Claim) -> int | None:
    """The cap in flight for this claim: the number, or the share of the workload, whichever is less."""
    if cap.in_flight_pct is None:
        return cap.in_flight
    share = max(1, claim.replicas * cap.in_flight_pct // 100)
    return share if cap.in_flight is None else min(share, cap.in_flight)


def _judge(checks: Iterable[tuple[str, int | None, int]], claim: Claim) -> Permit:
    for cap, limit, used in checks:
        if limit is not None and used >= limit:
            whom = {
                "budgets.perSourceNode": f" from node {claim.source}",
                "budgets.perTargetNode": f" to node {claim.target}",
                "budgets.perNamespace": f" in namespace {claim.namespace}",
                "budgets.perWorkload": f" of {claim.workload}",
            }.get(".".join(cap.split(".")[:2]), "")
            return Permit(False, Reason.OVER_BUDGET, f"{cap} = {limit} is used up ({used} moves{whom})", cap)
    return YES


class Floor:
    """Never all replicas of a workload at once, whatever the budgets say, unless a PodDisruptionBudget covers it.

    Counted by Ready pods of the top owner (both ReplicaSets of a Deployment in rollout count together). A workload of
    one replica is a matter of eligibility (``protect.minReplicas``): where it may move at all, it is out while it does.
    """

    def __init__(self, ledger: Ledger, ready: dict[str, int], size: dict[str, int], top: dict[str, str]) -> None:
        self._ledger = ledger
        self._ready = ready
        self._size = size
        self._top = top
        self._out: dict[str, str] = {}

    @classmethod
    def of(cls, snapshot: Snapshot, ledger: Ledger, *, partial: bool = False) -> Floor:
        """``partial``: for plans. Replicas that the owner has and a file leaves out count as Ready when the owner's
        status says so, or when the owner has no status at all (hand-made files)."""
        ready: Counter[str] = Counter()
        size: Counter[str] = Counter()
        top: dict[str, str] = {}
        wanted: dict[str, int] = {}
        for pod in snapshot.pods.values():
            if pod.owner is None or not pod.live:
                continue
            uid = pod.owner.uid
            if uid not in top:
                workload = snapshot.workloads.get(uid)
                above: Owner | None = workload.top if workload else None
                top[uid] = above.uid if above else uid
                wanted[top[uid]] = wanted.get(top[uid], 0) + ((workload.replicas or 0) if workload else 0)
            size[top[uid]] += 1
            ready[top[uid]] += pod.ready and not pod.deleting
        if partial:
            for uid, more in _unseen(snapshot).items():
                if uid in top:
                    ready[top[uid]] += more
        return cls(ledger, dict(ready), {uid: max(count, wanted.get(uid, 0)) for uid, count in size.items()}, top)

    def copy(self, ledger: Ledger) -> Floor:
        twin = Floor(ledger, dict(self._ready), self._size, self._top)
        twin._out = dict(self._out)
        return twin

    def may_leave(self, pod: Pod) -> Permit:
        if not self._counts(pod):
            return YES
        key = self._key(pod)
        if self._size.get(key, 0) >= 2 and self._ready.get(key, 0) <= 1 and not self._ledger.covers(pod):
            return Permit(
                False,
                Reason.ALL_REPLICAS_OUT,
                f"{pod.key} is the last Ready pod of its workload ({self._size[key]} replicas, no PodDisruptionBudget)",
                "floor",
            )
        return YES

    def take(self, pod: Pod) -> None:
        if self._counts(pod) and (pod.uid or pod.key) not in self._out:
            self._out[pod.uid or pod.key] = self._key(pod)
            self._ready[self._key(pod)] = self._ready.get(self._key(pod), 0) - 1

    def give_back(self, pod: Pod) -> None:
        key = self._out.pop(pod.uid or pod.key, None)
        if key is not None:
            self._ready[key] += 1

    def _counts(self, pod: Pod) -> bool:
        return pod.owner is not None and pod.ready and not pod.deleting and (pod.uid or pod.key) not in self._out

    def _key(self, pod: Pod) -> str:
        assert pod.owner is not None
        return self._top.get(pod.owner.uid, pod.owner.uid)


def _unseen(snapshot: Snapshot) -> dict[str, int]:
    """Ready replicas by owner UID that are in no list of pods."""
    seen: Counter[str] = Counter()
    ready: Counter[str] = Counter()
    for pod in snapshot.pods.values():
        if pod.owner is not None:
            seen[pod.owner.uid] += 1
            ready[pod.owner.uid] += pod.live and pod.ready and not pod.deleting
    found = {}
    for uid, count in seen.items():
        workload = snapshot.workloads.get(uid)
        missing = (workload.replicas or 0) - count if workload else 0
        if workload is None or missing <= 0:
            continue
        said = missing if workload.ready is None else workload.ready - ready[uid]
        found[uid] = max(0, min(missing, said))
    return found
