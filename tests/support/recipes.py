"""Clusters after the recipes of the prepared states, with any seed: nodes and requests are the openb trace's.

``hami-40``: filled in shuffled trace order by HAMi's default policy (fullest node, emptiest device), then every pod
dropped with probability 0.4. ``hami-churn-85`` and ``random-churn-85``: filled to 85 % of the devices, then four rounds
of "drop 30 %, refill to 85 %"; the latter on random feasible nodes and devices. The same seed gives the same snapshot.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from defragd.core.model import Allocation, Device, DeviceRequest, Node, Pod, Resources, Scheduling, Workload
from defragd.core.snapshot import Snapshot
from tests.support.openb import MEMORY, TAKEN, add, rows

RECIPES = ("hami-40", "hami-churn-85", "random-churn-85")


@dataclass(frozen=True, slots=True)
class Ask:
    """One pod of the trace."""

    gpus: int
    cores: int
    cpu: int
    memory: int


class Filling:
    """A cluster being filled."""

    def __init__(self, kinds: Sequence[dict[str, str]], dice: random.Random, *, spread: bool) -> None:
        self.kinds, self.dice, self.spread = kinds, dice, spread
        self.cores = [[0] * int(k["gpu"]) for k in kinds]
        self.slots = [[0] * int(k["gpu"]) for k in kinds]
        self.cpu = [int(k["cpu_milli"]) for k in kinds]
        self.memory = [int(k["memory_mib"]) for k in kinds]
        self.pods: list[tuple[Ask, int, tuple[int, ...]]] = []
        self.total = sum(int(k["gpu"]) for k in kinds)
        self.used = 0.0

    def place(self, ask: Ask) -> bool:
        """Puts the pod where the policy wants it; False where nothing has room."""
        found: list[tuple[float, int, list[int]]] = []
        for node in range(len(self.kinds)):
            if self.cpu[node] < ask.cpu or self.memory[node] < ask.memory:
                continue
            if not ask.gpus:
                free = self.cpu[node] / max(int(self.kinds[node]["cpu_milli"]), 1)
                found.append((free, node, []))
                continue
            cores, slots = self.cores[node], self.slots[node]
            most = 0 if ask.cores == 100 else 100 - ask.cores
            fits = [d for d in range(len(cores)) if cores[d] <= most and slots[d] < 10 and (most or not slots[d])]
            if len(fits) >= ask.gpus:
                use = 2 * sum(cores) / 100 / len(cores) + sum(slots) / 10 / len(slots)
                found.append((use, node, fits))
        if not found:
            return False
        if self.spread:
            _, node, fits = self.dice.choice(found)
            chosen = self.dice.sample(fits, ask.gpus)
        else:
            _, node, fits = max(found, key=lambda f: (f[0], -f[1]))
            chosen = sorted(fits, key=lambda d: (self.cores[node][d], self.slots[node][d], d))[: ask.gpus]
        self._book(ask, node, chosen, 1)
        self.pods.append((ask, node, tuple(chosen)))
        return True

    def _book(self, ask: Ask, node: int, chosen: Sequence[int], sign: int) -> None:
        for d in chosen:
            self.cores[node][d] += sign * ask.cores
            self.slots[node][d] += sign
        self.cpu[node] -= sign * ask.cpu
        self.memory[node] -= sign * ask.memory
        self.used += sign * ask.gpus * ask.cores / 100

    def fill(self, asks: Sequence[Ask], share: float, misses: int) -> None:
        for ask in asks:
            if self.used >= share * self.total or misses <= 0:
                return
            misses -= not self.place(ask)

    def drop(self, chance: float) -> None:
        kept = []
        for ask, node, chosen in self.pods:
            if self.dice.random() < chance:
                self._book(ask, node, chosen, -1)
            else:
                kept.append((ask, node, chosen))
        self.pods = kept


def made(recipe: str, nodes: int, *, seed: int, mib: bool = False) -> Snapshot:
    """A cluster after a recipe. ``mib``: sharing pods ask MiB instead of a percentage."""
    dice = random.Random(f"{recipe}-{nodes}-{seed}")
    every = rows("openb_node_list_gpu_node.csv.gz")
    kinds = dice.sample(every, nodes) if nodes < len(every) else [every[i % len(every)] for i in range(nodes)]
    asks = [_ask(r) for r in rows("openb_pod_list_default.csv.gz")]
    dice.shuffle(asks)
    misses = 40 if nodes < 200 else 543
    filling = Filling(kinds, dice, spread=recipe.startswith("random"))
    if recipe.endswith("-40"):
        filling.fill(asks, 0.9, misses)
        filling.drop(0.4)
    else:
        filling.fill(asks, 0.85, misses)
        for _ in range(4):
            filling.drop(0.3)
            filling.fill([dice.choice(asks) for _ in range(4 * len(asks))], 0.85, misses)
    return _snapshot(filling, mib=mib)


def _ask(row: dict[str, str]) -> Ask:
    count, milli = int(row["num_gpu"]), int(row["gpu_milli"])
    cores = 100 if count > 1 or milli >= 1000 else max(milli // 10, 1)
    return Ask(count, cores, int(row["cpu_milli"]), int(row["memory_mib"]))


def _snapshot(filling: Filling, *, mib: bool) -> Snapshot:
    made: dict[str, Node] = {}
    for number, kind in enumerate(filling.kinds):
        name, memory = f"node-{number:05d}", MEMORY.get(kind["model"], 16384)
        devices = tuple(
            Device(f"GPU-{number:05d}-{i}", name, "NVIDIA", f"NVIDIA {kind['model']}", i, i, 10, memory, 100)
            for i in range(int(kind["gpu"]))
        )
        room = Resources(int(kind["cpu_milli"]), int(kind["memory_mib"]) << 20, 250)
        made[name] = Node(name, allocatable=room, devices=devices)
    nodes = list(made.values())
    pods: dict[str, Pod] = {}
    workloads: dict[str, Workload] = {}
    shared: dict[tuple[int, int], Scheduling] = {}
    for number, (ask, at, chosen) in enumerate(sorted(filling.pods, key=lambda p: (p[0].gpus, p[0].cores, p[0].cpu))):
        node, count = nodes[at], ask.gpus
        need = [node.devices[d].memory_mib * ask.cores // 100 for d in chosen]
        in_mib = mib and bool(count) and ask.cores < 100
        pct = 0 if in_mib else ask.cores
        requests = (DeviceRequest(0, False, False, "NVIDIA", count, need[0] if in_mib else 0, pct, ask.cores),)
        uuids = [node.devices[d].uuid for d in chosen]
        key = (ask.cpu, ask.memory)
        scheduling = shared.setdefault(key, Scheduling(resources=Resources(ask.cpu, ask.memory << 20)))
        allocations = tuple(Allocation(0, u, n, ask.cores) for u, n in zip(uuids, need, strict=True))
        add(pods, workloads, number, node.name, requests if count else (), allocations, scheduling)
    return Snapshot(made, pods, (), workloads, known=frozenset({"workloads", "pdbs"}), taken_at=TAKEN)
