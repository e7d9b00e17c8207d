"""The cluster as API and UI show it: per node and device what is there, what is used, by whom, and what is free.

Built in one pass from a snapshot and kept while the reader's version stands or the view is young.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from defragd.core.model import Device, Node, Pod
from defragd.core.snapshot import DeviceUsage, Snapshot, collapse
from defragd.obs.cluster import DEVICE_STATES, device_state, free_share, same
from defragd.obs.pools import PoolOf, pool_of
from defragd.ports import Clock, ClusterReader

HOLD = "hold:"
_DIGITS = re.compile(r"([0-9]+)")


@dataclass(frozen=True, slots=True)
class Segment:
    """What one holder (a pod "ns/name", or "hold:ns/name" of a placement) has of one device; ``share`` 0..1."""

    holder: str
    slots: int
    memory_mib: int
    cores: int
    share: float

    @property
    def hold(self) -> bool:
        return self.holder.startswith(HOLD)


@dataclass(frozen=True, slots=True)
class DeviceView:
    device: Device
    use: DeviceUsage
    state: str
    free: float
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class NodeView:
    node: Node
    pool: str
    devices: tuple[DeviceView, ...]
    pods: int

    @property
    def idle(self) -> bool:
        return not any(d.use.holders for d in self.devices)

    @property
    def state(self) -> str:
        """unready, unschedulable, idle or busy."""
        if not self.node.ready:
            return "unready"
        return "unschedulable" if not self.node.schedulable else "idle" if self.idle else "busy"


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures over a set of nodes. ``states`` counts devices by state, ``free`` is in whole-device equivalents."""

    nodes: int
    idle_nodes: int
    unready_nodes: int
    devices: int
    states: Mapping[str, int]
    memory_mib: int
    used_mib: int
    free: float

    @property
    def used_share(self) -> float:
        return 1.0 - self.free / self.devices if self.devices else 0.0


@dataclass(frozen=True)
class ClusterView:
    snapshot: Snapshot
    nodes: tuple[NodeView, ...]

    @property
    def as_of(self) -> datetime | None:
        return self.snapshot.taken_at

    @cached_property
    def by_name(self) -> dict[str, NodeView]:
        return {view.node.name: view for view in self.nodes}

    @cached_property
    def with_devices(self) -> tuple[NodeView, ...]:
        return tuple(view for view in self.nodes if view.devices)

    @cached_property
    def summary(self) -> Summary:
        return summarize(self.nodes)

    @cached_property
    def pools(self) -> dict[str, Summary]:
        """Summary per pool of nodes with devices, by name."""
        groups: dict[str, list[NodeView]] = {}
        for view in self.with_devices:
            groups.setdefault(view.pool, []).append(view)
        return {pool: summarize(views) for pool, views in sorted(groups.items())}

    @cached_property
    def pending(self) -> tuple[Pod, ...]:
        """Unbound pods that ask for devices, by name."""
        found = [pod for pod in self.snapshot.pods.values() if pod.requests and not pod.node and pod.live]
        return tuple(sorted(found, key=lambda pod: pod.key))

    def find_nodes(self, *, pool: str = "", text: str = "") -> tuple[NodeView, ...]:
        """Nodes with devices of ``pool`` whose name, device or pod contains ``text`` (no case)."""
        wanted = text.strip().lower()
        views = (v for v in self.with_devices if not pool or v.pool == pool)
        return tuple(v for v in views if not wanted or _mentions(v, wanted))


def _mentions(view: NodeView, text: str) -> bool:
    if text in view.node.name.lower():
        return True
    return any(text in d.device.uuid.lower() or any(text in s.holder.lower() for s in d.segments) for d in view.devices)


def summarize(views: Iterable[NodeView]) -> Summary:
    """Figures over ``views``; devices that may not receive a pod count as having nothing free."""
    nodes = idle = unready = devices = memory = used = 0
    free = 0.0
    states: Counter[str] = Counter()
    for view in views:
        nodes += 1
        unready += not view.node.ready
        idle += bool(view.devices) and view.idle
        for item in view.devices:
            devices += 1
            states[item.state] += 1
            memory += item.device.memory_mib
            used += min(item.use.memory_mib, item.device.memory_mib)
            free += item.free if item.device.usable else 0.0
    counts = {state: states[state] for state in DEVICE_STATES}
    return Summary(nodes, idle, unready, devices, counts, memory, used, free)


Kept = dict[str, tuple[tuple[object, ...], NodeView]]
"""Views of nodes with the objects they were made from."""


def natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """A key that sorts node-9 before node-10."""
    return tuple((part.isdigit(), int(part) if part.isdigit() else 0, part) for part in _DIGITS.split(name))


def build_view(snapshot: Snapshot, pools: PoolOf = pool_of, kept: Kept | None = None) -> ClusterView:
    """One pass over nodes and their books; nodes in order of name.

    ``kept`` is read and brought up to date: nodes whose objects are the same as before are not computed again.
    """
    views = []
    fresh: Kept = {}
    for name in sorted(snapshot.nodes, key=natural):
        node = snapshot.nodes[name]
        pods = len(snapshot.pods_on.get(name, ()))
        key = (node, pods, *snapshot.booked_on.get(name, ()), *snapshot.holds_on.get(name, ()))
        old = kept.get(name) if kept else None
        view = old[1] if old is not None and same(old[0], key) else _node(snapshot, node, pools, pods)
        fresh[name] = (key, view)
        views.append(view)
    if kept is not None:
        kept.clear()
        kept.update(fresh)
    return ClusterView(snapshot, tuple(views))


def _node(snapshot: Snapshot, node: Node, pools: PoolOf, pods: int) -> NodeView:
    if not node.devices:
        return NodeView(node, pools(node), (), pods)
    usage = snapshot.usage(node.name)
    parts: dict[str, list[Segment]] = {device.uuid: [] for device in node.devices}
    sizes = {device.uuid: device for device in node.devices}
    for pod in snapshot.booked_on.get(node.name, ()):
        for uuid, held in collapse(pod.allocations, init_done=pod.init_done).items():
            if uuid in parts:
                parts[uuid].append(_segment(pod.key, sizes[uuid], held))
    for hold in snapshot.holds_on.get(node.name, ()):
        tag = f"{HOLD}{hold.placement}"
        for uuid, held in collapse(hold.allocations).items():
            if uuid in parts and tag in usage[uuid].holders:
                parts[uuid].append(_segment(tag, sizes[uuid], held))
    views = []
    for device in sorted(node.devices, key=lambda d: (d.index, d.position)):
        use = usage[device.uuid]
        segments = tuple(sorted(parts[device.uuid], key=lambda s: (s.hold, -s.share, s.holder)))
        views.append(DeviceView(device, use, device_state(device, use), free_share(device, use), segments))
    return NodeView(node, pools(node), tuple(views), pods)


def _segment(holder: str, device: Device, held: tuple[int, int, int]) -> Segment:
    slots, memory, cores = held
    share = max(
        memory / device.memory_mib if device.memory_mib else 0.0,
        cores / device.cores if device.cores else 0.0,
        1.0 / device.slots if device.slots and not memory and not cores else 0.0,
    )
    return Segment(holder, slots, memory, cores, min(1.0, share))


class ViewCache:
    """The newest view; rebuilt when the reader's version has moved on and the kept one is older than ``max_age``."""

    def __init__(self, reader: ClusterReader, clock: Clock, pools: PoolOf, max_age: float) -> None:
        self._reader, self._clock, self._pools, self._max_age = reader, clock, pools, max_age
        self._lock = threading.Lock()
        self._kept: Kept = {}
        self._view: ClusterView | None = None
        self._version = -1
        self._made = 0.0

    def get(self) -> ClusterView:
        with self._lock:
            now, version = self._clock.monotonic(), self._reader.version()
            if self._view is None or (version != self._version and now - self._made >= self._max_age):
                self._view = build_view(self._reader.snapshot(), self._pools, self._kept)
                self._version, self._made = version, now
            return self._view
