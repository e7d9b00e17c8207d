"""Pods that may move, as distinct request shapes: what the tables are built for, instead of single pods.

A shape is everything the search needs to know of a pod but where it is: what it takes of each device it holds, of the
host, and where it may go at all. Replicas share one. What a table cannot say (affinity between pods, spread, volumes,
host ports, quotas, exotic selections) is left to the exact rules, which every chosen move must pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from defragd.core.arrays import Bools, DeviceKind, Fleet, Ints
from defragd.core.mix import accepts_type
from defragd.core.model import DeviceRequest, Node, Pod, Scheduling
from defragd.core.selectors import holds
from defragd.core.snapshot import Snapshot, collapse

NEVER = -1
"""Memory need on a device kind that the pod cannot use."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a pod takes of one device it holds (its containers on that device collapsed as HAMi does).

    ``need``: MiB by device kind, `NEVER` where the kind is not acceptable. ``zero``: some container asks no cores.
    """

    slots: int
    cores: int
    whole: bool
    zero: bool
    need: tuple[int, ...]

    def asks_all_of(self, other: Part) -> bool:
        """A device that takes this part takes ``other``."""
        if self.slots < other.slots or self.cores < other.cores or (other.whole and not self.whole):
            return False
        if other.zero and not (self.zero or self.cores):
            return False
        return all(mine == NEVER or mine >= theirs >= 0 for mine, theirs in zip(self.need, other.need, strict=True))


@dataclass(frozen=True, slots=True)
class Shape:
    """Equal for all pods that can stand in for each other. ``plain``: the tables know all its host constraints."""

    parts: tuple[Part, ...]
    cpu: int
    host_memory: int
    numa_bind: bool
    alone: bool
    """HAMi's mutex policy: only devices nobody holds."""
    plain: bool
    nodes: int
    """Index into `Shapes.node_masks`."""
    devices: int
    """Index into `Shapes.device_masks`, -1 = no selection by UUID."""

    def asks_all_of(self, other: Shape) -> bool:
        """Where this shape fits, ``other`` fits too."""
        if (self.nodes, self.devices, self.numa_bind, self.alone) != (
            other.nodes,
            other.devices,
            other.numa_bind,
            other.alone,
        ) or len(self.parts) < len(other.parts):
            return False
        if self.cpu < other.cpu or self.host_memory < other.host_memory:
            return False
        return all(mine.asks_all_of(theirs) for mine, theirs in zip(self.parts, other.parts, strict=False))


@dataclass(frozen=True, slots=True)
class Held:
    """What one pod holds now, on its distinct devices in order: slots, MiB, cores."""

    devices: tuple[int, ...]
    use: tuple[tuple[int, int, int], ...]


@dataclass
class Shapes:
    """T shapes and P movable pods. ``shape``/``node`` give shape and node of each pod; pods are in key order."""

    shapes: list[Shape] = field(default_factory=list)
    pods: list[Pod] = field(default_factory=list)
    shape: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    node: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    held: list[Held] = field(default_factory=list)
    node_masks: list[Bools] = field(default_factory=list)
    device_masks: list[Bools] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Pod key -> why it cannot be put in a table (it then stays)."""
    wanted: list[int] = field(default_factory=list)
    """Shape of each pod that has no place yet, in the order they were given."""


def build_shapes(
    snapshot: Snapshot,
    fleet: Fleet,
    pods: Iterable[Pod],
    *,
    vendor_exclusive: Mapping[str, bool],
    wanted: Iterable[Pod] = (),
) -> Shapes:
    """Shapes of the given pods. ``vendor_exclusive``: whether 100 cores of a vendor's device mean all of it.

    ``wanted``: pods without a place, which get shapes too (every container on devices of its own).
    """
    found = Shapes()
    index: dict[Shape, int] = {}
    masks = _Masks(snapshot, fleet, found)
    known_parts: dict[object, tuple[Part, ...] | None] = {}
    shape: list[int] = []
    node: list[int] = []
    for pod in sorted(pods, key=lambda p: p.key):
        why, held = _held(pod, fleet)
        if held is None:
            found.left_out[pod.key] = why
            continue
        layout = (pod.requests, tuple((a.slot, a.init, pod.devices.index(a.uuid)) for a in pod.allocations))
        looks = (layout, pod.selection.use_types, pod.selection.nouse_types, pod.selection.mode)
        if looks in known_parts:
            parts = known_parts[looks]
        else:
            parts = known_parts[looks] = _parts(pod, fleet, held, vendor_exclusive)
        if parts is None:
            found.left_out[pod.key] = "its allocation does not match its requests"
            continue
        found.left_out.pop(pod.key, None)
        this = _shape(pod, parts, masks)
        found.pods.append(pod)
        found.held.append(held)
        shape.append(index.setdefault(this, len(index)))
        node.append(fleet.node_index[pod.booked_node])
    for pod in wanted:
        parts = tuple(
            _part(pod, fleet, [r] if not r.init else [], [r] if r.init else [], vendor_exclusive)
            for r in pod.requests
            for _ in range(r.count)
        )
        found.wanted.append(index.setdefault(_shape(pod, parts, masks), len(index)))
    found.shapes = list(index)
    found.shape = np.array(shape, dtype=np.int64)
    found.node = np.array(node, dtype=np.int64)
    return found


def is_plain(scheduling: Scheduling) -> bool:
    """Only selectors, taints, CPU, memory and pod count decide where the pod may go."""
    wants = scheduling.resources
    return not (
        scheduling.affinity
        or scheduling.anti_affinity
        or scheduling.spread
        or scheduling.host_ports
        or scheduling.volumes
        or scheduling.unjudged
        or wants.extended
        or wants.ephemeral_bytes
    )


def _held(pod: Pod, fleet: Fleet) -> tuple[str, Held | None]:
    if not pod.booked_node or pod.booked_node not in fleet.node_index:
        return "it holds no device", None
    if pod.mig:
        return "it holds MIG instances", None
    node = fleet.node_index[pod.booked_node]
    places: list[int] = []
    use: list[tuple[int, int, int]] = []
    full = collapse(pod.allocations)
    now = collapse(pod.allocations, init_done=pod.init_done)
    for uuid in full:
        at = fleet.device_index.get(uuid)
        if at is None or fleet.node_of[at] != node:
            return f"it holds device {uuid}, which its node does not register", None
        places.append(at)
        use.append(now.get(uuid, (0, 0, 0)))
    if not places:
        return "it holds no device", None
    return "", Held(tuple(places), tuple(use))


def _parts(pod: Pod, fleet: Fleet, held: Held, vendor_exclusive: Mapping[str, bool]) -> tuple[Part, ...] | None:
    """One part per distinct device now held, for any kind of device it may come to."""
    if len({a.slot for a in pod.allocations}) != len(pod.requests):
        return None
    parts: list[Part] = []
    for place in held.devices:
        uuid = fleet.devices[place].uuid
        mine = [(pod.requests[a.slot], a.init) for a in pod.allocations if a.uuid == uuid]
        app = [r for r, init in mine if not init]
        init = [r for r, is_init in mine if is_init]
        parts.append(_part(pod, fleet, app, init, vendor_exclusive))
    return tuple(parts)


def _part(
    pod: Pod, fleet: Fleet, app: list[DeviceRequest], init: list[DeviceRequest], vendor_exclusive: Mapping[str, bool]
) -> Part:
    """What these containers take together of one device."""
    both = (*app, *init)
    return Part(
        slots=max(len(app), 1),
        cores=max([sum(r.cores for r in app), *(r.cores for r in init)]),
        whole=any(r.cores >= 100 for r in both) and vendor_exclusive.get(both[0].vendor, True),
        zero=any(r.cores == 0 for r in both),
        need=tuple(_need(pod, app, init, kind) for kind in fleet.kinds),
    )


def _shape(pod: Pod, parts: tuple[Part, ...], masks: _Masks) -> Shape:
    wants = pod.scheduling.resources
    return Shape(
        parts=parts,
        cpu=wants.cpu_milli,
        host_memory=wants.memory_bytes,
        numa_bind=pod.selection.numa_bind,
        alone="mutex" in pod.selection.device_policy,
        plain=is_plain(pod.scheduling) and not pod.selection.invalid,
        nodes=masks.nodes(pod),
        devices=masks.devices(pod),
    )


def _need(pod: Pod, app: list[DeviceRequest], init: list[DeviceRequest], kind: DeviceKind) -> int:
    select = pod.selection
    if any(r.vendor != kind.vendor for r in (*app, *init)):
        return NEVER
    if not accepts_type(",".join(select.use_types), ",".join(select.nouse_types), kind.model):
        return NEVER
    if select.mode and kind.mode not in select.mode:
        return NEVER
    return max([sum(_mib(r, kind) for r in app), *(_mib(r, kind) for r in init)])


def _mib(request: DeviceRequest, kind: DeviceKind) -> int:
    return request.memory_mib or kind.memory_mib * request.memory_pct // 100


class _Masks:
    """Which nodes and devices pods may go to, one mask per distinct set of static constraints."""

    def __init__(self, snapshot: Snapshot, fleet: Fleet, found: Shapes) -> None:
        self._snapshot, self._fleet, self._found = snapshot, fleet, found
        self._by_object: dict[int, tuple[Scheduling, int]] = {}
        self._by_text: dict[str, int] = {}
        self._by_uuids: dict[tuple[frozenset[str] | None, frozenset[str]], int] = {}

    def nodes(self, pod: Pod) -> int:
        want = pod.scheduling
        known = self._by_object.get(id(want))
        if known is not None:
            return known[1]
        text = repr((sorted(want.node_selector.items()), want.node_terms, want.tolerations))
        at = self._by_text.get(text)
        if at is None:
            at = self._by_text[text] = len(self._found.node_masks)
            nodes = self._snapshot.nodes
            self._found.node_masks.append(
                np.array([admits(want, nodes[name], pod) for name in self._fleet.names], dtype=np.bool_)
            )
        self._by_object[id(want)] = (want, at)
        return at

    def devices(self, pod: Pod) -> int:
        select = pod.selection
        use = select.use_uuids
        nouse = select.nouse_uuids - select.steered_uuids
        if use is None and not nouse:
            return -1
        key = (use, nouse)
        if key not in self._by_uuids:
            self._by_uuids[key] = len(self._found.device_masks)
            self._found.device_masks.append(
                np.array(
                    [(use is None or d.uuid in use) and d.uuid not in nouse for d in self._fleet.devices],
                    dtype=np.bool_,
                )
            )
        return self._by_uuids[key]


def admits(want: Scheduling, node: Node, pod: Pod) -> bool:
    """Static host constraints: node selector, required node affinity, taints. Our own pin on the pod is no wish."""
    if not node.usable:
        return False
    if any(node.labels.get(key) != value for key, value in want.node_selector.items()):
        return False
    for taint in node.taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not any(
            (not t.effect or t.effect == taint.effect)
            and (
                (t.operator == "Exists" and (not t.key or t.key == taint.key))
                or (t.operator != "Exists" and t.key == taint.key and t.value == taint.value)
            )
            for t in want.tolerations
        ):
            return False
    if want.node_terms is None or pod.selection.pinned_by_us:
        return True
    fields = {"metadata.name": node.name}
    return any(
        (term.expressions or term.fields)
        and all(holds(e, node.labels) for e in term.expressions)
        and all(holds(e, fields) for e in term.fields)
        for term in want.node_terms
    )
