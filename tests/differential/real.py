"""A HAMi scheduler in a running control plane as the answering side: its webhook admits, its ``/filter`` decides.

With the path of HAMi's own scheduler that one runs, else the stand-in's process. Pods that ask carry a scheduling gate
of ours, so that kube-scheduler leaves them alone.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from random import Random
from types import TracebackType
from typing import Any

from tests.differential import backends, mixed
from tests.ground.api import Api
from tests.ground.cluster import Cluster
from tests.ground.commands import HamiSettings
from tests.ground.controlplane import ControlPlane
from tests.ground.emulator import Emulator
from tests.ground.hami import config as ground_config

Raw = dict[str, Any]
PODS = "/api/v1/namespaces/{}/pods"
QUOTAS = "/api/v1/namespaces/{}/resourcequotas"
TIMES = ("hami.io/vgpu-time", "predicate-time", "mthreads.com/predicate-time", "metax-tech.com/predicate-time")
IGNORED = {
    *TIMES, "hami.io/vgpu-node", "enflame.com/gcu-assigned-time", "NEURON_ALLOC_TIME",
    "BAIDU_COM_DEVICE_IDX", "metax-tech.com/gpu-devices-allocated", "enflame.com/gcu-assigned",
    "enflame.com/assigned-containers", "enflame.com/gcu-assigned-index", "enflame.com/gcu-assigned-id",
    "enflame.com/gcu-assigned-minor", "enflame.com/gcu-request-size", "assigned-containers",
}  # fmt: skip
"""Times, and what only a vendor's plugin reads and we never predict."""
HOLD = "differential/hold"


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


def settings(random: Random | None) -> Raw:
    """The part of a record's config that is HAMi's start: the chart's, or drawn at random."""
    if random is None:
        return {"gpuSchedulerPolicy": "spread", "nodeSchedulerPolicy": "binpack", "nvidia": {}}
    return {
        "gpuSchedulerPolicy": random.choice(("binpack", "spread", "mutex", "numa", "topology-aware", "mutex,binpack")),
        "nodeSchedulerPolicy": random.choice(("binpack", "spread")),
        "nvidia": random.choice(({}, {"defaultMemory": 3000, "defaultCores": 20}, {"memoryFactor": 10})),
    }


class Running:
    """Starts the control plane; puts one world after another into it and lets HAMi answer."""

    def __init__(self, hami: str, *, kind: str = "", config: Raw | None = None) -> None:
        os.environ["DEFRAGD_HAMI_SCHEDULER"] = hami
        self.kind, self.config = kind, config or settings(None)
        more_backends()
        start = HamiSettings(
            node_policy=self.config["nodeSchedulerPolicy"],
            gpu_policy=self.config["gpuSchedulerPolicy"],
            nvidia=self.config["nvidia"],
        )
        self.plane = ControlPlane(hami=start)

    def __enter__(self) -> Running:
        self.plane.start()
        # never started: an emulated kubelet would take our pods for its own and set their status
        emulator = Emulator(Api.as_user(self.plane.api, "ground-emulator"))
        self.plane.install_crds()
        self.api: Api = self.plane.api
        self.cluster = Cluster(self.plane, emulator)
        self.pause = 0.4
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.plane.stop()

    def world(self, random: Random) -> Raw:
        """A world that this scheduler can answer: all backends for the real one."""
        if self.kind and self.kind != "mixed":
            return {**backends.world(random, self.kind), "config": self.config}
        if not self.plane.real_hami:
            return {**mixed.world(random, others=False), "config": self.config}
        if self.kind != "mixed" and random.random() < 0.5:
            return {**backends.world(random), "config": self.config}
        return {**mixed.world(random), "config": self.config}

    def answer(self, record: Raw) -> Raw:
        """The record with every question answered."""
        full: Raw = json.loads(json.dumps(record))
        self._set_up(full)
        nodes = [n["metadata"]["name"] for n in full["nodes"]]
        time.sleep(self.pause)
        for query in full["queries"]:
            self._ask(query, nodes)
        return full

    # -- the world ----------------------------------------------------------------------------------------------------

    def _set_up(self, record: Raw) -> None:
        for pod in self.api.items("/api/v1/pods"):
            if pod["metadata"].get("finalizers"):
                path = f"{PODS.format(pod['metadata']['namespace'])}/{pod['metadata']['name']}"
                self.api.patch(path, {"metadata": {"finalizers": None}})
        for namespace in ("default", "kube-public"):
            self.api.delete(QUOTAS.format(namespace))
        self.cluster.reset()
        for raw in record["nodes"]:
            self.cluster.create({"apiVersion": "v1", "kind": "Node", **raw})
        for raw in record["pods"]:
            self._create(raw)
        for raw in record.get("quotas") or ():
            self.api.create(QUOTAS.format(raw["metadata"]["namespace"]), {"apiVersion": "v1", **raw})

    def _create(self, raw: Mapping[str, Any]) -> None:
        body = {"apiVersion": "v1", "kind": "Pod", **json.loads(json.dumps(raw))}
        status, going = body.pop("status", None) or {}, body.pop("deleting", False)
        if going:
            body["metadata"]["finalizers"] = ["differential.test/stay"]
        if "nodeName" not in body["spec"]:
            body["spec"]["schedulingGates"] = [{"name": HOLD}]
        pods = PODS.format(body["metadata"]["namespace"])
        path = f"{pods}/{body['metadata']['name']}"
        self.api.create(pods, body)
        if status and status.get("phase") != "Pending":
            self.api.patch(f"{path}/status", {"status": status})
        if going:
            time.sleep(0.1)
            self.api.delete(path)

    # -- the questions ------------------------------------------------------------------------------------------------

    def _ask(self, query: Raw, nodes: list[str]) -> None:
        if query["op"] == "delete":
            self.api.delete(f"{PODS.format('default')}/{query['name']}?gracePeriodSeconds=0")
            time.sleep(0.05)
            return
        submitted = query["submitted"]
        namespace, name = submitted["metadata"]["namespace"], submitted["metadata"]["name"]
        gated = json.loads(json.dumps(submitted))
        gated["spec"]["schedulingGates"] = [{"name": HOLD}]
        body = {"apiVersion": "v1", "kind": "Pod", **gated}
        path = f"{PODS.format(namespace)}/{name}"
        for offered in [*([n] for n in nodes), nodes]:
            # a new pod per question: HAMi keeps the booking of a pod whose annotations are taken off before its end
            status, made = self.api.request("POST", PODS.format(namespace), body)
            if status not in (200, 201):
                query["denied"] = {"code": made["code"], "message": made["message"]}
                return
            spec, notes = made["spec"], made["metadata"].get("annotations") or {}
            parts = {p: [_shown(c) for c in spec[p]] for p in ("containers", "initContainers") if spec.get(p)}
            query["admitted"] = {"annotations": notes, "schedulerName": spec["schedulerName"], **parts}
            _, found = self.plane.hami("/filter", {"Pod": self.api.get(path), "NodeNames": offered})
            answer = self._read(found, path, set(notes))
            if offered is nodes:
                query["together"] = answer
            else:
                query.setdefault("per_node", {})[offered[0]] = answer
            if offered is not nodes or query["op"] != "keep":
                self.api.delete(f"{path}?gracePeriodSeconds=0")
            time.sleep(0.03)

    def _read(self, found: Mapping[str, Any], path: str, asked: set[str]) -> Raw:
        if found.get("Error"):
            return {"fits": False, "error": found["Error"]}
        if found.get("FailedNodes"):
            return {"fits": False, "reasons": found["FailedNodes"]}
        notes = self.api.get(path)["metadata"].get("annotations") or {}
        if "hami.io/vgpu-node" not in notes:
            return {"fits": True, "passed_through": True}
        fresh = {k: v for k, v in notes.items() if k not in asked and k not in IGNORED}
        return {"fits": True, "nodes": [notes["hami.io/vgpu-node"]], "written": fresh}


def _shown(container: Mapping[str, Any]) -> Raw:
    return {k: container[k] for k in ("name", "resources", "env", "securityContext", "restartPolicy") if k in container}
