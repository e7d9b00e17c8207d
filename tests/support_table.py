"""The support table: HAMi version x vendor x (read, score, pin, drain), found by doing each on a small world.

    python -m tests.support_table            print it
    python -m tests.support_table --write    write chart/docs/hami-support.md
    python -m tests.support_table --check    exit 1 when that file says something else

The worlds are written as that version of HAMi writes them: register annotation, slots of containers, MIG devices.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from defragd.core.fit import FitConfig, fit_pod
from defragd.core.model import Allocation, Node, Problem
from defragd.core.score import score
from defragd.core.snapshot import Snapshot
from defragd.hami.config import HamiConfig
from defragd.hami.translate import assemble, translate_node, translate_pod
from defragd.hami.vendors import backends, pin_annotations, vendors_for
from defragd.hami.version import guess_version, version_of
from defragd.hami.written import predict_annotations
from defragd.kube import wire
from tests.differential.backends import BACKENDS, node_object
from tests.support.plan_world import UNLIMITED, make_plan

FILE = Path(__file__).resolve().parents[1] / "chart" / "docs" / "hami-support.md"
VERSIONS = ("2.5", "2.6", "2.7", "2.8", "2.9", "2.10")
OLD = "2026-01-01T00:00:00Z"
REGISTER, ALLOCATED = "hami.io/node-nvidia-register", "hami.io/vgpu-devices-allocated"
CONFIGS = {version: HamiConfig(version=version) for version in VERSIONS}
CONFIG = CONFIGS[VERSIONS[-1]]
Raw = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One row: the vendor word, how its devices are called by people, and what a small request looks like."""

    word: str
    title: str
    limits: tuple[tuple[str, str], ...]
    kind: str = ""
    mig: bool = False


def _case(word: str, title: str, kind: str, **limits: str) -> Case:
    return Case(word, title, tuple((k.replace("__", "/").replace("_", "-"), v) for k, v in limits.items()), kind)


CASES = (
    Case("NVIDIA", "NVIDIA", (("nvidia.com/gpu", "1"), ("nvidia.com/gpumem", "4000"))),
    Case("NVIDIA", "NVIDIA, MIG", (("nvidia.com/gpu", "1"), ("nvidia.com/gpumem", "4000")), mig=True),
    Case("DCU", "Hygon DCU", (("hygon.com/dcunum", "1"), ("hygon.com/dcumem", "2000"), ("hygon.com/dcucores", "10")),
         "hygon"),
    Case("MR-V100", "Iluvatar", (("iluvatar.ai/MR-V100-vgpu", "1"), ("iluvatar.ai/MR-V100.vMem", "4")), "iluvatar"),
    Case("Ascend910B4", "Huawei Ascend", (("huawei.com/Ascend910B4", "1"), ("huawei.com/Ascend910B4-memory", "8192")),
         "ascend"),
    Case("MLU", "Cambricon MLU", (("cambricon.com/vmlu", "1"), ("cambricon.com/mlu.smlu.vmemory", "4"),
                                  ("cambricon.com/mlu.smlu.vcore", "10")), "cambricon"),
    Case("Mthreads", "Moore Threads", (("mthreads.com/vgpu", "1"), ("mthreads.com/sgpu-memory", "8"),
                                       ("mthreads.com/sgpu-core", "4")), "mthreads"),
    Case("Metax-GPU", "MetaX, whole", (("metax-tech.com/gpu", "1"),), "metax"),
    Case("Metax-SGPU", "MetaX, sliced", (("metax-tech.com/sgpu", "1"), ("metax-tech.com/vmemory", "4"),
                                         ("metax-tech.com/vcore", "10")), "metax-sgpu"),
    Case("GCU", "Enflame, whole", (("enflame.com/gcu", "1"),), "gcu"),
    Case("Enflame", "Enflame, sliced", (("enflame.com/drs-gcu", "1"),), "enflame"),
    Case("kunlun", "Kunlun, whole", (("kunlunxin.com/xpu", "1"),), "kunlun"),
    Case("XPU", "Kunlun, sliced", (("kunlunxin.com/vxpu", "1"), ("kunlunxin.com/vxpu-memory", "24576")), "xpu"),
    Case("AWSNeuron", "AWS Neuron", (("aws.amazon.com/neuron", "1"),)),
    Case("AMD", "AMD", (("amd.com/gpu", "1"), ("amd.com/gpumem", "1000"), ("amd.com/gpucores", "10")), "amd"),
    Case("Vastai", "Vastai", (("vastaitech.com/va", "1"),), "vastai"),
    Case("Biren", "Biren", (("birentech.com/gpu", "1"),), "biren"),
)  # fmt: skip


def _below(version: str, other: str) -> bool:
    return version_of(version) < version_of(other)


def node_as(version: str, case: Case, name: str) -> Raw:
    """A node with at least two devices, registered as that HAMi does."""
    if case.word == "NVIDIA":
        ids = [f"GPU-{name}-{i}" for i in range(2)]
        if _below(version, "2.8"):
            mode = "mig" if case.mig else "hami-core"
            tail = f",{mode}" if not _below(version, "2.6") else ""
            items = [f"{u},10,40960,100,NVIDIA-NVIDIA A100,0,true{f',{i}{tail}' if tail else ''}:" for i, u in
                     enumerate(ids)]  # fmt: skip
            notes = {REGISTER: "".join(items), "hami.io/node-handshake": "Reported 2026-01-01 00:00:00"}
        else:
            entries = [
                {"id": u, "index": i, "count": 10, "devmem": 40960, "devcore": 100, "type": "NVIDIA A100",
                 "mode": "mig" if case.mig else "hami-core", "health": True}
                for i, u in enumerate(ids)
            ]  # fmt: skip
            if case.mig and not _below(version, "2.10"):
                places = [{"start": i, "size": 1} for i in range(7)]
                for entry in entries:
                    entry["migProfiles"] = [
                        {"name": "1g.5gb", "memoryMB": 4864, "core": 14, "sliceCount": 1, "placements": places}
                    ]
            notes = {REGISTER: json.dumps(entries)}
        return node_object(name, notes, {"nvidia.com/gpu": "20"})
    if case.word == "AWSNeuron":
        return node_object(name, {}, {"aws.amazon.com/neuron": "2", "aws.amazon.com/neuroncore": "4"})
    backend = next(b for b in BACKENDS if b.kind == case.kind)
    for seed in range(50):
        notes, amounts, ids = backend.nodes(Random(seed), name)
        if len(ids) >= 2:
            return node_object(name, notes, amounts)
    raise AssertionError(f"no node of {case.kind} with two devices")


def pod_as(version: str, case: Case, node: str = "", written: dict[str, str] | None = None) -> Raw:
    """A pod of three containers, of which the second (an app container) asks for a device; bound with what HAMi of
    that version wrote about it."""
    limits = dict(case.limits)
    boxes = [{"name": "asks", "resources": {"limits": limits, "requests": limits}}, {"name": "plain"}]
    notes = {k: _slots_as(version, v) if k.endswith("-allocated") else v for k, v in (written or {}).items()}
    if _below(version, "2.10"):
        notes.pop("hami.io/vgpu-mig-allocations", None)
        if case.mig and ALLOCATED in notes:
            notes[ALLOCATED] = notes[ALLOCATED].replace(",NVIDIA", "[1-0],NVIDIA")
    if node:
        notes |= {"hami.io/vgpu-node": node, "hami.io/bind-phase": "success"}
    return {
        "metadata": {"name": "p", "namespace": "team", "uid": "u", "annotations": notes,
                     "creationTimestamp": OLD,
                     "ownerReferences": [{"kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": True}]},
        "spec": {"schedulerName": "hami-scheduler", **({"nodeName": node} if node else {}),
                 "initContainers": [{"name": "first"}], "containers": boxes},
        "status": {"phase": "Running" if node else "Pending",
                   "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": OLD}] if node else []},
    }  # fmt: skip


def _slots_as(version: str, text: str) -> str:
    """The one slot of 2.10 as older versions wrote it: places of all containers, init containers since 2.9 only."""
    if not _below(version, "2.10"):
        return text
    slot = next(part for part in text.split(";") if part)
    empty = "," * 2 + "0,0:;" if _below(version, "2.6") else ";"
    return ("" if _below(version, "2.9") else ";") + f"{slot};{empty}"


@dataclass(frozen=True)
class World:
    """Two nodes and the pod, pending or on the first of them."""

    snapshot: Snapshot
    expected: tuple[Allocation, ...] = ()


def build(version: str, case: Case) -> World:
    config = CONFIGS[version]
    raws = [node_as(version, case, name) for name in ("n1", "n2")]
    found = [translate_node(msgspec.convert(raw, wire.Node), config) for raw in raws]
    nodes = {node.name: node for node, _ in found}
    doubts = [problem for _, problems in found for problem in problems]
    pending = _snapshot(nodes, pod_as(version, case), doubts, config)
    fit = fit_pod(pending, pending.pods["team/p"], "n1", vendors=vendors_for(config), config=FitConfig(as_hami=True))
    if fit.ok:
        written = predict_annotations(pending.pods["team/p"], nodes["n1"], fit, config)
        held = fit.allocations
    else:  # what cannot be predicted is written by hand: one chip
        chip = nodes["n1"].devices[0]
        held = (Allocation(0, chip.uuid, 0, 3, case.word),)
        written = {backends(config)[case.word].allocated: f"{chip.uuid},{case.word},0,3:;"}
    return World(_snapshot(nodes, pod_as(version, case, "n1", written), doubts, config), held)


def _snapshot(nodes: dict[str, Node], raw: Raw, doubts: Sequence[Problem], config: HamiConfig) -> Snapshot:
    twin = json.loads(json.dumps(raw))  # a second replica without devices: a policy may ask for two
    twin["metadata"] |= {"name": "twin", "uid": "twin", "annotations": {}}
    twin["spec"] |= {"nodeName": "n2", "containers": [{"name": "plain"}]}
    twin["status"] = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": OLD}],
    }
    pods = [translate_pod(msgspec.convert(item, wire.Pod), config, claims={}) for item in (raw, twin)]
    known = ("pdbs", "workloads", "quotas", "placements", "volumes")
    return assemble(nodes=nodes, pods={pod.key: pod for pod in pods}, problems=doubts, known=known, config=config)


def can_read(world: World) -> bool:
    """Devices, and exactly what the pod holds of them."""
    pod = world.snapshot.pods["team/p"]
    plain = [(a.uuid, a.memory_mib, a.cores, a.vendor) for a in pod.allocations]
    wanted = [(a.uuid, a.memory_mib, a.cores, a.vendor) for a in world.expected]
    use = world.snapshot.usage("n1")
    return (
        plain == wanted
        and all(use[uuid].slots == 1 and use[uuid].memory_mib == memory for uuid, memory, _, _ in wanted)
        and not [p for p in world.snapshot.problems if p.object == "team/p" and not pod.mig and "MIG" not in p.detail]
    )


def can_score(world: World) -> bool:
    """The pod makes its device, and no other, count as not idle."""
    empty = world.snapshot.with_pods({"team/p": None})
    return score(empty).idle_devices - score(world.snapshot).idle_devices == 1


def can_pin(world: World) -> bool:
    """Every device of the other node can be the exact target of the pod, and there is an annotation for it."""
    pod, vendors = world.snapshot.pods["team/p"], vendors_for(CONFIG)
    target = next((d for d in world.snapshot.nodes["n2"].devices if d.vendor == world.expected[0].vendor), None)
    if target is None:
        return False
    try:
        pin_annotations([target.vendor], [target.uuid], table=vendors)
    except ValueError:
        return False
    return fit_pod(world.snapshot, pod, "n2", vendors=vendors, devices=(target.uuid,)).ok


def can_drain(world: World) -> bool:
    """A plan empties the pod's device by one move."""
    first = world.expected[0]
    scope = replace(UNLIMITED.scope, vendors=(first.vendor,))
    reply = make_plan(world.snapshot, "gpu-drain", {"device": first.uuid}, rules=replace(UNLIMITED, scope=scope))
    return len(reply.moves) == 1 and not reply.refused


def cell(version: str, case: Case) -> str:
    """Letters of what is possible, "-" where that HAMi has no such backend."""
    if _below(version, backends(CONFIG)[case.word].first):
        return "-"
    world = build(version, case)
    found = [("R", can_read(world)), ("S", can_score(world)), ("P", can_pin(world)), ("D", can_drain(world))]
    letters = "".join(letter if ok else "·" for letter, ok in found)
    return letters if version == VERSIONS[-1] else letters.replace("P", "p").replace("D", "d")


def version_told(version: str, case: Case) -> str:
    """What `guess_version` says of a cluster of that version."""
    return guess_version([node_as(version, case, "n1")["metadata"]["annotations"]])


HEAD = """# Which HAMi, which devices

Generated by `python -m tests.support_table --write`: every mark was found by doing it in a small world written as that
version of HAMi writes it. Do not edit by hand.

- **R** read: devices, and what each pod holds of them
- **S** scored and shown
- **P** pinned: a pod can be placed on exactly one named device
- **D** drained: a plan empties a device of this kind
- **p**, **d** the same by the documented rules of that older version; never run against its scheduler
- **·** not possible, **-** HAMi has no such backend in that version

"""
TAIL = """
Pods of a kind without P stay where they are: plans treat them as fixed, and say so. Of kinds without R for a version
nothing is planned; the objects are named by `defragd doctor` and in the snapshot's problems.

MIG pods are reported and stay where they are in every version.

Below HAMi 2.10:

- reasons, the order of devices and so the forecast of where an unpinned pod lands are those of 2.10 and not exact;
- `hami.io/device-cordon` is not known to the scheduler: use gpu-drain with a hold, not the cordon;
- a `nouse` list beside a `use` list is ignored by the scheduler, so a pinned pod is not kept off a device by it;
- MIG devices are written with a template in the UUID: the device is read, the instance is not.

`defragd doctor` says which version it sees and what that means. Version 2.10 is judged by decisions recorded from its
scheduler and by random worlds asked of it (`python -m tests.differential --hami PATH`).

## Where we differ from the schedulers

On the safe side:

| We refuse, they accept | Why |
|---|---|
| a choice among equal groups or zones (Ascend, MetaX), all of AWS Neuron | HAMi's choice is not determined; a pin is |
| a device whose UUID two nodes register, or whose books are in doubt | what it holds cannot be believed |
| a sidecar and app containers that together do not fit | HAMi does not add a sidecar's devices to those of the app |
| a volume of one node at a time that a pod on another node uses | kube-scheduler lets it start and the attach waits |
| resource claims (DRA), volumes whose place is unknown | where they fit cannot be told from what is read |
| a node that is not Ready | its taint may be a moment late |
| sliced MetaX devices that do not report the quality of service of a pod on them | HAMi goes by its memory till then |

Not on the safe side is what only HAMi's own memory shows, so that it refuses where we see room. Such a move waits at
its target and is then given up, with the reason; it is not repeated at once:

| They refuse, we accept | Until |
|---|---|
| a device that HAMi still books for a pod whose end it missed | HAMi restarts; `hami.metrics` shows it before |
| a sliced MetaX device, for the quality of service of a pod that came and went | its plugin reports that one |

Neither side: with more than 12 devices on a node HAMi's sort leaves the order of equal devices open: which of them an
unpinned pod gets is then not forecast.
"""


def rows() -> Iterator[str]:
    yield "| Devices | HAMi's word | " + " | ".join(VERSIONS) + " |"
    yield "|---|---|" + "---|" * len(VERSIONS)
    for case in CASES:
        cells = " | ".join(cell(version, case) for version in VERSIONS)
        yield f"| {case.title} | `{case.word}` | {cells} |"


def text() -> str:
    return HEAD + "\n".join(rows()) + "\n" + TAIL


def main(arguments: Sequence[str]) -> int:
    now = text()
    if "--check" in arguments:
        if FILE.is_file() and FILE.read_text() == now:
            return 0
        print(f"{FILE.name} is not what the tests find: run python -m tests.support_table --write")
        return 1
    if "--write" in arguments:
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(now)
    else:
        print(now)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
