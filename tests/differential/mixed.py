"""Random worlds that mix what the recorded kinds show one at a time.

Nodes with MIG and plain devices and of several backends, pods with init containers, sidecars and several containers,
MIG slices of several pods, quotas that several pods share, chains of policies, and sequences in which pods stay.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

from tests.differential.backends import BACKENDS, Backend, Raw, node_object

NAMESPACE, OTHER = "default", "kube-public"
NVIDIA = BACKENDS[0]
ALLOCATED, MIG = "hami.io/vgpu-devices-allocated", "hami.io/vgpu-mig-allocations"
PLACES: dict[str, tuple[int, int, int, tuple[tuple[int, int], ...]]] = {
    "1g.10gb": (9856, 14, 1, tuple((i, 1) for i in range(7))),
    "2g.20gb": (19968, 28, 2, ((0, 2), (2, 2), (4, 2))),
    "3g.40gb": (40192, 42, 3, ((0, 4), (4, 4))),
    "7g.80gb": (80896, 100, 7, ((0, 8),)),
}
WORDS = ("binpack", "spread", "mutex", "numa", "topology-aware", "odd", " numa")


def _chance(random: Random, part: float) -> bool:
    return random.random() < part


def profiles(random: Random) -> list[Raw]:
    names = [n for n in PLACES if _chance(random, 0.8)] or ["1g.10gb"]
    random.shuffle(names)
    return [
        {"name": n, "memoryMB": PLACES[n][0], "core": PLACES[n][1], "sliceCount": PLACES[n][2],
         "placements": [{"start": s, "size": z} for s, z in PLACES[n][3]]}
        for n in names
    ]  # fmt: skip


MOST = 12
"""Devices of a node. With more of them HAMi's sort is not stable, so ties are not determined any more."""


def _devices(random: Random, node: str) -> tuple[list[Raw], Raw]:
    """Register entries and the node's other annotations."""
    many = random.choice((1, 2, 3, 4, 6, 8))
    part = random.choice((0, 0, 0.4, 1))
    memory, cores = random.choice((24576, 40960, 81920)), random.choice((100, 100, 100, 200))
    entries = []
    for index in range(many):
        mig = _chance(random, part)
        entry: Raw = {
            "id": f"GPU-{node}-{index}", "index": index, "count": 7 if mig else random.choice((1, 2, 4, 10)),
            "devmem": 81920 if mig else memory, "devcore": 100 if mig else cores,
            "type": random.choice(("NVIDIA A100-SXM4-80GB",) * 6 + ("NVIDIA-NVIDIA H20", "Tesla T4")),
            "numa": random.randint(0, 2), "mode": "mig" if mig else "hami-core", "health": _chance(random, 0.93),
        }  # fmt: skip
        if mig:
            entry["migProfiles"] = profiles(random)
        entries.append({k: v for k, v in entry.items() if v})
    random.shuffle(entries)
    notes: Raw = {}
    ids = [e["id"] for e in entries]
    if _chance(random, 0.5):
        pairs = [{"uuid": a, "score": {b: random.randint(0, 9) * 10 for b in ids if b != a}} for a in ids]
        notes["hami.io/node-nvidia-score"] = json.dumps(pairs)
    if _chance(random, 0.15):
        notes["hami.io/device-cordon"] = ",".join(random.sample(ids, min(2, many)))
    return entries, notes


def _node(random: Random, number: int, kinds: tuple[Backend, ...]) -> tuple[Raw, list[Raw], dict[str, list[str]]]:
    name = f"m{number}-{random.randrange(10**6)}"
    entries, notes = _devices(random, name)
    amounts = {"nvidia.com/gpu": str(sum(e["count"] for e in entries))}
    owned = {"nvidia": [e["id"] for e in entries]}
    annotations = {"hami.io/node-nvidia-register": json.dumps(entries), **notes}
    for backend in kinds:
        more, amount, ids = backend.nodes(random, name)
        if _chance(random, 0.7) and sum(map(len, owned.values())) + len(ids) <= MOST:
            annotations |= more
            amounts |= amount
            owned[backend.kind] = ids
    return node_object(name, annotations, amounts), entries, owned


def _slice(random: Random, entry: Raw, taken: dict[str, list[tuple[int, int]]]) -> tuple[Raw, tuple[int, int]] | None:
    """A free profile and place on a MIG device."""
    mine = taken.setdefault(entry["id"], [])
    offers = [
        (profile, (place["start"], place["size"]))
        for profile in entry["migProfiles"]
        for place in profile["placements"]
        if all(place["start"] + place["size"] <= s or s + z <= place["start"] for s, z in mine)
    ]
    if not offers:
        return None
    choice = random.choice(offers)
    mine.append(choice[1])
    return choice


def _held(random: Random, entries: list[Raw], places: int, taken: dict[str, list[tuple[int, int]]]) -> dict[str, str]:
    """Allocation annotations of a pod with that many places (init containers first)."""
    slots, reserved = [], []
    for place in range(places):
        items = ""
        for number, entry in enumerate(random.sample(entries, min(len(entries), random.choice((1, 1, 1, 2))))):
            memory, cores = random.choice((1000, 3000, 9000)), random.choice((0, 10, 30, 100))
            if entry["mode"] == "mig":
                found = _slice(random, entry, taken)
                if found is None:
                    continue
                profile, (start, size) = found
                memory, cores = profile["memoryMB"], profile["core"]
                if _chance(random, 0.95):
                    reserved.append(
                        {"containerIndex": place, "deviceIndex": number, "gpuUUID": entry["id"],
                         "profile": profile["name"], "placement": {"start": start, "size": size}}
                    )  # fmt: skip
            uuid = entry["id"] if _chance(random, 0.97) else "GPU-gone"
            items += f"{uuid},NVIDIA,{memory},{cores}:"
        slots.append(items + ";" if items or _chance(random, 0.5) else "")
    notes = {ALLOCATED: "".join(slots)}
    if reserved:
        notes[MIG] = json.dumps(reserved)
    return notes


def _ended(names: list[str]) -> list[Raw]:
    return [
        {"name": n, "image": "x", "imageID": "x", "ready": True, "restartCount": 0,
         "state": {"terminated": {"exitCode": 0}}}
        for n in names
    ]  # fmt: skip


def _existing(
    random: Random, number: int, node: str, entries: list[Raw], owned: dict[str, list[str]], taken: dict[str, Any]
) -> Raw:
    inits, apps = random.choice((0, 0, 0, 1, 2)), random.choice((1, 1, 2, 3))
    if len(owned) > 1 and _chance(random, 0.4):
        kind = random.choice([k for k in owned if k != "nvidia"])
        key, value = next(b for b in BACKENDS if b.kind == kind).booking(random, random.choice(owned[kind]))
        notes = {key: value}
    else:
        notes = _held(random, entries, inits + apps, taken)
    spec: Raw = {
        "schedulerName": "hami-scheduler", "nodeName": node,
        "containers": [{"name": f"c{i}", "image": "x"} for i in range(apps)],
    }  # fmt: skip
    status: Raw = {"phase": random.choice(("Running",) * 8 + ("Succeeded", "Failed"))}
    if inits:
        names = [f"i{i}" for i in range(inits)]
        spec["initContainers"] = [{"name": n, "image": "x"} for n in names]
        sidecar = _chance(random, 0.3)
        if sidecar:
            spec["initContainers"][0]["restartPolicy"] = "Always"
        if _chance(random, 0.6):
            status["initContainerStatuses"] = _ended(names)
            if sidecar:
                status["initContainerStatuses"][0]["state"] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    elif _chance(random, 0.12):
        del spec["nodeName"]
        status = {"phase": "Pending"}
    raw: Raw = {
        "metadata": {
            "name": f"e{number}", "namespace": random.choice((NAMESPACE, NAMESPACE, OTHER)),
            "labels": {"hami.io/webhook": "ignore"},
            "annotations": {"hami.io/vgpu-node": node, "hami.io/bind-phase": "success", **notes},
        },
        "spec": spec, "status": status,
    }  # fmt: skip
    if "nodeName" in spec and status["phase"] == "Running" and _chance(random, 0.08):
        raw["deleting"] = True
    return raw


def _limits(random: Random, kinds: list[Backend]) -> dict[str, str]:
    if len(kinds) > 1 and _chance(random, 0.35):
        return random.choice(kinds[1:]).limits(random)
    limits = {"nvidia.com/gpu": random.choice(("1", "1", "1", "2", "3", "4"))} if _chance(random, 0.93) else {}
    if _chance(random, 0.75):
        limits["nvidia.com/gpumem"] = random.choice(("0", "500", "1000", "4000", "9000", "19000", "40000"))
    if _chance(random, 0.2):
        limits["nvidia.com/gpumem-percentage"] = random.choice(("1", "33", "50", "100"))
    if _chance(random, 0.6):
        limits["nvidia.com/gpucores"] = random.choice(("0", "10", "30", "50", "100"))
    return limits


def _notes(random: Random, kinds: list[Backend], owned: dict[str, list[str]]) -> dict[str, str]:
    notes: dict[str, str] = {}
    for backend in kinds:
        use, nouse = backend.wishes
        ids = owned.get(backend.kind, [])
        if use and ids and _chance(random, 0.2):
            notes[use] = random.choice((",", " , ")).join(random.sample(ids, min(len(ids), random.randint(1, 4))))
        if nouse and ids and _chance(random, 0.15):
            notes[nouse] = ",".join(random.sample(ids, 1))
    if _chance(random, 0.6):
        notes["hami.io/gpu-scheduler-policy"] = ",".join(random.choices(WORDS, k=random.choice((1, 1, 2, 3))))
    if _chance(random, 0.3):
        notes["hami.io/node-scheduler-policy"] = random.choice(("binpack", "spread", "odd"))
    if _chance(random, 0.25):
        notes["nvidia.com/numa-bind"] = random.choice(("true", "T", "1", "no"))
    if _chance(random, 0.15):
        notes["nvidia.com/vgpu-mode"] = random.choice(("hami-core", "mig", "mig,hami-core", "mps"))
    if _chance(random, 0.1):
        notes["nvidia.com/use-gputype"] = random.choice(("A100", "h20", "a100,T4"))
    if _chance(random, 0.12):
        notes["hami.io/device-scoring-weights"] = random.choice(
            ("slot=1,core=0,memory=3", "memory=2,slot=0,core=1", "slot=0,core=0,memory=0")
        )
    return notes


def _query(random: Random, number: int, kinds: list[Backend], owned: dict[str, list[str]]) -> Raw:
    webhook = _chance(random, 0.5)

    def box(name: str, asks: float) -> Raw:
        limits = _limits(random, kinds) if _chance(random, asks) else {}
        return {"name": name, "image": "x", "resources": {"limits": limits} if limits else {}}

    spec: Raw = {"schedulerName": "hami-scheduler"}
    spec["containers"] = [box(f"c{i}", 0.85) for i in range(random.choice((1, 1, 2, 3)))]
    inits = random.choice((0, 0, 0, 1, 2))
    if inits:
        spec["initContainers"] = [box(f"i{i}", 0.6) for i in range(inits)]
        if _chance(random, 0.4):
            spec["initContainers"][0]["restartPolicy"] = "Always"
    labels = {} if webhook else {"hami.io/webhook": "ignore"}
    meta = {"name": f"q{number}", "namespace": NAMESPACE, "labels": labels, "annotations": _notes(random, kinds, owned)}
    return {
        "op": random.choice(("place", "place", "keep")),
        "webhook": webhook, "submitted": {"metadata": meta, "spec": spec},
    }  # fmt: skip


def _quotas(random: Random) -> list[Raw]:
    if not _chance(random, 0.4):
        return []
    hard = {"limits.nvidia.com/gpumem": random.choice(("0", "12000", "40000", "90000"))}
    if _chance(random, 0.5):
        hard["limits.nvidia.com/gpucores"] = random.choice(("0", "60", "150"))
    if _chance(random, 0.2):
        hard["limits.cambricon.com/mlu.smlu.vcore"] = "100"
    return [{"metadata": {"name": "q", "namespace": NAMESPACE}, "spec": {"hard": hard}}]


def world(random: Random, *, others: bool = True) -> Raw:
    """One record without answers. ``others``: other backends than NVIDIA too."""
    kinds = tuple(random.sample(BACKENDS[1:], random.choice((0, 1, 2)))) if others else ()
    nodes, pods = [], []
    owned: dict[str, list[str]] = {}
    for number in range(random.choice((1, 2, 2, 3))):
        node, entries, mine = _node(random, number, kinds)
        nodes.append(node)
        taken: dict[str, Any] = {}
        for _ in range(random.randint(0, len(entries) + 1)):
            pods.append(_existing(random, len(pods), node["metadata"]["name"], entries, mine, taken))
        for kind, ids in mine.items():
            owned.setdefault(kind, []).extend(ids)
    backends = [NVIDIA, *(b for b in kinds if b.kind in owned)]
    queries: list[Raw] = []
    for number in range(5):
        queries.append(_query(random, number, backends, owned))
        if queries[-1]["op"] == "keep" and _chance(random, 0.3):
            queries.append({"op": "delete", "name": f"q{number}"})
    return {
        "id": f"mixed-{random.randrange(10**6)}", "kind": "mixed", "hami": "", "config": {}, "nodes": nodes,
        "pods": pods, "quotas": _quotas(random), "queries": queries,
    }  # fmt: skip
