"""Policies against a simulated cluster over days: arrivals, departures, plans and moves as events, without a clock.

The planner is the daemon's own, on full snapshots; execution is a model (a move takes ``move_seconds``, moves run
``budgets.concurrent`` at a time, wave after wave, within ``maxDuration``), and so is the scheduler (`sim.packing`).
Every policy acts as if its mode were Auto. Of ``trigger.startOn`` only pendingPods is simulated; faults, approval and
the breaker are not.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from defragd.core.free import deletion_costs
from defragd.core.mix import Mix, given_mix, running_mix
from defragd.core.model import Owner, Pod, Workload
from defragd.core.plan import Move, PlanReply, PlanRequest
from defragd.core.score import score
from defragd.core.snapshot import Snapshot
from defragd.core.vendor import Vendor
from defragd.core.workloads import workload_key
from defragd.policy.loaded import LoadedPolicy
from defragd.policy.schedule import next_starts
from defragd.policy.triggers import evaluate
from defragd.sim.churn import DAY, Change, apps_of
from defragd.sim.packing import Packing

Planner = Callable[[PlanRequest], PlanReply]
BACK_OFF = 3600.0
"""After a plan without moves the same policy does not plan again for so long (a month of ten-minute schedules would be
thousands of vain plans)."""
RETRY_SECONDS = 600.0
"""Pending pods are tried again this often, when something has become free."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster at one moment. ``waiting`` and ``held`` are in devices (shares add up)."""

    at: float
    loss: float
    idle_devices: int
    idle_nodes: int
    pods: int
    pending: int
    waiting: float
    held: float


@dataclass
class Outcome:
    """What one simulated span came to. ``moves_of``: moves per workload; ``admitted``: devices of pods that came and
    got a place; ``waited``: device-hours of waiting."""

    samples: list[Sample] = field(default_factory=list)
    arrived: float = 0.0
    admitted: float = 0.0
    waited: float = 0.0
    runs: int = 0
    moves: int = 0
    lost: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    moves_of: Counter[str] = field(default_factory=Counter)
    by_policy: dict[str, Counter[str]] = field(default_factory=dict)

    @property
    def mean_loss(self) -> float:
        return sum(s.loss for s in self.samples) / len(self.samples) if self.samples else 0.0


@dataclass
class _Run:
    policy: LoadedPolicy
    deadline: float
    moves: dict[str, Move]
    done: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)


class Days:
    """One simulated span. ``policies`` empty: the same span without us."""

    def __init__(
        self,
        start: Snapshot,
        changes: Sequence[Change],
        *,
        began: datetime,
        days: float,
        policies: Sequence[LoadedPolicy] = (),
        planner: Planner,
        vendors: Mapping[str, Vendor],
        node_policy: str = "binpack",
        device_policy: str = "spread",
        move_seconds: float = 90.0,
        sample_hours: float = 6.0,
        seed: int = 1,
        progress: Callable[[float], None] = lambda day: None,
    ) -> None:
        self._start, self._began, self._end = start, began, days * DAY
        self._policies, self._planner, self._vendors = policies, planner, vendors
        self._move_seconds, self._progress = move_seconds, progress
        self._packing = Packing(start, vendors=vendors, node_policy=node_policy, device_policy=device_policy, seed=seed)
        self._pods = dict(start.pods)
        self._workloads = dict(start.workloads)
        self._mix: Mix = running_mix(start)
        self._apps: dict[str, list[str]] = {name: list(keys) for name, keys in apps_of(start).items()}
        self._pending: dict[str, float] = {}
        self._number = itertools.count(1)
        self._tie = itertools.count()
        self._freed = False
        self._run: _Run | None = None
        self._moved_at: dict[str, list[float]] = {}
        self._arrived_at: dict[str, float] = {}
        self._hints: dict[str, int] = {}
        self._vain: dict[str, float] = {}
        self._sick = any(not device.healthy for device in start.devices.values())
        self._free = any(p.model.spec.free.deletion_cost for p in policies)
        self.out = Outcome(by_policy={p.name: Counter() for p in policies})
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        for change in changes:
            self._at(change.at, self._apply, change)
        for hour in range(int(days * 24 / sample_hours) + 1):
            self._at(hour * sample_hours * 3600.0, self._sample)
        for policy in policies:
            self._schedule(policy)
            self._watch_pending(policy)
        if self._free:
            for hour in range(int(days * 24)):
                self._at(hour * 3600.0, self._hint)

    def _at(self, at: float, what: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._events, (at, next(self._tie), lambda now: what(now, *args)))

    def play(self) -> Outcome:
        """Everything until the end of the span."""
        retry = RETRY_SECONDS
        while self._events and self._events[0][0] <= self._end:
            at, _, what = heapq.heappop(self._events)
            # on a grid of its own, so that a policy that does nothing changes nothing
            while retry <= at:
                if self._freed and self._pending:
                    self._retry(retry)
                retry += RETRY_SECONDS
            what(at)
            self._progress(at / DAY)
        for key, since in self._pending.items():
            self.out.waited += (self._end - since) / 3600.0 * _devices(self._pods[key])
        return self.out

    def moment(self, at: float) -> datetime:
        return self._began + timedelta(seconds=at)

    # -- demand -------------------------------------------------------------------------------------------------------

    def _apply(self, at: float, change: Change) -> None:
        if change.pods > 0:
            self._come(at, change)
            return
        keys = self._apps.get(change.app, [])
        if change.pods == 0:
            for key in list(keys):
                self._go(at, key)
            self._apps.pop(change.app, None)
            return
        for _ in range(min(-change.pods, len(keys) - 1)):
            # as the ReplicaSet controller: not yet placed first, then by deletion cost, then the newest
            victim = min(keys, key=lambda k: (k not in self._pending, self._hints.get(k, 0), -keys.index(k)))
            keys.remove(victim)
            self._go(at, victim)

    def _come(self, at: float, change: Change) -> None:
        template = self._start.pods.get(change.template)
        if template is None:
            return
        uid = f"sim-{change.app}"
        name = change.app.rpartition("/")[2]
        keys = self._apps.setdefault(change.app, [])
        owner = template.owner if change.app == workload_key(self._start, template) else None
        if owner is None:
            owner = Owner("ReplicaSet", name, uid, "apps/v1")
            self._workloads.setdefault(uid, Workload("ReplicaSet", template.namespace, name, uid, change.pods))
        for _ in range(change.pods):
            number = next(self._number)
            pod = replace(
                template,
                namespace=template.namespace if owner is template.owner else "simulated",
                name=f"{name}-s{number}",
                uid=f"sim-{number}",
                owner=owner,
                labels={**template.labels, "app": name},
                created=self.moment(at),
                ready_since=self.moment(at),
                node="",
                booked_node="",
                allocations=(),
                phase="Pending",
                ready=False,
            )
            self.out.arrived += _devices(pod)
            keys.append(pod.key)
            if not self._place(pod, at):
                self._pods[pod.key] = pod
                self._pending[pod.key] = at

    def _place(self, pod: Pod, at: float) -> bool:
        found = self._packing.choose(pod)
        if found is None:
            return False
        placed = replace(self._packing.landed(pod, found[1]), ready=True, ready_since=self.moment(at))
        self._packing.book(placed, 1)
        self._pods[placed.key] = placed
        self.out.admitted += _devices(pod)
        return True

    def _go(self, at: float, key: str) -> None:
        pod = self._pods.pop(key, None)
        if pod is None:
            return
        self._hints.pop(key, None)
        since = self._pending.pop(key, None)
        if since is not None:
            self.out.waited += (at - since) / 3600.0 * _devices(pod)
            return
        self._packing.book(pod, -1)
        self._freed = True

    def _retry(self, at: float) -> None:
        """First come, first served; of equal shapes the first that does not fit speaks for all."""
        self._freed = False
        hopeless: set[object] = set()
        for key in list(self._pending):
            pod = self._pods[key]
            shape = (id(pod.scheduling), pod.requests, id(pod.selection))
            if shape in hopeless:
                continue
            if self._place(pod, at):
                self.out.waited += (at - self._pending.pop(key)) / 3600.0 * _devices(pod)
            else:
                hopeless.add(shape)

    # -- measuring ----------------------------------------------------------------------------------------------------

    def snapshot(self, at: float) -> Snapshot:
        return replace(self._start, pods=dict(self._pods), workloads=dict(self._workloads), taken_at=self.moment(at))

    def _sample(self, at: float) -> None:
        found = score(self.snapshot(at), mix=self._mix)
        waiting = sum(_devices(self._pods[key]) for key in self._pending)
        held = float((self._packing.books.memory / self._packing.fleet.memory.clip(1)).sum())
        pods = len(self._pods) - len(self._pending)
        self.out.samples.append(
            Sample(at, found.loss, found.idle_devices, found.idle_nodes, pods, len(self._pending), waiting, held)
        )

    def _hint(self, at: float) -> None:
        self._hints = dict(deletion_costs(self.snapshot(at)))

    # -- policies -----------------------------------------------------------------------------------------------------

    def _schedule(self, policy: LoadedPolicy) -> None:
        at = self._began - timedelta(seconds=1)
        while True:
            coming = next_starts(policy, at, 50)
            for start in coming:
                seconds = (start.utc - self._began).total_seconds()
                if seconds > self._end:
                    return
                if start.allowed:
                    self._at(max(0.0, seconds), self._plan, policy, start.max_duration, seconds)
            if not coming:
                return
            at = coming[-1].utc

    def _watch_pending(self, policy: LoadedPolicy) -> None:
        on = policy.trigger.start_on
        if on.pending_pods is None or policy.suspended:
            return
        step = max(RETRY_SECONDS, on.interval.total_seconds())
        for look in range(1, int(self._end / step) + 1):
            self._at(look * step, self._signal, policy, on.pending_pods.after.total_seconds())

    def _signal(self, at: float, policy: LoadedPolicy, after: float) -> None:
        waits = any(at - since >= after for since in self._pending.values())
        if waits and self._run is None and policy.windows.check(self.moment(at)).allowed:
            longest = [s.max_duration for s in policy.schedules]
            self._plan(at, policy, None if None in longest else max(longest, default=None), at)  # type: ignore[type-var]

    def _plan(self, at: float, policy: LoadedPolicy, lasts: timedelta | None, due: float) -> None:
        counts = self.out.by_policy[policy.name]
        if self._run is not None:
            late = policy.schedules[0].starting_deadline
            if late is None or at - due < late.total_seconds():
                self._at(at + 60.0, self._plan, policy, lasts, due)
            else:
                counts["missed"] += 1
            return
        if self._idle(policy) or at < self._vain.get(policy.name, 0.0):
            counts["nothing to do"] += 1
            return
        snapshot, now = self.snapshot(at), self.moment(at)
        fixed = policy.rules.gain.expected_mix
        loss = score(snapshot, mix=given_mix(fixed) if fixed else None).loss if policy.trigger.min_fragmentation else 0
        last = max((times[-1] for times in self._moved_at.values()), default=None)
        verdict = evaluate(
            policy.trigger,
            snapshot,
            fragmentation=loss,
            now=now,
            last_eviction=self.moment(last) if last is not None else None,
        )
        if not verdict.ok:
            counts[str(verdict.reason)] += 1
            return
        reply = self._planner(
            PlanRequest(
                snapshot=snapshot,
                policy=policy.name,
                strategy=policy.strategy,
                args=policy.args,
                rules=policy.rules,
                now=now,
                history={w: n for w, t in self._moved_at.items() if (n := sum(1 for x in t if at - x < DAY))},
                last_moved={w: self.moment(t[-1]) for w, t in self._moved_at.items()},
                arrivals={node: self.moment(t) for node, t in self._arrived_at.items()},
                vendors=self._vendors,
            )
        )
        counts["runs"] += 1
        self.out.runs += 1
        if not reply.moves:
            counts["no moves"] += 1
            self._vain[policy.name] = at + BACK_OFF
            return
        self._begin(at, policy, lasts, reply)

    def _idle(self, policy: LoadedPolicy) -> bool:
        """What needs no plan to be known."""
        waits = policy.strategy == "make-room" and not policy.args.get("shape")
        return (waits and not self._pending) or (bool(policy.args.get("unhealthy")) and not self._sick)

    def _begin(self, at: float, policy: LoadedPolicy, lasts: timedelta | None, reply: PlanReply) -> None:
        moves = {move.id: move for move in reply.moves}
        deadline = at + lasts.total_seconds() if lasts is not None else float("inf")
        self._run = run = _Run(policy, deadline, moves)
        abreast = policy.rules.budgets.concurrent or len(moves)
        when = at
        for wave in reply.waves:
            batches = _batches([moves[i] for i in wave], abreast)
            for batch in batches:
                when += self._move_seconds
                self._at(when, self._carry_out, run, batch)
        self._at(when + 1.0, self._finish, run)

    def _carry_out(self, at: float, run: _Run, batch: Sequence[Move]) -> None:
        """The batch lands now. What is no longer as planned is left where it is."""
        ready: list[tuple[Move, Pod]] = []
        late = at > run.deadline
        for move in batch:
            pod = self._pods.get(move.pod)
            known = pod is not None and pod.uid == move.uid and set(pod.devices) == set(move.source.devices)
            if late or not known or run.lost & set(move.after):
                run.lost.add(move.id)
                continue
            assert pod is not None
            ready.append((move, pod))
        for _, pod in ready:
            self._packing.book(pod, -1)
        for move, pod in ready:
            devices = self._packing.indexes(tuple(dict.fromkeys(move.target.devices)))
            fits = bool(devices) and self._packing.fits_at(pod, devices)
            moved = self._packing.landed(pod, devices) if fits else pod
            self._packing.book(moved, 1)
            if not fits:
                run.lost.add(move.id)
                continue
            self._pods[pod.key] = replace(moved, ready_since=self.moment(at), created=self.moment(at))
            run.done.add(move.id)
            workload = move.workload or move.pod
            self._moved_at.setdefault(workload, []).append(at)
            self._arrived_at[move.target.node] = at
            self.out.moves_of[workload] += 1
        self._freed = True

    def _finish(self, at: float, run: _Run) -> None:
        self.out.moves += len(run.done)
        self.out.lost += len(run.lost)
        self.out.by_policy[run.policy.name]["moves"] += len(run.done)
        self.out.by_policy[run.policy.name]["lost"] += len(run.lost)
        self._run = None


def _batches(moves: Iterable[Move], abreast: int) -> list[list[Move]]:
    """Moves in order, ``abreast`` at a time; a co-evicted group stays together."""
    found: list[list[Move]] = []
    for _, same in itertools.groupby(moves, key=lambda m: m.group or m.id):
        group = list(same)
        if found and len(found[-1]) + len(group) <= abreast:
            found[-1] += group
        else:
            found.append(group)
    return found


def _devices(pod: Pod) -> float:
    """Devices' worth of a request: the larger of its memory and core shares, per device."""
    request = pod.requests[0] if pod.requests else None
    if request is None:
        return 0.0
    share = max(request.cores, request.memory_pct if not request.memory_mib else 0) / 100
    if request.memory_mib and not request.cores:
        share = 0.5
    return request.count * min(1.0, share)
