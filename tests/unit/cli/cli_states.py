"""Builders of small Kubernetes lists."""

from __future__ import annotations

import gzip
import json


def make_node(name, *uuids, memory=24576):
    register = [
        {
            "id": u,
            "index": i,
            "count": 10,
            "devmem": memory,
            "devcore": 100,
            "type": "NVIDIA-A10",
            "mode": "hami-core",
            "health": True,
        }
        for i, u in enumerate(uuids)
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name},
            "annotations": {"hami.io/node-nvidia-register": json.dumps(register)},
        },
        "status": {
            "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "20"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def make_pod(name, where, uuid, mib, of=None, **annotations):
    of = of or name
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{of}-rs", "uid": f"rs-{of}", "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-11-01T00:00:00Z",
            "labels": {"app": name},
            "ownerReferences": [owner],
            "annotations": {
                "hami.io/vgpu-node": where,
                "hami.io/bind-phase": "success",
                "hami.io/vgpu-devices-allocated": f"{uuid},NVIDIA,{mib},0:;",
                **annotations,
            },
        },
        "spec": {
            "schedulerName": "hami-scheduler",
            "nodeName": where,
            "containers": [
                {
                    "name": "main",
                    "resources": {
                        "limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(mib)},
                        "requests": {"cpu": "1"},
                    },
                }
            ],
        },
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def replica_set(name, ready=2):
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": f"{name}-rs", "namespace": "team", "uid": f"rs-{name}"},
        "spec": {"replicas": 2},
        "status": {"replicas": 2, "readyReplicas": ready},
    }


def write_list(path, items):
    """A gzipped v1 List; returns its path as text."""
    path.write_bytes(gzip.compress(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}).encode()))
    return str(path)


def splinters():
    """Enough in sum, too little on any device: replicas a and b hold 10 GiB each of two 24-GiB devices. The one Ready
    replica of "big" stays."""
    return [
        make_node("n1", "GPU-a", "GPU-b"),
        make_node("n2", "GPU-c"),
        make_pod("a", "n1", "GPU-a", 10240, of="w"),
        make_pod("b", "n1", "GPU-b", 10240, of="w"),
        make_pod("big", "n2", "GPU-c", 20480),
        replica_set("w"),
        replica_set("big", ready=1),
    ]
