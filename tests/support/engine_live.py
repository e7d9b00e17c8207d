"""The engine alone on a real API server: watches, webhook over TLS, loops in threads; no policies, no election."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from defragd.controllers.gates import GateKeeper
from defragd.controllers.heartbeats import HeartbeatLoop
from defragd.controllers.janitor import Janitor
from defragd.controllers.lane import PoolLane
from defragd.controllers.placements import PlacementController
from defragd.core.admission import admit
from defragd.hami.vendors import VENDORS
from defragd.kube.client import Client
from defragd.kube.cluster import KubeCluster, SystemClock
from defragd.kube.heartbeats import KubeHeartbeats
from defragd.ports import Note
from defragd.web.serve import Server
from defragd.web.webhook import create_webhook_app
from tests.ground.cluster import Cluster
from tests.ground.pki import Authority

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


class Leading:
    identity = "engine"

    def __init__(self) -> None:
        self.leading = True

    def is_leader(self) -> bool:
        return self.leading

    def holder(self) -> str:
        return self.identity if self.leading else ""


class LiveEngine:
    """One replica; ``hooks`` is what its parts reported, ``notes`` its Events."""

    def __init__(self, cluster: Cluster, folder: Path, *, name: str = "engine") -> None:
        self.clock = SystemClock()
        self.hooks: list[tuple[str, dict[str, Any]]] = []
        self.notes: list[Note] = []
        self.leading = Leading()
        self.client = Client.from_kubeconfig(cluster.plane.write_kubeconfig(name, cluster.api.token), hook=self.hook)
        self.kube = KubeCluster(self.client, namespace="kube-system", clock=self.clock, leadership=self.leading)
        self.beats = KubeHeartbeats(self.client, namespace="kube-system", identity=name)
        shared: dict[str, Any] = {
            "reader": self.kube,
            "placements": self.kube.placements,
            "pods": self.kube.pods,
            "clock": self.clock,
            "hook": self.hook,
        }
        leads: dict[str, Any] = {**shared, "leadership": self.leading, "vendors": VENDORS}
        self.gates = GateKeeper(**shared, lane=PoolLane())
        self.engine = PlacementController(
            **leads,
            events=self,
            heartbeats=self.beats,
            seen=self.kube.placements.seen,
            heartbeats_ready=self.beats.synced,
            lane=PoolLane(),
        )
        self.janitor = Janitor(**leads)
        self.loop = HeartbeatLoop(
            heartbeats=self.beats,
            placements=self.kube.placements,
            reader=self.kube,
            clock=self.clock,
            seen=self.kube.placements.seen,
        )
        authority = Authority(folder)
        crt, key = authority.issue(name)
        self.bundle = authority.bundle
        self.server = Server(
            create_webhook_app(self.decide, self.hook), "127.0.0.1:0", tls=(crt.read_bytes(), key.read_bytes())
        )
        self.stopping = threading.Event()
        self.threads: list[threading.Thread] = []

    def hook(self, event: str, fields: Mapping[str, Any]) -> None:
        self.hooks.append((event, dict(fields)))

    def emit(self, note: Note) -> None:
        self.notes.append(note)

    def decide(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        return admit(request, self.kube.placements.list(), now=self.clock.now(), vendors=VENDORS)

    def start(self) -> None:
        self.kube.start()
        self.kube.wait_synced(20.0)
        self.beats.start()
        self.beats.set_serving(True)
        self.server.start()
        for loop in (self.gates.run, self.engine.run, self.janitor.run, self.loop.run):
            thread = threading.Thread(target=loop, args=(self.stopping,), daemon=True)
            thread.start()
            self.threads.append(thread)

    def stop(self) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join(5.0)
        self.server.stop()
        self.beats.stop()
        self.kube.stop()
        self.client.close()

    def calls(self) -> list[str]:
        """Writes and lists so far, but for heartbeats."""
        return [
            f"{f['verb']} {f['resource']}"
            for e, f in self.hooks
            if e == "api.call" and "lease" not in str(f["resource"]) and str(f["verb"]).lower() not in ("watch",)
        ]


@contextlib.contextmanager
def engine_on(cluster: Cluster, folder: Path) -> Iterator[LiveEngine]:
    engine = LiveEngine(cluster, folder)
    engine.start()
    config = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "scheduling.hami.placement.com"},
        "webhooks": [
            {
                "name": "pods.scheduling.hami.placement.com",
                "clientConfig": {"url": f"https://127.0.0.1:{engine.server.port}/mutate", "caBundle": engine.bundle},
                "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Ignore",
                "timeoutSeconds": 3,
            }
        ],
    }
    cluster.api.create(WEBHOOKS, config)
    try:
        yield engine
    finally:
        engine.stop()
        with contextlib.suppress(Exception):
            cluster.api.delete(f"{WEBHOOKS}/scheduling.hami.placement.com")
