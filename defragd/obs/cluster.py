"""Gauges of the cluster, computed from one reading per scrape so that all of them speak of the same moment.

The daemon gives a `Reading`; what depends only on the snapshot is kept while the snapshot is the same object or young.
"""

from __future__ import annotations

import operator
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from defragd.core.model import Device, Node
from defragd.core.placement import Phase, Placement
from defragd.core.plan import Score
from defragd.core.run import MoveState, Run, RunPhase
from defragd.core.snapshot import DeviceUsage, Snapshot
from defragd.obs.pools import Bounded, PoolOf, pool_of

ALL = "all"
"""The pool label of figures over the whole cluster. Never add it to the others."""
MEASURES = ("loss", "phi")
CAUSES = ("deviceShape", "host", "both", "type")
DEVICE_STATES = ("empty", "partial", "full", "unhealthy", "cordoned", "distrusted")
NODE_STATES = ("idle", "busy", "unready", "unschedulable")
MAX_SHAPES = 30
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Reading:
    """What one scrape sees. ``scores`` maps a pool (or "all") to its score; ``synced`` a resource to 0/1.

    ``certificate_expiry`` is a Unix time, ``policies`` counts by state ("ok", "broken"), ``budgets`` maps a budget to
    (moves that count against it, moves it still allows or None).
    """

    snapshot: Snapshot | None = None
    scores: Mapping[str, Score] = field(default_factory=dict)
    placements: Sequence[Placement] = ()
    runs: Sequence[Run] = ()
    snapshot_age_seconds: float = 0.0
    leader: bool = False
    synced: Mapping[str, bool] = field(default_factory=dict)
    certificate_expiry: float | None = None
    policies: Mapping[str, int] = field(default_factory=dict)
    gated_pods: int | None = None
    budgets: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    hami_metrics: bool | None = None
    """The last look at HAMi's own metrics could compare; None: not asked for."""


def free_share(device: Device, use: DeviceUsage) -> float:
    """Idle share 0..1: the scarcer of idle cores and idle memory; 0 when the slots are used up."""
    if device.slots and use.slots >= device.slots:
        return 0.0
    memory = use.memory_mib / device.memory_mib if device.memory_mib else 0.0
    cores = use.cores / device.cores if device.cores else 0.0
    return max(0.0, 1.0 - max(memory, cores, 1.0 if use.exclusive else 0.0))


def device_state(device: Device, use: DeviceUsage) -> str:
    """One of ``DEVICE_STATES``; trouble comes before fill."""
    if device.distrusted:
        return "distrusted"
    if not device.healthy:
        return "unhealthy"
    if device.cordoned:
        return "cordoned"
    if not use.holders:
        return "empty"
    return "full" if free_share(device, use) < 0.005 else "partial"


class ClusterCollector(Collector):
    """See the module; ``max_age`` seconds bound how often the per-device pass is done."""

    def __init__(self, source: Callable[[], Reading | None], *, pools: PoolOf = pool_of, max_age: float = 5.0) -> None:
        self._source = source
        self._max_age = max_age
        self._bounded = Bounded(50, (ALL,))
        self._nodes = _Nodes(lambda node: self._bounded(pools(node)))
        self._shapes = Bounded(MAX_SHAPES)
        self._families: tuple[GaugeMetricFamily, ...] = ()
        self._made = float("-inf")

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Names without a pass over the cluster (registration asks for them)."""
        yield from _small(Reading())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        reading = self._source() or Reading()
        yield from _small(reading)
        yield from _scores(reading, self._bounded, self._shapes)
        now = time.monotonic()
        if reading.snapshot is not None and now - self._made >= self._max_age:
            self._families = tuple(_devices(reading.snapshot, self._nodes.figures(reading.snapshot)))
            self._made = now
        yield from self._families


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=labels)


def _small(reading: Reading) -> Iterator[GaugeMetricFamily]:
    age = _gauge("defragd_snapshot_age_seconds", "Seconds since the oldest watch proved to be alive.")
    age.add_metric([], reading.snapshot_age_seconds)
    yield age
    leader = _gauge("defragd_leader", "1 on the replica that plans and drives placements.")
    leader.add_metric([], float(reading.leader))
    yield leader
    synced = _gauge("defragd_watch_synced", "1 when the resource was listed completely.", "resource")
    for resource, ok in sorted(reading.synced.items()):
        synced.add_metric([resource], float(ok))
    yield synced
    expiry = _gauge("defragd_certificate_expiry_timestamp_seconds", "When the serving certificate expires.")
    if reading.certificate_expiry is not None:
        expiry.add_metric([], reading.certificate_expiry)
    yield expiry
    placements = _gauge("defragd_placements", "Placements that exist, by phase.", "state")
    phases = Counter(str(p.status.phase) for p in reading.placements)
    for phase in Phase:
        placements.add_metric([phase], phases[str(phase)])
    yield placements
    runs = _gauge("defragd_run_records", "Runs that exist, by phase.", "phase")
    run_phases = Counter(str(run.phase) for run in reading.runs)
    for run_phase in RunPhase:
        runs.add_metric([run_phase], run_phases[str(run_phase)])
    yield runs
    flight = _gauge("defragd_moves_in_flight", "Moves under way.", "policy")
    policies_in_flight: Counter[str] = Counter()
    for run in reading.runs:
        policies_in_flight[run.policy] += sum(1 for move in run.moves if move.state is MoveState.IN_FLIGHT)
    for policy, count in sorted(policies_in_flight.items())[:200]:
        flight.add_metric([policy], count)
    yield flight
    used = _gauge("defragd_budget_used_moves", "Moves that count against a budget of the run under way.", "budget")
    allowed = _gauge("defragd_budget_allowed_moves", "Moves that a budget of the run under way still allows.", "budget")
    for budget, (count, left) in sorted(reading.budgets.items()):
        used.add_metric([budget], count)
        if left is not None:
            allowed.add_metric([budget], left)
    yield used
    yield allowed
    yield from _last_runs(reading.runs)
    newest = max((run.created.timestamp() for run in reading.runs if run.created), default=0.0)
    plan = _gauge("defragd_last_plan_timestamp_seconds", "When the newest plan was made; 0 = never.")
    plan.add_metric([], newest)
    yield plan
    policies = _gauge("defragd_policies", "Policies by state.", "state")
    for state in ("ok", "broken"):
        policies.add_metric([state], reading.policies.get(state, 0))
    yield policies
    if reading.hami_metrics is not None:
        up = _gauge("defragd_hami_metrics_up", "1 while HAMi's own metrics can be compared with the pods' annotations.")
        up.add_metric([], float(reading.hami_metrics))
        yield up
    if reading.gated_pods is not None:
        gated = _gauge("defragd_pods_gated", "Pods that wait behind our scheduling gate.")
        gated.add_metric([], reading.gated_pods)
        yield gated


def _scores(reading: Reading, pool_label: Bounded, shape_label: Bounded) -> Iterator[GaugeMetricFamily]:
    ratio = _gauge("defragd_fragmentation_ratio", "Fragmentation 0..1: loss (headline) and phi.", "pool", "measure")
    causes = _gauge("defragd_fragmentation_cause_ratio", "Shares of phi by cause.", "pool", "cause")
    unplaceable = _gauge("defragd_demands_unplaceable", "Usual request shapes of which no copy fits now.", "pool")
    copies = _gauge(
        "defragd_shape_copies", "Copies of a usual request shape that fit now, and if idle capacity were pooled.",
        "pool", "shape", "when",
    )  # fmt: skip
    idle = _gauge("defragd_idle_device_equivalents", "Idle capacity in whole devices (sum of idle shares).", "pool")
    whole = _gauge("defragd_idle_devices", "Whole idle devices.", "pool")
    nodes = _gauge("defragd_idle_nodes", "Nodes without any device in use.", "pool")
    recoverable = _gauge("defragd_fragmentation_recoverable_ratio", "Loss that the newest plan would remove.")
    for name, score in sorted(reading.scores.items()):
        pool = pool_label(name)
        ratio.add_metric([pool, "loss"], score.loss)
        ratio.add_metric([pool, "phi"], score.phi)
        for cause in CAUSES:
            causes.add_metric([pool, cause], score.causes.get(cause, 0.0))
        unplaceable.add_metric([pool], sum(1 for c in score.classes if c.fits == 0))
        idle.add_metric([pool], score.idle_gpus)
        whole.add_metric([pool], score.idle_devices)
        nodes.add_metric([pool], score.idle_nodes)
        if name == ALL:
            seen: set[str] = set()
            for item in sorted(score.classes, key=lambda c: -c.weight)[:MAX_SHAPES]:
                shape = shape_label(item.label)
                if shape not in seen:
                    seen.add(shape)
                    copies.add_metric([pool, shape, "now"], item.fits)
                    copies.add_metric([pool, shape, "pooled"], item.pooled)
    recoverable.add_metric([], _recoverable(reading.runs))
    yield from (ratio, causes, unplaceable, copies, idle, whole, nodes, recoverable)


def _last_runs(runs: Sequence[Run]) -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    """Of each policy's last run that moved something: L before it and as planned after it, and devices freed."""
    ratio = _gauge(
        "defragd_last_run_fragmentation_ratio", "Loss before the last run that moved something, and as planned.",
        "policy", "when",
    )  # fmt: skip
    freed = _gauge("defragd_last_run_freed_devices", "Whole devices that the last run's plan freed.", "policy")
    last: dict[str, Run] = {}
    for run in sorted((r for r in runs if r.created), key=lambda r: r.created.timestamp() if r.created else 0.0):
        if any(move.state is MoveState.DONE for move in run.moves):
            last[run.policy] = run
    for policy, run in sorted(last.items())[:200]:
        try:
            frag, devices = run.plan["fragmentation"], run.plan["freed"]["devices"]
            before, after = float(frag["before"]["L"]), float(frag["after"]["L"])
        except (KeyError, TypeError, ValueError):
            continue
        ratio.add_metric([policy, "before"], before)
        ratio.add_metric([policy, "planned"], after)
        freed.add_metric([policy], float(devices))
    return ratio, freed


def _recoverable(runs: Sequence[Run]) -> float:
    """L before minus L after of the newest plan; 0 without one or when it was carried out."""
    dated = [run for run in runs if run.created and run.plan.get("fragmentation")]
    if not dated:
        return 0.0
    newest = max(dated, key=lambda run: run.created.timestamp() if run.created else 0.0)
    if newest.phase not in (RunPhase.PLANNED, RunPhase.AWAITING_APPROVAL):
        return 0.0
    frag = newest.plan["fragmentation"]
    try:
        return max(0.0, float(frag["before"]["L"]) - float(frag["after"]["L"]))
    except (KeyError, TypeError, ValueError):
        return 0.0


@dataclass(frozen=True, slots=True)
class _NodeFigures:
    """What one node adds to the sums, with the objects it was computed from (compared by identity)."""

    key: tuple[object, ...]
    pool: str
    states: Counter[str]
    state: str
    memory: int
    used: int
    hole: int


class _Nodes:
    """Figures per node, computed again only where node, books or holds are other objects than last time."""

    def __init__(self, pools: PoolOf) -> None:
        self._pools = pools
        self._kept: dict[str, _NodeFigures] = {}

    def figures(self, snapshot: Snapshot) -> list[_NodeFigures]:
        """One entry per node with devices."""
        fresh: dict[str, _NodeFigures] = {}
        for name, node in snapshot.nodes.items():
            if node.devices:
                key = (node, *snapshot.booked_on.get(name, ()), *snapshot.holds_on.get(name, ()))
                kept = self._kept.get(name)
                fresh[name] = kept if kept is not None and same(kept.key, key) else self._compute(snapshot, node, key)
        self._kept = fresh
        return list(fresh.values())

    def _compute(self, snapshot: Snapshot, node: Node, key: tuple[object, ...]) -> _NodeFigures:
        usage = snapshot.usage(node.name)
        states: Counter[str] = Counter()
        memory = used = hole = 0
        busy = False
        for device in node.devices:
            use = usage[device.uuid]
            states[device_state(device, use)] += 1
            memory += device.memory_mib
            used += min(use.memory_mib, device.memory_mib)
            busy = busy or bool(use.holders)
            if device.usable and free_share(device, use) > 0:
                hole = max(hole, device.memory_mib - use.memory_mib)
        state = "unready" if not node.ready else "unschedulable" if not node.schedulable else "busy" if busy else "idle"
        return _NodeFigures(key, self._pools(node), states, state, memory, used, hole)


def same(first: tuple[object, ...], second: tuple[object, ...]) -> bool:
    """The same objects in the same order; frozen values, so the same object is the same content."""
    return len(first) == len(second) and all(map(operator.is_, first, second))


def _devices(snapshot: Snapshot, figures: Sequence[_NodeFigures]) -> Iterator[GaugeMetricFamily]:
    states: dict[str, Counter[str]] = {}
    node_states: dict[str, Counter[str]] = {}
    total: Counter[str] = Counter()
    used: Counter[str] = Counter()
    largest: dict[str, int] = {}
    for item in figures:
        states.setdefault(item.pool, Counter()).update(item.states)
        node_states.setdefault(item.pool, Counter())[item.state] += 1
        total[item.pool] += item.memory
        used[item.pool] += item.used
        largest[item.pool] = max(largest.get(item.pool, 0), item.hole)
    devices = _gauge("defragd_devices", "Devices by state.", "pool", "state")
    nodes = _gauge("defragd_nodes", "Nodes with devices, by state.", "pool", "state")
    memory = _gauge("defragd_device_memory_bytes", "Device memory registered.", "pool")
    allocated = _gauge("defragd_device_memory_allocated_bytes", "Device memory booked by pods and holds.", "pool")
    free_bytes = _gauge("defragd_device_memory_free_bytes", "Device memory not booked.", "pool")
    hole = _gauge("defragd_device_memory_largest_free_bytes", "Largest piece free on one usable device.", "pool")
    for pool in sorted(states):
        for state in DEVICE_STATES:
            devices.add_metric([pool, state], states[pool][state])
        for state in NODE_STATES:
            nodes.add_metric([pool, state], node_states[pool][state])
        memory.add_metric([pool], total[pool] * MIB)
        allocated.add_metric([pool], used[pool] * MIB)
        free_bytes.add_metric([pool], (total[pool] - used[pool]) * MIB)
        hole.add_metric([pool], largest[pool] * MIB)
    problems = _gauge("defragd_problems", "Objects set aside because they are broken or doubtful.", "reason")
    for reason, count in sorted(Counter(str(p.reason) for p in snapshot.problems).items()):
        problems.add_metric([reason], count)
    pending = _gauge("defragd_pods_pending", "Unbound pods that ask for devices.")
    pending.add_metric([], sum(1 for p in snapshot.pods.values() if p.requests and not p.node and p.live))
    yield from (devices, nodes, memory, allocated, free_bytes, hole, problems, pending)
