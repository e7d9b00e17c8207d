"""Reads 20,000 realistic pods through the product's reader from a server in another process.

    python -m tests.bench.reader_bench [PODS]        goals: <= 0.5 s and <= 100 MiB more memory for 20,000 pods
    python -m tests.bench.reader_bench --snapshot    also snapshot() of 5,000 pods: first, unchanged, one pod changed

The server answers prepared pages, so what is measured is the network stack, the decoder and the store.
"""

from __future__ import annotations

import argparse
import http.server
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from defragd.kube import kinds, wire
from defragd.kube.client import Client
from defragd.kube.pages import PAGE
from defragd.kube.reflector import list_all
from defragd.kube.store import Hub, Store

GOAL_SECONDS, GOAL_MIB = 0.5, 100


def pod(number: int) -> dict[str, Any]:
    """About 7 kB, as `kubectl get pods -o json` shows pods of a shared GPU cluster (managed fields included)."""
    name, node, device = f"infer-{number // 4:05d}-7d9c6b5f4d-{number:05x}", f"node-{number % 500:04d}", number % 4000
    env = [{"name": f"SETTING_{i}", "value": f"value-of-setting-{i}-{number}"} for i in range(20)]
    mounts = [
        {"name": "kube-api-access", "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    ]
    fields = {f"f:key-{i}": {".": {}, "f:value": {}, "f:other": {}} for i in range(40)}
    times = "2026-09-01T02:00:00Z"
    return {
        "metadata": {
            "name": name,
            "namespace": f"team-{number % 20}",
            "uid": f"3d10af1f-582d-4560-bebd-{number:012x}",
            "resourceVersion": str(100000 + number),
            "creationTimestamp": times,
            "labels": {"app": f"infer-{number // 4:05d}", "pod-template-hash": "7d9c6b5f4d", "hami.io/vgpu-node": node},
            "annotations": {
                "hami.io/vgpu-node": node,
                "hami.io/bind-phase": "success",
                "hami.io/vgpu-devices-allocated": f"GPU-{device:08d}-9a1b,NVIDIA,4096,25:;",
            },
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": name[:-6],
                    "uid": f"216787cc-f19d-4725-b40f-{number // 4:012x}",
                    "controller": True,
                }
            ],
            "managedFields": [
                {"manager": m, "operation": "Update", "apiVersion": "v1", "time": times, "fieldsV1": fields}
                for m in ("kube-controller-manager", "hami")
            ],
        },
        "spec": {
            "schedulerName": "hami-scheduler",
            "nodeName": node,
            "priority": 0,
            "terminationGracePeriodSeconds": 30,
            "tolerations": [
                {
                    "key": f"node.kubernetes.io/{k}",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                }
                for k in ("not-ready", "unreachable")
            ],
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/team/infer:1.2.3",
                    "env": env,
                    "volumeMounts": mounts,
                    "resources": {
                        "limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "25"},
                        "requests": {"cpu": "500m", "memory": "2Gi", "nvidia.com/gpu": "1"},
                    },
                }
            ],
            "volumes": [{"name": "kube-api-access", "projected": {"sources": [{"serviceAccountToken": {}}]}}],
        },
        "status": {
            "phase": "Running",
            "startTime": times,
            "conditions": [
                {"type": t, "status": "True", "lastTransitionTime": times}
                for t in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
            ],
            "containerStatuses": [
                {"name": "main", "ready": True, "restartCount": 0, "state": {"running": {"startedAt": times}}}
            ],
        },
    }


def serve(count: int, ready: Any) -> None:
    """Pages of one prepared list."""
    items = [json.dumps(pod(n)).encode() for n in range(count)]
    pages = {}
    for start in range(0, count, PAGE):
        more = str(start + PAGE) if start + PAGE < count else ""
        head = json.dumps({"resourceVersion": "999999", "continue": more}).encode()
        body = b",".join(items[start : start + PAGE])
        pages[str(start)] = b'{"kind":"PodList","metadata":' + head + b',"items":[' + body + b"]}"

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            data = pages[query.get("continue", ["0"])[0]]
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    ready.put((server.server_address[1], sum(map(len, pages.values()))))
    server.serve_forever()


def rss_mib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def client_of(port: int) -> Client:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(
            {
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            },
            file,
        )
        file.flush()
        return Client.from_kubeconfig(file.name)


def read(port: int) -> tuple[float, float, float, Store[wire.Pod]]:
    """(seconds, of them on the CPU, MiB more, the store)."""
    client = client_of(port)
    decoder = kinds.PODS.decoder()
    store: Store[wire.Pod] = Store(Hub())
    before, began, busy = rss_mib(), time.perf_counter(), time.process_time()
    store.replace(*list_all(client, kinds.PODS, decoder))
    return time.perf_counter() - began, time.process_time() - busy, rss_mib() - before, store


def snapshots(store: Store[wire.Pod]) -> list[str]:
    """Times of snapshot() over these pods and 500 nodes with 8 devices each."""
    from datetime import UTC, datetime

    from defragd.hami.config import HamiConfig
    from defragd.kube.translation import Translation

    hub = Hub()
    stores: dict[str, Store[Any]] = {kind.name: Store(hub) for kind in kinds.world_kinds()}
    for other in stores.values():
        other.replace({}, "1", {})
    stores[kinds.PODS.name] = store
    nodes = {}
    for n in range(500):
        devices = [
            {"id": f"GPU-{n + 500 * i:08d}-9a1b", "index": i, "count": 10, "devmem": 24576, "devcore": 100,
             "type": "NVIDIA A10", "mode": "hami-core", "health": True}
            for i in range(8)
        ]  # fmt: skip
        meta = wire.ObjectMeta(
            name=f"node-{n:04d}",
            resource_version=str(n),
            annotations={"hami.io/node-nvidia-register": json.dumps(devices)},
        )
        nodes[meta.name] = (wire.Node(metadata=meta), meta.resource_version)
    stores[kinds.NODES.name].replace(nodes, "1", {})
    translation = Translation(stores, None, HamiConfig())
    lines = []

    def measure(what: str) -> None:
        began = time.perf_counter()
        found = translation.snapshot(datetime.now(UTC))
        lines.append(f"snapshot, {what}: {1000 * (time.perf_counter() - began):.1f} ms ({len(found.pods)} pods)")

    measure("first")
    measure("unchanged")
    for number in range(3):
        key = next(iter(store.items()))
        old = store.get(key)
        assert old is not None
        store.upsert(key, old, str(10**9 + number))
        measure("one pod changed")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pods", nargs="?", type=int, default=20_000)
    parser.add_argument("--snapshot", action="store_true", help="measure snapshot() of 5,000 pods as well")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args(arguments)
    context = multiprocessing.get_context("spawn")
    ready: Any = context.Queue()
    server = context.Process(target=serve, args=(options.pods, ready), daemon=True)
    server.start()
    try:
        port, size = ready.get(timeout=120)
        client_of(port)  # imports of the client library are not part of reading
        results = []
        for _ in range(options.runs):
            seconds, cpu, mib, store = read(port)
            results.append((seconds, mib))
            print(
                f"{len(store)} pods, {size / 2**20:.0f} MiB of JSON: {seconds:.2f} s ({cpu:.2f} s CPU), {mib:+.0f} MiB"
            )
            del store
        best, grown = min(s for s, _ in results), results[0][1]
        ok = best <= GOAL_SECONDS and grown <= GOAL_MIB
        verdict = "ok" if ok else "MISSED"
        print(f"best {best:.2f} s (goal {GOAL_SECONDS}), memory {grown:+.0f} MiB (goal {GOAL_MIB}): {verdict}")
    finally:
        server.terminate()
        server.join(5)
    if options.snapshot:
        small: Store[wire.Pod] = Store(Hub())
        decoder = kinds.PODS.decoder()
        for number in range(5000):
            item = decoder.item(json.dumps(pod(number)).encode())
            small.upsert(f"{item.metadata.namespace}/{item.metadata.name}", item, item.metadata.resource_version)
        print("\n".join(snapshots(small)))
    return 0 if ok else 1


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main())
