"""A fast what-if board for search: nodes are in numbered states, moves are look-ups from state to state.

A search returns to the same few thousand node states over and over, so everything about one is computed once: what it
is worth, which state a pod's coming or going makes of it, and what each device of it is worth to each shape of pod.
Undoing a step is putting the old numbers back. Worths of places are linear (the slope of the objective where it was
last taken); the value of the whole is exact, with the caps.
"""

from __future__ import annotations

import numpy as np

from defragd.core.aims import NOTHING as SLACK
from defragd.core.arrays import Floats, Ints
from defragd.core.tables import Spot, World

MOST_STATES = 400_000
"""Node states remembered before everything is forgotten (the search goes on from the present ones)."""
NO = -1

_Options = tuple[list[int], list[float], tuple[int, ...]]
"""First devices of the places on a node, what each is worth, and all devices of the (one) place of a wide shape."""
NOTHING: _Options = ([], [], ())


class Board:
    """Positions of the movable pods of ``world``, which stays as it is but for ``world.spot``: that list is shared, so
    exact rules that look at other moved pods see them. `World.put` is for the end."""

    def __init__(self, world: World) -> None:
        self.world, self.aim = world, world.aim
        fleet = world.fleet
        self.spot = world.spot
        self.shape: list[int] = world.shapes.shape.tolist()
        self.node_of: list[int] = fleet.node_of.tolist()
        self.low: list[int] = fleet.first.tolist()
        count = len(fleet.names)
        masks = world.shapes.node_masks
        self._open = [(world.open_node & masks[s.nodes]).tolist() for s in world.shapes.shapes]
        self._single = [len(parts) == 1 for parts in world.part_of]
        self._plain = [s.devices < 0 for s in world.shapes.shapes]
        self._receives: list[bool] = world.open_device.tolist()
        self._counts: list[bool] = fleet.device_open.tolist()
        classes = self.aim.classes
        self._wide: Floats = np.maximum(self.aim.yardstick.gpus[:classes], 1).astype(np.float64)
        self._cap: Floats = self.aim.cap[:classes]
        self._coef: Floats = self.aim.coef[:classes]
        self._limits: dict[tuple[float, float], Floats] = {}
        self._following: dict[int, list[int]] = {}
        self.on_node: list[list[int]] = [sorted(pods) for pods in world.on_node]
        self._codes: dict[tuple[object, ...], int] = {}
        self._code: list[tuple[int, tuple[int, ...], tuple[tuple[int, int, int], ...], int]] = []
        self.home_code = [self._register(p, world.home[p], world.shapes.held[p].use) for p in range(len(self.shape))]
        self.slope: Floats = self._coef.copy()
        self._forget()
        for node in range(count):
            low, high = self.low[node], self.low[node + 1]
            ids = tuple(world.id[low:high].tolist())
            where = (node, ids, float(world.cpu[node]), float(world.host[node]), int(world.room[node]))
            self.go(node, self._number(where, world.sums[node].copy()))
        self.total: Floats = np.sum([self._feature[s] for s in self.at], axis=0, dtype=np.float64)
        self.extra = float(sum(self._extra[s] for s in self.at))
        self.steepen()

    def _forget(self) -> None:
        size = len(self.world.fleet.names)
        self._index: dict[tuple[int, tuple[int, ...], float, float, int], int] = {}
        self._where: list[tuple[int, tuple[int, ...], float, float, int]] = []
        self._sums: list[Floats] = []
        self._feature: list[Floats] = []
        self._extra: list[float] = []
        self._worth: list[float] = []
        self._step: dict[tuple[int, int], int] = {}
        self._options: list[dict[int, _Options]] = [{} for _ in self._single]
        self.state: Ints = np.full(size, NO, dtype=np.int64)
        self.at: list[int] = [NO] * size
        """``state`` as a plain list; `go` keeps both."""
        self._forget_places()

    def go(self, node: int, state: int) -> None:
        self.state[node] = state
        self.at[node] = state

    def _forget_places(self) -> None:
        self._places: dict[int, Floats] = {}
        self._seen: dict[int, Ints] = {}
        self._chosen: dict[tuple[int, int], tuple[int, ...]] = {}

    # -- values --------------------------------------------------------------------------------------------------------

    def value(self, total: Floats, extra: float) -> float:
        return float(np.minimum(total, self._cap) @ self._coef) + extra

    @property
    def now(self) -> float:
        return self.value(self.total, self.extra)

    def steepen(self) -> None:
        """Takes the slope of the objective here, where that differs from the one in use."""
        slope = np.where(self.total < self._cap, self._coef, 0.0)
        if not np.array_equal(slope, self.slope) or not self._worth:
            self.slope = slope
            self._worth = [float(f @ slope) + e for f, e in zip(self._feature, self._extra, strict=True)]
            self._options = [{} for _ in self._single]
            self._forget_places()

    def shift(self, before: dict[int, int]) -> tuple[Floats, float]:
        """Totals after the nodes of ``before`` (node -> old state) went to their present states."""
        total, extra = self.total.copy(), self.extra
        for node, old in before.items():
            new = self.at[node]
            if new != old:
                total += self._feature[new]
                total -= self._feature[old]
                extra += self._extra[new] - self._extra[old]
        return total, extra

    # -- states --------------------------------------------------------------------------------------------------------

    def _limit(self, cpu: float, host: float) -> Floats:
        """M: copies by idle host CPU and memory (`aims.host_limit`)."""
        limit = self._limits.get((cpu, host))
        if limit is None:
            if len(self._limits) > MOST_STATES:
                self._limits.clear()
            if cpu < 0 or host < 0:
                limit = np.zeros(self.aim.classes)
            else:
                limit = np.minimum((cpu + SLACK) / self.aim.cpu_divisor, (host + SLACK) / self.aim.host_divisor)
                # objectives without request classes (devices, nodes) have no features to limit
                limit = np.floor(limit[: self.aim.classes])
            self._limits[cpu, host] = limit
        return limit

    def _features(self, nodes: Ints | int, sums: Floats, limit: Floats) -> tuple[Floats, Floats]:
        """X x M features and X linear extras of node states, from X x R row sums and X x M host limits."""
        aim, count = self.aim, self.aim.classes
        have = sums[:, :count]
        feature: Floats
        if aim.shares:
            feature = np.where((have >= self._wide) & (limit > 0), sums[:, count + 1 :], 0.0)
        elif len(aim.several):
            feature = np.floor(have / self._wide)
            np.minimum(feature, limit, out=feature)
        else:
            feature = np.minimum(have, limit)
        if not aim.extras:
            return feature, np.zeros(len(sums))
        idle = sums[:, count]
        whole = (idle >= aim.size[nodes]) * aim.node_worth[nodes]
        if aim.extras == 2:
            return feature, aim.coef[count] * idle + aim.coef[count + 1] * whole
        return feature, aim.coef[count] * (idle if aim.name == "devices" else whole)

    def _number(self, where: tuple[int, tuple[int, ...], float, float, int], sums: Floats) -> int:
        number = self._index.get(where)
        if number is None:
            feature, extra = self._features(where[0], sums[None, :], self._limit(where[2], where[3]))
            number = self._index[where] = len(self._where)
            self._where.append(where)
            self._sums.append(sums)
            self._feature.append(feature[0])
            self._extra.append(float(extra[0]))
            self._worth.append(float(feature[0] @ self.slope) + float(extra[0]))
        return number

    def _register(self, pod: int, spot: Spot, use: tuple[tuple[int, int, int], ...]) -> int:
        shape = self.shape[pod]
        key = (spot.node, spot.devices, use, shape)
        code = self._codes.get(key)
        if code is None:
            code = self._codes[key] = len(self._code)
            self._code.append(key)
        return code

    def code(self, pod: int, spot: Spot) -> int:
        """Number of "this pod (or one like it) on this spot"."""
        if spot == self.world.home[pod]:
            return self.home_code[pod]
        return self._register(pod, spot, self.world.use_at(pod, spot))

    def without(self, state: int, code: int) -> int:
        """The node's state once what ``code`` stands for has left."""
        found = self._step.get((state, ~code))
        if found is None:
            found = self._step[state, ~code] = self._next(state, code, -1)
        return found

    def along(self, state: int, code: int) -> int:
        """The node's state with what ``code`` stands for, or NO where that does not fit."""
        found = self._step.get((state, code))
        if found is None:
            found = self._step[state, code] = self._next(state, code, 1) if self._fits(state, code) else NO
        return found

    def home(self, state: int, code: int) -> int:
        """The node's state with a pod back that stood there: a node that has less than it holds (its allocatable
        shrank) takes its own back all the same."""
        found = self.along(state, code)
        return found if found != NO else self._next(state, code, 1)

    def _next(self, state: int, code: int, sign: int) -> int:
        node, ids, cpu, host, room = self._where[state]
        _, devices, use, shape = self._code[code]
        states, low = self.world.states, self.low[node]
        sums = self._sums[state].copy()
        now = list(ids)
        for device, (slots, memory, cores) in zip(devices, use, strict=True):
            old = now[device - low]
            kind, s, m, c = states.keys[old]
            key = (kind, s + sign * slots, m + sign * memory, c + sign * cores)
            number = states.index.get(key)
            if number is None:
                number = states.ids([key])[0]
            if self._counts[device]:
                sums += states.rows[number]
                sums -= states.rows[old]
            now[device - low] = number
        world = self.world
        where = (
            node,
            tuple(now),
            cpu - sign * world.cpu_of[shape],
            host - sign * world.host_of[shape],
            room - sign,
        )
        return self._number(where, sums)

    def _fits(self, state: int, code: int) -> bool:
        node, ids, cpu, host, room = self._where[state]
        _, devices, use, shape = self._code[code]
        what = self.world.shapes.shapes[shape]
        if room < 1 or (what.cpu and cpu < what.cpu) or (what.host_memory and host < what.host_memory):
            return False
        states, low = self.world.states, self.low[node]
        for part, device, (slots, memory, cores) in zip(what.parts, devices, use, strict=True):
            kind, s, m, c = states.keys[ids[device - low]]
            if s + slots > states.kind_slots[kind] or m + memory > states.kind_memory[kind]:
                return False
            full = states.kind_cores[kind]
            if c + cores > full or (part.whole and s > 0 and full == 100) or (part.zero and c >= full > 0):
                return False
        return True

    def worth_of(self, state: int) -> float:
        """What the node adds to the objective in this state, by the slope."""
        return self._worth[state]

    # -- places --------------------------------------------------------------------------------------------------------

    def places(self, shape: int) -> Floats:
        """D: what one more pod of this shape on each device is worth, -inf where it does not fit. Shapes of several
        devices: one choice per node, under its first device. The array is the board's own: copy before changing."""
        worth = self._places.get(shape)
        if worth is None:
            worth = self._places[shape] = np.full(len(self.node_of), -np.inf)
            self._seen[shape] = np.full(len(self.state), NO, dtype=np.int64)
        seen = self._seen[shape]
        changed = (seen != self.state).nonzero()[0]
        if len(changed):
            memo, low = self._options[shape], self.low
            pairs = list(zip(changed.tolist(), self.state[changed].tolist(), strict=True))
            missing = [pair for pair in pairs if pair[1] not in memo]
            if missing:
                self._evaluate(shape, missing)
            for node, state in pairs:
                devices, gains, wide = memo[state]
                worth[low[node] : low[node + 1]] = -np.inf
                for device, gain in zip(devices, gains, strict=True):
                    worth[device] = gain
                if wide:
                    self._chosen[shape, node] = wide
            seen[changed] = self.state[changed]
        return worth

    def spot_at(self, shape: int, device: int) -> Spot:
        node = self.node_of[device]
        return Spot(node, (device,) if self._single[shape] else self._chosen[shape, node])

    def _evaluate(self, shape: int, missing: list[tuple[int, int]]) -> None:
        """Options of several nodes' states, in one go."""
        world, memo = self.world, self._options[shape]
        cpu_of, host_of = world.cpu_of[shape], world.host_of[shape]
        states, receives, wheres = world.states, self._receives, self._where
        open_to, plain, single = self._open[shape], self._plain[shape], self._single[shape]
        part = world.part_of[shape][0]
        rows_of: list[int] = []
        before: list[int] = []
        after: list[int] = []
        limits: list[Floats] = []
        sizes: list[tuple[int, int, list[int]]] = []
        for node, state in missing:
            _, ids, cpu, host, room = wheres[state]
            memo[state] = NOTHING
            if not open_to[node] or room < 1 or (cpu_of and cpu < cpu_of) or (host_of and host < host_of):
                continue
            self._know(ids)
            if not single:
                memo[state] = self._evaluate_wide(shape, node, state)
                continue
            low = self.low[node]
            devices: list[int] = []
            seen: set[int] = set()
            for device, number in enumerate(ids, low):
                if plain:
                    if number in seen or not receives[device]:
                        continue
                    seen.add(number)
                elif not world.device_allowed(shape, device):
                    continue
                new = self._following[number][part]
                if new >= 0:
                    devices.append(device)
                    before.append(number)
                    after.append(new)
            if devices:
                rows_of += [state] * len(devices)
                limits += [self._limit(cpu - cpu_of, host - host_of)] * len(devices)
                sizes.append((node, state, devices))
        if not sizes:
            return
        sums = np.array([self._sums[s] for s in rows_of])
        sums += states.rows[after]
        sums -= states.rows[before]
        at = np.repeat([node for node, _, _ in sizes], [len(d) for _, _, d in sizes])
        feature, extra = self._features(at, sums, np.array(limits))
        gains = (feature @ self.slope + extra).tolist()
        start = 0
        for _, state, devices in sizes:
            own = self._worth[state]
            memo[state] = (devices, [g - own for g in gains[start : start + len(devices)]], ())
            start += len(devices)

    def _know(self, ids: tuple[int, ...]) -> None:
        """Successors of these device states, as plain lists."""
        following, states = self._following, self.world.states
        new = [number for number in ids if number not in following]
        if new:
            numbers = np.array(sorted(set(new)), dtype=np.int64)
            states.following(numbers)
            following.update(zip(numbers.tolist(), states.next[numbers].tolist(), strict=True))

    def _evaluate_wide(self, shape: int, node: int, state: int) -> _Options:
        world = self.world
        _, ids, cpu, host, _ = self._where[state]
        low = self.low[node]
        spot = choose(world, shape, node, {low + i: number for i, number in enumerate(ids)})
        if spot is None:
            return [], [], ()
        states = world.states
        sums = self._sums[state].copy()
        for part, device in zip(world.part_of[shape], spot, strict=True):
            number = ids[device - low]
            sums += states.rows[states.next[number, part]] - states.rows[number]
        limit = self._limit(cpu - world.cpu_of[shape], host - world.host_of[shape])
        feature, extra = self._features(node, sums[None, :], limit)
        worth = float(feature[0] @ self.slope) + float(extra[0]) - self._worth[state]
        return [spot[0]], [worth], spot

    # -- upkeep --------------------------------------------------------------------------------------------------------

    def tidy(self) -> None:
        """Forgets all states but the present ones when there are too many."""
        if len(self._where) < MOST_STATES:
            return
        keep = [(self._where[s], self._sums[s]) for s in self.at]
        self._forget()
        for node, (where, sums) in enumerate(keep):
            self.go(node, self._number(where, sums))


def choose(world: World, shape: int, node: int, ids: dict[int, int]) -> tuple[int, ...] | None:
    """Devices for all parts of a shape, tightest first, given the state of each device of the node."""
    what, states = world.shapes.shapes[shape], world.states
    devices = [d for d in ids if world.device_allowed(shape, d)]
    parts = world.part_of[shape]
    if len(devices) < len(parts):
        return None
    groups: list[list[int]] = [devices]
    if what.numa_bind and len(parts) > 1:
        by_numa: dict[int, list[int]] = {}
        for d in devices:
            by_numa.setdefault(int(world.fleet.numa[d]), []).append(d)
        groups = list(by_numa.values())
    order = sorted(range(len(parts)), key=lambda i: (-states.part_cores[parts[i]], -max(states.part_need[parts[i]]), i))
    for group in groups:
        use = {d: states.keys[ids[d]] for d in group}
        tight = sorted(group, key=lambda d: (-use[d][3], states.kind_memory[use[d][0]] - use[d][2], d))
        taken: dict[int, int] = {}
        for position in order:
            for device in tight:
                if device not in taken.values() and states.next[ids[device], parts[position]] >= 0:
                    taken[position] = device
                    break
            else:
                break
        if len(taken) == len(parts):
            return tuple(taken[i] for i in range(len(parts)))
    return None
