"""Differential test by hand: HAMi's own scheduler and our fit asked the same questions in random worlds.

    DEFRAGD_HAMI_SCHEDULER=/path/to/scheduler python -m tests.differential_hami [--worlds N] [--seed S] [...]

Runs a control plane with that binary, creates nodes of every backend, pods that hold devices and pods that ask, and
compares HAMi's `/filter` (fits or not, reason text, annotations) and admission with ours. Every disagreement is printed
as one line and, with --out, kept as a record that `tests.replay_traces` reads.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from tests.differential_worlds import world
from tests.ground.api import Api
from tests.ground.cluster import Cluster
from tests.ground.controlplane import ControlPlane
from tests.ground.emulator import Emulator
from tests.ground.hami import config as ground_config
from tests.replay_traces import Tally, World

PODS = "/api/v1/namespaces/{}/pods"
TIMES = ("hami.io/vgpu-time", "predicate-time", "mthreads.com/predicate-time", "metax-tech.com/predicate-time")
IGNORED = {
    *TIMES, "hami.io/vgpu-node", "enflame.com/gcu-assigned-time", "NEURON_ALLOC_TIME",
    "BAIDU_COM_DEVICE_IDX", "metax-tech.com/gpu-devices-allocated", "enflame.com/gcu-assigned",
    "enflame.com/assigned-containers", "enflame.com/gcu-assigned-index", "enflame.com/gcu-assigned-id",
    "enflame.com/gcu-assigned-minor", "enflame.com/gcu-request-size", "assigned-containers",
}  # fmt: skip
"""Times, and what only a vendor's plugin reads and we never predict."""

GATE = [{"name": "differential/hold"}]


def more_backends() -> None:
    """Adds chips of both families that the ground's configuration leaves out."""
    chip = {
        "chipName": "910B4", "commonWord": "Ascend910B4", "resourceName": "huawei.com/Ascend910B4",
        "resourceMemoryName": "huawei.com/Ascend910B4-memory", "resourceCoreName": "huawei.com/Ascend910B4-core",
        "memoryAllocatable": 32768, "memoryCapacity": 32768, "memoryFactor": 1, "aiCore": 20, "aiCPU": 7,
        "templates": [
            {"name": "vir05_1c_8g", "memory": 8192, "aiCore": 5, "aiCPU": 1},
            {"name": "vir10_3c_16g", "memory": 16384, "aiCore": 10, "aiCPU": 3},
        ],
    }  # fmt: skip
    iluvatar = {
        "chipName": "MR-V100", "commonWord": "MR-V100", "resourceCountName": "iluvatar.ai/MR-V100-vgpu",
        "resourceMemoryName": "iluvatar.ai/MR-V100.vMem", "resourceCoreName": "iluvatar.ai/MR-V100.vCore",
    }  # fmt: skip
    ground_config._OTHERS["vnpus"] = {"hamiVnpuCore": False, "configs": [chip]}
    ground_config._OTHERS["iluvatars"] = [iluvatar]


class Asker:
    """Puts one world into the cluster and lets HAMi answer."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.api = cluster, cluster.api

    def _create(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        body = {"apiVersion": "v1", "kind": "Pod", **json.loads(json.dumps(raw))}
        status = body.pop("status", None)
        made: dict[str, Any] = self.api.create(PODS.format(body["metadata"]["namespace"]), body)
        if status and status.get("phase") != "Pending":
            path = f"{PODS.format(body['metadata']['namespace'])}/{body['metadata']['name']}/status"
            self.api.patch(path, {"status": {"phase": status["phase"]}})
        return made

    def set_up(self, record: Mapping[str, Any]) -> None:
        self.cluster.reset()
        for raw in record["nodes"]:
            body = {"apiVersion": "v1", "kind": "Node", **raw}
            self.cluster.create(body)
        for raw in record["pods"]:
            self._create(raw)

    def ask(self, query: dict[str, Any], nodes: list[str]) -> None:
        """Fills ``admitted`` or ``denied`` and ``per_node`` of the query with the real answers."""
        submitted = query["submitted"]
        namespace, name = submitted["metadata"]["namespace"], submitted["metadata"]["name"]
        gated = json.loads(json.dumps(submitted))
        gated["spec"]["schedulingGates"] = GATE
        body = {"apiVersion": "v1", "kind": "Pod", **gated}
        path = f"{PODS.format(namespace)}/{name}"
        for node in nodes:
            # a new pod per question: HAMi keeps the booking of a pod whose annotations are taken off before its end
            status, answer = self.api.request("POST", PODS.format(namespace), body)
            if status not in (200, 201):
                query["denied"] = {"code": answer["code"], "message": answer["message"]}
                return
            spec, notes = answer["spec"], answer["metadata"].get("annotations") or {}
            parts = {p: [_shown(c) for c in spec[p]] for p in ("containers", "initContainers") if spec.get(p)}
            query["admitted"] = {"annotations": notes, "schedulerName": spec["schedulerName"], **parts}
            _, found = self.cluster.plane.hami("/filter", {"Pod": self.api.get(path), "NodeNames": [node]})
            query.setdefault("per_node", {})[node] = self._answer(found, node, path, set(notes))
            self.api.delete(f"{path}?gracePeriodSeconds=0")
            time.sleep(0.03)

    def _answer(self, found: Mapping[str, Any], node: str, path: str, asked: set[str]) -> dict[str, Any]:
        if found.get("Error"):
            return {"fits": False, "error": found["Error"]}
        if found.get("FailedNodes"):
            return {"fits": False, "reasons": found["FailedNodes"]}
        notes = self.api.get(path)["metadata"].get("annotations") or {}
        if "hami.io/vgpu-node" not in notes:
            return {"fits": True, "passed_through": True}
        fresh = {k: v for k, v in notes.items() if k not in asked and k not in IGNORED}
        return {"fits": True, "nodes": [node], "written": fresh}


def _shown(container: Mapping[str, Any]) -> dict[str, Any]:
    return {k: container[k] for k in ("name", "resources", "env", "securityContext") if k in container}


class Judge(World):
    """Our answers, with what we never predict taken out and forecasts that we decline left aside."""

    def compare(self, fit: Any, answer: Mapping[str, Any], snapshot: Any, pod: Any, name: str) -> str:
        if "Unpredictable" in fit.text:
            self.tally.note(self.kind, "declined", True)
            return ""
        return super().compare(fit, answer, snapshot, pod, name)


def run_world(asker: Asker, record: dict[str, Any], tally: Tally) -> None:
    """Ask, compare, and ask again while HAMi's caches may lag behind."""
    asker.set_up(record)
    nodes = [n["metadata"]["name"] for n in record["nodes"]]
    time.sleep(0.4)
    for number, query in enumerate(record["queries"]):
        for attempt in range(6):
            fresh = json.loads(json.dumps(query))
            asker.ask(fresh, nodes)
            trial = Tally()
            Judge({**record, "queries": [fresh]}, trial).run()
            if not trial.deviations or attempt == 5:
                break
            time.sleep(0.3 * (attempt + 1))
        record["queries"][number] = fresh
        for kind, counts in trial.counts.items():
            tally.counts[kind].update(counts)
        tally.deviations += trial.deviations


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", default="", help="one kind of tests.differential_worlds.BACKENDS, e.g. nvidia")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    more_backends()
    tally = Tally()
    with ControlPlane() as plane, Emulator(Api.as_user(plane.api, "ground-emulator")) as emulator:
        plane.install_crds()
        asker = Asker(Cluster(plane, emulator))
        for number in range(options.worlds):
            record = world(Random(options.seed + number), options.backend)
            before = len(tally.deviations)
            run_world(asker, record, tally)
            if len(tally.deviations) > before:
                print(f"seed {options.seed + number}: {tally.deviations[before]}", flush=True)
                if options.out:
                    with options.out.open("a") as file:
                        file.write(json.dumps(record) + "\n")
    for kind, counts in sorted(tally.counts.items()):
        print(f"{kind:24} " + ", ".join(f"{what} {count}" for what, count in sorted(counts.items())))
    print(f"{len(tally.deviations)} deviations in {options.worlds} worlds from seed {options.seed}")
    return 1 if tally.deviations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
