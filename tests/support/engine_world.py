"""A tiny cluster for the placement engine: raw Kubernetes JSON pods, the ports over it, and every fault on a switch.

It is exact where the engine's promises hang: resourceVersion and UID preconditions, merge patches (RFC 7386) on the raw
objects, rules for gated pods, budgets checked at the eviction, caches that lag per replica, answers that are lost. The
scheduler is the smallest that can place a pod.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from defragd.controllers.claims import Admission
from defragd.controllers.gates import GateKeeper
from defragd.controllers.janitor import Janitor
from defragd.controllers.lane import Done
from defragd.controllers.placements import PlacementController
from defragd.core.fit import FitConfig, fit_pod
from defragd.core.free import DELETION_COST
from defragd.core.model import Device, DisruptionBudget, Node, NodeLock, Owner, Pod, Resources, Workload
from defragd.core.placement import GATE, PINNED, SURGE_MANAGER, Placement, PlacementSpec, PlacementStatus
from defragd.core.placement_holds import open_holds
from defragd.core.rules import Timeouts, equals
from defragd.core.selectors import matches
from defragd.core.snapshot import Snapshot
from defragd.errors import NotLeader
from defragd.hami.codec import Entry, write_slots
from defragd.hami.config import HamiConfig
from defragd.hami.translate_pod import translate_pod
from defragd.hami.vendors import VENDORS
from defragd.kube import wire
from defragd.kube.translation import pod_being_created
from defragd.ports import Beat, Note, Outcome, Written

START = datetime(2026, 1, 5, 2, 0, 0, tzinfo=UTC)
CONFIG = HamiConfig()
KNOWN = frozenset({"pdbs", "workloads", "quotas", "placements", "volumes"})
AS_HAMI = FitConfig(as_hami=True, obey_pin=True, holds=False)


class Killed(BaseException):
    """The process dies here (kill -9): nothing of it runs on."""


class WorldClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds


@dataclass
class Owned:
    kind: str
    namespace: str
    name: str
    uid: str
    replicas: int
    template: dict[str, Any]
    serial: int = 0
    stopped: bool = False


@dataclass
class Seen:
    """A state of the cluster as a cache may show it."""

    version: int
    snapshot: Snapshot
    placements: tuple[Placement, ...]


@dataclass
class Breaches:
    """What must never happen, found by the world itself."""

    found: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        self.found.append(text)


def device(uuid: str, node: str, index: int, *, memory: int = 16384, **more: Any) -> Device:
    facts: dict[str, Any] = {"vendor": "NVIDIA", "model": "NVIDIA A10", "slots": 10, "cores": 100, "mode": "hami-core"}
    return Device(uuid, node, index=index, position=index, memory_mib=memory, **(facts | more))


def node(name: str, devices: int = 2, **more: Any) -> Node:
    return Node(
        name,
        labels={"kubernetes.io/hostname": name},
        allocatable=Resources(
            cpu_milli=64000, memory_bytes=1 << 38, pods=110, extended={"nvidia.com/gpu": 10 * devices}
        ),
        devices=tuple(device(f"GPU-{name}-{i}", name, i) for i in range(devices)),
        **more,
    )


def template(
    labels: Mapping[str, str], *, memory: int = 8192, gpus: int = 1, grace: int = 30, **spec: Any
) -> dict[str, Any]:
    """A pod as its owner writes it, after HAMi's webhook."""
    limits = {"nvidia.com/gpu": str(gpus), "nvidia.com/gpumem": str(memory)}
    container = {"name": "main", "resources": {"limits": limits, "requests": limits | {"cpu": "1"}}}
    return {
        "metadata": {"labels": dict(labels)},
        "spec": {
            "schedulerName": "hami-scheduler",
            "terminationGracePeriodSeconds": grace,
            "containers": [container],
            **spec,
        },
    }


class EngineWorld:
    """The API server, the controllers and the kubelets. Time passes in `tick` only."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.clock = WorldClock()
        self.nodes = {n.name: n for n in nodes}
        self.pods: dict[str, dict[str, Any]] = {}
        self.owners: dict[str, Owned] = {}
        self.budgets: dict[str, DisruptionBudget] = {}
        self.placements: dict[str, Placement] = {}
        self.version = 1
        self.serial = itertools.count(1)
        self.accesses: list[Access] = []
        self.webhooks: list[Access] = []
        """Replicas that serve the webhook, asked in turn; none = the webhook is down."""
        self.evictions: list[tuple[str, str]] = []
        """(pod key, UID) of accepted evictions of bound pods; recycled Pending pods are in ``recycled``."""
        self.recycled: list[tuple[str, str]] = []
        self.pinned: dict[str, set[str]] = {}
        """Placement key -> UIDs of pods that were ever pinned for it."""
        self.scalings: list[tuple[str, int, int, str]] = []
        """Deployment, count before, count after, field manager: of every scaling through the API."""
        self._counts: dict[str, tuple[int, str, str]] = {}
        self.breaches = Breaches()
        self.termination = 0.5
        self.allocate = 0.3
        self.start = 0.3
        self.scheduler_down = False
        self.admission = "gate"
        """How the webhooks hold pods for a placement: "gate" or "pin"."""
        self.refuse_creations = 0
        """So many creations of owners are refused after our webhook has answered."""
        self.never_ready: set[str] = set()
        self.fail_allocate: set[str] = set()
        self.forget = False
        """kube-scheduler has lost the wake-up of pods that are Pending; only a patch of the pod wakes it."""
        self._turn = itertools.count()
        self._due: dict[str, tuple[float, str]] = {}
        """Pod UID -> (when, what comes next: gone, bind, allocated, ready)."""
        self._seen: Seen | None = None

    # -- what tests set up ------------------------------------------------------------------------------------------

    def deployment(
        self, name: str, replicas: int = 1, *, on: Sequence[tuple[str, str]] = (), kind: str = "ReplicaSet", **more: Any
    ) -> Owned:
        """An owner with running pods placed on ``on`` ((node, device) for each)."""
        owned = Owned(kind, "default", name, f"owner-{name}", replicas, template({"app": name}, **more))
        self.owners[owned.uid] = owned
        for place in range(replicas):
            made = self._create(owned, place)
            assert made is not None
            if place < len(on):
                where, uuid = on[place]
                self._book(made, where, (uuid,))
                self._finish(made, "allocated")
                self._finish(made, "ready")
        return owned

    def bare(self, name: str, labels: Mapping[str, str] | None = None, **more: Any) -> dict[str, Any]:
        """A pod that nobody owns, created now through the webhook."""
        pod = template(labels or {"app": name}, **more)
        pod["metadata"]["name"] = name
        self.refuse_creations = 0
        made = self.create(pod, None)
        assert made is not None
        return made

    def budget(self, name: str, app: str, min_available: int) -> None:
        self.budgets[f"default/{name}"] = DisruptionBudget("default", name, equals({"app": app}), 0, 0, min_available)

    def place(
        self, name: str, *, node: str, devices: Sequence[str], evict: str = "", app: str = "", **more: Any
    ) -> str:
        """Creates a placement; returns its key."""
        fields: dict[str, Any] = {"timeouts": Timeouts(), "settle": timedelta(seconds=1)} | more
        labels = fields.pop("labels", {})
        spec = PlacementSpec(
            req_id=fields.pop("req_id", name),
            pod_selector=equals({"app": app or evict.rsplit("-", 1)[0]}),
            node_name=node,
            gpu_devices=tuple(devices),
            evict_pod=evict,
            **fields,
        )
        self.touch()
        made = Placement(
            "default", name, spec, uid=f"hpp-{next(self.serial)}", revision=str(self.version), labels=labels
        )
        self.placements[made.key] = replace(made, created=self.clock.now().replace(microsecond=0))
        return made.key

    def status(self, key: str) -> PlacementStatus:
        return self.placements[key].status

    def pod(self, key: str) -> Pod:
        return self.read(self.pods[key])

    def of(self, owned: Owned) -> list[Pod]:
        """Live pods of an owner that are not being deleted."""
        found = [self.read(p) for p in self.pods.values() if _owner_uid(p) == owned.uid]
        return [p for p in found if p.live and not p.deleting]

    def gated(self) -> list[Pod]:
        return [p for p in map(self.read, self.pods.values()) if GATE in p.gates]

    # -- time -------------------------------------------------------------------------------------------------------

    def tick(self, seconds: float = 0.05) -> None:
        """Time passes; whatever is due happens."""
        self.clock.seconds = round(self.clock.seconds + seconds, 6)
        for uid, (when, what) in sorted(self._due.items(), key=lambda item: item[1][0]):
            if when <= self.clock.seconds + 1e-9:
                del self._due[uid]
                raw = next((p for p in self.pods.values() if p["metadata"]["uid"] == uid), None)
                if raw is not None:
                    self._finish(raw, what)
        self._reconcile()
        self._schedule()

    def touch(self) -> str:
        self.version += 1
        self._seen = None
        return str(self.version)

    def seen(self) -> Seen:
        if self._seen is None:
            pods = {key: self.read(raw) for key, raw in self.pods.items()}
            workloads: dict[str, Workload] = {}
            for o in self.owners.values():
                top = self.deployment_over(o) if o.kind == "ReplicaSet" else None
                above = Owner("Deployment", top.name, top.uid, "apps/v1") if top else None
                workloads[o.uid] = Workload(o.kind, o.namespace, o.name, o.uid, replicas=o.replicas, top=above)
                if top is not None:
                    workloads[top.uid] = top
            snapshot = Snapshot(
                nodes=dict(self.nodes),
                pods=pods,
                budgets=tuple(self._budget_now(b) for b in self.budgets.values()),
                workloads=workloads,
                holds=open_holds(self.placements.values()),
                known=KNOWN,
                taken_at=self.clock.now(),
            )
            self._seen = Seen(self.version, snapshot, tuple(self.placements.values()))
        return self._seen

    @staticmethod
    def read(raw: Mapping[str, Any]) -> Pod:
        return translate_pod(msgspec.convert(raw, wire.Pod), CONFIG)

    @staticmethod
    def read_new(raw: Mapping[str, Any]) -> Pod:
        return pod_being_created(raw, CONFIG)

    # -- objects ----------------------------------------------------------------------------------------------------

    def create(self, raw: dict[str, Any], owned: Owned | None) -> dict[str, Any] | None:
        """One pod through admission by one of the webhook replicas. None: refused after that (a quota, say)."""
        meta = raw["metadata"]
        meta.setdefault("namespace", "default")
        if self.webhooks:
            replica = self.webhooks[next(self._turn) % len(self.webhooks)]
            document = copy.deepcopy(raw)
            if owned is not None and owned.kind != "StatefulSet":
                document["metadata"].pop("name", None)
            request = {"operation": "CREATE", "namespace": "default", "object": document}
            for op in replica.admission(self.admission).decide(request):
                _apply(raw, op)
        if self.refuse_creations > 0:
            self.refuse_creations -= 1
            return None
        meta["uid"] = f"pod-{next(self.serial):04d}"
        meta["creationTimestamp"] = f"{self.clock.now():%Y-%m-%dT%H:%M:%SZ}"
        raw.setdefault("status", {"phase": "Pending"})
        mark = meta.get("annotations", {}).get(PINNED)
        if mark:
            self._count_pin(f"{meta['namespace']}/{mark}", meta["uid"])
        self.pods[f"{meta['namespace']}/{meta['name']}"] = raw
        meta["resourceVersion"] = self.touch()
        return raw

    def _count_pin(self, key: str, uid: str) -> None:
        """A pin that its pod did not outlive may be given again; two pods at once with it may not be."""
        pinned = self.pinned.setdefault(key, set())
        if self.admission == "pin":
            pinned &= {p["metadata"]["uid"] for p in self.pods.values() if "deletionTimestamp" not in p["metadata"]}
        pinned.add(uid)

    def _create(self, owned: Owned, ordinal: int) -> dict[str, Any] | None:
        raw = copy.deepcopy(owned.template)
        owned.serial += 1
        raw["metadata"]["name"] = (
            f"{owned.name}-{ordinal}" if owned.kind == "StatefulSet" else f"{owned.name}-{owned.serial}"
        )
        raw["metadata"]["ownerReferences"] = [
            {"kind": owned.kind, "name": owned.name, "uid": owned.uid, "controller": True}
        ]
        return self.create(raw, owned)

    def delete(self, key: str) -> None:
        """Somebody else deletes a pod (its owner, a user); the engine has no such call."""
        self._begin_deletion(self.pods[key])

    def _begin_deletion(self, raw: dict[str, Any]) -> None:
        meta, spec = raw["metadata"], raw["spec"]
        if not spec.get("nodeName"):
            del self.pods[_key(raw)]
            self.touch()
            return
        grace = spec.get("terminationGracePeriodSeconds", 30)
        until = self.clock.now() + timedelta(seconds=grace)
        meta["deletionTimestamp"] = f"{until:%Y-%m-%dT%H:%M:%SZ}"
        meta["deletionGracePeriodSeconds"] = grace
        _condition(raw, "Ready", "False", self.clock.now())
        meta["resourceVersion"] = self.touch()
        self._due[meta["uid"]] = (self.clock.seconds + self.termination, "gone")

    def _finish(self, raw: dict[str, Any], what: str) -> None:
        meta, status = raw["metadata"], raw["status"]
        app = meta.get("labels", {}).get("app", "")
        now = self.clock.now()
        if what == "gone":
            del self.pods[_key(raw)]
            self._unlock(raw)
            self.touch()
            return
        if what == "allocated":
            self._unlock(raw)
            if app in self.fail_allocate:
                meta["annotations"]["hami.io/bind-phase"] = "failed"
                status["phase"] = "Failed"
            else:
                meta["annotations"]["hami.io/bind-phase"] = "success"
                self._due[meta["uid"]] = (self.clock.seconds + self.start, "ready")
        elif what == "ready":
            self._due.pop(meta["uid"], None)
            status["phase"] = "Running"
            if app not in self.never_ready:
                _condition(raw, "Ready", "True", now)
        meta["resourceVersion"] = self.touch()

    def _unlock(self, raw: Mapping[str, Any]) -> None:
        where = self.nodes.get(raw["spec"].get("nodeName", ""))
        if where is not None and where.lock is not None and where.lock.holder == _key(raw):
            self.nodes[where.name] = replace(where, lock=None)

    # -- owners and scheduler ---------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        for owned in self.owners.values():
            if owned.stopped:
                continue
            mine = [p for p in self.pods.values() if _owner_uid(p) == owned.uid]
            if owned.kind == "StatefulSet":
                for ordinal in range(owned.replicas):
                    if f"default/{owned.name}-{ordinal}" not in self.pods:
                        self._create(owned, ordinal)
                continue
            alive = [p for p in mine if "deletionTimestamp" not in p["metadata"] and p["status"]["phase"] != "Failed"]
            for _ in range(owned.replicas - len(alive)):
                self._create(owned, 0)
            if len(alive) > owned.replicas:
                self._shrink(alive, len(alive) - owned.replicas)

    def _schedule(self) -> None:
        if self.scheduler_down:
            return
        view = replace(self.seen().snapshot, holds=())
        for raw in list(self.pods.values()):
            meta, spec = raw["metadata"], raw["spec"]
            if spec.get("nodeName") or spec.get("schedulingGates") or "deletionTimestamp" in meta:
                continue
            if raw["status"]["phase"] != "Pending" or meta.get("x-forgotten"):
                continue
            pod = self.read(raw)
            for name in self.nodes:
                if not _affinity_allows(spec, name):
                    continue
                fit = fit_pod(view, pod, name, vendors=VENDORS, config=AS_HAMI)
                lock = self.nodes[name].lock
                if fit.ok and (lock is None or self._may_steal(lock, pod)):
                    self._book(raw, name, tuple(a.uuid for a in fit.allocations))
                    view = replace(self.seen().snapshot, holds=())
                    break
            else:
                if self.forget:
                    meta["x-forgotten"] = True
                if any(c["reason"] == "Unschedulable" for c in raw["status"].get("conditions", [])):
                    continue
                _condition(raw, "PodScheduled", "False", self.clock.now(), "Unschedulable", "0/2 nodes are available")
                meta["resourceVersion"] = self.touch()

    def _may_steal(self, lock: NodeLock, pod: Pod) -> bool:
        old = lock.since is not None and self.clock.now() - lock.since >= timedelta(minutes=5)
        return lock.since is not None and (lock.holder == pod.key or lock.holder not in self.pods or old)

    def _book(self, raw: dict[str, Any], where: str, uuids: Sequence[str]) -> None:
        meta, spec = raw["metadata"], raw["spec"]
        memory = int(spec["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"])
        slots = write_slots([[Entry(uuid, "NVIDIA", memory, 0) for uuid in uuids]])
        annotations = meta.setdefault("annotations", {})
        annotations |= {
            "hami.io/vgpu-node": where,
            "hami.io/vgpu-devices-allocated": slots,
            "hami.io/bind-phase": "allocating",
        }
        spec["nodeName"] = where
        key = _key(raw)
        self.nodes[where] = replace(self.nodes[where], lock=NodeLock(key, self.clock.now(), key))
        meta["resourceVersion"] = self.touch()
        self._due[meta["uid"]] = (self.clock.seconds + self.allocate, "allocated")
        self._check_devices()

    def _check_devices(self) -> None:
        for name, n in self.nodes.items():
            for uuid, use in replace(self.seen().snapshot, holds=()).usage(name).items():
                if use.memory_mib > next(d.memory_mib for d in n.devices if d.uuid == uuid):
                    self.breaches.add(f"{uuid} is overbooked by {use.holders}")

    # -- deployments (one over each ReplicaSet) -------------------------------------------------------------------

    def deployment_over(self, owned: Owned) -> Workload:
        """Its count is the ReplicaSet's; a count that tests have set on that was written by somebody else."""
        replicas, by, revision = self._counts.get(owned.uid, (-1, "", ""))
        if replicas != owned.replicas:
            replicas, by, revision = owned.replicas, "", str(next(self.serial) + 10**6)
            self._counts[owned.uid] = (replicas, by, revision)
        return Workload(
            "Deployment", owned.namespace, owned.name, f"dep-{owned.uid}", replicas=replicas,
            surged_by=by.removeprefix(SURGE_MANAGER) if by.startswith(SURGE_MANAGER) else "", revision=revision,
        )  # fmt: skip

    def scale(self, workload: Workload, replicas: int, manager: str) -> Written:
        owned = self.owners.get(workload.uid.removeprefix("dep-"))
        if owned is None:
            return Written(Outcome.GONE, "not found")
        if self.deployment_over(owned).revision != workload.revision:
            return Written(Outcome.CONFLICT, "the object has been modified")
        self.scalings.append((owned.name, owned.replicas, replicas, manager))
        owned.replicas = replicas
        self._counts[owned.uid] = (replicas, manager, self.touch())
        return Written(Outcome.OK)

    def _shrink(self, alive: list[dict[str, Any]], surplus: int) -> None:
        """Which pods a ReplicaSet lets go: unbound, pending, not Ready first, then by cost, the youngest first."""

        def rank(raw: dict[str, Any]) -> tuple[Any, ...]:
            pod = self.read(raw)
            cost = int(raw["metadata"].get("annotations", {}).get(DELETION_COST, "0"))
            age = pod.ready_since or pod.created or START
            return (bool(pod.node), pod.phase != "Pending", pod.ready, cost, -age.timestamp(), pod.name)

        for raw in sorted(alive, key=rank)[:surplus]:
            self._begin_deletion(raw)

    # -- budgets ----------------------------------------------------------------------------------------------------

    def _budget_now(self, budget: DisruptionBudget) -> DisruptionBudget:
        healthy = self.healthy(budget)
        return replace(budget, healthy=healthy, allowed=max(0, healthy - budget.desired))

    def healthy(self, budget: DisruptionBudget) -> int:
        return sum(
            1
            for p in map(self.read, self.pods.values())
            if p.namespace == budget.namespace and matches(budget.selector, p.labels) and p.ready and not p.deleting
        )

    # -- writes as the API server does them -------------------------------------------------------------------------

    def evict(self, pod: Pod, *, dry_run: bool, check_revision: bool) -> Written:
        raw = self.pods.get(pod.key)
        if raw is None:
            return Written(Outcome.GONE, "not found")
        meta = raw["metadata"]
        if meta["uid"] != pod.uid or (check_revision and pod.revision and meta["resourceVersion"] != pod.revision):
            return Written(Outcome.CONFLICT, "precondition failed")
        found = self.read(raw)
        budgets = [
            self._budget_now(b) for b in self.budgets.values() if matches(b.selector, found.labels) and found.node
        ]
        if len(budgets) > 1:
            return Written(Outcome.REFUSED, "This pod has more than one PodDisruptionBudget, ...")
        if budgets and found.ready and budgets[0].allowed < 1:
            return Written(Outcome.BLOCKED, f"budget {budgets[0].name} allows no disruption")
        if dry_run:
            return Written(Outcome.OK)
        if found.deleting:
            self.breaches.add(f"second eviction of {pod.key} ({pod.uid}), which was being deleted")
        (self.evictions if found.node else self.recycled).append((pod.key, pod.uid))
        self._begin_deletion(raw)
        return Written(Outcome.OK)

    def patch(self, namespace: str, name: str, patch: Mapping[str, Any]) -> Written:
        key = f"{namespace}/{name}"
        raw = self.pods.get(key)
        if raw is None:
            return Written(Outcome.GONE, "not found")
        meta, want = raw["metadata"], patch.get("metadata", {})
        if want.get("uid", meta["uid"]) != meta["uid"]:
            return Written(Outcome.CONFLICT, "uid")
        if want.get("resourceVersion", meta["resourceVersion"]) != meta["resourceVersion"]:
            return Written(Outcome.CONFLICT, "the object has been modified")
        changed = merge(raw, patch)
        problem = _refused(raw, changed)
        if problem:
            return Written(Outcome.REFUSED, problem)
        changed["metadata"]["resourceVersion"] = meta["resourceVersion"]
        if changed != raw:
            self.pods[key] = changed
            changed["metadata"].pop("x-forgotten", None)
            changed["metadata"]["resourceVersion"] = self.touch()
            mark = changed["metadata"].get("annotations", {}).get(PINNED)
            if mark:
                self._count_pin(f"{namespace}/{mark}", meta["uid"])
        return Written(Outcome.OK, revision=self.pods[key]["metadata"]["resourceVersion"])

    def write_status(self, placement: Placement, status: PlacementStatus) -> Written:
        stored = self.placements.get(placement.key)
        if stored is None or stored.uid != placement.uid:
            return Written(Outcome.GONE, "not found")
        if stored.revision != placement.revision:
            return Written(Outcome.CONFLICT, "the object has been modified")
        revision = self.touch()
        self.placements[placement.key] = replace(stored, status=status, revision=revision)
        return Written(Outcome.OK, revision=revision)


class Access:
    """One process: all ports in one object, with its own cache and its own faults."""

    def __init__(self, world: EngineWorld, name: str = "r0", *, leading: bool = True) -> None:
        self.world, self.name, self.leading = world, name, leading
        self.frozen: Seen | None = None
        """What the cache shows while it lags; None = the present."""
        self.stale = 0.0
        self.faults: list[str] = []
        """Used up in order, one per write: ok, lost-before, lost-after, conflict, busy, kill-before, kill-after."""
        self.delays: list[float] = []
        """Seconds for which the next calls hang before they reach the server, used up in order; none left = at once."""
        self.calls: list[str] = []
        self.notes: list[Note] = []
        self.hooks: list[tuple[str, Mapping[str, Any]]] = []
        self.beats: list[Beat] = []
        self.published = 0
        self.dying = False
        """Killed within an admission; its next round raises `Killed`."""
        self._admission: Admission | None = None
        world.accesses.append(self)

    # reader, placements
    def synced(self) -> bool:
        return True

    def age_seconds(self) -> float:
        return self.stale

    def view(self) -> Seen:
        return self.frozen or self.world.seen()

    def version(self) -> int:
        return self.view().version

    def wait(self, after: int, timeout: float) -> int:
        return self.version()

    def snapshot(self) -> Snapshot:
        return self.view().snapshot

    def list(self) -> Sequence[Placement]:
        return self.view().placements

    def get(self, namespace: str, name: str) -> Placement | None:
        return next((p for p in self.list() if p.key == f"{namespace}/{name}"), None)

    def freeze(self, yes: bool = True) -> None:
        self.frozen = self.world.seen() if yes else None

    def fence(self) -> None:
        """What only a leader may write is not sent once the lease is in doubt."""
        if not self.leading:
            raise NotLeader("not sent")

    # writes
    def _write(self, what: str, act: Callable[[], Written]) -> Written:
        self.calls.append(what)
        match self.faults.pop(0) if self.faults else "ok":
            case "ok":
                return act()
            case "lost-before":
                return Written(Outcome.UNKNOWN, "timed out")
            case "lost-after":
                act()
                return Written(Outcome.UNKNOWN, "timed out")
            case "conflict":
                return Written(Outcome.CONFLICT, "the object has been modified")
            case "busy":
                return Written(Outcome.BLOCKED, "too many requests", retry_after=0.5)
            case "kill-before":
                raise Killed
            case "kill-after":
                act()
                raise Killed
            case other:
                raise AssertionError(other)

    def evict(self, pod: Pod, *, dry_run: bool = False, check_revision: bool = False) -> Written:
        self.fence()
        what = "evict-dry" if dry_run else "evict"
        return self._write(what, lambda: self.world.evict(pod, dry_run=dry_run, check_revision=check_revision))

    def patch_pod(self, namespace: str, name: str, patch: Mapping[str, Any]) -> Written:
        if (patch.get("metadata") or {}).get("annotations", {}).get(PINNED):
            self.fence()
        return self._write("patch", lambda: self.world.patch(namespace, name, patch))

    def create(self, placement: Placement) -> Written:
        raise NotImplementedError

    def claim(self, placement: Placement, status: PlacementStatus) -> Written:
        try:
            return self._write("claim", lambda: self.world.write_status(placement, status))
        except Killed:
            self.world.webhooks = [a for a in self.world.webhooks if a is not self]
            self.dying = True
            return Written(Outcome.UNKNOWN, "this process dies")

    def scale(self, workload: Workload, replicas: int, *, manager: str) -> Written:
        self.fence()
        return self._write("scale", lambda: self.world.scale(workload, replicas, manager))

    def admission(self, mode: str) -> Admission:
        """Its webhook; kept, because it remembers which claims it has seen."""
        if self._admission is None or self._admission.mode != mode:
            self._admission = Admission(
                reader=self, placements=self, claims=self, clock=self.world.clock, vendors=VENDORS, hook=self.hook,
                mode=mode, read_pod=self.world.read_new, token=lambda: f"claim-{next(self.world.serial)}",
            )  # fmt: skip
        return self._admission

    def write_status(self, placement: Placement, status: PlacementStatus) -> Written:
        self.fence()
        return self._write("status", lambda: self.world.write_status(placement, status))

    def delete(self, placement: Placement) -> Written:
        def act() -> Written:
            self.world.placements.pop(placement.key, None)
            self.world.touch()
            return Written(Outcome.OK)

        return self._write("delete", act)

    # the rest
    @property
    def identity(self) -> str:
        return self.name

    def is_leader(self) -> bool:
        return self.leading

    def holder(self) -> str:
        return self.name

    def emit(self, note: Note) -> None:
        self.notes.append(note)

    def hook(self, event: str, fields: Mapping[str, Any]) -> None:
        self.hooks.append((event, fields))

    def publish(self, seen: int) -> None:
        self.published = seen

    def others(self) -> Sequence[Beat]:
        return self.beats


class LateLane:
    """Calls beside each other, as threads make them, but in the world's time: each reaches the server when its delay
    (``access.delays``) is over, and only then its answer is there."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.waiting: list[tuple[float, str, Callable[[], Any]]] = []
        self.done: list[Done] = []

    def submit(self, key: str, job: Callable[[], Any]) -> None:
        assert key not in self.busy(), f"{key} has two calls under way"
        delay = self.access.delays.pop(0) if self.access.delays else 0.0
        if delay:
            self.waiting.append((self.access.world.clock.seconds + delay, key, job))
        else:
            self._run(key, job)

    def _run(self, key: str, job: Callable[[], Any]) -> None:
        try:
            self.done.append(Done(key, job()))
        except NotLeader as error:
            self.done.append(Done(key, error=error))

    def busy(self) -> list[str]:
        return [key for _, key, _ in self.waiting]

    def full(self) -> bool:
        return False

    def ready(self) -> bool:
        return bool(self.done)

    def collect(self) -> list[Done]:
        self.run_due()
        done, self.done = self.done, []
        return done

    def run_due(self) -> None:
        """Threads run on whatever the thread that decides is doing."""
        now = self.access.world.clock.seconds
        due = [item for item in self.waiting if item[0] <= now]
        self.waiting = [item for item in self.waiting if item[0] > now]
        for _, key, job in sorted(due, key=lambda item: item[0]):
            self._run(key, job)

    def wait(self, timeout: float) -> None:
        pass

    def close(self) -> None:
        """The process dies: half of what was under way still reaches the server, unheard."""
        for _, key, job in self.waiting[::2]:
            self._run(key, job)
        self.waiting.clear()


class Replica:
    """One daemon as far as the engine goes: gate keeper always, placements and janitor while it leads."""

    def __init__(self, access: Access) -> None:
        self.access = access
        ports: dict[str, Any] = {
            "reader": access,
            "placements": access,
            "pods": access,
            "clock": access.world.clock,
            "hook": access.hook,
        }
        self.lanes = [LateLane(access), LateLane(access)]
        self.gates = GateKeeper(**ports, lane=self.lanes[0])
        self.engine = PlacementController(
            **ports, events=access, leadership=access, heartbeats=access, vendors=VENDORS, lane=self.lanes[1],
            admission=access.world.admission, workloads=access,
        )  # fmt: skip
        self.janitor = Janitor(**ports, leadership=access, vendors=VENDORS, workloads=access)

    def once(self) -> None:
        if self.access.dying:
            raise Killed
        for lane in self.lanes:
            lane.run_due()
        self.gates.release_overdue()
        try:
            self.engine.cycle()
        except NotLeader:
            self.engine.lost()
        self.janitor.cycle()


def start(world: EngineWorld, name: str = "r0", *, leading: bool = True, webhook: bool = True) -> Replica:
    access = Access(world, name, leading=leading)
    if webhook:
        world.webhooks.append(access)
    return Replica(access)


def drive(
    world: EngineWorld,
    *replicas: Replica,
    seconds: float = 10.0,
    step: float = 0.05,
    until: Callable[[], bool] | None = None,
) -> float:
    """Lets time pass with all replicas at work. Returns the seconds it took until ``until`` held (or all of them)."""
    begun = world.clock.seconds
    while world.clock.seconds - begun < seconds:
        for replica in replicas:
            replica.once()
        if until is not None and until():
            break
        world.tick(step)
    return world.clock.seconds - begun


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    out = dict(copy.deepcopy(target)) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merge(out.get(key), value)
    return out


def _refused(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The API server's rules for updates of a pod's gates and affinity."""
    before = [g["name"] for g in old["spec"].get("schedulingGates") or ()]
    after = [g["name"] for g in new["spec"].get("schedulingGates") or ()]
    if not set(after) <= set(before):
        return "spec.schedulingGates: only deletion is allowed"
    had, has = _terms(old["spec"]), _terms(new["spec"])
    if had != has:
        if not before:
            return "spec: Forbidden: pod updates may not change affinity"
        if had and len(had) != len(has):
            return "nodeSelectorTerms: no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        for b, a in zip(had, has, strict=False):
            for key in ("matchExpressions", "matchFields"):
                if (b.get(key) or [])[:] != (a.get(key) or [])[: len(b.get(key) or [])]:
                    return "only additions are allowed"
            if not b and a:
                return "an empty term must stay empty"
    return ""


def _terms(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    return (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or []


def _affinity_allows(spec: Mapping[str, Any], name: str) -> bool:
    terms = _terms(spec)
    return not terms or any(all(name in f["values"] for f in t.get("matchFields", ())) for t in terms if t)


def _apply(raw: dict[str, Any], op: Mapping[str, Any]) -> None:
    assert op["op"] == "add"
    *path, last = [part.replace("~1", "/").replace("~0", "~") for part in op["path"].split("/")[1:]]
    place = raw
    for part in path:
        place = place[part]
    place[last] = copy.deepcopy(op["value"])


def _condition(raw: dict[str, Any], kind: str, status: str, now: datetime, reason: str = "", message: str = "") -> None:
    found = [c for c in raw["status"].get("conditions", []) if c["type"] != kind]
    stamp = f"{now:%Y-%m-%dT%H:%M:%SZ}"
    found.append({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": stamp})
    raw["status"]["conditions"] = found


def _key(raw: Mapping[str, Any]) -> str:
    return f"{raw['metadata']['namespace']}/{raw['metadata']['name']}"


def _owner_uid(raw: Mapping[str, Any]) -> str:
    refs = raw["metadata"].get("ownerReferences") or [{}]
    return str(refs[0].get("uid", ""))
