"""The stand-in as a program, with the real scheduler's flags: `python -m tests.ground.hami --http_bind=... ...`.

HTTP(S): `/filter`, `/bind`, `/webhook`, `/healthz`; for tests `/ground/nodes`, `/ground/books` and `/ground/habits`.
Metrics (plain HTTP): HAMi's own names for what is registered and booked.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import signal
import ssl
import sys
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.ground.api import Api
from tests.ground.hami import books
from tests.ground.hami.admission import Denied, admit
from tests.ground.hami.caches import Caches, Limiter
from tests.ground.hami.config import NVIDIA_DEFAULTS
from tests.ground.hami.decide import World
from tests.ground.hami.extender import Extender
from tests.ground.hami.habits import Habits


class Service:
    """Routes requests; owns nothing but the wiring."""

    def __init__(self, caches: Caches, extender: Extender, habits: Habits, flag_qps: float, burst: int) -> None:
        self.caches, self.extender, self.first = caches, extender, habits
        self.flag_qps, self.burst = flag_qps, burst

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/ground/habits":
            return self._habits(body)
        while self.caches.habits.hang:
            time.sleep(0.05)
        if path == "/filter":
            return 200, self.extender.filter(body)
        if path == "/bind":
            return 200, self.extender.bind(body)
        if path == "/webhook":
            return 200, self._review(body)
        return 404, {"Error": path}

    def get(self, path: str) -> tuple[int, Any]:
        if path in ("/healthz", "/readyz"):
            return 200, {}
        if path == "/ground/nodes":
            with self.caches.lock:
                return 200, {"nodes": sorted(self.caches.world.nodes), "started": self.caches.started.is_set()}
        if path == "/ground/books":
            with self.caches.lock:
                return 200, {
                    uid: {"namespace": b.namespace, "node": b.node, "use": {k: list(v) for k, v in b.use.items()}}
                    for uid, b in self.caches.world.bookings.items()
                }
        return 404, {"Error": path}

    def _habits(self, changes: dict[str, Any]) -> tuple[int, Any]:
        base = self.first if changes.pop("reset", False) else self.caches.habits
        try:
            habits = base.change(changes)
        except (ValueError, TypeError) as error:
            return 400, {"Error": str(error)}
        self.caches.habits = habits
        self.caches.limiter.qps = habits.qps or self.flag_qps
        self.caches.limiter.burst = max(1, round(2 * habits.qps)) if habits.qps else self.burst
        return 200, {}

    def _review(self, review: dict[str, Any]) -> dict[str, Any]:
        request = review["request"]
        response: dict[str, Any] = {"uid": request["uid"], "allowed": True}
        pod = request["object"]
        try:
            with self.caches.lock:
                changed = admit(self.caches.world, pod, request.get("namespace", "default"))
        except Denied as refusal:
            response |= {"allowed": False, "status": {"message": str(refusal), "code": refusal.code}}
        else:
            if patch := _patch(pod, changed):
                text = base64.b64encode(json.dumps(patch).encode()).decode()
                response |= {"patchType": "JSONPatch", "patch": text}
        return {"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response}

    def metrics(self) -> str:
        """Exposition text in HAMi's names."""
        lines = ['hami_build_info{version="v2.10.0"} 1']
        with self.caches.lock:
            for name, known in self.caches.world.nodes.items():
                cards = books.used_cards(known, list(self.caches.world.bookings.values()))
                for card in cards:
                    label = f'zone="vGPU",node="{name}",device_uuid="{card.uuid}",device_index="{card.index}"'
                    label += f',device_type="{card.model}"'
                    mib = 1024 * 1024
                    lines += [
                        f"hami_gpu_memory_limit_bytes{{{label}}} {card.memory * mib}",
                        f"hami_gpu_core_limit_ratio{{{label}}} {card.cores}",
                        f"hami_gpu_shared_count{{{label}}} {card.used}",
                        f"hami_gpu_core_allocated_ratio{{{label}}} {card.used_cores}",
                        f'hami_gpu_memory_allocated_bytes{{{label},device_cores="{card.cores}"}} '
                        f"{card.used_memory * mib}",
                    ]
            for booked in self.caches.world.bookings.values():
                label = f'zone="vGPU",namespace="{booked.namespace}",node="{booked.node}",pod="{booked.name}"'
                lines += [
                    f'hami_vgpu_memory_allocated_bytes{{{label},container_index="0",device_uuid="{uuid}"}} '
                    f"{memory * 1024 * 1024}"
                    for uuid, (_, memory, _) in booked.use.items()
                ]
        return "\n".join(lines) + "\n"


def _patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The few fields that HAMi's webhook changes, as a JSON patch."""
    ops: list[dict[str, Any]] = [
        {"op": "add", "path": f"/spec/{field}", "value": after["spec"][field]}
        for field in ("schedulerName", "runtimeClassName")
        if after["spec"].get(field) != before["spec"].get(field)
    ]
    for part in ("initContainers", "containers"):
        pairs = zip(before["spec"].get(part) or [], after["spec"].get(part) or [], strict=True)
        for number, (old, new) in enumerate(pairs):
            if old.get("resources") != new.get("resources"):
                limits = new["resources"]["limits"]
                ops.append({"op": "add", "path": f"/spec/{part}/{number}/resources/limits", "value": limits})
            if old.get("env") != new.get("env"):
                ops.append({"op": "add", "path": f"/spec/{part}/{number}/env", "value": new["env"]})
    return ops


class Server(ThreadingHTTPServer):
    """TLS handshakes happen in the connection's own thread: a silent client blocks nobody."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], tls: ssl.SSLContext | None
    ) -> None:
        self.tls = tls
        super().__init__(address, handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self.tls:
            request.settimeout(60)
            request = self.tls.wrap_socket(request, server_side=True)
        super().finish_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            print(f"{client_address}: {error!r}", file=sys.stderr, flush=True)


def _handler(service: Service) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._answer(*service.post(self.path.split("?")[0], json.loads(raw or b"{}")))

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._send(200, service.metrics().encode(), "text/plain; version=0.0.4")
            else:
                self._answer(*service.get(self.path))

        def _answer(self, status: int, body: Any) -> None:
            self._send(status, json.dumps(body).encode(), "application/json")

        def _send(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


def _client(kubeconfig: Path) -> Api:
    config = json.loads(kubeconfig.read_text())
    authority = kubeconfig.with_name("ca.crt")
    return Api(config["clusters"][0]["cluster"]["server"], config["users"][0]["user"]["token"], str(authority))


def _seconds(text: str) -> float:
    units = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
    for unit, factor in units.items():
        if text.endswith(unit) and text[: -len(unit)].replace(".", "").isdigit():
            return float(text[: -len(unit)]) * factor
    return float(text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.ground.hami")
    parser.add_argument("--http_bind", required=True)
    parser.add_argument("--metrics-bind-address", required=True)
    parser.add_argument("--device-config-file", required=True)
    parser.add_argument("--cert_file")
    parser.add_argument("--key_file")
    parser.add_argument("--node-scheduler-policy", default="binpack")
    parser.add_argument("--gpu-scheduler-policy", default="spread")
    parser.add_argument("--kube-qps", type=float, default=5)
    parser.add_argument("--kube-burst", type=int, default=10)
    parser.add_argument("--node-lock-timeout", default="5m")
    parser.add_argument("--habits", default="{}")
    flags, _ = parser.parse_known_args()
    habits = Habits().change(json.loads(flags.habits))
    nvidia = {**NVIDIA_DEFAULTS, **json.loads(Path(flags.device_config_file).read_text())["nvidia"]}
    world = World(nvidia=nvidia, node_policy=flags.node_scheduler_policy, gpu_policy=flags.gpu_scheduler_policy)
    api = _client(Path(os.environ["KUBECONFIG"]))
    limiter = Limiter(habits.qps or flags.kube_qps, flags.kube_burst)
    caches = Caches(api, world, habits, limiter)
    extender = Extender(caches, api, lock_seconds=_seconds(flags.node_lock_timeout))
    service = Service(caches, extender, habits, flags.kube_qps, flags.kube_burst)
    tls = None
    if flags.cert_file:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(flags.cert_file, flags.key_file)
    handler = _handler(service)
    for address, context in ((flags.http_bind, tls), (flags.metrics_bind_address, None)):
        host, port = address.rsplit(":", 1)
        server = Server((host, int(port)), handler, context)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    caches.start()
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    return 0


if __name__ == "__main__":
    sys.exit(main())
