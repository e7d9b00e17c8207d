"""Destroy and repair in batches: take a few related pods out, put them back where they are worth most, keep the better.

One move at a time cannot leave a plateau (nothing typical fits anywhere, so no single move changes the score) and
cannot swap; taking out two to six pods at once can do both. Worse positions are accepted now and then, less so as a
round goes on; rounds start from the best plan so far. All steps of a batch start from one position; those accepted that
touch different nodes are all made. The order of random numbers depends on the seed and the steps, never on the clock.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from defragd.core.arrays import Floats, Ints
from defragd.core.search_batch import Batch
from defragd.core.search_choice import choose
from defragd.core.search_greedy import LEAST
from defragd.core.search_steps import EJECT, MOST_OUT, Hand, Steps
from defragd.core.search_task import GROUP_PRICE, MOVE_PRICE, Task
from defragd.core.tables import Spot, World

SIZE = 96
"""Steps of one batch."""
LONGEST_ROUND, STEPS_PER_POD, LEAST_ROUND = 4_000, 60, 10 * SIZE
GROWTH, PATIENCE, TINY_WORLD = 1.1, 12, 12
"""Growth of rounds; rounds without improvement before the search ends (tiny worlds are done after fewer)."""
SETTLE = 4 * SIZE
"""Steps without a better assignment before the best one since is proven, ..."""
FEW = 100
"""... where there are more pods than this; with fewer, each is proven at once: plans that no order allows are common
among few pods and would hide the slightly worse ones that can be ordered."""
HEATS: tuple[tuple[float, int, float], ...] = (
    (0.02, 4, 0.0),
    (0.03, 3, 0.5),
    (0.1, 6, 1.0),
    (0.5, 4, 0.0),
    (0.03, 4, 1.0),
)
"""By round: how much worse a position may be (in gains of a mean move), how many pods are taken out at most, and what a
move beyond the limit costs at first (in gains of a mean move; it grows as the round goes on, 0 = the limit is hard).
Sparse clusters with a tight limit want it cool, full ones hot; the rounds take turns."""
CLEAR = 0.1
"""Share of batches whose steps empty a device or a node."""
HARD = np.inf
"""Price of a move beyond the limit where there may be none."""


class Anneal:
    """Improves the world's assignment. ``limit``: pods that may stand elsewhere than at home (None = any number).
    ``barred``: nodes that a pod must not come to."""

    def __init__(
        self,
        world: World,
        task: Task,
        *,
        steps: int,
        barred: Mapping[int, frozenset[int]],
    ) -> None:
        self.world, self.cost = world, task.cost
        self.may_move, self.orderable, self.should_stop = task.may_move, task.orderable, task.should_stop
        self.steps, self.done = steps, 0
        self.random = np.random.Generator(np.random.PCG64(task.seed))
        batch = self.batch = Batch(world, barred)
        taken = set(batch.pods)
        self.others = {
            pod: spot
            for pod, (spot, home) in enumerate(zip(world.spot, world.home, strict=True))
            if pod not in taken and spot is not None and spot != home
        }
        """Moves of pods that stay as they are here."""
        self.limit = np.inf if task.limit is None else task.limit - len(self.others)
        self.hand = Hand(batch, self.random, self.limit, task.cost[batch.pods])
        self._exact = np.array([not world.shapes.shapes[s].plain for s in batch.shape.tolist()], dtype=np.bool_)
        self.best: dict[int, Spot] = {}
        self.settle = SETTLE if len(batch.at) > FEW else 0
        self.failed: set[frozenset[tuple[int, Spot]]] = set()
        """Assignments that no order allows."""
        self.pending: Ints | None = None
        """The best position since, not proven yet."""
        self.pending_rank = -np.inf
        self._found = self.rounds = 0

    def run(self) -> str:
        """Leaves the best assignment in the world; why it ended: complete, steps or time."""
        batch, world = self.batch, self.world
        start = list(world.spot)
        if not len(batch.at):
            return "complete"
        self._first()
        why, idle = "complete", 0
        patience = PATIENCE if len(batch.at) > TINY_WORLD else 3
        length: float = max(LEAST_ROUND, min(LONGEST_ROUND, STEPS_PER_POD * len(batch.at)))
        while idle < patience:
            before = self.best_rank
            why = self._round(length)
            self._record()
            self._go(self.best_at)
            if why != "complete":
                break
            idle = idle + 1 if self.best_rank <= before + LEAST else 0
            length *= GROWTH
        world.spot[:] = start
        change = [p for p in range(len(start)) if world.spot[p] != self.best.get(p, world.home[p])]
        for pod in change:
            world.lift(pod)
        for pod in change:
            world.put(pod, self.best.get(pod, world.home[pod]))
        return why

    def _first(self) -> None:
        """The position at the start is the best so far, if its moves can be ordered; else all pods go home."""
        batch = self.batch
        self.best_at, found = batch.at.copy(), self._moves(batch.at)
        together = self.orderable(found) if found else 0
        value = batch.now
        self._go(batch.home)
        self.home_value = batch.now
        if together is None:
            together, value = 0, self.home_value
            self.best_at, found = batch.home.copy(), dict(self.others)
        else:
            self._go(self.best_at)
        self.best, self.best_value = found, value
        self.best_rank = value - MOVE_PRICE * batch.away - GROUP_PRICE * together

    def _moves(self, at: Ints) -> dict[int, Spot]:
        return dict(sorted({**self.others, **self.batch.spots(at, self.cost)}.items()))

    def _go(self, at: Ints) -> None:
        batch = self.batch
        batch.go(at)
        self.hand.look()
        for pod, device in zip(batch.pods, at.tolist(), strict=True):
            self.world.spot[pod] = batch.spot(device)

    def _record(self) -> None:
        """Keeps the pending assignment if its moves can be ordered and it still is the best with what that costs."""
        at, rank = self.pending, self.pending_rank
        self.pending, self.pending_rank = None, -np.inf
        if at is None:
            return
        found = self._moves(at)
        key = frozenset(found.items())
        if key in self.failed:
            return
        together = self.orderable(found)
        if together is None:
            self.failed.add(key)
            return
        rank -= GROUP_PRICE * together
        if rank > self.best_rank + LEAST:
            self.best, self.best_rank, self.best_at = found, rank, at
            self.best_value = rank + MOVE_PRICE * (len(found) - len(self.others)) + GROUP_PRICE * together

    def _failed_before(self) -> bool:
        return bool(self.failed) and frozenset(self._moves(self.batch.at).items()) in self.failed

    def _round(self, length: float) -> str:
        batch = self.batch
        gain = max(self.best_value - self.home_value, 1e-3 / max(len(batch.at), 1))
        share, most, price = HEATS[self.rounds % len(HEATS)]
        self.rounds += 1
        mean = gain / max(batch.away, 4)
        count = max(min(int(length), self.steps - self.done) // SIZE, 1)
        for number in range(count):
            if self.should_stop():
                return "time"
            self.done += SIZE
            left = 1.0 - number / count
            self._batch(share * mean * left * left + 1e-12, most, mean * price / (left + 0.05) if price else HARD)
            if self.pending is not None and self.done - self._found >= self.settle:
                self._record()
            if not number % 16 and batch.steepen():
                self.hand.look()
        return "complete" if self.done < self.steps else "steps"

    def _batch(self, heat: float, most: int, fine: float) -> None:
        batch, random, hand = self.batch, self.random, self.hand
        clear = bool(random.random() < CLEAR)
        pods, many, shut = choose(batch, random, hand.moved, SIZE, most, clear=clear, limit=self.limit)
        eject = random.random(SIZE) < EJECT
        price = np.zeros(SIZE)
        if batch.away >= self.limit - MOST_OUT:
            # near the limit a move must be worth something
            price = np.where(random.random(SIZE) < 0.5, price, -heat * np.log(1.0 - random.random(SIZE)))
        hand.heat(heat)
        steps = hand.lift(pods, many, shut)
        for j in range(steps.pod.shape[1]):
            hand.place(steps, j, price, fine, eject)
        self._judge(steps, heat, fine)

    # -- taking steps --------------------------------------------------------------------------------------------------

    def _judge(self, steps: Steps, heat: float, fine: float) -> None:
        """Makes the steps that are accepted and touch different nodes."""
        batch = self.batch
        used = slice(0, steps.used)
        row, node = steps.row[used], steps.node[used]
        fresh = batch.features_of(steps.sums[used], node, steps.cpu[used], steps.host[used])
        delta = np.zeros((len(steps.many), fresh.shape[1]))
        order = np.argsort(row, kind="stable")
        ends = np.nonzero(np.diff(row[order], prepend=-1))[0]
        delta[row[order][ends]] = np.add.reduceat((fresh - batch.features[node])[order], ends, axis=0)
        other = (steps.ids[used] != self.hand.id[batch.device_at[node]]).any(axis=1) | (
            steps.cpu[used] != batch.cpu[node]
        )
        changed = np.zeros(len(steps.many), dtype=np.bool_)
        changed[row[other]] = True
        value = batch.value(batch.total + delta)
        excess = np.maximum(steps.away - self.limit, 0.0) if self.limit < np.inf else np.zeros(len(value))
        if fine < np.inf:
            worth = value - fine * excess
        else:
            worth = value
            steps.alive &= (excess == 0) | (steps.away <= batch.away)
        least = heat * np.log(1.0 - self.random.random(len(value)))
        now = self._worth(fine)
        good = steps.alive & changed & (worth - now >= least)
        dirty = np.zeros(batch.nodes, dtype=np.bool_)
        start = batch.away
        for c in self.random.permutation(np.nonzero(good)[0]).tolist():
            entries = order[np.searchsorted(row[order], c) : np.searchsorted(row[order], c, side="right")]
            nodes = node[entries]
            if dirty[nodes].any():
                continue
            if dirty.any():
                now = self._worth(fine)
                gone = batch.away + int(steps.away[c]) - start
                over = max(gone - self.limit, 0.0) if self.limit < np.inf else 0.0
                total = float(batch.value(batch.total + delta[c]))
                if fine == np.inf and over > 0:
                    continue
                if total - (fine * over if over else 0.0) - now < least[c]:
                    continue
            if not self._allowed(steps, c):
                continue
            dirty[nodes] = True
            self._make(steps, c, entries, fresh[entries], delta[c], batch.away + int(steps.away[c]) - start)
        if dirty.any():
            batch.refresh(np.nonzero(dirty)[0])
            batch.regroup()
            self.hand.look()

    def _worth(self, fine: float) -> float:
        batch = self.batch
        over = max(batch.away - self.limit, 0.0)
        return float(batch.value(batch.total)) - (fine * over if over else 0.0)

    def _allowed(self, steps: Steps, c: int) -> bool:
        """The exact rules for pods that the tables do not fully know, with all others where they would be."""
        many = int(steps.many[c])
        if not self._exact[steps.kind[c, :many]].any():
            return True
        batch, spot = self.batch, self.world.spot
        pods = [batch.pods[p] for p in steps.pod[c, :many].tolist()]
        before = [spot[pod] for pod in pods]
        after = [batch.spot(device) for device in steps.new[c, :many].tolist()]
        for pod, place in zip(pods, after, strict=True):
            spot[pod] = place
        good = True
        for pod, place, exact in zip(pods, after, self._exact[steps.kind[c, :many]].tolist(), strict=True):
            if exact and place != self.world.home[pod]:
                spot[pod] = None
                good = good and self.may_move(pod, place)
                spot[pod] = place
        for pod, place in zip(pods, before, strict=True):
            spot[pod] = place
        return good

    def _make(self, steps: Steps, c: int, entries: Ints, fresh: Floats, delta: Floats, away: int) -> None:
        batch = self.batch
        for e, feature in zip(entries.tolist(), fresh, strict=True):
            n = int(steps.node[e])
            low, high = int(batch.low[n]), int(batch.low[n + 1])
            batch.id[low:high] = steps.ids[e, : high - low]
            batch.sums[n] = steps.sums[e]
            batch.cpu[n], batch.host[n], batch.room[n] = steps.cpu[e], steps.host[e], steps.room[e]
            batch.features[n] = feature
        batch.total = batch.total + delta
        m = int(steps.many[c])
        pods, kind = steps.pod[c, :m], steps.kind[c, :m]
        np.add.at(batch.count, (kind, steps.old[c, :m]), -1)
        np.add.at(batch.count, (kind, steps.new[c, :m]), 1)
        batch.at[pods] = steps.new[c, :m]
        batch.away = away
        for pod, device in zip(pods.tolist(), steps.new[c, :m].tolist(), strict=True):
            self.world.spot[batch.pods[pod]] = batch.spot(device)
        if batch.away <= self.limit:
            rank = batch.now - MOVE_PRICE * batch.away
            if rank > max(self.best_rank, self.pending_rank) + LEAST and not self._failed_before():
                self.pending, self.pending_rank, self._found = batch.at.copy(), rank, self.done
