"""What people do to a running daemon on the real API server: who may, through which door, and what the trace says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ground.cluster import Cluster
from tests.ground.controlplane import User
from tests.ground.daemon import Daemon
from tests.system import worlds

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(420)]
PROGRAM = str(Path(sys.executable).with_name("defragd"))
GROUP = "scheduling.hami.placement.com"
RUNS = f"/apis/{GROUP}/v1/namespaces/kube-system/defragruns"


def defragd(user: User, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *words, "--kubeconfig", str(user.kubeconfig)], capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def people(cluster: Cluster) -> dict[str, User]:
    """admin edits our resources, guest may only read, stranger nothing."""
    read = [{"apiGroups": [GROUP], "resources": ["defragruns", "hamipodplacements"], "verbs": ["get", "list", "watch"]}]
    write = [{**read[0], "verbs": ["get", "list", "watch", "create", "update", "patch"]}]
    plane = cluster.plane
    return {
        "ann": plane.service_account("ann", write),
        "guest": plane.service_account("guest", read),
        "stranger": plane.service_account("stranger", []),
    }


def test_writes_are_decided_by_kubernetes(
    cluster: Cluster, start_daemon: Callable[..., Daemon], people: dict[str, User]
) -> None:
    worlds.scattered(cluster)
    daemon = start_daemon([worlds.policy(cron=None)])
    leader = daemon.leader()

    def post(path: str, user: str | None, body: Any = None) -> tuple[int, Any]:
        headers = {"X-Defragd-Token": people[user].token} if user else {}
        return leader.call("POST", f"/api/v1/{path}", body or {}, headers=headers, timeout=60)

    assert post("policies/consolidate:run", None)[0] == 401
    assert post("policies/consolidate:run", "stranger")[0] == 403
    assert post("policies/consolidate:run", "guest")[0] == 403
    assert leader.call("POST", "/api/v1/policies/consolidate:run", {}, headers={"Authorization": "Bearer x"})[0] == 401
    status, run = post("policies/consolidate:run", "ann")
    assert status == 202, run
    assert "system:serviceaccount:kube-system:ann" in run["trigger"]

    # straight through the cluster, with Ann's own rights
    paused = defragd(people["ann"], "pause", run["id"])
    assert paused.returncode == 0, paused.stderr
    stored = cluster.api.get(f"{RUNS}/{run['id']}")["spec"]
    assert (stored["desired"], stored["desiredBy"]) == ("Paused", "system:serviceaccount:kube-system:ann")
    refused = defragd(people["guest"], "cancel", run["id"])
    assert refused.returncode == 3 and "cannot patch" in refused.stderr
    url = f"http://127.0.0.1:{leader.api_port}"
    resumed = subprocess.run(
        [PROGRAM, "resume", run["id"], "--api", url, "--token", people["ann"].token],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert resumed.returncode == 0, resumed.stderr
    followed = defragd(people["ann"], "history", run["id"], "-w")
    assert followed.returncode == 0, followed.stdout + followed.stderr
    assert followed.stdout.splitlines()[-1].startswith(f"run {run['id']} Completed")

    told = cluster.wait(
        lambda: [e for e in cluster.api.items("/api/v1/events") if e.get("reason") in ("RunRequested", "RunResumed")],
        20, "Events of what people did",
    )  # fmt: skip
    assert all("system:serviceaccount:kube-system:ann" in event["message"] for event in told)

    listed = json.loads(defragd(people["guest"], "history", "-o", "json").stdout)["items"]
    assert listed == leader.get("/api/v1/runs")[1]["items"], "both doors tell the same"


def test_a_placement_over_the_api(
    cluster: Cluster, start_daemon: Callable[..., Daemon], people: dict[str, User]
) -> None:
    daemon = start_daemon([], replicas=1)
    body = {
        "apiVersion": f"{GROUP}/v1", "kind": "HamiPodPlacement", "metadata": {"namespace": "default", "name": "by-api"},
        "spec": {"reqID": "r1", "podSelector": {"matchLabels": {"app": "x"}}, "nodeName": "n0",
                 "gpuDevices": ["gpu-0"]},
    }  # fmt: skip
    replica = daemon.replicas[0]

    def post(user: str, changed: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {people[user].token}"}
        return replica.call("POST", "/api/v1/placements", changed, headers=headers)

    assert post("guest", body)[0] == 403
    status, answer = post("ann", {**body, "spec": {**body["spec"], "gpuDevices": []}})
    assert status == 422 and "gpuDevices" in answer["detail"]
    status, answer = post("ann", {**body, "spec": {**body["spec"], "gpuDevice": ["gpu-0"]}})
    assert status == 422 and "gpuDevice" in answer["detail"], "misspelt fields are refused"
    status, answer = post("ann", body)
    assert status == 201, answer
    created = cluster.placement("by-api")
    assert created["metadata"]["annotations"]["defragd.io/requested-by"] == "system:serviceaccount:kube-system:ann"
    assert post("ann", body)[0] == 409


def test_reads_only_with_a_token_where_configured(
    cluster: Cluster, start_daemon: Callable[..., Daemon], people: dict[str, User]
) -> None:
    daemon = start_daemon([], replicas=1, config={"api": {"reads": "Authorized"}})
    replica = daemon.replicas[0]

    def get(path: str, user: str | None) -> int:
        headers = {"Authorization": f"Bearer {people[user].token}"} if user else {}
        return replica.call("GET", path, headers=headers)[0]

    assert [get("/api/v1/runs", user) for user in (None, "stranger", "guest", "ann")] == [401, 403, 200, 200]
    assert [get(path, None) for path in ("/livez", "/readyz", "/metrics", "/", "/map")] == [200, 200, 200, 401, 401]


def test_the_doctor_on_a_real_cluster(cluster: Cluster, start_daemon: Callable[..., Daemon]) -> None:
    worlds.scattered(cluster, deployments=2)
    daemon = start_daemon([])
    admin = cluster.plane.folder / "kubeconfig-doctor"
    made = cluster.plane.write_kubeconfig("kubeconfig-doctor", "ground-admin")
    assert made == admin or made.exists()
    found = subprocess.run(
        [PROGRAM, "doctor", "--kubeconfig", str(made), "-o", "json"], capture_output=True, text=True, timeout=60
    )
    assert found.returncode == 0, found.stdout + found.stderr
    seen = {(item["check"], item["status"]) for item in json.loads(found.stdout)["items"]}
    for check in ("server", "clock", "crds", "rights", "daemon", "webhook", "books", "gates"):
        assert (check, "ok") in seen, found.stdout
    daemon.stop()

    def gone() -> str:
        run = subprocess.run([PROGRAM, "doctor", "--kubeconfig", str(made)], capture_output=True, text=True, timeout=60)
        return run.stdout if run.returncode == 1 and "no replica runs" in run.stdout else ""

    cluster.wait(gone, 60, "the doctor misses the replicas")
