"""Destroy and repair: take a few related pods out, put them back where they are worth most, keep what is better.

One move at a time cannot leave a plateau (nothing typical fits anywhere, so no single move changes the score) and
cannot swap; taking out two to six pods at once can do both. Worse states are accepted now and then, less so as a round
goes on; each round starts from the best plan so far. Pods go home where that costs nothing, so plans stay short.
The order of random numbers depends on the seed and the steps only, never on the clock.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from defragd.core.search_greedy import LEAST
from defragd.core.search_tables import Additions
from defragd.core.tables import Spot, World

FIRST_ROUND = 1500
LEAST_ROUND = 300
MOVE_PRICE = 1e-9
"""Between equally good plans the one with fewer moves is better, ..."""
GROUP_PRICE = 3e-9
"""... and one in which fewer pods have to be out together."""
GROWTH = 1.6
PATIENCE = 3
"""Rounds without improvement before the search ends."""
MOST_OUT = 6
TIES = 200
"""Equally good assignments that are looked at for an order with fewer pods out together."""
HEATS = ((0.02, 4), (0.5, 6), (0.1, 3))
"""By round: how much worse a state may be (in gains of a mean move), and how many pods are taken out at most. Sparse
clusters with a tight limit want it cool, full ones hot; the rounds take turns."""


class Lns:
    """Improves the world's assignment. ``limit``: pods that may stand elsewhere than at home (None = any number)."""

    def __init__(
        self,
        world: World,
        *,
        seed: int,
        limit: int | None,
        cost: np.ndarray,
        may_move: Callable[[int, Spot], bool],
        orderable: Callable[[dict[int, Spot]], int | None],
        should_stop: Callable[[], bool],
        steps: int,
    ) -> None:
        self.world, self.limit, self.cost = world, limit, cost
        self.may_move, self.orderable, self.should_stop = may_move, orderable, should_stop
        self.steps = steps
        self.random = np.random.Generator(np.random.PCG64(seed))
        self.tables = Additions(world)
        self.shape = world.shapes.shape.tolist()
        self.pods = len(self.shape)
        self.displaced = {p: None for p in range(self.pods) if world.spot[p] != world.home[p]}
        self.best_value = world.value
        self.best: dict[int, Spot] = self._assignment()
        together = orderable(self.best) if self.best else 0
        if together is None:
            self.best, self.best_value, together = {}, self._home_value(), 0
        self.best_rank = self.best_value - MOVE_PRICE * len(self.best) - GROUP_PRICE * together
        self.done = 0
        self.rounds = 0
        self.ties = 0
        self.most_out = MOST_OUT
        self.failed: set[frozenset[tuple[int, Spot]]] = set()
        """Assignments that no order allows."""

    def _assignment(self) -> dict[int, Spot]:
        return {p: spot for p in self.displaced if (spot := self.world.spot[p]) is not None}

    def run(self) -> str:
        """Leaves the best assignment in the world; why it ended: complete, steps or time."""
        why = "complete"
        length, idle = max(LEAST_ROUND, min(FIRST_ROUND, 40 * self.pods)), 0
        while self.pods and idle < PATIENCE:
            before = self.best_rank
            why = self._round(min(length, self.steps - self.done))
            self._restore(self.best)
            if why != "complete":
                break
            idle = idle + 1 if self.best_rank <= before + LEAST else 0
            length = int(length * GROWTH)
        self._restore(self.best)
        return why

    def _round(self, length: int) -> str:
        gain = max(self.best_value - self._home_value(), 1e-3 / max(self.pods, 1))
        share, self.most_out = HEATS[self.rounds % len(HEATS)]
        self.rounds += 1
        heat = share * gain / max(len(self.displaced), 4)
        value = self.world.value
        for step in range(length):
            if self.should_stop():
                return "time"
            self.done += 1
            left = 1.0 - step / length
            value = self._step(value, heat * left * left + 1e-12)
        return "complete" if self.done < self.steps else "steps"

    def _home_value(self) -> float:
        return getattr(self, "_start", None) or self._remember()

    def _remember(self) -> float:
        now = self._assignment()
        self._restore({})
        self._start = self.world.value
        self._restore(now)
        return self._start

    def _step(self, value: float, heat: float) -> float:
        out = self._choose()
        undo = [(pod, self._lift(pod)) for pod in out]
        for pod in out:
            self.displaced.pop(pod, None)
        price = self._price(heat)
        order = list(out)
        self.random.shuffle(order)
        placed: list[int] = []
        for pod in order:
            spot = self._place(pod, heat, price)
            if spot is None:
                break
            self.world.put(pod, spot)
            placed.append(pod)
            if spot != self.world.home[pod]:
                self.displaced[pod] = None
        if len(placed) == len(order):
            fresh = self.world.value
            if fresh >= value - heat * self.random.exponential():
                if fresh - MOVE_PRICE * len(self.displaced) > self.best_rank + LEAST:
                    self._record(fresh)
                return fresh
        for pod in placed:
            self.world.lift(pod)
            self.displaced.pop(pod, None)
        for pod, spot in undo:
            self.world.put(pod, spot)
            if spot != self.world.home[pod]:
                self.displaced[pod] = None
        return value

    def _lift(self, pod: int) -> Spot:
        spot = self.world.spot[pod]
        assert spot is not None
        self.world.lift(pod)
        return spot

    def _record(self, value: float) -> None:
        """Keeps the present assignment if its moves can be ordered and it still is the best with what that costs."""
        found = self._assignment()
        key = frozenset(found.items())
        if key in self.failed:
            return
        if value <= self.best_value + LEAST:
            self.ties += 1
            if self.ties > TIES:
                return
        together = self.orderable(found)
        if together is None:
            self.failed.add(key)
            return
        rank = value - MOVE_PRICE * len(found) - GROUP_PRICE * together
        if rank > self.best_rank + LEAST:
            self.best_value, self.best_rank, self.best = value, rank, found

    def _price(self, heat: float) -> float:
        """What a move must be worth this time: nothing while moves are left, something near the limit."""
        if self.limit is None or len(self.displaced) < self.limit - MOST_OUT:
            return 1e-11
        return float(heat * self.random.exponential()) if self.random.random() < 0.5 else 1e-11

    def _place(self, pod: int, heat: float, price: float) -> Spot | None:
        world = self.world
        shape = self.shape[pod]
        home = world.home[pod]
        worth = self.tables.worth(shape)
        at_home = home_fits(world, pod)
        full = self.limit is not None and len(self.displaced) >= self.limit
        if full:
            return home if at_home else None
        noise = self.random.gumbel(size=len(worth)) * (0.3 * heat)
        score = worth - price * self.cost[pod] + noise
        if at_home:
            device = home.devices[0]
            if np.isfinite(worth[device]) and len(home.devices) == 1:
                score[device] = max(worth[device] + noise[device], score[device])
        for _ in range(4):
            device = int(score.argmax())
            if score[device] == -np.inf:
                return home if at_home else None
            spot = self.tables.spot(shape, device)
            if spot == home:
                return home
            if self.may_move(pod, spot):
                return spot
            score[device] = -np.inf
        return home if at_home else None

    def _choose(self) -> list[int]:
        """Related pods to take out: of one or two nodes, moved ones, or a pod with those of its device."""
        random, world = self.random, self.world
        want = 1 + int(random.integers(self.most_out))
        first = int(random.integers(self.pods))
        moved = list(self.displaced)
        if moved and random.random() < 0.4:
            first = moved[int(random.integers(len(moved)))]
        out = [first]
        near = list(world.on_node[world.spot[first].node])  # type: ignore[union-attr]
        while len(out) < want:
            dice = random.random()
            if dice < 0.35 and len(near) > 1:
                pod = near[int(random.integers(len(near)))]
            elif dice < 0.6 and moved:
                pod = moved[int(random.integers(len(moved)))]
            else:
                pod = int(random.integers(self.pods))
                near = list(world.on_node[world.spot[pod].node])  # type: ignore[union-attr]
            if pod in out:
                want -= 1
                continue
            out.append(pod)
        return out

    def _restore(self, wanted: dict[int, Spot]) -> None:
        """Puts every pod where ``wanted`` has it, all others home."""
        world = self.world
        change = [p for p in {*self.displaced, *wanted} if world.spot[p] != wanted.get(p, world.home[p])]
        for pod in sorted(change):
            self.world.lift(pod)
        for pod in sorted(change):
            self.world.put(pod, wanted.get(pod, world.home[pod]))
        self.displaced = dict.fromkeys(sorted(wanted))


def home_fits(world: World, pod: int) -> bool:
    """A lifted pod could go back: host and devices have the room it held."""
    home = world.home[pod]
    what = world.shapes.shapes[int(world.shapes.shape[pod])]
    node = home.node
    if (what.cpu and world.cpu[node] < what.cpu) or (what.host_memory and world.host[node] < what.host_memory):
        return False
    if world.room[node] < 1:
        return False
    states = world.states
    for part, device, (slots, memory, cores) in zip(what.parts, home.devices, world.shapes.held[pod].use, strict=True):
        kind, s, m, c = world.use[device]
        if s + slots > states.kind_slots[kind] or m + memory > states.kind_memory[kind]:
            return False
        if c + cores > states.kind_cores[kind] or (part.whole and s > 0 and states.kind_cores[kind] == 100):
            return False
        if part.zero and c >= states.kind_cores[kind] > 0:
            return False
    return True
