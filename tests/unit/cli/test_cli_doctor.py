"""`defragd doctor`: what it sees in a sound installation, and that each fault is told with its mend."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cli_states import make_node, make_pod
from click.testing import CliRunner

from defragd.cli import checkup
from defragd.cli.checkup import Finding, Patient, examine
from defragd.cli.main import run
from defragd.errors import Forbidden
from defragd.kube import authz
from defragd.kube.pki import make_ca
from tests.support.fake_api import FakeApi

HOOK = "scheduling.hami.placement.com"
NOW = datetime.now(UTC)
G = f"/apis/{HOOK}/v1"


def stamp(seconds: float = 0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def lease(api: FakeApi, name: str, *, holder: str = "x", seconds: float = 0) -> None:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": stamp(seconds)}
    meta = {"namespace": "kube-system", "name": name}
    api.put("/apis/coordination.k8s.io/v1/leases", {"metadata": meta, "spec": spec})


def hook(api: FakeApi, **changes: Any) -> None:
    bundle = base64.b64encode(make_ca(NOW)[0]).decode()
    service = {"namespace": "kube-system", "name": "gpu-descheduler-webhook"}
    body = {"failurePolicy": "Ignore", "clientConfig": {"caBundle": bundle, "service": service}}
    body = {**body, **changes}
    api.put(checkup.HOOKS, {"metadata": {"name": HOOK}, "webhooks": [body]})


def scheduler(api: FakeApi, *arguments: str, image: str = "projecthami/hami:v2.10.0") -> None:
    containers = [{"name": "vgpu-scheduler-extender", "image": image, "command": ["scheduler", *arguments]}]
    body = {"metadata": {"namespace": "kube-system", "name": "hami-scheduler"}}
    api.put("/apis/apps/v1/deployments", {**body, "spec": {"template": {"spec": {"containers": containers}}}})


def endpoints(api: FakeApi, *ready: bool) -> None:
    points = [{"addresses": [f"10.0.0.{i}"], "conditions": {"ready": state}} for i, state in enumerate(ready)]
    meta = {"namespace": "kube-system", "name": "gpu-descheduler-webhook-x"}
    api.put("/apis/discovery.k8s.io/v1/endpointslices", {"metadata": meta, "endpoints": points})


@pytest.fixture
def api(monkeypatch):
    """A sound installation."""
    monkeypatch.setattr(authz.Reviews, "may", lambda self, caller, access: True)
    checkup._snapshot.cache_clear()
    with FakeApi() as fake:
        fake.version = "29"
        fake.served = ["hamipodplacements", "defragruns"]
        lease(fake, "gpu-descheduler", holder="a-1")
        lease(fake, "gpu-descheduler-a-1")
        lease(fake, "gpu-descheduler-b-2")
        hook(fake)
        endpoints(fake, True, True)
        scheduler(fake, "--kube-qps=50", "--kube-burst=100")
        fake.put("/api/v1/nodes", make_node("n1", "GPU-1"))
        pod = make_pod("web", "n1", "GPU-1", 1000)
        pod["metadata"]["labels"] = {"app": "web"}
        fake.put("/api/v1/pods", pod)
        budget = {
            "metadata": {"namespace": pod["metadata"]["namespace"], "name": "web"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1},
            "status": {"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2},
        }  # fmt: skip
        fake.put("/apis/policy/v1/poddisruptionbudgets", budget)
        yield fake


def look(api: FakeApi, tmp_path, *names: str) -> list[Finding]:
    minor = {"major": "1", "minor": api.version, "gitVersion": f"v1.{api.version}.0"}
    for _ in range(2):
        api.answer("GET", "/version", 200, minor)
    served = [{"name": name} for name in api.served]
    api.answer("GET", G, 200, {"resources": served})
    return examine(Patient(api.client(tmp_path)), names)


def test_a_sound_installation(api: FakeApi, tmp_path) -> None:
    found = look(api, tmp_path)
    assert {f.check for f in found} == set(checkup.CHECKS)
    trouble = [f for f in found if f.status != "ok"]
    assert not trouble, trouble


def test_a_server_that_does_not_answer_is_told_once(tmp_path) -> None:
    with FakeApi() as fake:
        client = fake.client(tmp_path)
    found = examine(Patient(client))
    assert [(f.check, f.status) for f in found] == [("server", "fail")]
    assert found[0].mend


FAULTS: list[tuple[str, Callable[[FakeApi], Any], str, str, str, str]] = [
    ("old server", lambda a: setattr(a, "version", "23"), "server", "fail", "1.23", "1.24 or newer"),
    ("no gates", lambda a: setattr(a, "version", "26"), "server", "warn", "no scheduling gates", "1.27"),
    ("no CRDs", lambda a: a.served.clear(), "crds", "fail", "does not serve", "crds"),
    ("no replica", lambda a: [lease(a, n, seconds=-300) for n in ("gpu-descheduler-a-1", "gpu-descheduler-b-2")],
     "daemon", "fail", "no replica runs", "get pods"),
    ("no leader", lambda a: lease(a, "gpu-descheduler", holder=""), "daemon", "fail", "none leads", "logs"),
    ("one replica", lambda a: lease(a, "gpu-descheduler-b-2", seconds=-300), "daemon", "warn", "one replica",
     "replicaCount"),
    ("clock of a replica", lambda a: lease(a, "gpu-descheduler-b-2", seconds=60), "daemon", "warn", "ahead", "clocks"),
    ("no webhook", lambda a: a.objects[checkup.HOOKS].clear(), "webhook", "fail", "is missing", "install the chart"),
    ("not trusted", lambda a: hook(a, clientConfig={}), "webhook", "fail", "no caBundle", "certs.trouble"),
    ("unreadable", lambda a: hook(a, clientConfig={"caBundle": "eA=="}), "webhook", "fail", "unreadable", "Secret"),
    ("expired", lambda a: hook(a, clientConfig={"caBundle": base64.b64encode(
        make_ca(NOW - timedelta(days=20000))[0]).decode()}), "webhook", "fail", "expired", "certs.trouble"),
    ("blocks pods", lambda a: hook(a, failurePolicy="Fail"), "webhook", "fail", "not Ignore", "helm upgrade"),
    ("nobody answers", lambda a: endpoints(a, False, False), "webhook", "fail", "no ready address", "readyz"),
    ("order", lambda a: a.put(checkup.HOOKS, {"metadata": {"name": "z-hami"}, "webhooks": []}), "webhook", "warn",
     "comes after ours", ""),
    ("default speed", lambda a: scheduler(a), "hami", "warn", "default of 5 requests/s", "--kube-qps=50"),
    ("set too low", lambda a: scheduler(a, "--kube-qps", "3"), "hami", "warn", "limited at 3", "--kube-qps"),
    ("old HAMi", lambda a: scheduler(a, "--kube-qps=50", image="projecthami/hami:v2.7.1"), "hami", "warn", "HAMi 2.7",
     "upgrade HAMi"),
    ("no HAMi", lambda a: a.objects["/apis/apps/v1/deployments"].clear(), "hami", "unknown", "no HAMi scheduler",
     "--hami-namespace"),
    ("no budgets", lambda a: a.objects["/apis/policy/v1/poddisruptionbudgets"].clear(), "budgets", "warn", "0 of 1",
     "floor"),
    ("books", lambda a: a.put("/api/v1/nodes", make_node("n2", "GPU-1")), "books", "warn", "GPU-1",
     "until it is mended"),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=[fault[0] for fault in FAULTS])
def test_each_fault_is_told_with_its_mend(api: FakeApi, tmp_path, fault) -> None:
    _, spoil, check, status, says, mend = fault
    spoil(api)
    found = [f for f in look(api, tmp_path, check) if f.status == status]
    assert any(says in f.detail and mend in f.mend for f in found), found


def test_missing_rights_are_named(api: FakeApi, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(authz.Reviews, "may", lambda self, caller, access: access.resource != "pods/eviction")
    (found,) = look(api, tmp_path, "rights")
    assert found.status == "fail" and "may not create pods/eviction" in found.detail
    assert "ServiceAccount kube-system/gpu-descheduler" in found.detail


def test_own_rights_where_nobody_else_may_be_asked_about(api: FakeApi, tmp_path, monkeypatch) -> None:
    def refused(self, caller, access):
        raise Forbidden("no")

    monkeypatch.setattr(authz.Reviews, "may", refused)
    monkeypatch.setattr(authz.Reviews, "myself", lambda self, access: True)
    (found,) = look(api, tmp_path, "rights")
    assert found.status == "ok" and "your own account" in found.detail


def test_what_may_not_be_seen_hides_nothing_else(api: FakeApi, tmp_path) -> None:
    api.forbidden.add("/apis/coordination.k8s.io/v1/leases")
    found = {f.check: f.status for f in look(api, tmp_path, "daemon", "hami")}
    assert found["daemon"] == "unknown" and found["hami"] == "ok"


def test_the_command(api: FakeApi, tmp_path) -> None:
    api.answer("GET", "/version", 200, {"major": "1", "minor": "29"})
    api.answer("GET", "/version", 200, {"major": "1", "minor": "29"})
    api.answer("GET", G, 200, {"resources": []})
    runner = CliRunner()
    with runner.isolation() as (out, _err, _both):
        code = run(["doctor", "--kubeconfig", api.kubeconfig(tmp_path)])
        text = out.getvalue().decode()
    assert code == 1
    assert text.splitlines()[0].split() == ["CHECK", "STATUS", "FINDING"]
    assert "crds       fail" in text and "-> kubectl apply -f crds/" in text and text.splitlines()[-1] == "1 fail"
    api.answer("GET", "/version", 200, {"major": "1", "minor": "29"})
    api.answer("GET", "/version", 200, {"major": "1", "minor": "29"})
    api.answer("GET", G, 200, {"resources": [{"name": "hamipodplacements"}, {"name": "defragruns"}]})
    with runner.isolation() as (out, _err, _both):
        assert run(["doctor", "--kubeconfig", api.kubeconfig(tmp_path), "-o", "json"]) == 0
        assert {item["status"] for item in json.loads(out.getvalue())["items"]} == {"ok"}
