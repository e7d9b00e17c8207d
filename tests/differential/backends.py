"""Random worlds of one backend each, in the format of the recorded decisions."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

Raw = dict[str, Any]
NAMESPACE = "default"
POLICIES = ("binpack", "spread", "mutex", "numa", "mutex,binpack", "topology-aware", " mutex ", "")


def node_object(name: str, annotations: dict[str, str], amounts: dict[str, str]) -> Raw:
    every = {"cpu": "64", "memory": "512Gi", "pods": "250", **amounts}
    ready = [{"type": "Ready", "status": "True"}]
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}, "annotations": annotations},
        "status": {"capacity": every, "allocatable": every, "conditions": ready},
    }


def _entry(identity: str, index: int, **more: Any) -> Raw:
    full = {"id": identity, "index": index, "health": True, **more}
    return {k: v for k, v in full.items() if v not in (0, False)}


class Backend:
    """How to make nodes, bookings and requests of one backend."""

    def __init__(
        self,
        kind: str,
        nodes: Callable[[Random, str], tuple[dict[str, str], dict[str, str], list[str]]],
        booking: Callable[[Random, str], tuple[str, str]],
        limits: Callable[[Random], dict[str, str]],
        wishes: tuple[str, str] = ("", ""),
    ) -> None:
        self.kind, self.nodes, self.booking, self.limits, self.wishes = kind, nodes, booking, limits, wishes


def _maybe(random: Random, chance: float, key: str, values: tuple[str, ...]) -> dict[str, str]:
    return {key: random.choice(values)} if random.random() < chance else {}


def _nvidia_nodes(random: Random, name: str) -> tuple[dict[str, str], dict[str, str], list[str]]:
    ids = [f"GPU-{name}-{i}" for i in range(random.randint(1, 4))]
    mig = random.random() < 0.3
    profiles = [
        {"name": "1g.10gb", "memoryMB": 9856, "core": 14, "sliceCount": 1,
         "placements": [{"start": i, "size": 1} for i in range(7)]},
        {"name": "3g.40gb", "memoryMB": 40192, "core": 42, "sliceCount": 3,
         "placements": [{"start": 0, "size": 4}, {"start": 4, "size": 4}]},
    ]  # fmt: skip
    entries = [
        _entry(u, i, count=random.choice((2, 7, 10)), devmem=40960, devcore=random.choice((100, 100, 200)),
               type="NVIDIA A100", numa=random.randint(0, 1), mode="mig" if mig else "hami-core",
               migProfiles=profiles if mig else 0)
        for i, u in enumerate(ids)
    ]  # fmt: skip
    notes = {"hami.io/node-nvidia-register": json.dumps(entries)}
    if random.random() < 0.4:
        pairs = [{"uuid": a, "score": {b: random.choice((10, 20, 50)) for b in ids if b != a}} for a in ids]
        notes["hami.io/node-nvidia-score"] = json.dumps(pairs)
    if random.random() < 0.2:
        notes["hami.io/device-cordon"] = f" {ids[0]},"
    return notes, {"nvidia.com/gpu": "40"}, ids


def _nvidia_limits(random: Random) -> dict[str, str]:
    limits = {"nvidia.com/gpu": random.choice(("1", "1", "2"))}
    limits |= _maybe(random, 0.6, "nvidia.com/gpumem", ("1000", "9000", "20000", "0"))
    limits |= _maybe(random, 0.2, "nvidia.com/gpumem-percentage", ("10", "50", "100"))
    return limits | _maybe(random, 0.5, "nvidia.com/gpucores", ("0", "10", "50", "100"))


def _listed(
    kind: str, key: str, resource: str, form: str, **facts: Any
) -> Callable[[Random, str], tuple[dict[str, str], dict[str, str], list[str]]]:
    def make(random: Random, name: str) -> tuple[dict[str, str], dict[str, str], list[str]]:
        ids = [f"{kind}-{name}-{i}" for i in range(facts.get("number") or random.randint(1, 4))]
        if form == "text":
            base = f"{facts['count']},{facts['devmem']},{facts['devcore']},{facts['type']}"
            items = [f"{u},{base},{random.randint(0, 1)},true,{i},hami-core:" for i, u in enumerate(ids)]
            return {key: "".join(items)}, {resource: "16"}, ids
        more = facts.get("custom")
        body = {k: v for k, v in facts.items() if k not in ("number", "custom")}
        entries = [
            _entry(u, i, **body, **({"custominfo": more(random, i)} if more else {}), numa=random.randint(0, 1))
            for i, u in enumerate(ids)
        ]
        return {key: json.dumps(entries)}, {resource: "16"}, ids

    return make


def _counted(
    middle: str, amounts: Callable[[int], dict[str, str]], number: tuple[int, int] = (1, 4)
) -> Callable[[Random, str], tuple[dict[str, str], dict[str, str], list[str]]]:
    def make(random: Random, name: str) -> tuple[dict[str, str], dict[str, str], list[str]]:
        count = random.randint(*number)
        return {}, amounts(count), [f"{name}-{middle}-{i}" for i in range(count)]

    return make


def _holding(key: str, kind: str, memory: tuple[int, ...], cores: tuple[int, ...]) -> Callable[..., tuple[str, str]]:
    def make(random: Random, uuid: str) -> tuple[str, str]:
        return key, f"{uuid},{kind},{random.choice(memory)},{random.choice(cores)}:;"

    return make


def _drs(random: Random, name: str) -> tuple[dict[str, str], dict[str, str], list[str]]:
    count = random.randint(1, 3)
    spec = {
        "devices": [{"index": str(i), "minor": str(i), "capacity": "6"} for i in range(count)],
        "profiles": {"1g.6gb": "1", "3g.18gb": "3", "6g.36gb": "6"},
    }
    return {"enflame.com/gcu-drs-capacity": json.dumps(spec)}, {}, [f"{name}-enflame-drs-{i}" for i in range(count)]


def _sgpu(random: Random, name: str) -> tuple[dict[str, str], dict[str, str], list[str]]:
    ids = [f"M-{name}-{i}" for i in range(random.randint(1, 3))]
    devices = [
        {"uuid": u, "model": "C500", "totalDevCount": 4, "totalCompute": 100, "totalVRam": 65536, "healthy": True,
         "qosPolicy": random.choice(("", "fixed-share", "best-effort")), "linkZone": random.randint(0, 2)}
        for u in ids
    ]  # fmt: skip
    return {"metax-tech.com/node-gpu-devices": json.dumps(devices)}, {}, ids


def _some(count: str, memory: str, cores: str, counts: tuple[str, ...], mem: tuple[str, ...], core: tuple[str, ...]):
    def make(random: Random) -> dict[str, str]:
        limits = {count: random.choice(counts)}
        if memory:
            limits |= _maybe(random, 0.6, memory, mem)
        return limits | (_maybe(random, 0.5, cores, core) if cores else {})

    return make


NPU = "huawei.com/Ascend910B4"
ONE_TWO = ("1", "1", "2")
BACKENDS = (
    Backend(
        "nvidia",
        _nvidia_nodes,
        _holding("hami.io/vgpu-devices-allocated", "NVIDIA", (1000, 9856, 20000), (0, 30, 100)),
        _nvidia_limits,
        ("nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"),
    ),
    Backend(
        "hygon",
        _listed(
            "DCU",
            "hami.io/node-dcu-register",
            "hygon.com/dcunum",
            "text",
            count=4,
            devmem=32768,
            devcore=60,
            type="DCU-Z100L",
        ),
        _holding("hami.io/dcu-devices-allocated", "DCU", (1000, 20000), (0, 10, 60)),
        _some(
            "hygon.com/dcunum", "hygon.com/dcumem", "hygon.com/dcucores", ONE_TWO, ("2k", "20000"), ("0", "10", "60")
        ),
        ("hygon.com/use-gpuuuid", "hygon.com/nouse-gpuuuid"),
    ),
    Backend(
        "iluvatar",
        _listed(
            "ILU",
            "hami.io/node-MR-V100-register",
            "iluvatar.ai/MR-V100-vgpu",
            "text",
            count=10,
            devmem=32768,
            devcore=100,
            type="MR-V100",
        ),
        _holding("hami.io/MR-V100-devices-allocated", "MR-V100", (1024, 16384), (0, 10, 100)),
        _some(
            "iluvatar.ai/MR-V100-vgpu",
            "iluvatar.ai/MR-V100.vMem",
            "iluvatar.ai/MR-V100.vCore",
            ("1",),
            ("4", "64"),
            ("0", "10", "100"),
        ),
        ("hami.io/use-MR-V100-uuid", "hami.io/no-use-MR-V100-uuid"),
    ),
    Backend(
        "ascend",
        _listed(
            "NPU",
            "hami.io/node-register-Ascend910B4",
            NPU,
            "json",
            count=4,
            devmem=32768,
            devcore=20,
            type="Ascend910B4",
            custom=lambda r, i: {"NetworkID": i % 2},
        ),
        _holding("hami.io/Ascend910B4-devices-allocated", "Ascend910B4", (8192, 16384), (0,)),
        _some(NPU, f"{NPU}-memory", "", ONE_TWO, ("3000", "9000", "32768"), ()),
        ("hami.io/use-Ascend910B4-uuid", "hami.io/no-use-Ascend910B4-uuid"),
    ),
    Backend(
        "cambricon",
        _counted(
            "cambricon-mlu",
            lambda n: {"cambricon.com/mlu.smlu.vcore": str(100 * n), "cambricon.com/mlu.smlu.vmemory": str(64 * n)},
        ),
        _holding("hami.io/cambricon-mlu-devices-allocated", "MLU", (1024, 8192), (0, 10, 100)),
        _some(
            "cambricon.com/vmlu",
            "cambricon.com/mlu.smlu.vmemory",
            "cambricon.com/mlu.smlu.vcore",
            ONE_TWO,
            ("4", "40"),
            ("0", "10", "100"),
        ),
        ("cambricon.com/use-gpuuuid", "cambricon.com/nouse-gpuuuid"),
    ),
    Backend(
        "mthreads",
        _counted(
            "mthreads", lambda n: {"mthreads.com/sgpu-core": str(16 * n), "mthreads.com/sgpu-memory": str(96 * n)}
        ),
        _holding("hami.io/mthreads-vgpu-devices-allocated", "Mthreads", (4096, 16384), (0, 4, 16)),
        _some(
            "mthreads.com/vgpu",
            "mthreads.com/sgpu-memory",
            "mthreads.com/sgpu-core",
            ("1",),
            ("8", "32", "96"),
            ("4", "16"),
        ),
        ("mthreads.ai/use-gpuuuid", "mthreads.ai/nouse-gpuuuid"),
    ),
    Backend(
        "metax",
        _counted("metax", lambda n: {"metax-tech.com/gpu": str(n)}),
        _holding("hami.io/metax-gpu-devices-allocated", "Metax-GPU", (65536,), (100,)),
        _some("metax-tech.com/gpu", "", "", ONE_TWO, (), ()),
    ),
    Backend(
        "metax-sgpu",
        _sgpu,
        _holding("hami.io/metax-sgpu-devices-allocated", "Metax-SGPU", (4096, 32768), (10, 50)),
        _some(
            "metax-tech.com/sgpu",
            "metax-tech.com/vmemory",
            "metax-tech.com/vcore",
            ONE_TWO,
            ("4", "512Mi", "40"),
            ("10", "60", "100"),
        ),
        ("metax-tech.com/use-gpuuuid", "metax-tech.com/nouse-gpuuuid"),
    ),
    Backend(
        "kunlun",
        _counted("kunlun", lambda n: {"kunlunxin.com/xpu": str(n)}, (8, 8)),
        _holding("hami.io/kunlun-allocated", "kunlun", (98304,), (100,)),
        _some("kunlunxin.com/xpu", "", "", ("1", "1", "2", "2", "4", "8", "3"), (), ()),
        ("hami.io/use-xpu-uuid", "baidu.com/nouse-gpuuuid"),
    ),
    Backend(
        "xpu",
        _listed(
            "XPU",
            "hami.io/node-register-xpu",
            "kunlunxin.com/vxpu",
            "json",
            number=8,
            count=4,
            devmem=98304,
            devcore=100,
            type="XPU",
        ),
        _holding("hami.io/xpu-devices-allocated", "XPU", (24576, 49152), (25, 50)),
        _some("kunlunxin.com/vxpu", "kunlunxin.com/vxpu-memory", "", ONE_TWO, ("24576", "40000"), ()),
        ("hami.io/use-xpu-uuid", "hami.io/no-use-xpu-uuid"),
    ),
    Backend(
        "gcu",
        _counted("GCU", lambda n: {"enflame.com/gcu": str(n)}),
        _holding("hami.io/enflame-gcu-devices-allocated", "GCU", (100,), (100,)),
        _some("enflame.com/gcu", "", "", ONE_TWO, (), ()),
    ),
    Backend(
        "enflame",
        _drs,
        _holding("hami.io/enflame-vgpu-devices-allocated", "Enflame", (6144, 18432), (17, 50)),
        _some("enflame.com/drs-gcu", "", "", ("1", "2", "3", "6"), (), ()),
        ("enflame.com/use-gpuuuid", "enflame.com/nouse-gpuuuid"),
    ),
    Backend(
        "amd",
        _listed(
            "AMD",
            "hami.io/node-amd-register",
            "amd.com/gpu",
            "json",
            count=4,
            devmem=65536,
            devcore=110,
            type="AMD Instinct MI210",
        ),
        _holding("hami.io/amd-devices-allocated", "AMD Instinct MI210", (1000, 40000), (11, 55)),
        _some("amd.com/gpu", "amd.com/gpumem", "amd.com/gpucores", ONE_TWO, ("1k", "30000"), ("1", "50", "100")),
        ("amd.com/use-gpu-uuid", "amd.com/nouse-gpu-uuid"),
    ),
    Backend(
        "vastai",
        _listed(
            "VA",
            "hami.io/node-va-register",
            "vastaitech.com/va",
            "json",
            count=2,
            devmem=16384,
            type="Vastai-VA16",
            custom=lambda r, i: {"DeviceStrategy": "die", "AIC": f"a{i // 2}"},
        ),
        _holding("hami.io/Vastai-devices-allocated", "Vastai", (0,), (0,)),
        _some("vastaitech.com/va", "", "", ONE_TWO, (), ()),
        ("vastaitech.com/use-gpuuuid", "vastaitech.com/nouse-gpuuuid"),
    ),
    Backend(
        "biren",
        _listed(
            "BR", "hami.io/node-biren-register", "birentech.com/gpu", "json", count=2, devmem=32768, type="Biren106"
        ),
        _holding("hami.io/Biren-devices-allocated", "Biren", (0,), (0,)),
        _some("birentech.com/gpu", "", "", ONE_TWO, (), ()),
        ("birentech.com/use-gpuuuid", "birentech.com/nouse-gpuuuid"),
    ),
)


def _existing(random: Random, backend: Backend, number: int, spots: list[tuple[str, str]]) -> Raw:
    node, uuid = random.choice(spots)
    key, value = backend.booking(random, uuid)
    return {
        "metadata": {
            "name": f"e{number}", "namespace": NAMESPACE, "labels": {"hami.io/webhook": "ignore"},
            "annotations": {key: value, "hami.io/vgpu-node": node, "hami.io/bind-phase": "success"},
        },
        "spec": {"schedulerName": "hami-scheduler", "nodeName": node, "containers": [{"name": "c", "image": "x"}]},
        "status": {"phase": "Running"},
    }  # fmt: skip


def _query(random: Random, backend: Backend, number: int, uuids: list[str]) -> Raw:
    notes: dict[str, str] = {}
    use, nouse = backend.wishes
    if use and random.random() < 0.3:
        notes[use] = ",".join(random.sample(uuids, min(2, len(uuids))))
    if nouse and random.random() < 0.2:
        notes[nouse] = random.choice((*uuids, ",", " "))
    notes |= _maybe(random, 0.5, "hami.io/gpu-scheduler-policy", POLICIES)
    notes |= _maybe(random, 0.3, "nvidia.com/numa-bind", ("true", "T"))
    notes |= _maybe(
        random, 0.1, "hami.io/device-scoring-weights", ("slot=1,core=0,memory=3", " memory=2, slot=0,core=1")
    )
    webhook = random.random() < 0.5

    def box(name: str) -> Raw:
        limits = backend.limits(random) if random.random() < 0.8 else {}
        return {"name": name, "image": "x", "resources": {"limits": limits} if limits else {}}

    spec: Raw = {"schedulerName": "hami-scheduler"}
    spec["containers"] = [box(f"c{i}") for i in range(random.choice((1, 1, 2, 3)))]
    if random.random() < 0.2:
        spec["initContainers"] = [box("i0")]
    labels = {} if webhook else {"hami.io/webhook": "ignore"}
    meta = {"name": f"q{number}", "namespace": NAMESPACE, "labels": labels, "annotations": notes}
    return {"op": "place", "webhook": webhook, "submitted": {"metadata": meta, "spec": spec}}


def world(random: Random, kind: str = "") -> Raw:
    """One record of one backend (any, or the one named): nodes, bookings and questions without answers."""
    backend = random.choice([b for b in BACKENDS if kind in ("", b.kind)])
    nodes, spots = [], []
    for number in range(random.randint(1, 2)):
        name = f"n{number}-{random.randrange(10**6)}"
        annotations, amounts, uuids = backend.nodes(random, name)
        nodes.append(node_object(name, annotations, amounts))
        spots += [(name, uuid) for uuid in uuids]
    pods = [_existing(random, backend, number, spots) for number in range(random.randint(0, len(spots) + 1))]
    queries = [_query(random, backend, number, [u for _, u in spots]) for number in range(4)]
    return {
        "id": f"differential-{random.randrange(10**6)}", "kind": backend.kind, "hami": "real",
        "config": {"gpuSchedulerPolicy": "spread", "nodeSchedulerPolicy": "binpack", "nvidia": {}},
        "nodes": nodes, "pods": pods, "queries": queries,
    }  # fmt: skip
