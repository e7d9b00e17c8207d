"""Which pods a batch of steps takes out: related ones (of one or two nodes, moved ones), or all of one place."""

from __future__ import annotations

import numpy as np

from defragd.core.arrays import Bools, Ints
from defragd.core.search_batch import Batch
from defragd.core.search_steps import NONE

MOST_CLEARED = 12
"""Pods on a place that is emptied, at most."""

Choice = tuple[Ints, Ints, Bools | None]
"""Pods (C x Q) in the order in which they are put back, how many of each row, and devices that must not receive."""


def related(batch: Batch, random: np.random.Generator, moved: Ints, steps: int, most: int) -> Ints:
    """One to ``most`` pods for each step, `NONE` beyond: near each other, moved ones, or any."""
    many = 1 + (random.random(steps) * most).astype(np.int64)
    dice = random.random((3, most, steps))
    out = np.full((steps, most), NONE, dtype=np.int64)
    near = np.zeros(steps, dtype=np.int64)
    for j in range(most):
        kind = dice[1, j]
        pick = (dice[0, j] * len(batch.at)).astype(np.int64)
        if j:
            close = batch.by_node[batch.first_on[near] + (dice[0, j] * batch.on_node[near]).astype(np.int64)]
            pick = np.where(kind < 0.35, close, pick)
        if len(moved):
            again = moved[(dice[0, j] * len(moved)).astype(np.int64)]
            pick = np.where((kind >= 0.35) & (kind < 0.6) if j else kind < 0.4, again, pick)
        fresh = (kind >= 0.6) if j else np.ones(steps, dtype=np.bool_)
        near = np.where(fresh, batch.node_of[batch.at[pick]], near)
        twice = (out[:, :j] == pick[:, None]).any(axis=1)
        out[:, j] = np.where((j < many) & ~twice, pick, NONE)
    keys = np.where(out >= 0, dice[2].T, 2.0)
    return np.asarray(np.take_along_axis(out, np.argsort(keys, axis=1, kind="stable"), axis=1))


def choose(
    batch: Batch, random: np.random.Generator, moved: Ints, steps: int, most: int, *, clear: bool, limit: float
) -> Choice:
    """Rows with the most pods first. ``clear``: each step empties a place, which then must not receive."""
    out = related(batch, random, moved, steps, most)
    shut = None
    if clear:
        wide = np.full((steps, MOST_CLEARED + most), NONE, dtype=np.int64)
        wide[:, :most] = out
        out = wide
        shut = np.zeros((steps, batch.devices + 1), dtype=np.bool_)
        for row, pod in enumerate(out[:, 0].tolist()):
            found = _place(batch, random, moved, pod, limit)
            if found is not None:
                pods, low, high = found
                pods = pods[: out.shape[1]]
                out[row] = NONE
                out[row, : len(pods)] = pods
                shut[row, low:high] = True
    many = (out >= 0).sum(axis=1)
    order = np.argsort(-many, kind="stable")
    return out[order, : int(many.max())], many[order], None if shut is None else shut[order]


def _place(
    batch: Batch, random: np.random.Generator, moved: Ints, pod: int, limit: float
) -> tuple[list[int], int, int] | None:
    """All pods of the pod's node, or of its device, and moved pods that may go home for them near the limit."""
    device = int(batch.at[pod])
    node = int(batch.node_of[device])
    begin = batch.first_on[node]
    out = batch.by_node[begin : begin + batch.on_node[node]].tolist()
    low, high = int(batch.low[node]), int(batch.low[node + 1])
    if random.random() < 0.5:
        low, high = device, device + 1
        out = [p for p in out if batch.at[p] == device]
    if len(out) > MOST_CLEARED:
        return None
    free = len(out) if limit == np.inf else int(limit) - batch.away
    if free < len(out):
        others = [p for p in moved.tolist() if p not in out]
        for _ in range(min(len(out) - free, len(others))):
            out.append(others.pop(int(random.random() * len(others))))
    return out, low, high
