"""Builders of the objects that tests create: plain dicts as the API server takes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]
REGISTER = "hami.io/node-nvidia-register"
CORDON = "hami.io/device-cordon"


def utc(seconds: float | None = None) -> str:
    """An API timestamp: now, or that many seconds since the epoch."""
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def uuid(node: str, index: int) -> str:
    """The UUID of device ``index`` of ``node`` in these tests."""
    return f"GPU-{node}-{index}"


def device(
    identity: str,
    index: int = 0,
    *,
    memory: int = 24576,
    slots: int = 10,
    cores: int = 100,
    model: str = "NVIDIA A10",
    numa: int = 0,
    health: bool = True,
) -> Object:
    """One entry of the register annotation; zero values are left out, as HAMi's plugin does."""
    full: Object = {"id": identity, "index": index, "count": slots, "devmem": memory, "devcore": cores, "type": model}
    full |= {"numa": numa, "mode": "hami-core", "health": health}
    return {key: value for key, value in full.items() if value}


def node(
    name: str,
    devices: int | Sequence[Object] = 4,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    unschedulable: bool = False,
    cpu: str = "64",
    memory: str = "512Gi",
    ready: bool = True,
    **shape: Any,
) -> Object:
    """A Node with its devices registered; ``devices`` a number (of equal ones, ``shape`` as for `device`) or a list."""
    entries = [device(uuid(name, i), i, **shape) for i in range(devices)] if isinstance(devices, int) else list(devices)
    registered = {REGISTER: json.dumps(entries, separators=(",", ":"))} if entries else {}
    slots = str(sum(entry.get("count", 0) for entry in entries))
    amounts = {"cpu": cpu, "memory": memory, "pods": "250", "ephemeral-storage": "500Gi"}
    if entries:
        amounts["nvidia.com/gpu"] = slots
    condition = {
        "type": "Ready", "status": "True" if ready else "False", "reason": "Emulated",
        "lastHeartbeatTime": utc(), "lastTransitionTime": utc(),
    }  # fmt: skip
    spec: Object = {}
    if taints:
        spec["taints"] = [dict(taint) for taint in taints]
    if unschedulable:
        spec["unschedulable"] = True
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, **(labels or {})},
            "annotations": {**registered, **(annotations or {})},
        },
        "spec": spec,
        "status": {"capacity": amounts, "allocatable": dict(amounts), "conditions": [condition]},
    }


def container(
    name: str = "main",
    *,
    gpus: int | None = 1,
    mem: int | None = None,
    cores: int | None = None,
    percent: int | None = None,
    cpu: str = "100m",
) -> Object:
    """A container that asks for slices: ``gpus`` devices of ``mem`` MiB (or ``percent``) and ``cores`` percent each."""
    limits = {"cpu": cpu}
    for key, value in (("gpu", gpus), ("gpumem", mem), ("gpucores", cores), ("gpumem-percentage", percent)):
        if value is not None:
            limits[f"nvidia.com/{key}"] = str(value)
    return {"name": name, "image": "pause", "resources": {"limits": limits, "requests": {"cpu": cpu}}}


def pod_template(
    labels: Mapping[str, str],
    *,
    containers: Sequence[Object] | None = None,
    annotations: Mapping[str, str] | None = None,
    scheduler: str = "hami-scheduler",
    grace: int = 1,
    extra: Mapping[str, Any] | None = None,
    **request: Any,
) -> Object:
    """Pod metadata and spec; ``request`` as for `container`, ``extra`` is merged into the spec."""
    return {
        "metadata": {"labels": dict(labels), "annotations": dict(annotations or {})},
        "spec": {
            "schedulerName": scheduler,
            "terminationGracePeriodSeconds": grace,
            "containers": list(containers or [container(**request)]),
            **(extra or {}),
        },
    }


def pod(name: str, *, namespace: str = "default", labels: Mapping[str, str] | None = None, **template: Any) -> Object:
    """A bare pod."""
    made = pod_template(labels or {"app": name}, **template)
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, **made["metadata"]}, "spec": made["spec"],
    }  # fmt: skip


def _workload(kind: str, version: str, name: str, namespace: str, spec: Object, template: Mapping[str, Any]) -> Object:
    labels = {"app": name, **(template.get("labels") or {})}
    made = pod_template(labels, **{k: v for k, v in template.items() if k != "labels"})
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {**spec, "template": made},
    }


def deployment(name: str, replicas: int = 1, *, namespace: str = "default", **template: Any) -> Object:
    """A Deployment whose pods carry ``app: name``; ``template`` as for `pod_template`."""
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}}
    return _workload("Deployment", "apps/v1", name, namespace, spec, template)


def stateful_set(name: str, replicas: int = 1, *, namespace: str = "default", **template: Any) -> Object:
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "serviceName": name}
    return _workload("StatefulSet", "apps/v1", name, namespace, spec, template)


def job(name: str, *, namespace: str = "default", backoff_limit: int = 1, **template: Any) -> Object:
    made = _workload("Job", "batch/v1", name, namespace, {"backoffLimit": backoff_limit}, template)
    made["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    return made


def pdb(name: str, labels: Mapping[str, str], *, namespace: str = "default", **spec: Any) -> Object:
    """A PodDisruptionBudget; ``spec``: maxUnavailable=1 or minAvailable=..."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"matchLabels": dict(labels)}, **spec},
    }


def quota(name: str, hard: Mapping[str, str], *, namespace: str = "default") -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"hard": dict(hard)},
    }


def namespace(name: str, labels: Mapping[str, str] | None = None) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(labels or {})}}


def placement(
    name: str,
    node: str,
    devices: Sequence[str],
    labels: Mapping[str, str],
    *,
    namespace: str = "default",
    evict: str = "",
    **spec: Any,
) -> Object:
    """A HamiPodPlacement as a person would write it; ``spec`` adds or overrides fields."""
    return {
        "apiVersion": "scheduling.hami.placement.com/v1",
        "kind": "HamiPodPlacement",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "reqID": name,
            "podSelector": {"matchLabels": dict(labels)},
            "nodeName": node,
            "gpuDevices": list(devices),
            **({"evictPod": evict} if evict else {}),
            **spec,
        },
    }


COLLECTIONS = {
    "Node": "/api/v1/nodes",
    "Namespace": "/api/v1/namespaces",
    "Pod": "/api/v1/namespaces/{ns}/pods",
    "ResourceQuota": "/api/v1/namespaces/{ns}/resourcequotas",
    "Deployment": "/apis/apps/v1/namespaces/{ns}/deployments",
    "ReplicaSet": "/apis/apps/v1/namespaces/{ns}/replicasets",
    "StatefulSet": "/apis/apps/v1/namespaces/{ns}/statefulsets",
    "Job": "/apis/batch/v1/namespaces/{ns}/jobs",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{ns}/poddisruptionbudgets",
    "HamiPodPlacement": "/apis/scheduling.hami.placement.com/v1/namespaces/{ns}/hamipodplacements",
}
"""Kind -> path of its list."""


def path_of(body: Mapping[str, Any]) -> str:
    """The list path that an object is created under."""
    return COLLECTIONS[body["kind"]].format(ns=body["metadata"].get("namespace", "default"))
