"""One immutable view of the cluster, with the indexes every decision needs.

What-if questions never change a snapshot: ``with_pods`` and ``with_holds`` give a new one and share the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property

from defragd.core.model import (
    PLUGIN_GONE,
    Allocation,
    Device,
    DisruptionBudget,
    Hold,
    Node,
    Pod,
    Problem,
    Quota,
    Resources,
    Workload,
)


@dataclass(slots=True)
class DeviceUsage:
    """Slots, MiB and core percent in use on one device, and by whom (pod keys, or ``hold:NAME``)."""

    slots: int = 0
    memory_mib: int = 0
    cores: int = 0
    holders: tuple[str, ...] = ()
    exclusive: bool = False
    """Some holder asked for all 100 cores."""

    def copy(self) -> DeviceUsage:
        return DeviceUsage(self.slots, self.memory_mib, self.cores, self.holders, self.exclusive)


def collapse(allocations: Iterable[Allocation], *, init_done: bool = False) -> dict[str, tuple[int, int, int]]:
    """HAMi's accounting of one pod: per device max over init slots, sum over app slots (reference section 2.6).

    Returns {uuid: (slots, MiB, cores)}; slots is at least 1. After ``init_done`` init slots no longer count.
    """
    allocations = tuple(allocations)
    if len(allocations) == 1 and not allocations[0].init:
        only = allocations[0]
        return {only.uuid: (1, only.memory_mib, only.cores)}
    init: dict[str, list[Allocation]] = {}
    app: dict[str, list[Allocation]] = {}
    order: dict[str, None] = {}
    for entry in allocations:
        if entry.init and init_done:
            continue
        order[entry.uuid] = None
        (init if entry.init else app).setdefault(entry.uuid, []).append(entry)
    out: dict[str, tuple[int, int, int]] = {}
    for uuid in order:
        first, rest = init.get(uuid, ()), app.get(uuid, ())
        out[uuid] = (
            max(len(rest), 1),
            max([sum(a.memory_mib for a in rest), *(a.memory_mib for a in first)]),
            max([sum(a.cores for a in rest), *(a.cores for a in first)]),
        )
    return out


@dataclass(frozen=True)
class Snapshot:
    """Nodes by name, pods by ns/name, budgets, workloads by UID, quotas, holds.

    ``known`` names the kinds that were read ("pdbs", "workloads", "quotas", "placements", "volumes"); what is missing
    is treated with caution by the readers of the snapshot and said to the user, never silently.
    """

    nodes: Mapping[str, Node]
    pods: Mapping[str, Pod]
    budgets: tuple[DisruptionBudget, ...] = ()
    workloads: Mapping[str, Workload] = field(default_factory=dict)
    quotas: tuple[Quota, ...] = ()
    holds: tuple[Hold, ...] = ()
    namespace_annotations: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    namespace_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    known: frozenset[str] = frozenset()
    problems: tuple[Problem, ...] = ()
    taken_at: datetime | None = None
    node_policy: str = "binpack"
    device_policy: str = "spread"
    """HAMi's policies by flag, for pods that name none themselves."""
    hami_version: str = ""
    """ "2.10", a range such as "2.8-2.9", or "" where nothing tells (see hami.version)."""
    moving: Mapping[str, str] = field(default_factory=dict)
    """ns/name of pods that an open placement evicts or is about to -> that placement."""

    @cached_property
    def devices(self) -> dict[str, Device]:
        """Devices by UUID. A UUID that two nodes register is distrusted on both (see hami.translate)."""
        return {device.uuid: device for node in self.nodes.values() for device in node.devices}

    @cached_property
    def pods_on(self) -> dict[str, tuple[Pod, ...]]:
        """Live pods by the node they are bound to or, while unbound, booked on."""
        found: dict[str, list[Pod]] = {}
        for pod in self.pods.values():
            node = pod.node or pod.booked_node
            if node and pod.live:
                found.setdefault(node, []).append(pod)
        return {name: tuple(pods) for name, pods in found.items()}

    @cached_property
    def booked_on(self) -> dict[str, tuple[Pod, ...]]:
        """Live pods by the node on which HAMi's books count their devices (annotation, not spec.nodeName)."""
        found: dict[str, list[Pod]] = {}
        for pod in self.pods.values():
            if pod.booked_node and pod.live and pod.allocations:
                found.setdefault(pod.booked_node, []).append(pod)
        return {name: tuple(pods) for name, pods in found.items()}

    @cached_property
    def anti_affine(self) -> tuple[Pod, ...]:
        """Bound live pods with required anti-affinity: they may refuse a newcomer."""
        return tuple(p for p in self.pods.values() if p.scheduling.anti_affinity and p.node and p.live)

    @cached_property
    def bound_in(self) -> dict[str, tuple[Pod, ...]]:
        """Bound live pods by namespace."""
        found: dict[str, list[Pod]] = {}
        for pod in self.pods.values():
            if pod.node and pod.live:
                found.setdefault(pod.namespace, []).append(pod)
        return {name: tuple(pods) for name, pods in found.items()}

    @cached_property
    def claim_users(self) -> dict[str, tuple[Pod, ...]]:
        """Live pods on a node by the volume claim they use ("namespace/claim")."""
        found: dict[str, list[Pod]] = {}
        for pod in self.pods.values():
            for volume in pod.scheduling.volumes:
                if volume.claim and pod.live and (pod.node or pod.booked_node):
                    found.setdefault(f"{pod.namespace}/{volume.claim}", []).append(pod)
        return {name: tuple(pods) for name, pods in found.items()}

    @cached_property
    def memo(self) -> dict[object, object]:
        """Scratch for values derived from this snapshot by pure functions (counts per topology domain, ...)."""
        return {}

    @cached_property
    def holds_on(self) -> dict[str, tuple[Hold, ...]]:
        found: dict[str, list[Hold]] = {}
        for hold in self.holds:
            found.setdefault(hold.node, []).append(hold)
        return {name: tuple(holds) for name, holds in found.items()}

    def usage(self, node: str, *, without: frozenset[str] = frozenset(), holds: bool = True) -> dict[str, DeviceUsage]:
        """Use of every registered device of ``node`` by HAMi's books, plus open holds.

        ``without``: pod keys (and ``hold:NAME``) to leave out. Devices named by a pod but not registered on the node
        it is booked on are ignored, as HAMi does.
        """
        known = self.nodes.get(node)
        use = {device.uuid: DeviceUsage() for device in known.devices} if known else {}
        for pod in self.booked_on.get(node, ()):
            if pod.key not in without:
                _add(use, pod.key, pod.allocations, pod.init_done)
        if holds:
            for hold in self.holds_on.get(node, ()):
                tag = f"hold:{hold.placement}"
                if tag not in without and not self._claimed(hold):
                    _add(use, tag, hold.allocations, False)
        return use

    def doubt_about(self, pod: Pod) -> str:
        """Which device that the pod holds has books that are not believed, and why; "" = none."""
        node = self.nodes.get(pod.node or pod.booked_node)
        for device in node.devices if node is not None else ():
            if device.distrusted and device.uuid in pod.devices and not device.distrusted.startswith(PLUGIN_GONE):
                return f"device {device.uuid}: {device.distrusted}"
        return ""

    def _claimed(self, hold: Hold) -> bool:
        """The pod that claimed the hold is booked already, so the hold would count twice."""
        if not hold.pod_uid:
            return False
        return any(pod.uid == hold.pod_uid for pod in self.booked_on.get(hold.node, ()))

    def load(self, node: str, *, without: frozenset[str] = frozenset(), holds: bool = True) -> Resources:
        """Host resources requested on ``node`` by live pods bound (or booked) there, plus open holds."""
        cpu = memory = pods = disk = 0
        extended: dict[str, int] = {}

        def add(res: Resources) -> None:
            nonlocal cpu, memory, pods, disk
            cpu += res.cpu_milli
            memory += res.memory_bytes
            disk += res.ephemeral_bytes
            pods += 1
            for name, count in res.extended.items():
                extended[name] = extended.get(name, 0) + count

        for pod in self.pods_on.get(node, ()):
            if pod.key not in without:
                add(pod.scheduling.resources)
        if holds:
            for hold in self.holds_on.get(node, ()):
                if f"hold:{hold.placement}" not in without and not self._claimed(hold):
                    add(hold.resources)
        return Resources(cpu_milli=cpu, memory_bytes=memory, pods=pods, ephemeral_bytes=disk, extended=extended)

    @cached_property
    def owned(self) -> dict[str, int]:
        """Live pods that are not terminating, by the UID of their owner (for owners that could not be read)."""
        found: dict[str, int] = {}
        for pod in self.pods.values():
            if pod.owner and pod.live and not pod.deleting:
                found[pod.owner.uid] = found.get(pod.owner.uid, 0) + 1
        return found

    @cached_property
    def workload_kinds(self) -> frozenset[str]:
        """Kinds of owners of which at least one could be read; of other kinds nothing is known."""
        return frozenset(workload.kind for workload in self.workloads.values())

    def workload_of(self, pod: Pod) -> Workload | None:
        return self.workloads.get(pod.owner.uid) if pod.owner else None

    def with_pods(self, changed: Mapping[str, Pod | None]) -> Snapshot:
        """A snapshot in which the given pods are replaced (None = gone)."""
        pods = dict(self.pods)
        for key, pod in changed.items():
            if pod is None:
                pods.pop(key, None)
            else:
                pods[key] = pod
        return replace(self, pods=pods)

    def with_holds(self, holds: Iterable[Hold]) -> Snapshot:
        return replace(self, holds=tuple(holds))


def _add(use: dict[str, DeviceUsage], holder: str, allocations: Iterable[Allocation], init_done: bool) -> None:
    entries = tuple(allocations)
    full = {a.uuid for a in entries if a.cores >= 100}
    for uuid, (slots, memory, cores) in collapse(entries, init_done=init_done).items():
        device = use.get(uuid)
        if device is None:
            continue
        device.slots += slots
        device.memory_mib += memory
        device.cores += cores
        device.holders = (*device.holders, holder)
        device.exclusive = device.exclusive or uuid in full
