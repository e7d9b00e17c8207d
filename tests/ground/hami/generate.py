"""Random worlds in the format of the recorded decisions, answered by the stand-in: two independent readings meet.

record = world(random.Random(7))       # nodes, pods, quotas, queries with "per_node" and "together"
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

from tests.ground.hami import books
from tests.ground.hami.admission import Denied, admit
from tests.ground.hami.decide import Answer, Fits, decide
from tests.ground.hami.judge import build

MODELS = ("NVIDIA A10", "NVIDIA-Tesla T4", "NVIDIA A100-SXM4-40GB", "Tesla T4", "nvidia h20")
POLICIES = (
    "binpack",
    "spread",
    "mutex",
    "numa",
    "mutex,binpack,numa",
    "topology-aware",
    "binpack,numa",
    "odd",
    "spread,mutex",
)
NAMESPACE = "team"


def world(random: Random) -> dict[str, Any]:
    """One record with three questions."""
    nodes = [_node(random, number) for number in range(random.randint(1, 3))]
    record: dict[str, Any] = {
        "id": f"random-{random.randrange(10**9)}", "kind": "random", "hami": "stand-in",
        "config": {
            "gpuSchedulerPolicy": random.choice(POLICIES[:3]),
            "nodeSchedulerPolicy": random.choice(("binpack", "spread")),
            "nvidia": random.choice(({}, {}, {"defaultMemory": 3000, "defaultCores": 20}, {"memoryFactor": 10})),
        },
        "nodes": nodes, "pods": [], "quotas": [], "queries": [],
    }  # fmt: skip
    cards = [
        (n["metadata"]["name"], e) for n in nodes for e in json.loads(n["metadata"]["annotations"][books.REGISTER])
    ]
    record["pods"] = [_existing(random, f"e{number}", cards) for number in range(random.randint(0, 2 * len(cards)))]
    if random.random() < 0.25:
        hard = {"limits.nvidia.com/gpumem": str(random.choice((0, 8000, 40000)))}
        if random.random() < 0.5:
            hard["limits.nvidia.com/gpucores"] = str(random.choice((0, 60, 150)))
        record["quotas"] = [{"metadata": {"name": "q", "namespace": NAMESPACE}, "spec": {"hard": hard}}]
    for number in range(3):
        record["queries"].append(_query(random, f"q{number}", record))
    return record


def _node(random: Random, number: int) -> dict[str, Any]:
    name = f"node-{number}"
    count = random.randint(1, 6)
    model, memory = random.choice(MODELS), random.choice((15360, 24564, 40960, 81920))
    slots, cores = random.choice((2, 3, 10, 10)), random.choice((100, 100, 100, 200))
    entries = []
    for index in range(count):
        entry: dict[str, Any] = {"id": f"GPU-{number}{index}", "count": slots, "devmem": memory, "devcore": cores}
        entry |= {"type": model, "mode": "hami-core"}
        if index:
            entry["index"] = index
        if random.random() < 0.4:
            entry["numa"] = 1
        if random.random() < 0.92:
            entry["health"] = True
        entries.append(entry)
    random.shuffle(entries)
    annotations = {books.REGISTER: json.dumps(entries)}
    if random.random() < 0.2:
        annotations[books.CORDON] = f" GPU-{number}0 ,"
    if random.random() < 0.3:
        ids = [e["id"] for e in entries]
        pairs = [{"uuid": a, "score": {b: random.choice((10, 20, 50)) for b in ids if b != a}} for a in ids]
        annotations[books.SCORES] = json.dumps(pairs)
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "250", "nvidia.com/gpu": str(slots * count)}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}, "annotations": annotations},
        "status": {
            "capacity": amounts, "allocatable": dict(amounts), "conditions": [{"type": "Ready", "status": "True"}],
        },
    }  # fmt: skip


def _existing(random: Random, name: str, cards: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    node, card = random.choice(cards)
    memory, cores = random.choice((1000, 3000, card["devmem"] // 2)), random.choice((0, 10, 30, 100))
    item = f"{card['id'] if random.random() < 0.95 else 'GPU-gone'},NVIDIA,{memory},{cores}:"
    record = item + ";" + (item + ";" if random.random() < 0.2 else "")
    if random.random() < 0.05:
        record = record.replace(f",{cores}:", ":")
    pod: dict[str, Any] = {
        "metadata": {
            "name": name, "namespace": random.choice((NAMESPACE, "other")), "labels": {"hami.io/webhook": "ignore"},
            "annotations": {books.NODE: node, books.ALLOCATED: record, books.BIND_PHASE: "success"},
        },
        "spec": {
            "schedulerName": "hami-scheduler", "nodeName": node,
            "containers": [{"name": "c0", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        },
        "status": {"phase": random.choice(("Running",) * 6 + ("Succeeded", "Failed"))},
    }  # fmt: skip
    if random.random() < 0.15:
        del pod["spec"]["nodeName"]
        pod["status"]["phase"] = "Pending"
    if random.random() < 0.1:
        pod["deleting"] = True
    return pod


def _container(random: Random, name: str) -> dict[str, Any]:
    limits: dict[str, str] = {}
    if random.random() < 0.9:
        limits["nvidia.com/gpu"] = str(random.choice((1, 1, 1, 2, 3)))
    if random.random() < 0.7:
        limits["nvidia.com/gpumem"] = str(random.choice((0, 1000, 4000, 12000, 20000)))
    elif random.random() < 0.5:
        limits["nvidia.com/gpumem-percentage"] = str(random.choice((1, 33, 50, 100)))
    if random.random() < 0.6:
        limits["nvidia.com/gpucores"] = str(random.choice((0, 10, 30, 50, 100)))
    return {"name": name, "image": "x", "resources": {"limits": limits or {"cpu": "1"}}}


def _selection(random: Random, record: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    uuids = [e["id"] for n in record["nodes"] for e in json.loads(n["metadata"]["annotations"][books.REGISTER])]
    if random.random() < 0.3:
        found["nvidia.com/use-gpuuuid"] = random.choice((",", ", ")).join(random.sample(uuids, min(2, len(uuids))))
    if random.random() < 0.15:
        found["nvidia.com/nouse-gpuuuid"] = random.choice((*uuids, " "))
    if random.random() < 0.15:
        key = random.choice(("use", "nouse"))
        found[f"nvidia.com/{key}-gputype"] = random.choice(("A10", "t4", "a100,H20", ""))
    if random.random() < 0.2:
        found["nvidia.com/numa-bind"] = random.choice(("true", "1", "yes"))
    if random.random() < 0.5:
        found["hami.io/gpu-scheduler-policy"] = random.choice(POLICIES)
    if random.random() < 0.3:
        found["hami.io/node-scheduler-policy"] = random.choice(("binpack", "spread", "odd"))
    if random.random() < 0.1:
        found["hami.io/device-scoring-weights"] = "slot=1,core=0,memory=5"
    return found


def _query(random: Random, name: str, record: dict[str, Any]) -> dict[str, Any]:
    webhook = random.random() < 0.5
    spec: dict[str, Any] = {"schedulerName": "hami-scheduler"}
    spec["containers"] = [_container(random, f"c{i}") for i in range(random.choice((1, 1, 1, 2)))]
    if random.random() < 0.15:
        spec["initContainers"] = [_container(random, "i0")]
    labels = {} if webhook else {"hami.io/webhook": "ignore"}
    annotations = _selection(random, record)
    meta = {"name": name, "namespace": NAMESPACE, "labels": labels, "annotations": annotations}
    return answer(record, {"metadata": meta, "spec": spec}, webhook)


def answer(record: dict[str, Any], submitted: dict[str, Any], webhook: bool) -> dict[str, Any]:
    """The question with the stand-in's answers: admitted or denied, per node and all nodes together."""
    meta, spec = submitted["metadata"], submitted["spec"]
    view = build(record)
    query: dict[str, Any] = {"op": "place", "webhook": webhook, "submitted": submitted}
    stored = submitted
    if webhook:
        try:
            stored = admit(view, submitted, meta["namespace"])
        except Denied as refusal:
            text = f'admission webhook "vgpu.hami.io" denied the request: {refusal}'
            return {**query, "denied": {"code": refusal.code, "message": text}}
    # Extended resources: the API server fills requests from limits.
    every = {
        part: [_stored(c) for c in stored["spec"][part]]
        for part in ("containers", "initContainers")
        if stored["spec"].get(part)
    }
    annotations = meta.get("annotations") or {}
    query["admitted"] = {"annotations": annotations, "schedulerName": "hami-scheduler", **every}
    pod = {
        "metadata": {**meta, "uid": "incoming"}, "spec": {**spec, **every}, "status": {"phase": "Pending"},
    }  # fmt: skip
    names = [node["metadata"]["name"] for node in record["nodes"]]
    query["per_node"] = {node: _recorded(decide(view, pod, [node])) for node in names}
    every_node = decide(view, pod, names)
    query["together"] = _recorded(every_node)
    query["also_seen"] = [_fitting(every_node.fitting[n]) for n in every_node.winners[1:]]
    return query


def _stored(container: dict[str, Any]) -> dict[str, Any]:
    limits = {k: _canonical(v) for k, v in (container["resources"].get("limits") or {}).items()}
    kept = {"restartPolicy": container["restartPolicy"]} if "restartPolicy" in container else {}
    return {
        "name": container["name"],
        "resources": {"limits": limits, "requests": dict(limits)} if limits else {},
        **kept,
    }


def _canonical(quantity: str) -> str:
    number = int(quantity)
    return f"{number // 1000}k" if number and number % 1000 == 0 else quantity


def _recorded(answer: Answer) -> dict[str, Any]:
    if answer.passed:
        return {"fits": True, "passed_through": True}
    if answer.error:
        return {"fits": False, "error": answer.error}
    if not answer.fitting:
        return {"fits": False, "reasons": dict(answer.reasons)}
    return _fitting(answer.fitting[answer.winners[0]])


def _fitting(fits: Fits) -> dict[str, Any]:
    return {"fits": True, "nodes": [fits.node], "written": fits.written}
