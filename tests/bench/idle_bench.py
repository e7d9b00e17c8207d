"""What the idle daemon costs: memory and CPU of `defragd run` on a cluster that an API server in another process shows.

    python -m tests.bench.idle_bench [--states FILE] [--pods N] [--seconds S]

As HAMi does, every node's handshake annotation is written anew each 30 s. ``--pods``: a made-up cluster of
that many pods, twenty on a node, instead of a prepared state. Counted from ``--settle`` seconds after the start on.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.bench.__main__ import STATES
from tests.bench.reader_bench import pod
from tests.ground.process import free_port
from tests.support import fake_api

ROOT = Path(__file__).resolve().parents[2]
GROUP = "/apis/scheduling.hami.placement.com/v1"
REGISTER = "hami.io/node-nvidia-register"
BEAT = 30.0
PLACES = {"Node": "/api/v1/nodes", "Pod": "/api/v1/pods", "ReplicaSet": "/apis/apps/v1/replicasets"}
TICK = os.sysconf("SC_CLK_TCK")


def state_objects(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["items"]
    return found


def made_objects(pods: int) -> list[dict[str, Any]]:
    nodes = max(1, pods // 20)
    items: list[dict[str, Any]] = []
    for number in range(nodes):
        name = f"node-{number:05d}"
        devices = [
            {
                "id": f"GPU-{number * 8 + i:08d}-9a1b", "index": i, "count": 10, "devmem": 81920, "devcore": 100,
                "type": "NVIDIA-A100", "numa": 0, "mode": "hami-core", "health": True,
            }
            for i in range(8)
        ]  # fmt: skip
        status = {
            "allocatable": {"cpu": "96", "memory": "768Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        meta = {"name": name, "labels": {"gpu": "on"}, "annotations": {REGISTER: json.dumps(devices)}}
        items.append({"kind": "Node", "metadata": meta, "spec": {}, "status": status})
    for number in range(pods):
        item = {"kind": "Pod", **pod(number)}
        where, device = number % nodes, (number % nodes) * 8 + (number // nodes) % 8
        item["spec"]["nodeName"] = f"node-{where:05d}"
        item["metadata"]["annotations"]["hami.io/vgpu-node"] = f"node-{where:05d}"
        item["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"] = f"GPU-{device:08d}-9a1b,NVIDIA,4096,25:;"
        items.append(item)
    return items


def serve(options: argparse.Namespace, folder: str, ready: Any) -> None:
    api = fake_api.FakeApi()

    class Handler(fake_api._Handler):
        fake = api

        def _do(self, method: str) -> None:
            if self.path.startswith("/version"):
                self._send(200, {"major": "1", "minor": "31", "gitVersion": "v1.31.0"})
            elif self.path == GROUP:
                self._send(200, {"resources": [{"name": "hamipodplacements"}, {"name": "defragruns"}]})
            elif self.path.endswith("accessreviews"):
                self.rfile.read(int(self.headers["Content-Length"]))
                self._send(201, {"status": {"allowed": True}})
            else:
                fake_api._Handler._do(self, method)

    items = made_objects(options.pods) if options.pods else state_objects(options.states)
    count = 0
    for item in items:
        meta = item["metadata"]
        meta["resourceVersion"] = str(100 + count)
        meta.setdefault("uid", f"uid-{count}")
        if item["kind"] == "Node":
            api.objects.setdefault(PLACES["Node"], {})[f"/{meta['name']}"] = item
        else:
            api.raw_items.setdefault(PLACES[item["kind"]], []).append(json.dumps(item).encode())
        count += 1
    hook = {"metadata": {"name": "scheduling.hami.placement.com"}, "webhooks": []}
    api.put("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", hook)
    api.revision, api.bookmarks = 200 + count, False
    api.handler = Handler
    with api:
        ready.put((api.kubeconfig(Path(folder)), len(items)))
        nodes = list(api.objects["/api/v1/nodes"].values())
        stamp = 0
        while True:
            for node in nodes:
                stamp += 1
                changed = json.loads(json.dumps(node))
                changed["metadata"].setdefault("annotations", {})["hami.io/node-handshake"] = f"Requesting_{stamp}"
                api.put("/api/v1/nodes", changed)
                api.log["/api/v1/nodes"] = api.log["/api/v1/nodes"][-2000:]
                time.sleep(BEAT / len(nodes))
            api.bookmarks = True
            time.sleep(0.3)
            api.bookmarks = False


def used(pid: int) -> tuple[float, float, float]:
    """CPU seconds, resident MiB now and at most."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    mib = [int(lines[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM")]
    return (int(fields[11]) + int(fields[12])) / TICK, mib[0], mib[1]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", type=Path, default=STATES / "hami-churn-85-s1.json.gz")
    parser.add_argument("--pods", type=int, default=0)
    parser.add_argument("--settle", type=float, default=60)
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--log", action="store_true", help="also print the end of the daemon's log")
    options = parser.parse_args(arguments)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ready = context.Queue()
        server = context.Process(target=serve, args=(options, folder, ready), daemon=True)
        server.start()
        kubeconfig, count = ready.get(timeout=1200)
        api, hook = free_port(), free_port()
        log = Path(folder) / "log"
        command = [
            sys.executable, "-m", "defragd.cli.main", "run", "--kubeconfig", kubeconfig, "--policies",
            str(ROOT / "policies" / "best-fit.yaml"), "--api-address", f"127.0.0.1:{api}", "--webhook-address",
            f"127.0.0.1:{hook}", "--webhook-url", f"https://127.0.0.1:{hook}/mutate",
        ]  # fmt: skip
        with log.open("w") as out:
            daemon = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            time.sleep(options.settle)
            before, began = used(daemon.pid)[0], time.monotonic()
            threading.Event().wait(options.seconds)
            cpu, mib, most = used(daemon.pid)
            share = (cpu - before) / (time.monotonic() - began)
        except (FileNotFoundError, KeyError):
            print(log.read_text()[-2000:], file=sys.stderr)
            return 1
        finally:
            daemon.terminate()
            daemon.wait(30)
            server.terminate()
        print(
            f"{count} objects: {mib:.0f} MiB ({most:.0f} at most), {share * 100:.1f} % of a core, "
            f"{before:.1f} s of CPU to start"
        )
        if options.log:
            print(log.read_text()[-3000:])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
