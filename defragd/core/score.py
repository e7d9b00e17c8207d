"""Fragmentation as numbers: schedulability loss L, FGD's phi with its causes, idle devices and nodes.

Definitions: states/README section 3. L is the headline: of the pods of the usual mix that would fit if the idle
capacity were in one piece, the share that does not fit now. Everything is additive over nodes, so a score of a pool, a
node or a device is the same code on fewer nodes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from defragd.core.arrays import Arena, Books, Fleet, Floats, Ints, build_arena
from defragd.core.mix import Mix, running_mix
from defragd.core.plan import ClassScore, Score
from defragd.core.snapshot import Snapshot
from defragd.core.yardstick import Yardstick, idle_share, make_yardstick


@dataclass(frozen=True)
class Measure:
    """Per node and class: copies K and usable idle share U (N x M)."""

    copies: Ints
    usable: Floats


def score(snapshot: Snapshot, *, mix: Mix | None = None, nodes: Collection[str] | None = None) -> Score:
    """Score a snapshot. ``mix`` None = the running mix of the whole snapshot; ``nodes`` limits the sums."""
    chosen = mix or running_mix(snapshot)
    if nodes is not None:
        kept = {name: node for name, node in snapshot.nodes.items() if name in set(nodes)}
        snapshot = Snapshot(nodes=kept, pods=snapshot.pods, holds=snapshot.holds)
    arena = build_arena(snapshot)
    return score_books(arena.fleet, arena.books, make_yardstick(chosen, arena.fleet, arena.books))


def score_arena(arena: Arena, yardstick: Yardstick) -> Score:
    return score_books(arena.fleet, arena.books, yardstick)


def score_books(fleet: Fleet, books: Books, yardstick: Yardstick) -> Score:
    """All figures for these books, against the pools frozen in ``yardstick``."""
    found = measure(fleet, books, yardstick)
    copies = found.copies.sum(axis=0)
    usable = found.usable.sum(axis=0)
    causes, phi = _causes(fleet, books, yardstick, found, usable)
    idle_devices, idle_nodes = idle_counts(fleet, books)
    classes = tuple(
        ClassScore(key.label, float(w), int(k), int(p))
        for key, w, k, p in zip(yardstick.keys, yardstick.weight, copies, yardstick.pooled, strict=True)
    )
    return Score(
        loss=loss_of(yardstick, copies),
        phi=phi,
        idle_devices=idle_devices,
        idle_nodes=idle_nodes,
        idle_gpus=yardstick.idle_gpus,
        causes=causes,
        classes=classes,
    )


def loss_of(yardstick: Yardstick, copies: Ints) -> float:
    """L from the copies of each class; classes that fit nowhere even pooled add nothing."""
    able = yardstick.pooled > 0
    missing = np.maximum(0.0, 1.0 - copies[able] / yardstick.pooled[able])
    return float((yardstick.weight[able] * missing).sum())


def phi_of(yardstick: Yardstick, usable: Floats) -> float:
    able = yardstick.reach > 0
    got = np.where(able, np.minimum(1.0, usable / np.where(able, yardstick.reach, 1.0)), 0.0)
    return float((yardstick.weight * (1.0 - got)).sum())


def measure(fleet: Fleet, books: Books, yardstick: Yardstick) -> Measure:
    """K and U of every node. Equal device states are computed once."""
    nodes, columns = len(fleet.names), len(yardstick.keys)
    if not nodes or not columns:
        return Measure(np.zeros((nodes, columns), dtype=np.int64), np.zeros((nodes, columns)))
    on_device = device_copies(fleet, books, yardstick)
    share = idle_share(
        fleet.slots - books.slots, fleet.memory - books.memory, fleet.cores - books.cores, fleet.memory, fleet.cores
    )
    starts = fleet.first[:-1]
    fits = on_device > 0
    total = np.add.reduceat(on_device, starts, axis=0)
    fitting = np.add.reduceat(fits.astype(np.int64), starts, axis=0)
    usable = np.add.reduceat(np.where(fits, share[:, None], 0.0), starts, axis=0)
    copies = np.where(yardstick.gpus > 1, fitting // np.maximum(yardstick.gpus, 1), total)
    limit = yardstick.host_limit(fleet.cpu - books.cpu, fleet.host_memory - books.host_memory)
    enough = fitting >= np.maximum(yardstick.gpus, 1)
    copies = np.where(enough, np.minimum(copies, limit), 0)
    usable = np.where(enough & (limit > 0), usable, 0.0)
    return Measure(copies, usable)


def device_copies(fleet: Fleet, books: Books, yardstick: Yardstick) -> Ints:
    """D x M: copies on each device by itself; closed devices give 0."""
    slots = fleet.slots - books.slots
    memory = fleet.memory - books.memory
    cores = fleet.cores - books.cores
    states = np.stack([fleet.kind, slots, memory, cores, books.slots > 0], axis=1)
    packed = _pack(states)
    _, first, back = np.unique(packed, return_index=True, return_inverse=True)
    rows = yardstick.copies(fleet.kind[first], slots[first], memory[first], cores[first], (books.slots > 0)[first])
    out: Ints = rows[back.reshape(-1)]
    out[~fleet.device_open] = 0
    return out


def _pack(columns: Ints) -> Ints:
    """One integer per row, equal only for equal rows (mixed radix over the value ranges)."""
    packed = np.zeros(len(columns), dtype=np.int64)
    for column in columns.T:
        low = int(column.min())
        packed = packed * (int(column.max()) - low + 1) + (column - low)
    return packed


def idle_counts(fleet: Fleet, books: Books) -> tuple[int, int]:
    """Idle devices and idle nodes among the open ones (every device of an idle node is open and unheld)."""
    idle = idle_devices(fleet, books)
    return int(idle.sum()), int(idle_nodes(fleet, books).sum())


def idle_devices(fleet: Fleet, books: Books) -> np.ndarray:
    return np.asarray(fleet.device_open & (books.slots == 0))


def idle_nodes(fleet: Fleet, books: Books) -> np.ndarray:
    if not len(fleet.names):
        return np.zeros(0, dtype=np.bool_)
    unheld = np.logical_and.reduceat(books.slots == 0, fleet.first[:-1])
    return np.asarray(unheld & fleet.node_open)


def _causes(
    fleet: Fleet, books: Books, yardstick: Yardstick, found: Measure, usable: Floats
) -> tuple[dict[str, float], float]:
    """phi, split by what keeps idle share from the classes: wrong type, device shape, host, or both.

    Unusable share is counted where it lies and scaled so that the four parts add up to phi.
    """
    phi = phi_of(yardstick, usable)
    parts = {"deviceShape": 0.0, "host": 0.0, "both": 0.0, "type": 0.0}
    if not len(fleet.names) or not len(yardstick.keys):
        return parts, phi
    share = idle_share(
        fleet.slots - books.slots, fleet.memory - books.memory, fleet.cores - books.cores, fleet.memory, fleet.cores
    )
    share = np.where(fleet.device_open, share, 0.0)
    on_device = device_copies(fleet, books, yardstick)
    starts = fleet.first[:-1]
    wrong = yardstick.need[fleet.kind] < 0
    fits = on_device > 0
    by_type = np.add.reduceat(np.where(wrong, share[:, None], 0.0), starts, axis=0)
    fitting_share = np.add.reduceat(np.where(fits, share[:, None], 0.0), starts, axis=0)
    other_share = np.add.reduceat(np.where(~fits & ~wrong, share[:, None], 0.0), starts, axis=0)
    fitting = np.add.reduceat(fits.astype(np.int64), starts, axis=0)
    host = yardstick.host_limit(fleet.cpu - books.cpu, fleet.host_memory - books.host_memory) > 0
    shaped = fitting >= np.maximum(yardstick.gpus, 1)
    weight = yardstick.weight
    parts["type"] = float((by_type.sum(axis=0) * weight).sum())
    parts["host"] = float((np.where(shaped & ~host, fitting_share, 0.0).sum(axis=0) * weight).sum())
    # Where too few devices fit, all of the node's idle share is lost to shape (or to both when the host is full too).
    lost = np.where(shaped, other_share, other_share + fitting_share)
    parts["deviceShape"] = float((np.where(host, lost, 0.0).sum(axis=0) * weight).sum())
    parts["both"] = float((np.where(~host, lost, 0.0).sum(axis=0) * weight).sum())
    whole = sum(parts.values())
    scale = phi / whole if whole > 0 else 0.0
    return {name: value * scale for name, value in parts.items()}, phi
