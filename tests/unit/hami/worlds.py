"""Small Kubernetes objects for the tests of HAMi's formats, as wire structs."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from defragd.core.snapshot import Snapshot
from defragd.hami.config import HamiConfig
from defragd.hami.translate import assemble, translate_node, translate_pod
from defragd.kube import wire

CONFIG = HamiConfig()


def device(uuid: str, **changes: Any) -> dict[str, Any]:
    base = {"id": uuid, "count": 10, "devmem": 40960, "devcore": 100, "type": "NVIDIA A100", "mode": "hami-core"}
    return {**base, "health": True, **changes}


def node(name: str = "n1", devices: list[dict[str, Any]] | None = None, **annotations: str) -> wire.Node:
    devices = [device(f"{name}-g0")] if devices is None else devices
    raw = {
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name},
            "annotations": {"hami.io/node-nvidia-register": json.dumps(devices), **annotations},
        },
        "status": {
            "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "10"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    return msgspec.convert(raw, wire.Node)


def pod(
    name: str = "p1",
    limits: list[dict[str, str]] | None = None,
    *,
    node: str = "",
    held: str = "",
    annotations: dict[str, str] | None = None,
    init: list[dict[str, Any]] | None = None,
    spec: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    labels: dict[str, str] | None = None,
) -> wire.Pod:
    notes = dict(annotations or {})
    if held:
        notes |= {"hami.io/vgpu-devices-allocated": held, "hami.io/vgpu-node": node}
    raw: dict[str, Any] = {
        "metadata": {
            "name": name,
            "namespace": "t",
            "uid": f"uid-{name}",
            "annotations": notes,
            "labels": labels or {},
        },
        "spec": {
            "schedulerName": "hami-scheduler",
            "nodeName": node,
            "containers": [{"name": f"c{i}", "resources": {"limits": one}} for i, one in enumerate(limits or [{}])],
            **(spec or {}),
        },
        "status": status or {"phase": "Running" if node else "Pending"},
    }
    if init:
        raw["spec"]["initContainers"] = init
    return msgspec.convert(raw, wire.Pod)


def world(nodes: list[wire.Node], pods: list[wire.Pod]) -> Snapshot:
    found = [translate_node(n, CONFIG) for n in nodes]
    values = [translate_pod(p, CONFIG) for p in pods]
    return assemble(
        nodes={n.name: n for n, _ in found},
        pods={p.key: p for p in values},
        problems=[p for _, problems in found for p in problems],
    )
