"""Moves in packs, for goals that single moves hardly ever reach: whole nodes and whole devices.

A node comes free only when all its pods go, so nodes are emptied one after another, cheapest first. A device with a
shared pod often has a fitting hole elsewhere on a node whose host CPU or memory is used up: then one other pod of that
node is moved on first (where that costs no idle device), which makes two moves for one device.
"""

from __future__ import annotations

import numpy as np

from defragd.core.desk import Desk
from defragd.core.drain import Drainer, Target
from defragd.core.places import Places
from defragd.core.tables import Spot

PATIENCE = 30
OTHERS = 24
"""Pods tried for being moved on, per shared pod."""


def empty_nodes(desk: Desk, limit: int | None) -> None:
    """Empties counted nodes, fewest pods per worth first, while moves are left."""
    world, scene = desk.world, desk.scene
    fleet = world.fleet
    drainer = Drainer(desk, pushes=0, keep_partial=False)
    drainer.taken = set(desk.moved())
    standing = {scene.snapshot.pods[key].booked_node for key in scene.standing}
    targets: list[tuple[float, int, Target]] = []
    for node in np.nonzero(desk.aim.node_worth > 0)[0].tolist():
        name = fleet.names[node]
        if name in standing or name not in scene.scope_nodes or not world.on_node[node]:
            continue
        cost = sum(float(desk.cost[p]) for p in world.on_node[node])
        target = Target(f"Node/{name}", frozenset(fleet.devices_of(node)))
        targets.append((cost / float(desk.aim.node_worth[node]), node, target))
    targets.sort(key=lambda item: item[:2])
    most = len(world.home) if limit is None else limit
    drainer.try_cheap([t for _, _, t in targets], len(targets), near=False, patience=PATIENCE, moves=most)


class DeviceFreer:
    """Frees shared devices, one pod each first, with one other pod moved on where the host is full."""

    def __init__(self, desk: Desk, limit: int | None, *, enough: int | None = None) -> None:
        self.desk, self.limit = desk, limit
        self.enough = np.inf if enough is None else desk.world.value + enough
        """Value (idle devices) at which it ends."""
        self.places = Places(desk.world)
        self.moved = set(desk.moved())
        self._nowhere: set[int] = set()

    def run(self) -> None:
        """Until nothing more comes free, moves run out or time does."""
        world = self.desk.world
        on_device: dict[int, list[int]] = {}
        for pod, spot in enumerate(world.spot):
            if spot is not None:
                for device in spot.devices:
                    on_device.setdefault(device, []).append(pod)
        targets = [
            device
            for device, pods in on_device.items()
            if world.use[device][1] == len(pods) and all(self._shared(pod) for pod in pods)
        ]
        targets.sort(key=lambda d: (len(on_device[d]), world.use[d][3], d))
        for device in targets:
            if self.desk.scene.should_stop() or self._left() < 1 or world.value >= self.enough:
                return
            pods = [p for p in on_device[device] if world.spot[p] is not None and device in world.spot[p].devices]  # type: ignore[union-attr]
            if pods and len(pods) == world.use[device][1] and not self.moved & set(pods):
                self._free(device, pods)

    def _left(self) -> int:
        return len(self.desk.world.home) if self.limit is None else self.limit - len(self.moved)

    def _shared(self, pod: int) -> bool:
        shape = self.desk.shapes.shapes[int(self.desk.shapes.shape[pod])]
        return len(shape.parts) == 1 and not shape.parts[0].whole

    def _free(self, device: int, pods: list[int]) -> None:
        """All pods of the device elsewhere, or nothing changed."""
        world = self.desk.world
        was = bool(world.open_device[device])
        world.open_device[device] = False
        before = world.value
        done: list[tuple[int, Spot, Spot]] = []
        for pod in pods:
            steps = self._place(pod) if self._left() > len({p for p, _, _ in done}) else []
            if not steps:
                break
            done += steps
        else:
            if world.value > before and len({p for p, _, _ in done} | self.moved) <= len(self.moved) + self._left():
                for pod, _, spot in done:
                    self.moved.add(pod)
                    self.desk.plan(pod, spot)
                world.open_device[device] = was
                return
        for pod, source, _ in reversed(done):
            world.lift(pod)
            world.put(pod, source)
        world.open_device[device] = was

    def _place(self, pod: int) -> list[tuple[int, Spot, Spot]]:
        """Puts the pod on a device in use, directly or after moving one other pod on; the steps made."""
        world = self.desk.world
        shape = int(world.shapes.shape[pod])
        source = world.spot[pod]
        assert source is not None
        holes = self._used(self.places.single(shape, distinct=False))
        for device in self._tight(holes)[:4]:
            spot = Spot(int(world.fleet.node_of[device]), (device,))
            if device not in source.devices and self._may(pod, spot):
                world.lift(pod)
                world.put(pod, spot)
                return [(pod, source, spot)]
        return self._push(pod, shape, source)

    def _used(self, devices: np.ndarray) -> np.ndarray:
        use = self.desk.world.use
        return np.array([d for d in devices.tolist() if use[d][1] > 0], dtype=np.int64)

    def _tight(self, devices: np.ndarray) -> list[int]:
        """Fullest first, then nodes with the least idle CPU (room that others need stays)."""
        world = self.desk.world
        nodes = world.fleet.node_of
        return sorted(devices.tolist(), key=lambda d: (-world.use[d][3], world.cpu[nodes[d]], d))

    def _push(self, pod: int, shape: int, source: Spot) -> list[tuple[int, Spot, Spot]]:
        world, shapes = self.desk.world, self.desk.shapes
        want = shapes.shapes[shape]
        mask = world.open_node & shapes.node_masks[want.nodes]
        devices = np.nonzero(world.open_device & mask[world.fleet.node_of])[0]
        ids = world.id[devices]
        world.states.following(ids)
        holes = self._used(devices[world.states.next[ids, world.part_of[shape][0]] >= 0])
        if not len(holes):
            return []
        nodes = np.unique(world.fleet.node_of[holes])
        flag = np.zeros(len(world.fleet.names), dtype=np.bool_)
        flag[nodes] = True
        node = world.pod_node
        may = (node >= 0) & flag[node]
        cpu = np.array(world.cpu_of)[shapes.shape]
        host = np.array(world.host_of)[shapes.shape]
        may &= (cpu >= want.cpu - world.cpu[node]) & (host >= want.host_memory - world.host[node])
        may[[*self.moved, pod]] = False
        others = np.nonzero(may)[0]
        order = np.lexsort((others, cpu[others]))
        tried = 0
        for other in others[order].tolist():
            t = int(shapes.shape[other])
            if t in self._nowhere or len(world.part_of[t]) > 1:
                continue
            tried += 1
            if tried > OTHERS:
                break
            steps = self._both(pod, shape, source, other, t, holes)
            if steps:
                return steps
        return []

    def _both(
        self, pod: int, shape: int, source: Spot, other: int, t: int, holes: np.ndarray
    ) -> list[tuple[int, Spot, Spot]]:
        """``other`` further on, then the pod in its node; undone when that does not work."""
        world = self.desk.world
        was = world.spot[other]
        assert was is not None
        alone = world.use[was.devices[0]][1] == 1
        targets = self.places.single(t)
        if not alone:
            targets = self._used(targets)
        targets = targets[world.fleet.node_of[targets] != was.node] if len(targets) else targets
        if not len(targets):
            if alone:
                self._nowhere.add(t)
            return []
        for device in self._slack(targets)[:3]:
            spot = Spot(int(world.fleet.node_of[device]), (device,))
            if not self._may(other, spot):
                continue
            world.lift(other)
            world.put(other, spot)
            here = [d for d in holes.tolist() if world.fleet.node_of[d] == was.node and world.use[d][1] > 0]
            for hole in sorted(here, key=lambda d: (-world.use[d][3], d)):
                place = Spot(was.node, (hole,))
                if (
                    world.allowed(shape, was.node)
                    and world.device_allowed(shape, hole)
                    and self._fits(shape, hole)
                    and self._may(pod, place)
                ):
                    world.lift(pod)
                    world.put(pod, place)
                    return [(other, was, spot), (pod, source, place)]
            world.lift(other)
            world.put(other, was)
        return []

    def _fits(self, shape: int, device: int) -> bool:
        world = self.desk.world
        ids = world.id[device : device + 1]
        world.states.following(ids)
        return bool(world.states.next[ids[0], world.part_of[shape][0]] >= 0)

    def _slack(self, devices: np.ndarray) -> list[int]:
        """Devices on nodes with no partly used device first (CPU there is worth least), then the fullest."""
        world = self.desk.world
        fleet = world.fleet
        return sorted(
            devices.tolist(),
            key=lambda d: (
                sum(0 < world.use[x][3] < 100 for x in fleet.devices_of(int(fleet.node_of[d]))),
                world.cpu[fleet.node_of[d]],
                d,
            ),
        )

    def _may(self, pod: int, spot: Spot) -> bool:
        return not self.desk.may_plan(pod, spot) and self.desk.verify(pod, spot)
