"""Destroy and repair: take a few related pods out, put them back where they are worth most, keep what is better.

One move at a time cannot leave a plateau (nothing typical fits anywhere, so no single move changes the score) and
cannot swap; taking out two to six pods at once can do both. Worse states are accepted now and then, less so as a round
goes on; rounds start from the best plan so far. Pods go home where that costs nothing, and of two equal pods one stays
rather than that one takes the other's place, so plans stay short. The order of random numbers depends on the seed and
the steps only, never on the clock.
"""

from __future__ import annotations

from math import log

import numpy as np

from defragd.core.search_board import NO, Board
from defragd.core.search_greedy import LEAST
from defragd.core.search_task import GROUP_PRICE, MOVE_PRICE, Task
from defragd.core.tables import Spot, World

FIRST_ROUND, LEAST_ROUND = 2500, 300
GROWTH, PATIENCE, TINY = 1.1, 8, 12
"""Growth of rounds; rounds without improvement before the search ends (tiny worlds are done after fewer)."""
MOST_OUT = 6
TIES = 200
"""Equally good assignments that are looked at for an order with fewer pods out together."""
HEATS: tuple[tuple[float, int, float], ...] = ((0.02, 4, 0.0), (2.0, 6, 0.3), (0.1, 4, 0.0), (0.5, 6, 0.0))
"""By round: how much worse a state may be (in gains of a mean move), how many pods are taken out at most, and what a
move beyond the limit costs at first (in gains of a mean move; it grows as the round goes on, 0 = the limit is hard).
Sparse clusters with a tight limit want it cool, full ones hot; the rounds take turns."""
POOL = 1 << 16
CLEAR, MOST_CLEARED = 0.1, 12
"""Share of steps that empty a device or a node, and the pods on it at most."""
SETTLE = 60
"""Steps without a better assignment before the best one since is proven, ..."""
FEW = 100
"""... where there are more pods than this; with fewer, each is proven at once: plans that no order allows are common
among few pods and would hide the slightly worse ones that can be ordered."""


class Lns:
    """Improves the world's assignment. ``limit``: pods that may stand elsewhere than at home (None = any number)."""

    def __init__(
        self,
        world: World,
        task: Task,
        *,
        steps: int,
    ) -> None:
        self.world, self.limit = world, task.limit
        self.cost: list[float] = task.cost.tolist()
        self.may_move, self.orderable, self.should_stop = task.may_move, task.orderable, task.should_stop
        self.steps = steps
        self.random = np.random.Generator(np.random.PCG64(task.seed))
        self._start = list(world.spot)
        self._before: dict[int, int] = {}
        self._was: dict[int, Spot] = {}
        self.board = Board(world)
        self.shape = self.board.shape
        self.home = world.home
        self.pods = len(self.shape)
        size = len(self.board.node_of)
        self._gumbel = self.random.gumbel(size=POOL + size)
        self._buffer = np.empty(size)
        self._dice: list[float] = []
        self._alike: dict[int, list[int]] = {}
        for pod, code in enumerate(self.board.home_code):
            self._alike.setdefault(code, []).append(pod)
        self.displaced = {p: None for p in range(self.pods) if world.spot[p] != world.home[p]}
        self.best_value = self.value = self.board.now
        self.best: dict[int, Spot] = self._assignment()
        together = self.orderable(self.best) if self.best else 0
        found = self._assignment()
        self._restore({})
        self.home_value = self.board.now
        if together is None:
            self.best, self.best_value, together = {}, self.home_value, 0
        else:
            self._restore(found)
        self.best_rank = self.best_value - MOVE_PRICE * len(self.best) - GROUP_PRICE * together
        self.done = self.rounds = self.ties = 0
        self.pending: dict[int, Spot] = {}
        """The best assignment since, not proven yet."""
        self.pending_rank = self.pending_value = -np.inf
        self._found = 0
        self._settle = SETTLE if self.pods > FEW else 0
        self.most_out = MOST_OUT
        self._closed = (0, 0)
        self.failed: set[frozenset[tuple[int, Spot]]] = set()
        """Assignments that no order allows."""

    def _assignment(self) -> dict[int, Spot]:
        return {p: spot for p in self.displaced if (spot := self.board.spot[p]) is not None}

    def run(self) -> str:
        """Leaves the best assignment in the world; why it ended: complete, steps or time."""
        why = "complete"
        patience = PATIENCE if self.pods > TINY else 3
        length, idle = max(LEAST_ROUND, min(FIRST_ROUND, 40 * self.pods)), 0
        while self.pods and idle < patience:
            before = self.best_rank
            why = self._round(min(length, self.steps - self.done))
            self._record()
            self._restore(self.best)
            if why != "complete":
                break
            idle = idle + 1 if self.best_rank <= before + LEAST else 0
            length = int(length * GROWTH)
        self._hand_over()
        return why

    def _hand_over(self) -> None:
        """The world's own books follow."""
        world = self.world
        world.spot[:] = self._start
        change = [p for p in range(self.pods) if world.spot[p] != self.best.get(p, world.home[p])]
        for pod in change:
            world.lift(pod)
        for pod in change:
            world.put(pod, self.best.get(pod, world.home[pod]))

    def _round(self, length: int) -> str:
        gain = max(self.best_value - self.home_value, 1e-3 / max(self.pods, 1))
        share, self.most_out, fine = HEATS[self.rounds % len(HEATS)]
        self.rounds += 1
        mean = gain / max(len(self.displaced), 4)
        heat = share * mean
        self.board.tidy()
        self.board.steepen()
        self.value = self.board.now
        for step in range(length):
            if self.should_stop():
                return "time"
            self.done += 1
            left = 1.0 - step / length
            self.fine = mean * fine / (left + 0.05) if fine else np.inf
            if not step % 64:
                self.value = self.board.now - (self.fine * over if (over := self._over()) else 0.0)
            self._step(heat * left * left + 1e-12)
        return "complete" if self.done < self.steps else "steps"

    def _roll(self) -> float:
        if not self._dice:
            self._dice = self.random.random(4096).tolist()
        return self._dice.pop()

    # -- one step ------------------------------------------------------------------------------------------------------

    def _step(self, heat: float) -> None:
        board = self.board
        self._before, self._was = {}, {}
        self._closed = (0, 0)
        queue = self._clear() if self._roll() < CLEAR else self._choose()
        for pod in queue:
            self._lift(pod)
        price = self._price(heat)
        if self._closed == (0, 0):
            queue = [queue[i] for i in sorted(range(len(queue)), key=[self._roll() for _ in queue].__getitem__)]
        while queue:
            pod = queue.pop()
            if not self._place(pod, heat, price, queue):
                self._undo()
                return
        total, extra = board.shift(self._before)
        fresh = board.value(total, extra)
        over = self._over()
        worth = fresh - self.fine * over if over else fresh
        if worth < self.value + heat * log(1.0 - self._roll()):
            self._undo()
            return
        board.total, board.extra, self.value = total, extra, worth
        if over:
            return
        rank = fresh - MOVE_PRICE * len(self.displaced)
        if rank > max(self.best_rank, self.pending_rank) + LEAST and self._worth_a_look(fresh):
            found = self._assignment()
            if frozenset(found.items()) not in self.failed:
                self.pending, self.pending_rank, self.pending_value = found, rank, fresh
                self._found = self.done
        if self.pending and self.done - self._found >= self._settle:
            self._record()

    def _over(self) -> int:
        return 0 if self.limit is None else max(0, len(self.displaced) - self.limit)

    def _worth_a_look(self, value: float) -> bool:
        """Equally good plans of as many moves could only have a better order; few of them are looked at."""
        if value > self.best_value + LEAST or len(self.displaced) < len(self.best):
            return True
        self.ties += 1
        return self.ties <= TIES

    def _lift(self, pod: int) -> None:
        board = self.board
        spot = board.spot[pod]
        assert spot is not None
        node = spot.node
        self._was[pod] = spot
        state = board.at[node]
        self._before.setdefault(node, state)
        board.go(node, board.without(state, board.code(pod, spot)))
        board.on_node[node].remove(pod)
        board.spot[pod] = None
        self.displaced.pop(pod, None)

    def _put(self, pod: int, spot: Spot, state: int) -> None:
        """``state``: of the node with the pod there."""
        board, node = self.board, spot.node
        self._before.setdefault(node, board.at[node])
        board.go(node, state)
        board.on_node[node].append(pod)
        board.spot[pod] = spot
        if spot != self.home[pod]:
            self.displaced[pod] = None

    def _undo(self) -> None:
        board = self.board
        for node, state in self._before.items():
            board.go(node, state)
        for pod in self._was:
            spot = board.spot[pod]
            if spot is not None:
                board.on_node[spot.node].remove(pod)
        for pod, was in self._was.items():
            board.spot[pod] = was
            board.on_node[was.node].append(pod)
            if was != self.home[pod]:
                self.displaced[pod] = None
            else:
                self.displaced.pop(pod, None)

    def _record(self) -> None:
        """Keeps the pending assignment if its moves can be ordered and it still is the best with what that costs."""
        found, value = self.pending, self.pending_value
        self.pending, self.pending_rank = {}, -np.inf
        key = frozenset(found.items())
        if not found or key in self.failed:
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
        if self.limit is None or len(self.displaced) < self.limit - MOST_OUT or self._roll() < 0.5:
            return 1e-11
        return -heat * log(1.0 - self._roll())

    def _place(self, pod: int, heat: float, price: float, queue: list[int]) -> bool:
        board = self.board
        home, shape = self.home[pod], self.shape[pod]
        old = board.at[home.node]
        low, high = self._closed
        at_home = NO if low <= home.devices[0] < high else board.along(old, board.home_code[pod])
        if self.limit is not None and len(self.displaced) >= self.limit:
            if self.fine < np.inf and len(self.displaced) < 2 * self.limit + MOST_OUT:
                price += self.fine
            elif at_home == NO:
                return False
            else:
                self._put(pod, home, at_home)
                return True
        worth = board.places(shape)
        score = self._buffer
        start = int(self._roll() * POOL)
        np.multiply(self._gumbel[start : start + len(score)], 0.3 * heat, out=score)
        score += worth
        score[low:high] = -np.inf
        least = -np.inf
        if at_home != NO:
            least = board.worth_of(at_home) - board.worth_of(old) + price * self.cost[pod]
            least += 0.3 * heat * float(self._gumbel[int(self._roll() * POOL)])
        for _ in range(4):
            device = int(score.argmax())
            if score[device] <= least or score[device] == -np.inf:
                break
            spot = board.spot_at(shape, device)
            if spot == home:
                break
            if self.may_move(pod, spot):
                code = board.code(pod, spot)
                state = board.along(board.at[spot.node], code)
                if state == NO:
                    return False
                if code not in self._alike or not self._trade(pod, spot, code, state, queue):
                    self._put(pod, spot, state)
                return True
            score[device] = -np.inf
        if at_home == NO:
            return False
        self._put(pod, home, at_home)
        return True

    def _trade(self, pod: int, spot: Spot, code: int, state: int, queue: list[int]) -> bool:
        """Where the chosen place is the home of an equal pod that stands elsewhere, that one goes home and this one
        takes its place: the same cluster with one move less."""
        board = self.board
        for other in self._alike[code]:
            there = board.spot[other]
            if other == pod or there == spot:
                continue
            if there is None:
                if other in queue:
                    queue.remove(other)
                    self._put(other, spot, state)
                    queue.append(pod)
                    return True
                continue
            if board.code(pod, there) != board.code(other, there):
                continue
            if there != self.home[pod] and not self.may_move(pod, there):
                continue
            self._was.setdefault(other, there)
            self._before.setdefault(there.node, board.at[there.node])
            board.on_node[there.node].remove(other)
            self.displaced.pop(other, None)
            self._put(other, spot, state)
            self._put(pod, there, board.at[there.node])
            return True
        return False

    def _choose(self) -> list[int]:
        """Related pods to take out: of one or two nodes, moved ones, or a pod with those of its device."""
        board, roll = self.board, self._roll
        want = 1 + int(roll() * self.most_out)
        moved = list(self.displaced)
        if moved and roll() < 0.4:
            first = moved[int(roll() * len(moved))]
        else:
            first = int(roll() * self.pods)
        out = [first]
        near = board.on_node[board.spot[first].node]  # type: ignore[union-attr]
        while len(out) < want:
            dice = roll()
            if dice < 0.35 and len(near) > 1:
                pod = near[int(roll() * len(near))]
            elif dice < 0.6 and moved:
                pod = moved[int(roll() * len(moved))]
            else:
                pod = int(roll() * self.pods)
                near = board.on_node[board.spot[pod].node]  # type: ignore[union-attr]
            if pod in out:
                want -= 1
                continue
            out.append(pod)
        return out

    def _clear(self) -> list[int]:
        """All pods of a node, or of a device, for which that place is closed; as many moved pods may go home for it."""
        board, roll = self.board, self._roll
        first = int(roll() * self.pods)
        spot = board.spot[first]
        assert spot is not None
        node = spot.node
        if roll() < 0.5:
            self._closed = (board.low[node], board.low[node + 1])
            out = list(board.on_node[node])
        else:
            device = spot.devices[0]
            self._closed = (device, device + 1)
            out = [p for p in board.on_node[node] if device in board.spot[p].devices]  # type: ignore[union-attr]
        if len(out) > MOST_CLEARED:
            self._closed = (0, 0)
            return [first]
        moved = [p for p in self.displaced if p not in out]
        free = len(out) if self.limit is None else self.limit - len(self.displaced)
        for _ in range(min(len(out) - free, len(moved))):
            out.insert(0, moved.pop(int(roll() * len(moved))))
        return out

    def _restore(self, wanted: dict[int, Spot]) -> None:
        """Puts every pod where ``wanted`` has it, all others home."""
        board = self.board
        self._before, self._was = {}, {}
        change = sorted(p for p in {*self.displaced, *wanted} if board.spot[p] != wanted.get(p, self.home[p]))
        for pod in change:
            self._lift(pod)
        for pod in change:
            spot = wanted.get(pod, self.home[pod])
            state = board.along(board.at[spot.node], board.code(pod, spot))
            if state == NO:  # a node that holds more than it has refuses even what only changes its device
                spot = self.home[pod]
                wanted = {p: s for p, s in wanted.items() if p != pod}
                state = board.home(board.at[spot.node], board.code(pod, spot))
            self._put(pod, spot, state)
        board.total, board.extra = board.shift(self._before)
        self.displaced = dict.fromkeys(sorted(wanted))
        self.value = board.now
