"""The steps of one batch: pods taken out and put back, in many candidate steps at once.

Every step works on its own copy of the few nodes it touches (its entries); what the rest of the cluster offers is read
from the position's tables. A pod is put where it is worth most, or in the place of another pod, which then has to be
put back itself: so a chain of moves is found in which only the last one fits by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from defragd.core.arrays import Bools, Floats, Ints
from defragd.core.search_batch import Batch

NONE = -1
TINY = 1e-11
"""Between equal places a pod prefers one where pods of its kind live: plans stay short."""
MOST_OUT = 6
EJECT, EJECTED = 0.4, 3
"""Share of steps in which pods may be put in the place of others, and how often in one step."""
POOL = 1 << 16


@dataclass
class Steps:
    """C candidate steps under way. Rows are sorted by the number of pods out, most first; pods are lifted and placed
    column by column. Entries E are the nodes a step touches, as they would be."""

    pod: Ints
    """C x Q: pods taken out, -1 beyond a row's number."""
    many: Ints
    most: Ints
    """C: pods out by now, and how many may be."""
    shut: Bools | None
    """C x D + 1: devices that must not receive."""
    kind: Ints
    old: Ints
    """C x Q: device each pod left."""
    was_home: Bools
    """C x Q: a place where pods of the kind live came free."""
    new: Ints
    away: Ints
    """C: pods missing from home, those out included."""
    alive: Bools
    entry: Ints
    """C x N: entry of a node, -1 where the step does not touch it."""
    row: Ints
    node: Ints
    ids: Ints
    sums: Floats
    cpu: Floats
    host: Floats
    room: Ints
    own: Floats
    """E: worth by the slope."""
    used: int = 0


class Hand:
    """Takes pods out and puts them back. ``limit``: pods that may stand elsewhere than at home."""

    def __init__(self, batch: Batch, random: np.random.Generator, limit: float, cost: Floats) -> None:
        self.batch, self.random, self.limit, self.cost = batch, random, limit, cost
        wide = max(batch.devices + 1, len(batch.at))
        self._pool = random.gumbel(size=POOL + wide)
        self._noise = self._pool.copy()
        self._windows = np.lib.stride_tricks.sliding_window_view(self._noise, wide)
        self.takes = np.zeros((batch.kinds, batch.devices + 1), dtype=np.bool_)
        self.takes[:, :-1] = batch.takes
        self.look()

    def heat(self, heat: float) -> None:
        """How far the choice of places may stray from the best one."""
        np.multiply(self._pool, 0.3 * heat, out=self._noise)

    def look(self) -> None:
        """Reads the position."""
        batch = self.batch
        self.vacant = np.zeros((batch.kinds, batch.devices + 1), dtype=np.bool_)
        np.less(batch.count, batch.homes, out=self.vacant[:, :-1])
        self.moved = np.nonzero(batch.at != batch.home)[0]
        first = batch.arrive.max(axis=1)
        second = np.maximum(first, (batch.instead + first[batch.kind]).max(axis=1, initial=-np.inf))
        self.onward = second[batch.kind]
        """P: what the pod is worth at best elsewhere, directly or instead of another."""
        self.table = batch.arrive + TINY * self.vacant

    def lift(self, pod: Ints, many: Ints, shut: Bools | None) -> Steps:
        batch = self.batch
        rows, most = pod.shape
        wide = most + EJECTED
        size = 2 * (int(many.sum()) + EJECTED * rows)

        def table(fill: int) -> Ints:
            return np.full((rows, wide), fill, dtype=np.int64)

        steps = Steps(
            pod=table(NONE),
            many=many.copy(),
            most=many + EJECTED,
            shut=shut,
            kind=table(NONE),
            old=table(NONE),
            was_home=np.zeros((rows, wide), dtype=np.bool_),
            new=table(NONE),
            away=np.full(rows, batch.away),
            alive=np.ones(rows, dtype=np.bool_),
            entry=np.full((rows, batch.nodes), NONE, dtype=np.int32),
            row=np.zeros(size, dtype=np.int64),
            node=np.zeros(size, dtype=np.int64),
            ids=np.zeros((size, batch.wide), dtype=np.int64),
            sums=np.zeros((size, batch.sums.shape[1])),
            cpu=np.zeros(size),
            host=np.zeros(size),
            room=np.zeros(size, dtype=np.int64),
            own=np.zeros(size),
        )
        self.id = np.append(batch.id, 0)
        for j in range(most):
            m = int((many > j).sum())
            self._take(steps, np.arange(m), j, pod[:m, j])
        e = slice(0, steps.used)
        steps.own[e] = batch.worths_of(steps.sums[e], steps.node[e], steps.cpu[e], steps.host[e])
        return steps

    def _take(self, steps: Steps, rows: Ints, j: int | Ints, pods: Ints) -> Ints:
        """Takes a pod out in each of these rows; the entries of their nodes."""
        batch = self.batch
        k, d = batch.kind[pods], batch.at[pods]
        node, slot = batch.node_of[d], batch.slot_of[d]
        new = steps.entry[rows, node] < 0
        self._enter(steps, rows[new], node[new])
        e = steps.entry[rows, node]
        before = steps.ids[e, slot]
        after = batch.without(before, k)
        steps.ids[e, slot] = after
        rows_of = batch.states.rows
        steps.sums[e] += (rows_of[after] - rows_of[before]) * batch.counts[d][:, None]
        steps.cpu[e] += batch.cpu_of[k]
        steps.host[e] += batch.host_of[k]
        steps.room[e] += 1
        same = steps.kind[rows] == k[:, None]
        there = batch.count[k, d] - (same & (steps.old[rows] == d[:, None])).sum(axis=1)
        there += (same & (steps.new[rows] == d[:, None])).sum(axis=1)
        home = there <= batch.homes[k, d]
        steps.pod[rows, j], steps.kind[rows, j], steps.old[rows, j], steps.was_home[rows, j] = pods, k, d, home
        steps.away[rows] += home
        return np.asarray(e)

    def _enter(self, steps: Steps, row: Ints, node: Ints) -> None:
        """New entries: nodes as they are in the position."""
        batch = self.batch
        e = slice(steps.used, steps.used + len(row))
        steps.row[e], steps.node[e] = row, node
        steps.ids[e] = self.id[batch.device_at[node]]
        steps.sums[e] = batch.sums[node]
        steps.cpu[e], steps.host[e], steps.room[e] = batch.cpu[node], batch.host[node], batch.room[node]
        steps.entry[row, node] = np.arange(e.start, e.stop)
        steps.used = e.stop

    def place(self, steps: Steps, j: int, price: Floats, fine: float, eject: Bools) -> None:
        """Puts the pods of column j back, each where it is worth most; or in the place of another pod, which is then
        the next to be put back."""
        batch = self.batch
        rows = np.nonzero((steps.many > j) & steps.alive)[0]
        if not len(rows):
            return
        here = np.arange(len(rows))
        k = steps.kind[rows, j]
        score = self.table[k]
        self._touched(steps, rows, k, score)
        score += self._windows[(self.random.random(len(rows)) * POOL).astype(np.int64), : score.shape[1]]
        if steps.shut is not None:
            score[steps.shut[rows]] = -np.inf
        vacant = self.vacant[k]
        r, q = np.nonzero((steps.kind[rows] == k[:, None]) & steps.was_home[rows])
        came_free = steps.old[rows[r], q]
        vacant[r, came_free] = True
        score[r, came_free] += TINY
        standing = steps.away[rows] - (steps.many[rows] - j)
        over = standing >= self.limit
        cost = price[rows] * self.cost[steps.pod[rows, j]]
        if fine < np.inf:
            cost = cost + fine * over
            over &= standing >= 2 * self.limit + MOST_OUT
        dear = np.nonzero(cost > 0)[0]
        if len(dear):
            score[dear] += cost[dear][:, None] * vacant[dear]
        if over.any():
            score[over] = np.where(vacant[over], score[over], -np.inf)
        pick = score[:, :-1].argmax(axis=1)
        best = score[here, pick]
        out, pods = self._eject(steps, rows, k, j, best - cost * ~vacant[here, pick], eject)
        self._settle(steps, rows[out], k[out], j, batch.instead_at[k[out], pods], vacant[out], swap=False, pods=pods)
        stay = ~out & (best > -np.inf)
        steps.alive[rows[~out & ~stay]] = False
        self._settle(steps, rows[stay], k[stay], j, pick[stay], vacant[stay], swap=steps.shut is None)

    def _eject(self, steps: Steps, rows: Ints, k: Ints, j: int, best: Floats, eject: Bools) -> tuple[Bools, Ints]:
        """Rows in which the pod comes instead of another one, and which."""
        batch = self.batch
        out = np.zeros(len(rows), dtype=np.bool_)
        may = np.nonzero(eject[rows] & (steps.many[rows] < steps.most[rows]))[0]
        if not len(may):
            return out, np.zeros(0, dtype=np.int64)
        score = batch.instead[k[may]] + self.onward
        score += self._windows[(self.random.random(len(may)) * POOL).astype(np.int64), : score.shape[1]]
        nodes = batch.node_of[batch.at]
        score[(steps.entry[rows[may]] >= 0)[:, nodes]] = -np.inf
        if steps.shut is not None:
            score[steps.shut[rows[may]][:, batch.at]] = -np.inf
        pick = score.argmax(axis=1)
        better = score[np.arange(len(may)), pick] > best[may]
        out[may[better]] = True
        return out, np.asarray(pick[better])

    def _settle(
        self,
        steps: Steps,
        rows: Ints,
        k: Ints,
        j: int,
        pick: Ints,
        vacant: Bools,
        *,
        swap: bool,
        pods: Ints | None = None,
    ) -> None:
        batch = self.batch
        if not len(rows):
            return
        here = np.arange(len(rows))
        node = batch.node_of[pick]
        if pods is None:
            new = steps.entry[rows, node] < 0
            self._enter(steps, rows[new], node[new])
            e = steps.entry[rows, node]
        else:
            e = self._take(steps, rows, steps.many[rows], pods)
            steps.many[rows] += 1
        if swap:  # of equal devices of the node the one that is home
            devices = batch.device_at[node]
            equal = (steps.ids[e] == steps.ids[e, batch.slot_of[pick]][:, None]) & vacant[here[:, None], devices]
            equal &= self.takes[k[:, None], devices]
            better = equal.any(axis=1) & ~vacant[here, pick]
            pick = np.where(better, devices[here, equal.argmax(axis=1)], pick)
        slot = batch.slot_of[pick]
        before = steps.ids[e, slot]
        after = batch.with_part(before, batch.part[k])
        steps.ids[e, slot] = after
        rows_of = batch.states.rows
        steps.sums[e] += (rows_of[after] - rows_of[before]) * batch.counts[pick][:, None]
        steps.cpu[e] -= batch.cpu_of[k]
        steps.host[e] -= batch.host_of[k]
        steps.room[e] -= 1
        steps.own[e] = batch.worths_of(steps.sums[e], node, steps.cpu[e], steps.host[e])
        mine = steps.kind[rows] == k[:, None]
        there = (
            batch.count[k, pick]
            - (mine & (steps.old[rows] == pick[:, None])).sum(axis=1)
            + (mine & (steps.new[rows] == pick[:, None])).sum(axis=1)
        )
        steps.away[rows] -= there < batch.homes[k, pick]
        steps.new[rows, j] = pick

    def _touched(self, steps: Steps, rows: Ints, k: Ints, score: Floats) -> None:
        """What the nodes that a step has touched offer, instead of what they offer in the position."""
        batch = self.batch
        place = np.full(len(steps.many), NONE, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        row = place[steps.row[: steps.used]]
        e = np.nonzero(row >= 0)[0]
        row, node = row[e], steps.node[e]
        kind = k[row]
        score[row[:, None], batch.device_at[node]] = -np.inf
        cpu, host = batch.cpu_of[kind], batch.host_of[kind]
        ok = (
            ((steps.cpu[e] >= cpu) | (cpu == 0))
            & ((steps.host[e] >= host) | (host == 0))
            & (steps.room[e] >= 1)
            & batch.open[kind, node]
        )
        e, row, node, kind = e[ok], row[ok], node[ok], kind[ok]
        devices = batch.device_at[node]
        ids = steps.ids[e]
        after = batch.with_part(ids, batch.part[kind][:, None])
        x, g = np.nonzero((after >= 0) & self.takes[kind[:, None], devices])
        if not len(x):
            return
        rows_of = batch.states.rows
        at, t = e[x], kind[x]
        sums = steps.sums[at] - rows_of[ids[x, g]] + rows_of[after[x, g]]
        worth = batch.worths_of(sums, node[x], steps.cpu[at] - batch.cpu_of[t], steps.host[at] - batch.host_of[t])
        score[row[x], devices[x, g]] = worth - steps.own[at] + TINY * self.vacant[t, devices[x, g]]
