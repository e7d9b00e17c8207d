"""The simulated cluster: objects, a queue of things to come, and the controllers that keep them going.

API server, kubelet, ReplicaSet and StatefulSet controllers and the disruption controller in one process, as far as a
move can feel them. HAMi's scheduler is in `sim.scheduler`, the ports in `sim.access`. One lock; whatever happens,
happens in `pump`, which does all that is due by the clock, in order.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from defragd.core.admission import admit
from defragd.core.model import DisruptionBudget, Node, NodeLock, Owner, Pod, Workload
from defragd.core.pdb import budgets_of
from defragd.core.placement import Placement
from defragd.core.placement_holds import open_holds
from defragd.core.run import Run
from defragd.core.selectors import matches
from defragd.core.snapshot import Snapshot
from defragd.core.vendor import Vendor
from defragd.hami.vendors import VENDORS
from defragd.ports import Beat
from defragd.sim.clock import LiveClock, SimClock
from defragd.sim.counts import Counts, goes_first
from defragd.sim.faults import Faults
from defragd.sim.patches import admission_request, admitted, as_template
from defragd.sim.scheduler import Scheduler

KNOWN = frozenset({"pdbs", "workloads", "quotas", "placements", "volumes"})
RECREATED = frozenset({"ReplicaSet", "StatefulSet", "ReplicationController"})


@dataclass(slots=True)
class Owned:
    """An owner that recreates pods: its template and how many it wants."""

    workload: Workload
    template: Pod
    replicas: int
    ordered: bool = False
    serial: int = 0


@dataclass(frozen=True, slots=True)
class Eviction:
    """For the record of a test: who was evicted when."""

    at: datetime
    pod: str
    uid: str


class SimCluster:
    """Starts from a snapshot. ``advance`` moves a `SimClock` on; with a `LiveClock` call `pump` from a thread."""

    def __init__(
        self,
        start: Snapshot,
        *,
        clock: SimClock | LiveClock | None = None,
        faults: Faults | None = None,
        vendors: Mapping[str, Vendor] = VENDORS,
        admission_mode: str = "gate",
    ) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.clock = clock or SimClock()
        self.faults = faults or Faults()
        self.vendors = vendors
        self.admission_mode = admission_mode
        self.start = start
        self.nodes: dict[str, Node] = dict(start.nodes)
        self.pods: dict[str, Pod] = {}
        self.owners: dict[str, Owned] = {}
        self.budgets: dict[str, DisruptionBudget] = {b.key: b for b in start.budgets}
        self.placements: dict[str, Placement] = {}
        self.runs: dict[str, Run] = {}
        self.evictions: list[Eviction] = []
        self.overdrawn: list[str] = []
        """Budgets whose Ready pods fell below their need through an eviction (invariant I2: stays empty)."""
        self.beats: dict[str, Beat] = {}
        self.version = 1
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self._evicted: set[str] = set()
        self._budgets_due = False
        self._snapshot: Snapshot | None = None
        self.counts = Counts(self)
        self.scheduler = Scheduler(self)
        self._adopt(start)

    # -- time ---------------------------------------------------------------------------------------------------

    def at(self, seconds: float, what: Callable[[], None]) -> None:
        """Do ``what`` in so many seconds."""
        self._serial += 1
        heapq.heappush(self._queue, (self.clock.monotonic() + seconds, self._serial, what))

    def pump(self) -> None:
        """Everything that is due now."""
        with self.lock:
            while self._queue and self._queue[0][0] <= self.clock.monotonic() + 1e-9:
                heapq.heappop(self._queue)[2]()

    def advance(self, seconds: float, step: float = 0.05) -> None:
        """Lets simulated time pass in small steps, so that things happen at about their time."""
        left = seconds
        while left > 1e-9:
            self.clock.advance(min(step, left))
            left -= step
            self.pump()

    def touch(self) -> None:
        """Something changed: readers get a new snapshot, waiters wake."""
        with self.changed:
            self.version += 1
            self._snapshot = None
            self.changed.notify_all()

    def snapshot(self) -> Snapshot:
        with self.lock:
            if self._snapshot is None:
                self._snapshot = Snapshot(
                    nodes=dict(self.nodes),
                    pods=dict(self.pods),
                    budgets=tuple(self.budgets.values()),
                    workloads={uid: self._counted(owned) for uid, owned in self.owners.items()}
                    | self.counts.tops(self._tops),
                    quotas=self.start.quotas,
                    holds=open_holds(self.placements.values()),
                    namespace_annotations=self.start.namespace_annotations,
                    namespace_labels=self.start.namespace_labels,
                    known=KNOWN,
                    taken_at=self.clock.now(),
                    node_policy=self.start.node_policy,
                    device_policy=self.start.device_policy,
                )
            return self._snapshot

    # -- objects ------------------------------------------------------------------------------------------------

    def set_pod(self, pod: Pod) -> Pod:
        self.touch()
        self.pods[pod.key] = replace(pod, revision=str(self.version))
        self._budgets_soon()
        return self.pods[pod.key]

    def change_pod(self, key: str, uid: str, change: Callable[[Pod], Pod]) -> None:
        """Changes the pod if it is still that one."""
        pod = self.pods.get(key)
        if pod is not None and pod.uid == uid:
            self.set_pod(change(pod))

    def set_node(self, node: Node) -> None:
        self.touch()
        self.nodes[node.name] = node

    def of_owner(self, uid: str) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.owner is not None and pod.owner.uid == uid]

    def _adopt(self, start: Snapshot) -> None:
        groups: dict[str, list[Pod]] = {}
        now = self.clock.now()
        for pod in start.pods.values():
            revised = replace(pod, revision="1", created=pod.created or now - timedelta(hours=6))
            self.pods[pod.key] = revised
            if pod.owner is not None and pod.owner.kind in RECREATED and pod.live:
                groups.setdefault(pod.owner.uid, []).append(revised)
        self._tops = {uid: w for uid, w in start.workloads.items() if uid not in groups}
        for uid, pods in groups.items():
            owner = pods[0].owner
            assert owner is not None
            known = start.workloads.get(uid)
            workload = known or Workload(owner.kind, pods[0].namespace, owner.name, uid, replicas=len(pods))
            wanted = known.replicas if known and known.replicas is not None else len(pods)
            self.owners[uid] = Owned(workload, as_template(pods[0]), wanted, owner.kind == "StatefulSet")
        self._refresh_budgets()
        for pod in list(self.pods.values()):
            if not pod.node and pod.live:
                self.scheduler.add(pod.key)

    def _counted(self, owned: Owned) -> Workload:
        ready = sum(1 for pod in self.of_owner(owned.workload.uid) if pod.ready and not pod.deleting)
        return replace(owned.workload, replicas=owned.replicas, ready=ready)

    # -- owners -------------------------------------------------------------------------------------------------

    def scale(self, uid: str, replicas: int) -> None:
        with self.lock:
            self.owners[uid].replicas = replicas
            self.touch()
            self.reconcile(uid)

    def reconcile(self, uid: str) -> None:
        """Creates what is missing, as the owner's controller would. Terminating pods do not count, but a StatefulSet
        waits for the name to be free."""
        owned = self.owners.get(uid)
        if owned is None or owned.workload.name in self.faults.no_replacement or owned.workload.deleting:
            return
        pods = self.of_owner(uid)
        if owned.ordered:
            for ordinal in range(owned.replicas):
                if f"{owned.workload.namespace}/{owned.workload.name}-{ordinal}" not in self.pods:
                    self._create(owned, f"{owned.workload.name}-{ordinal}")
            return
        active = [pod for pod in pods if pod.live and not pod.deleting]
        for _ in range(owned.replicas - len(active)):
            owned.serial += 1
            self._create(owned, f"{owned.workload.name}-r{owned.serial:04d}")
        for pod in goes_first(active)[: max(0, len(active) - owned.replicas)]:
            self._terminate(pod)

    def _create(self, owned: Owned, name: str) -> None:
        self._serial += 1
        workload = owned.workload
        pod = replace(
            owned.template,
            name=name,
            uid=f"sim-{self._serial:06d}",
            created=self.clock.now(),
            owner=Owner(workload.kind, workload.name, workload.uid, "apps/v1"),
        )
        self.create_pod(pod, named=owned.ordered)

    def create_pod(self, pod: Pod, *, named: bool = True) -> Pod:
        """Admission, then the scheduler's queue unless a gate holds it."""
        with self.lock:
            if not self.faults.webhook_down:
                request = admission_request(pod, named=named)
                waiting = [p for p in self.placements.values() if p.open]
                ops = admit(request, waiting, now=self.clock.now(), mode=self.admission_mode, vendors=self.vendors)
                pod = admitted(pod, request, ops)
            pod = self.set_pod(pod)
            if not pod.gates:
                self.scheduler.add(pod.key)
            return pod

    # -- pods' ends ---------------------------------------------------------------------------------------------

    def begin_eviction(self, pod: Pod) -> None:
        """An eviction was granted: terminating now, gone later; the owner makes the next one."""
        self.evictions.append(Eviction(self.clock.now(), pod.key, pod.uid))
        self._evicted.add(pod.uid)
        for budget in budgets_of(self.snapshot(), pod):
            if pod.ready:
                self.budgets[budget.key] = replace(budget, allowed=max(0, budget.allowed - 1))
        self._terminate(pod)
        self._watch_budgets(pod)

    def _terminate(self, pod: Pod) -> None:
        name = pod.owner.name if pod.owner else ""
        takes = self.faults.terminate_of.get(name, self.faults.terminate) if pod.node else 0.0
        deadline = self.clock.now() + timedelta(seconds=pod.grace_seconds)
        gone = self.set_pod(replace(pod, deleting=True, ready=False, deletion_deadline=deadline))
        self.at(takes, lambda: self.remove_pod(gone.key, gone.uid))
        if pod.owner is not None:
            uid = pod.owner.uid
            self.at(self.faults.create, lambda: self.reconcile(uid))

    def remove_pod(self, key: str, uid: str) -> None:
        """The object is gone from the API server."""
        with self.lock:
            pod = self.pods.get(key)
            if pod is None or pod.uid != uid:
                return
            del self.pods[key]
            node = self.nodes.get(pod.node)
            if node is not None and node.lock is not None and node.lock.holder == key:
                self.set_node(replace(node, lock=None))
            self.touch()
            self._budgets_soon()
            if pod.owner is not None:
                owner = pod.owner.uid
                self.at(self.faults.create, lambda: self.reconcile(owner))
            self.scheduler.wake()

    # -- kubelet ------------------------------------------------------------------------------------------------

    def bound(self, pod: Pod) -> None:
        """HAMi has bound the pod: Allocate, then start."""
        node = self.nodes[pod.node]
        self.set_node(replace(node, lock=NodeLock(pod.key, self.clock.now(), pod.key)))
        self.at(self.faults.allocate, lambda: self._allocated(pod.key, pod.uid))

    def _allocated(self, key: str, uid: str) -> None:
        pod = self.pods.get(key)
        if pod is None or pod.uid != uid:
            return
        node = self.nodes.get(pod.node)
        if node is not None and node.lock is not None and node.lock.holder == key:
            self.set_node(replace(node, lock=None))
        name = pod.owner.name if pod.owner else ""
        if self.faults.fail_allocate.get(name, 0) > 0:
            self.faults.fail_allocate[name] -= 1
            self._failed(pod)
            return
        self.change_pod(key, uid, lambda p: replace(p, bind_phase="success"))
        self.at(self.faults.start_of.get(name, self.faults.start), lambda: self._started(key, uid, name))
        self.scheduler.wake()

    def _started(self, key: str, uid: str, name: str) -> None:
        pod = self.pods.get(key)
        if pod is None or pod.uid != uid or pod.deleting:
            return
        if pod.has_init:  # HAMi's books shrink to the app containers, unless one of the others is a sidecar
            pod = replace(pod, init_done=True, shrunk=not any(r.sidecar for r in pod.requests))
        if name in self.faults.crash:
            self._failed(pod)
        elif name in self.faults.never_ready:
            self.set_pod(replace(pod, phase="Running"))
        else:
            self.set_pod(replace(pod, phase="Running", ready=True, ready_since=self.clock.now()))

    def _failed(self, pod: Pod) -> None:
        self.set_pod(replace(pod, phase="Failed", ready=False))
        if pod.owner is not None:
            uid = pod.owner.uid
            self.at(self.faults.create, lambda: self.reconcile(uid))
        self.scheduler.wake()

    # -- disruption budgets -------------------------------------------------------------------------------------

    def _budgets_soon(self) -> None:
        if self.budgets and not self._budgets_due:
            self._budgets_due = True
            self.at(self.faults.budget_lag, self._refresh_budgets)

    def _refresh_budgets(self) -> None:
        """The disruption controller: healthy pods counted, one status per budget."""
        self._budgets_due = False
        for key, budget in list(self.budgets.items()):
            healthy = self.healthy(budget)
            fresh = replace(budget, healthy=healthy, allowed=max(0, healthy - budget.desired), observed=True)
            if fresh != budget:
                self.budgets[key] = fresh
                self.touch()

    def healthy(self, budget: DisruptionBudget) -> int:
        return sum(1 for pod in self._selected(budget) if pod.ready and not pod.deleting)

    def _selected(self, budget: DisruptionBudget) -> Iterable[Pod]:
        return (
            pod
            for pod in self.pods.values()
            if pod.namespace == budget.namespace and pod.live and matches(budget.selector, pod.labels)
        )

    def _watch_budgets(self, pod: Pod) -> None:
        for budget in budgets_of(self.snapshot(), pod):
            if pod.ready and self.healthy(budget) < budget.desired:
                self.overdrawn.append(f"{self.clock.now():%H:%M:%S} {budget.key}: eviction of {pod.key}")
