"""Many what-if steps at once: arrays for destroy and repair, in which one numpy call serves a whole batch.

A step takes a few pods out and puts them back; a batch tries many such steps from the same position. What a pod is
worth on each device of the cluster is kept in one table (`Batch.arrive`); a step only computes anew what its own few
nodes offer. Pods of one kind are interchangeable: what counts as a move is a kind's pods missing from where they live.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from defragd.core.aims import NOTHING
from defragd.core.arrays import Bools, Floats, Ints
from defragd.core.tables import UNKNOWN, Spot, World

NEVER = -1
ROUNDING = 1e-9


class Batch:
    """Positions of the pods of ``world`` that hold one device each as a new pod would; all others stay where they are.

    Kinds (K) are shapes; pods the tables do not fully know are a kind of their own. The world itself is not changed.
    """

    def __init__(self, world: World, barred: Mapping[int, frozenset[int]]) -> None:
        self.world, self.aim, self.states = world, world.aim, world.states
        fleet = world.fleet
        self.node_of: Ints = fleet.node_of
        self.low: Ints = fleet.first
        self.devices, self.nodes = len(fleet.devices), len(fleet.names)
        self.wide = int(fleet.size.max(initial=1))
        self.counts: Bools = fleet.device_open
        self._choose_pods(barred)
        self._number_uses()
        self._constants()
        self.slot_of: Ints = np.arange(self.devices) - self.low[self.node_of]
        self.device_at = np.full((self.nodes, self.wide), self.devices, dtype=np.int64)
        self.device_at[self.node_of, self.slot_of] = np.arange(self.devices)
        self.start()

    # -- what never changes --------------------------------------------------------------------------------------------

    def _choose_pods(self, barred: Mapping[int, frozenset[int]]) -> None:
        world = self.world
        kinds: dict[tuple[int, int], int] = {}
        self.pods: list[int] = []
        kind: list[int] = []
        for pod, shape in enumerate(world.shapes.shape.tolist()):
            what = world.shapes.shapes[shape]
            spot = world.home[pod]
            if len(what.parts) != 1 or world.shapes.held[pod].use != world._use_of(shape, spot):
                continue
            own = -1 if what.plain and pod not in barred else pod
            self.pods.append(pod)
            kind.append(kinds.setdefault((shape, own), len(kinds)))
        self.kinds = len(kinds)
        self.kind: Ints = np.array(kind, dtype=np.int64)
        self.shape: Ints = np.array([shape for shape, _ in kinds], dtype=np.int64)
        self.home: Ints = np.array([world.home[p].devices[0] for p in self.pods], dtype=np.int64)
        shapes = world.shapes
        self.part: Ints = np.array([world.part_of[s][0] for s in self.shape.tolist()], dtype=np.int64)
        self.cpu_of: Floats = np.array([world.cpu_of[s] for s in self.shape.tolist()])
        self.host_of: Floats = np.array([world.host_of[s] for s in self.shape.tolist()])
        masks = [shapes.node_masks[shapes.shapes[s].nodes] & world.open_node for s in self.shape.tolist()]
        self.open: Bools = np.array(masks, dtype=np.bool_).reshape(self.kinds, self.nodes)
        self.takes = np.tile(world.open_device, (self.kinds, 1))
        """K x D: the device may receive the kind at all (room apart)."""
        for k, s in enumerate(self.shape.tolist()):
            if shapes.shapes[s].devices >= 0:
                self.takes[k] &= shapes.device_masks[shapes.shapes[s].devices]
        for k, (_, own) in enumerate(kinds):
            self.open[k, list(barred.get(own, ()))] = False
        self.takes &= self.open[:, self.node_of]
        self.homes = np.zeros((self.kinds, self.devices), dtype=np.int32)
        np.add.at(self.homes, (self.kind, self.home), 1)

    def _number_uses(self) -> None:
        """What a kind takes of each kind of device, numbered; ``_less`` maps (device state, use) to what is left."""
        parts = [self.world.shapes.shapes[s].parts[0] for s in self.shape.tolist()]
        index: dict[tuple[int, int, int], int] = {}
        fleet_kinds = len(self.world.fleet.kinds)
        self._use = np.array(
            [[index.setdefault((p.slots, p.need[f], p.cores), len(index)) for f in range(fleet_kinds)] for p in parts],
            dtype=np.int64,
        ).reshape(self.kinds, fleet_kinds)
        self._uses = list(index)
        self._less = np.full((0, max(len(index), 1)), UNKNOWN, dtype=np.int32)

    def _constants(self) -> None:
        aim = self.aim
        count = aim.classes
        self._wide = np.maximum(aim.yardstick.gpus[:count], 1).astype(np.float64)
        self._per = 1.0 / self._wide
        self._by_cpu, self._by_host = 1.0 / aim.cpu_divisor[:count], 1.0 / aim.host_divisor[:count]
        self._several = bool(len(aim.several)) and not aim.shares
        self.cap, self.coef = aim.cap, aim.coef

    # -- position ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Takes over the positions the world has now."""
        world = self.world
        spots = [world.spot[p] for p in self.pods]
        self.at: Ints = np.array([s.devices[0] for s in spots if s is not None], dtype=np.int64)
        """Device of each pod."""
        self.id = world.id.copy()
        self.cpu, self.host, self.room = world.cpu.copy(), world.host.copy(), world.room.copy()
        self._recount()
        self.arrive = np.full((self.kinds, self.devices + 1), -np.inf)
        """K x (D + 1): worth of one more pod of the kind on the device, -inf = does not fit; last column spare."""
        self.instead = np.full((self.kinds, len(self.at)), -np.inf)
        """K x P: what it is worth that a pod of the kind comes to its node instead of the pod; and where to."""
        self.instead_at = np.zeros((self.kinds, len(self.at)), dtype=np.int64)
        self.revalue()

    def go(self, at: Ints) -> None:
        """Moves the pods to these devices."""
        change = np.nonzero(at != self.at)[0].tolist()
        for pod in change:
            kind, device = int(self.kind[pod]), int(self.at[pod])
            self.id[device] = self.without(self.id[device : device + 1], self.kind[pod : pod + 1])[0]
            self._shift(kind, int(self.node_of[device]), -1)
        for pod in change:
            kind, device = int(self.kind[pod]), int(at[pod])
            self.id[device] = self._back(int(self.id[device]), kind)
            self._shift(kind, int(self.node_of[device]), 1)
        self.at = at.copy()
        self._recount()
        self.revalue()

    def _back(self, number: int, kind: int) -> int:
        """A node that has less than it holds (its allocatable shrank) takes its own back all the same."""
        sort, s, m, c = self.states.keys[number]
        slots, memory, cores = self._uses[int(self._use[kind, sort])]
        return self.states.ids([(sort, s + slots, m + memory, c + cores)])[0]

    def _shift(self, kind: int, node: int, sign: int) -> None:
        self.cpu[node] -= sign * self.cpu_of[kind]
        self.host[node] -= sign * self.host_of[kind]
        self.room[node] -= sign

    def _recount(self) -> None:
        self.count = np.zeros((self.kinds, self.devices), dtype=np.int32)
        np.add.at(self.count, (self.kind, self.at), 1)
        self.away = int(np.maximum(self.homes - self.count, 0).sum())
        """Pods missing from where they live: the number of moves."""
        self.regroup()

    def regroup(self) -> None:
        """Pods by node, for choosing neighbours."""
        node = self.node_of[self.at]
        self.by_node = np.argsort(node, kind="stable")
        self.on_node = np.bincount(node, minlength=self.nodes)
        self.first_on = np.cumsum(self.on_node) - self.on_node

    def value(self, total: Floats) -> Floats:
        """The objective of totals (the last axis are features), caps included."""
        return np.asarray(np.minimum(total, self.cap) @ self.coef)

    def revalue(self) -> None:
        """Computes all values anew."""
        every = np.arange(self.nodes)
        rows = self.states.rows[self.id] * self.counts[:, None]
        self.sums = np.add.reduceat(rows, self.low[:-1], axis=0)
        self.features = self.features_of(self.sums, every, self.cpu, self.host)
        self.total = self.features.sum(axis=0)
        self.slope = self.aim.slope(self.total)
        self.refresh(every)

    @property
    def now(self) -> float:
        return float(self.value(self.total))

    def steepen(self) -> bool:
        """Takes the slope of the objective here; whether that changed anything."""
        slope = self.aim.slope(self.total)
        if np.array_equal(slope, self.slope):
            return False
        self.slope = slope
        self.refresh(np.arange(self.nodes))
        return True

    # -- values of node states -----------------------------------------------------------------------------------------

    def features_of(self, sums: Floats, node: Ints, cpu: Floats, host: Floats) -> Floats:
        """X x F: as `Aim.finish`, fewer passes."""
        aim, count = self.aim, self.aim.classes
        out = np.empty((len(sums), aim.features))
        if count:
            limit = np.minimum(
                (cpu + NOTHING)[:, None] * self._by_cpu, (host + NOTHING)[:, None] * self._by_host, out=out[:, :count]
            )
            if aim.shares:
                enough = (sums[:, :count] >= self._wide) & (limit >= 1.0 - ROUNDING)
                out[:, :count] = np.where(enough, sums[:, count + 1 :], 0.0)
            else:
                have = sums[:, :count]
                if self._several:
                    have = have * self._per + ROUNDING
                np.minimum(limit, have, out=limit)
                np.floor(limit, out=limit)
                np.maximum(limit, 0.0, out=limit)
        if aim.extras:
            idle = sums[:, count]
            whole = (idle >= aim.size[node]) * aim.node_worth[node]
            if aim.name == "devices":
                out[:, count] = idle
            elif aim.name == "nodes":
                out[:, count] = whole
            else:
                out[:, count] = idle
                out[:, count + 1] = whole
        return out

    def worths_of(self, sums: Floats, node: Ints, cpu: Floats, host: Floats) -> Floats:
        return np.asarray(self.features_of(sums, node, cpu, host) @ self.slope)

    # -- device states -------------------------------------------------------------------------------------------------

    def with_part(self, ids: Ints, part: Ints) -> Ints:
        """State of each device with one more part, -1 where that does not fit."""
        states = self.states
        if not states.known[ids].all():
            states.following(ids.ravel())
        return np.asarray(states.next[ids, part])

    def without(self, ids: Ints, kind: Ints) -> Ints:
        """State of each device when a pod of the kind leaves it."""
        states = self.states
        if len(self._less) < len(states.known):
            more = np.full((len(states.known), self._less.shape[1]), UNKNOWN, dtype=np.int32)
            more[: len(self._less)] = self._less
            self._less = more
        keys = states.keys
        use = self._use[kind, self._device_kind(ids)]
        left = self._less[ids, use]
        for i in np.nonzero(left == UNKNOWN)[0].tolist():
            number, u = int(ids[i]), int(use[i])
            sort, s, m, c = keys[number]
            slots, memory, cores = self._uses[u]
            found = states.ids([(sort, s - slots, m - memory, c - cores)])[0]
            if len(self._less) < len(states.known):
                return self.without(ids, kind)
            self._less[number, u] = left[i] = found
        return np.asarray(left)

    def _device_kind(self, ids: Ints) -> Ints:
        known = getattr(self, "_kinds_of", None)
        if known is None or len(known) < len(self.states.keys):
            self._kinds_of = known = np.array([key[0] for key in self.states.keys], dtype=np.int64)
        return np.asarray(known[ids])

    # -- the table of arrivals -----------------------------------------------------------------------------------------

    def refresh(self, nodes: Ints) -> None:
        """Computes anew what these nodes offer."""
        self._arrivals(nodes)
        self._exchanges(nodes)

    def _arrivals(self, nodes: Ints) -> None:
        size = self.world.fleet.size[nodes]
        offset = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
        devices = np.repeat(self.low[nodes], size) + offset
        self.arrive[:, devices] = -np.inf
        if not len(devices) or not self.kinds:
            return
        host_ok = (
            ((self.cpu[nodes] >= self.cpu_of[:, None]) | (self.cpu_of[:, None] == 0))
            & ((self.host[nodes] >= self.host_of[:, None]) | (self.host_of[:, None] == 0))
            & (self.room[nodes] >= 1)
        )
        local = np.repeat(np.arange(len(nodes)), size)
        ids = self.id[devices]
        self.states.following(ids)
        after = self.states.next[ids][:, self.part].T
        kind, x = np.nonzero((after >= 0) & self.takes[:, devices] & host_ok[:, local])
        own = self.features[nodes] @ self.slope
        rows = self.states.rows
        for begin in range(0, len(kind), 8192):
            k, d = kind[begin : begin + 8192], x[begin : begin + 8192]
            node = nodes[local[d]]
            sums = self.sums[node] - rows[ids[d]] + rows[after[k, d]]
            worth = self.worths_of(sums, node, self.cpu[node] - self.cpu_of[k], self.host[node] - self.host_of[k])
            self.arrive[k, devices[d]] = worth - own[local[d]]

    def _exchanges(self, nodes: Ints) -> None:
        """What these nodes gain when a pod leaves and one of another kind comes instead."""
        flag = np.zeros(self.nodes, dtype=np.bool_)
        flag[nodes] = True
        pods = np.nonzero(flag[self.node_of[self.at]])[0]
        self.instead[:, pods] = -np.inf
        if not len(pods):
            return
        device, kind = self.at[pods], self.kind[pods]
        node, slot = self.node_of[device], self.slot_of[device]
        before = self.id[device]
        after = self.without(before, kind)
        change = (self.states.rows[after] - self.states.rows[before]) * self.counts[device][:, None]
        sums = self.sums[node] + change
        cpu, host = self.cpu[node] + self.cpu_of[kind], self.host[node] + self.host_of[kind]
        ids = np.append(self.id, 0)[self.device_at[node]]
        at = np.arange(len(pods))
        ids[at, slot] = after
        fits = ((cpu >= self.cpu_of[:, None]) | (self.cpu_of[:, None] == 0)) & (
            (host >= self.host_of[:, None]) | (self.host_of[:, None] == 0)
        )
        room = (
            ((self.cpu[node] >= self.cpu_of[:, None]) | (self.cpu_of[:, None] == 0))
            & ((self.host[node] >= self.host_of[:, None]) | (self.host_of[:, None] == 0))
            & (self.room[node] >= 1)
        )
        takes = np.zeros((self.kinds, self.devices + 1), dtype=np.bool_)
        takes[:, :-1] = self.takes
        self.states.following(ids.ravel())
        following = self.states.next[ids]
        own_slot = np.arange(self.wide) == slot[:, None]
        fresh = following[:, :, self.part].transpose(2, 0, 1)
        ok = (fresh >= 0) & takes[:, self.device_at[node]] & fits[:, :, None]
        ok &= own_slot | ~room[:, :, None]
        ok &= (np.arange(self.kinds)[:, None] != kind)[:, :, None]
        k, x, g = np.nonzero(ok)
        if not len(k):
            return
        worth = np.empty(len(k))
        own = self.features[node] @ self.slope
        rows = self.states.rows
        for begin in range(0, len(k), 8192):
            part = slice(begin, begin + 8192)
            kk, xx, gg = k[part], x[part], g[part]
            total = sums[xx] - rows[ids[xx, gg]] + rows[fresh[kk, xx, gg]]
            worth[part] = (
                self.worths_of(total, node[xx], cpu[xx] - self.cpu_of[kk], host[xx] - self.host_of[kk]) - own[xx]
            )
        cell = k * len(self.at) + pods[x]
        order = np.lexsort((-g, worth, cell))
        last = np.nonzero(np.diff(cell[order], append=-1))[0]
        best = order[last]
        self.instead[k[best], pods[x[best]]] = worth[best]
        self.instead_at[k[best], pods[x[best]]] = self.device_at[node[x[best]], g[best]]

    # -- result --------------------------------------------------------------------------------------------------------

    def spots(self, at: Ints, cost: Floats) -> dict[int, Spot]:
        """Pod -> place, for the fewest and cheapest pods whose move makes this position of kinds."""
        out: dict[int, Spot] = {}
        count = np.zeros((self.kinds, self.devices), dtype=np.int32)
        np.add.at(count, (self.kind, at), 1)
        changed = np.unique(self.kind[at != self.home])
        for kind in changed.tolist():
            here = count[kind].copy()
            members = np.nonzero(self.kind == kind)[0].tolist()
            # those that stand at home stay if they can, else the dearest
            members.sort(key=lambda i: (at[i] != self.home[i], -cost[self.pods[i]], i))
            leaving = []
            for i in members:
                if here[self.home[i]] > 0:
                    here[self.home[i]] -= 1
                else:
                    leaving.append(i)
            late = []
            for i in leaving:
                if here[at[i]] > 0:
                    here[at[i]] -= 1
                    out[self.pods[i]] = self.spot(int(at[i]))
                else:
                    late.append(i)
            free = np.repeat(np.arange(self.devices), here).tolist()
            for i, device in zip(late, free, strict=True):
                out[self.pods[i]] = self.spot(device)
        return dict(sorted(out.items()))

    def spot(self, device: int) -> Spot:
        return Spot(int(self.node_of[device]), (device,))
