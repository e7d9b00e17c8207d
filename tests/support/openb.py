"""Large clusters made from the openb trace (Apache-2.0): nodes and requests are the trace's, placements are drawn.

The same seed gives the same snapshot. Random feasible placement up to the wanted share of devices, as the "random"
recipe of the prepared states.
"""

from __future__ import annotations

import csv
import gzip
import random
from datetime import UTC, datetime
from pathlib import Path

from defragd.core.model import (
    Allocation,
    Device,
    DeviceRequest,
    Node,
    Owner,
    Pod,
    Resources,
    Scheduling,
    Workload,
)
from defragd.core.snapshot import Snapshot

DATA = Path(__file__).parent.parent / "data" / "openb"
MEMORY = {"T4": 15360, "P100": 16384, "V100M16": 16384, "V100M32": 32768, "G2": 24576, "G3": 81920, "A10": 23028}
TAKEN = datetime(2026, 11, 1, tzinfo=UTC)
OLD = datetime(2026, 9, 1, tzinfo=UTC)


def rows(name: str) -> list[dict[str, str]]:
    with gzip.open(DATA / name, "rt") as file:
        return list(csv.DictReader(file))


def cluster(
    nodes: int, *, seed: int = 1, share: float = 0.85, mib: bool = False, per_node: int = 0, light: bool = False
) -> Snapshot:
    """``per_node``: only node types with that many devices (0 = all). ``mib``: sharing pods ask MiB, not percent.
    ``light``: only pods of at most half a device, with little of the host: some twenty to a node of eight devices."""
    dice = random.Random(seed)
    kinds = [r for r in rows("openb_node_list_gpu_node.csv.gz") if not per_node or int(r["gpu"]) == per_node]
    asked = rows("openb_pod_list_default.csv.gz")
    if light:
        asked = [r for r in asked if int(r["num_gpu"]) == 1 and int(r["gpu_milli"]) <= 500]
        asked = [{**r, "cpu_milli": str(min(int(r["cpu_milli"]), 3000)), "memory_mib": "4096"} for r in asked]
    made: dict[str, Node] = {}
    free: list[list[list[int]]] = []
    host: list[list[int]] = []
    names: list[str] = []
    for number in range(nodes):
        kind = kinds[number % len(kinds)] if nodes >= len(kinds) else dice.choice(kinds)
        name = f"node-{number:05d}"
        memory = MEMORY.get(kind["model"], 16384)
        devices = tuple(
            Device(
                f"GPU-{number:05d}-{i}",
                name,
                "NVIDIA",
                f"NVIDIA {kind['model']}",
                i,
                i,
                10,
                memory,
                100,
                mode="hami-core",
            )
            for i in range(int(kind["gpu"]))
        )
        room = Resources(int(kind["cpu_milli"]), int(kind["memory_mib"]) << 20, 250)
        made[name] = Node(name, allocatable=room, devices=devices)
        free.append([[100, memory] for _ in devices])
        host.append([room.cpu_milli, room.memory_bytes])
        names.append(name)
    pods: dict[str, Pod] = {}
    workloads: dict[str, Workload] = {}
    total = sum(len(n.devices) for n in made.values())
    used, misses, number = 0.0, 0, 0
    shared: dict[tuple[int, int], Scheduling] = {}
    while used < share * total and misses < 500:
        row = asked[dice.randrange(len(asked))]
        count, milli = int(row["num_gpu"]), int(row["gpu_milli"])
        cpu, memory_bytes = int(row["cpu_milli"]), int(row["memory_mib"]) << 20
        cores = 100 if count > 1 or milli >= 1000 else max(milli // 10, 1)
        spot = _place(dice, free, host, count, cores, cpu, memory_bytes)
        if spot is None:
            misses += 1
            continue
        misses = 0
        at, chosen = spot
        node = made[names[at]]
        number += 1
        allocations, requests = (), ()
        if count:
            need = [node.devices[d].memory_mib * cores // 100 for d in chosen]
            allocations = tuple(
                Allocation(0, node.devices[d].uuid, n, cores) for d, n in zip(chosen, need, strict=True)
            )
            in_mib = mib and cores < 100
            requests = (
                DeviceRequest(
                    0, False, False, "NVIDIA", count, need[0] if in_mib else 0, 0 if in_mib else cores, cores
                ),
            )
            for d, n in zip(chosen, need, strict=True):
                free[at][d][0] -= cores
                free[at][d][1] -= n
            used += count * cores / 100
        host[at][0] -= cpu
        host[at][1] -= memory_bytes
        key = (cpu, memory_bytes)
        scheduling = shared.setdefault(key, Scheduling(resources=Resources(cpu, memory_bytes)))
        add(pods, workloads, number, node.name, requests, allocations, scheduling)
    return Snapshot(made, pods, (), workloads, known=frozenset({"workloads", "pdbs"}), taken_at=TAKEN)


def add(
    pods: dict[str, Pod],
    workloads: dict[str, Workload],
    number: int,
    node: str,
    requests: tuple[DeviceRequest, ...],
    allocations: tuple[Allocation, ...],
    scheduling: Scheduling,
) -> None:
    """A running pod on ``node``; four in a row belong to one ReplicaSet."""
    owner = f"app-{number // 4:06d}"
    pods[f"ns/{owner}-{number:07d}"] = Pod(
        "ns",
        f"{owner}-{number:07d}",
        f"uid-{number}",
        labels={"app": owner},
        owner=Owner("ReplicaSet", owner, f"rs-{owner}", "apps/v1"),
        scheduler="hami-scheduler" if requests else "default-scheduler",
        node=node,
        booked_node=node if requests else "",
        bind_phase="success" if requests else "",
        ready_since=OLD,
        created=OLD,
        requests=requests,
        allocations=allocations,
        scheduling=scheduling,
    )
    workloads.setdefault(f"rs-{owner}", Workload("ReplicaSet", "ns", owner, f"rs-{owner}", 4, 4))


def _place(
    dice: random.Random,
    free: list[list[list[int]]],
    host: list[list[int]],
    count: int,
    cores: int,
    cpu: int,
    memory: int,
) -> tuple[int, list[int]] | None:
    for _ in range(60):
        at = dice.randrange(len(free))
        if host[at][0] < cpu or host[at][1] < memory:
            continue
        if cores == 100:
            fitting = [d for d, (c, _) in enumerate(free[at]) if c == 100]
        else:
            fitting = [d for d, (c, _) in enumerate(free[at]) if c >= cores]
        if len(fitting) >= count:
            return at, dice.sample(fitting, count)
    return None
