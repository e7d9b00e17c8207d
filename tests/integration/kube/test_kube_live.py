"""The adapter against the real API server: watches through a restart, evictions, fences, certificates, rights."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from defragd.core.model import Allocation
from defragd.core.placement import Condition, Phase, Step
from defragd.core.run import MoveState, Run, RunMove, RunPhase
from defragd.errors import Forbidden
from defragd.kube import discovery, snapshot_file, webhook_config
from defragd.kube.certs import CertKeeper, ServingPair
from defragd.kube.client import Client
from defragd.kube.cluster import KubeCluster, read_snapshot, read_stores
from defragd.kube.events import KubeEvents
from defragd.kube.heartbeats import KubeHeartbeats
from defragd.kube.leader import LeaderElector
from defragd.ports import Note, Outcome
from tests.ground import objects
from tests.ground.api import wait_for
from tests.ground.cluster import Cluster

pytestmark = pytest.mark.controlplane


@pytest.fixture
def kube(cluster: Cluster) -> Iterator[KubeCluster]:
    made = KubeCluster(Client.from_kubeconfig(str(cluster.plane.kubeconfig)), namespace="kube-system")
    made.start()
    made.wait_synced(20)
    yield made
    made.stop()


def client(cluster: Cluster) -> Client:
    return Client.from_kubeconfig(str(cluster.plane.kubeconfig))


def until(kube: KubeCluster, condition: Callable[[], Any], seconds: float = 15) -> Any:
    end, version = time.monotonic() + seconds, -1
    while time.monotonic() < end:
        if found := condition():
            return found
        version = kube.wait(version, 0.2)
    raise AssertionError("not reached")


def running(cluster: Cluster, kube: KubeCluster, replicas: int = 2) -> list[str]:
    cluster.add_node("n0", 2)
    cluster.create(objects.deployment("web", replicas, mem=4000))
    cluster.wait_ready(replicas)
    until(kube, lambda: sum(p.ready for p in kube.snapshot().pods.values()) == replicas)
    return sorted(kube.snapshot().pods)


def test_the_snapshot_of_a_real_cluster(cluster: Cluster, kube: KubeCluster) -> None:
    keys = running(cluster, kube)
    snapshot = kube.snapshot()
    assert snapshot.known == {"pdbs", "workloads", "quotas", "namespaces", "volumes", "placements"}
    assert sum(use.memory_mib for use in snapshot.usage("n0").values()) == 8000
    pod = snapshot.pods[keys[0]]
    workload = snapshot.workload_of(pod)
    assert workload is not None and (workload.kind, workload.top.name) == ("ReplicaSet", "web")  # type: ignore[union-attr]
    once = read_snapshot(client(cluster))
    assert (once.nodes.keys(), once.pods.keys(), once.known) == (
        snapshot.nodes.keys(),
        snapshot.pods.keys(),
        snapshot.known,
    )


def test_a_restarted_api_server_is_followed_again(cluster: Cluster, kube: KubeCluster) -> None:
    running(cluster, kube)
    cluster.plane.kill("apiserver")
    time.sleep(0.3)
    assert len(kube.snapshot().pods) == 2, "the last that is known"
    cluster.plane.restart("apiserver")
    cluster.scale("Deployment", "web", 3)
    until(kube, lambda: len(kube.snapshot().pods) == 3, 40)
    until(kube, lambda: kube.age_seconds() < 30, 40)


def test_no_list_in_steady_state(cluster: Cluster) -> None:
    calls: list[str] = []
    hook = lambda event, fields: calls.append(fields["verb"]) if event == "api.call" else None
    made = KubeCluster(
        Client.from_kubeconfig(str(cluster.plane.kubeconfig), hook=hook), namespace="kube-system", watch_seconds=2
    )
    made.start()
    try:
        made.wait_synced(20)
        before = calls.count("list")
        running(cluster, made)
        time.sleep(3.0)
        assert calls.count("list") == before and calls.count("watch") > 2 * 13, "watches ended and went on"
    finally:
        made.stop()


def observed(cluster: Cluster, name: str) -> bool:
    """The disruption controller has looked at the budget."""
    path = objects.COLLECTIONS["PodDisruptionBudget"].format(ns="default")
    return (cluster.api.get(f"{path}/{name}").get("status") or {}).get("observedGeneration", 0) > 0


def test_outcomes_of_real_evictions(cluster: Cluster, kube: KubeCluster) -> None:
    keys = running(cluster, kube, 3)
    pods = [kube.snapshot().pods[key] for key in keys]
    target = pods[0]
    assert kube.pods.evict(replace(target, uid="other")).outcome is Outcome.CONFLICT
    assert kube.pods.evict(replace(target, name="none")).outcome is Outcome.GONE
    stale = kube.pods.evict(replace(target, revision="1"), check_revision=True)
    assert stale.outcome is Outcome.CONFLICT

    cluster.create(objects.pdb("none", {"app": "web"}, maxUnavailable=0))
    budgets = lambda: {b.name: b for b in kube.snapshot().budgets}
    wait_for(lambda: observed(cluster, "none"), 15)
    for dry in (True, False):
        blocked = kube.pods.evict(target, dry_run=dry)
        assert (blocked.outcome, blocked.retry_after) == (Outcome.BLOCKED, None) and "budget" in blocked.message

    cluster.create(objects.pdb("second", {"app": "web"}, maxUnavailable=1))
    wait_for(lambda: observed(cluster, "second"), 15)
    for dry in (True, False):
        refused = kube.pods.evict(target, dry_run=dry)
        assert refused.outcome is Outcome.REFUSED and "more than one PodDisruptionBudget" in refused.message

    cluster.api.delete(objects.COLLECTIONS["PodDisruptionBudget"].format(ns="default") + "/none")
    until(kube, lambda: "none" not in budgets())
    assert kube.pods.evict(target, dry_run=True).ok
    assert cluster.pod(target.name)["metadata"]["uid"] == target.uid, "a dry run changes nothing"
    assert kube.pods.evict(target).ok
    until(kube, lambda: target.key not in kube.snapshot().pods and len(kube.snapshot().pods) == 3)


def test_a_budget_that_nobody_has_looked_at_blocks_with_a_hint(cluster: Cluster, kube: KubeCluster) -> None:
    keys = running(cluster, kube)
    cluster.plane.freeze("kcm")
    try:
        cluster.create(objects.pdb("fresh", {"app": "web"}, maxUnavailable=1))
        until(kube, lambda: [b.allowed for b in kube.snapshot().budgets] == [0])
        blocked = kube.pods.evict(kube.snapshot().pods[keys[0]])
        assert (blocked.outcome, blocked.retry_after) == (Outcome.BLOCKED, 10.0)
    finally:
        cluster.plane.thaw("kcm")


def test_a_pin_is_one_patch_and_another_pods_uid_is_a_conflict(cluster: Cluster, kube: KubeCluster) -> None:
    cluster.add_node("n0", 2)
    gate = {"schedulingGates": [{"name": "scheduling.hami.placement.com/hold"}]}
    body = objects.pod("one", mem=4000)
    body["spec"] |= gate
    cluster.create(body)
    pod = until(kube, lambda: kube.snapshot().pods.get("default/one"))
    assert pod.gates == ("scheduling.hami.placement.com/hold",)
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n0"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    patch = {
        "metadata": {
            "uid": pod.uid,
            "annotations": {
                "nvidia.com/use-gpuuuid": objects.uuid("n0", 1),
                "scheduling.hami.placement.com/pinned": "p",
            },
        },
        "spec": {"schedulingGates": None, "affinity": {"nodeAffinity": required}},
    }
    wrong = {**patch, "metadata": {**patch["metadata"], "uid": "other"}}  # type: ignore[dict-item]
    assert kube.pods.patch_pod("default", "one", wrong).outcome is Outcome.CONFLICT
    assert kube.pods.patch_pod("default", "one", patch).ok
    mine = kube.snapshot().pods["default/one"]
    assert mine.gates == () and mine.selection.pinned_by_us
    until(kube, lambda: kube.snapshot().pods["default/one"].devices == (objects.uuid("n0", 1),))


def test_placements_and_runs_are_stored_and_read_back(cluster: Cluster, kube: KubeCluster) -> None:
    cluster.add_node("n0", 2)
    cluster.create(objects.placement("p", "n0", ["gpu-1"], {"app": "web"}, settle="1s"))
    mine = until(kube, lambda: kube.placements.get("default", "p"))
    assert kube.placements.seen() >= int(mine.revision)
    now = datetime.now(UTC)
    status = replace(
        mine.status,
        phase=Phase.HELD,
        step=Step.HELD,
        reason="Held",
        message="the target is proven",
        observed_generation=mine.generation,
        held_at=now,
        devices=(objects.uuid("n0", 1),),
        hold=(Allocation(0, objects.uuid("n0", 1), 4000, 10),),
        conditions=(Condition("Held", "True", "Held", "", now, mine.generation),),
    )
    assert kube.placements.write_status(mine, status).ok
    assert kube.placements.get("default", "p").status == status  # type: ignore[union-attr]
    assert kube.placements.write_status(mine, status).outcome is Outcome.CONFLICT
    assert kube.snapshot().usage("n0")[objects.uuid("n0", 1)].memory_mib == 4000
    assert kube.placements.delete(kube.placements.get("default", "p")).ok  # type: ignore[arg-type]
    until(kube, lambda: not kube.placements.list())

    run = Run(
        "kube-system",
        "r-live",
        "nightly",
        "Approve",
        "best-fit",
        phase=RunPhase.AWAITING_APPROVAL,
        moves=(RunMove("m"),),
    )
    assert kube.runs.create(run).ok
    assert kube.runs.write_desired("r-live", "Approved", "ada").ok
    refused = kube.runs.write_desired("r-live", "Later", "ada")
    assert refused.outcome is Outcome.REFUSED and "Approved" in refused.message
    stored = kube.runs.get("r-live")
    assert stored is not None and (stored.desired, stored.phase) == ("Approved", RunPhase.AWAITING_APPROVAL)
    done = replace(stored, phase=RunPhase.COMPLETED, moves=(RunMove("m", MoveState.DONE),), finished=now)
    assert kube.runs.write_status(done).ok
    assert replace(kube.runs.get("r-live"), revision="") == replace(done, revision="")  # type: ignore[type-var]
    assert kube.runs.delete(done).ok


RULES = [
    {"apiGroups": [""], "resources": ["nodes", "pods", "namespaces"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["apps"], "resources": ["replicasets"], "verbs": ["get", "list", "watch"]},
    {
        "apiGroups": ["scheduling.hami.placement.com"],
        "resources": ["hamipodplacements", "defragruns"],
        "verbs": ["get", "list", "watch"],
    },
]


def test_missing_rights_make_kinds_unknown_or_name_what_is_missing(cluster: Cluster) -> None:
    few = cluster.plane.service_account("reader-few", RULES)
    made = KubeCluster(Client.from_kubeconfig(str(few.kubeconfig)), namespace="kube-system")
    made.start()
    try:
        made.wait_synced(20)
        assert made.snapshot().known == {"namespaces", "placements"}
        assert "statefulsets" in made.unknown_kinds()["statefulsets"]
        pod = cluster.api.create("/api/v1/namespaces/default/pods", objects.pod("bare"))
        until(made, lambda: "default/bare" in made.snapshot().pods)
        refused = made.pods.evict(made.snapshot().pods["default/bare"])
        assert refused.outcome is Outcome.REFUSED and "pods/eviction" in refused.message
        assert pod["metadata"]["uid"] == cluster.pod("bare")["metadata"]["uid"]
    finally:
        made.stop()
    none = cluster.plane.service_account("reader-none", [])
    with pytest.raises(Forbidden, match=r"reader-none.*cannot list.*nodes"):
        read_snapshot(Client.from_kubeconfig(str(none.kubeconfig)))
    broken = cluster.plane.write_kubeconfig("kubeconfig-broken", "no-such-token")
    with pytest.raises(Forbidden, match="does not accept these credentials"):
        read_snapshot(Client.from_kubeconfig(str(broken)))


def test_leader_heartbeats_and_events(cluster: Cluster) -> None:
    quick = {"lease_seconds": 3.0, "renew_deadline": 2.0, "retry_seconds": 0.2}
    both = [LeaderElector(client(cluster), namespace="kube-system", identity=f"r{n}", **quick) for n in range(2)]
    beats = [KubeHeartbeats(client(cluster), namespace="kube-system", identity=f"r{n}") for n in range(2)]
    for part in (*both, *beats):
        part.start()
    try:
        wait_for(lambda: sum(e.is_leader() for e in both) == 1, 10)
        beats[1].set_serving(True)
        beats[1].publish(12345)
        wait_for(lambda: [(b.identity, b.seen, b.serving) for b in beats[0].others()] == [("r1", 12345, True)], 10)
        leader, other = sorted(both, key=lambda e: not e.is_leader())
        began = time.monotonic()
        leader.stop()
        wait_for(other.is_leader, 10)
        assert time.monotonic() - began < 2.5 and not leader.is_leader()
    finally:
        for part in (*both, *beats):
            part.stop()
    names = [
        i["metadata"]["name"] for i in cluster.api.items("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases")
    ]
    assert [n for n in names if n.startswith("gpu-descheduler-")] == []

    sink = KubeEvents(client(cluster), identity="r0")
    sink.start()
    made = cluster.create(objects.placement("p", "n0", ["gpu-1"], {"app": "web"}))[0]["metadata"]
    for _ in range(2):
        sink.emit(Note("HamiPodPlacement", "default", "p", made["uid"], "Held", "x" * 3000, warning=True))
    sink.stop()
    found = [reason for reason, _ in cluster.events("p")]
    assert found == ["Held"]


WEBHOOK_RULES = [
    {
        "apiGroups": ["admissionregistration.k8s.io"],
        "resources": ["mutatingwebhookconfigurations"],
        "resourceNames": [webhook_config.NAME],
        "verbs": ["get", "list", "watch", "create", "patch", "update"],
    },
]
SECRET_RULES = [
    {
        "apiGroups": [""],
        "resources": ["secrets"],
        "resourceNames": ["gpu-descheduler-webhook-tls"],
        "verbs": ["get", "list", "watch", "update", "patch"],
    },
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
]


class Hook:
    """An HTTPS admission webhook that marks every pod, with a certificate that can be swapped while it runs."""

    def __init__(self, folder: Any) -> None:
        self.folder, self.seen = folder, []  # type: ignore[var-annotated]
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.seen.append(review["request"]["namespace"])
                answer = {"uid": review["request"]["uid"], "allowed": True}
                body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer})
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread: threading.Thread | None = None
        self.port = self.server.server_address[1]

    def swap(self, pair: ServingPair) -> None:
        for name, data in (("crt", pair.cert), ("key", pair.key)):
            (self.folder / name).write_bytes(data)
        self.context.load_cert_chain(self.folder / "crt", self.folder / "key")

    def start(self) -> None:
        self.server.socket = self.context.wrap_socket(self.server.socket, server_side=True)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def stop(self) -> None:
        if self.thread is not None:
            self.server.shutdown()
        self.server.server_close()


def test_the_api_server_calls_us_with_our_certificate_under_rights_on_one_name_only(
    cluster: Cluster, tmp_path: Any
) -> None:
    user = cluster.plane.service_account("webhook-user", WEBHOOK_RULES, namespaced_rules=SECRET_RULES)
    hook = Hook(tmp_path)
    url = f"https://127.0.0.1:{hook.port}/mutate"
    keepers = [
        CertKeeper(
            Client.from_kubeconfig(str(user.kubeconfig)),
            namespace="kube-system",
            hosts=("127.0.0.1",),
            url=url,
            match_conditions=discovery.server_version(client(cluster)).minor >= 28,
            on_pair=hook.swap if first else lambda pair: None,
        )
        for first in (True, False)
    ]
    for one in keepers:
        one.start()
    try:
        wait_for(lambda: all(k.ready() for k in keepers), 15)
        hook.start()
        assert keepers[0].pair() == keepers[1].pair()
        path = f"{webhook_config.PATH}/{webhook_config.NAME}"
        cluster.create(objects.namespace("left-alone", {"hami.io/webhook": "ignore"}))

        def called() -> bool:
            cluster.api.create("/api/v1/namespaces/default/pods?dryRun=All", objects.pod("probe"))
            return "default" in hook.seen

        wait_for(called, 10, "the webhook is called", 0.1)
        for where, labels in (("kube-system", {}), ("default", {"hami.io/webhook": "ignore"}), ("left-alone", {})):
            hook.seen.clear()
            body = objects.pod("other", namespace=where, labels=labels)
            cluster.api.create(f"/api/v1/namespaces/{where}/pods?dryRun=All", body)
            assert hook.seen == [], (where, labels)

        patch = {
            "webhooks": [{"name": webhook_config.HOOK_NAME, "clientConfig": {"caBundle": ""}, "timeoutSeconds": 9}]
        }
        cluster.api.patch(path, patch, webhook_config.STRATEGIC_PATCH)
        wait_for(lambda: cluster.api.get(path)["webhooks"][0]["timeoutSeconds"] == 2, 10, "put right again")
        wait_for(lambda: all(k.ready() for k in keepers), 10)
        service = {"service": {"name": "s", "namespace": "kube-system"}, "url": None}
        patch = {"webhooks": [{"name": webhook_config.HOOK_NAME, "clientConfig": service}]}
        cluster.api.patch(path, patch, webhook_config.STRATEGIC_PATCH)
        wait_for(lambda: cluster.api.get(path)["webhooks"][0]["clientConfig"].get("url") == url, 10, "ours again")
        before = keepers[0].pair()
        cluster.api.delete("/api/v1/namespaces/kube-system/secrets/gpu-descheduler-webhook-tls")
        wait_for(lambda: all(k.ready() and k.pair() != before for k in keepers), 15, "a new authority")
        assert keepers[0].pair() == keepers[1].pair()
        hook.seen.clear()
        wait_for(called, 10, "called with the new pair", 0.1)
    finally:
        for one in keepers:
            one.stop()
        hook.stop()
        cluster.api.delete(f"{webhook_config.PATH}/{webhook_config.NAME}")


def test_what_the_server_can_do(cluster: Cluster) -> None:
    version = discovery.server_version(client(cluster))
    assert version.gates and version.supported
    discovery.require_resources(client(cluster))
    config = discovery.read_device_config(client(cluster), "kube-system", "hami-scheduler-device")
    assert config is not None


def test_a_snapshot_file_of_the_real_cluster(cluster: Cluster, kube: KubeCluster, tmp_path: Any) -> None:
    running(cluster, kube)
    path = str(tmp_path / "s.json.gz")
    assert snapshot_file.save(read_stores(client(cluster)), path, now=datetime.now(UTC)) > 4
    loaded, live = snapshot_file.load(path), kube.snapshot()
    assert loaded.known == live.known
    assert loaded.pods.keys() == live.pods.keys() and loaded.nodes == live.nodes
    secret = tmp_path / "a.json"
    snapshot_file.save(read_stores(client(cluster)), str(secret), anonymize=True, now=datetime.now(UTC))
    hidden = snapshot_file.load(str(secret))
    assert len(hidden.pods) == len(live.pods) and '"web' not in secret.read_text()
