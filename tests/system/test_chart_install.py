"""The chart on a real API server: every object accepted, CRDs established, rights as narrow as promised."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from defragd.kube import certs, leader
from defragd.kube.pki import make_ca
from tests.ground import build, chart
from tests.ground.api import wait_for
from tests.ground.commands import REPOSITORY
from tests.ground.controlplane import ControlPlane

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(180)]
HOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/scheduling.hami.placement.com"
GROUP = "/apis/scheduling.hami.placement.com/v1"
ROLES = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture(scope="module")
def installed() -> Iterator[ControlPlane]:
    """`helm install` as the README has it, on a control plane of its own (the shared one has the CRDs already)."""
    try:
        build.helm()
    except build.BuildError as error:
        pytest.fail(f"helm cannot be built: {error}", pytrace=False)
    with ControlPlane(hami=None, audit=False) as plane:
        plane.helm(
            "install", chart.RELEASE, str(REPOSITORY / "chart"), "--namespace", chart.NAMESPACE, "--create-namespace"
        )
        yield plane


def test_all_objects_are_there_and_the_crds_established(installed: ControlPlane) -> None:
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

    def established() -> bool:
        conditions = [
            condition
            for name in ("hamipodplacements", "defragruns")
            for condition in installed.api.get(f"{crds}/{name}.scheduling.hami.placement.com")["status"]["conditions"]
        ]
        return [c["status"] for c in conditions if c["type"] == "Established"] == ["True", "True"]

    wait_for(established, 20, "CRDs established")
    deployment = installed.api.get("/apis/apps/v1/namespaces/kube-system/deployments/gpu-descheduler")
    assert deployment["spec"]["replicas"] == 2
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels["app"] == "gpu-descheduler-webhook"
    assert installed.api.get(HOOK)["webhooks"][0]["failurePolicy"] == "Ignore"


def test_rights_have_no_wildcard_and_no_pod_deletion(installed: ControlPlane) -> None:
    roles = installed.api.items(f"{ROLES}/clusterroles") + installed.api.items(f"{ROLES}/namespaces/kube-system/roles")
    ours = [r for r in roles if r["metadata"]["name"].startswith("gpu-descheduler")]
    assert ours
    rules: list[dict[str, Any]] = [rule for role in ours for rule in role["rules"]]

    assert not [r for r in rules for part in ("apiGroups", "resources", "verbs") if "*" in r[part]]
    deletes = [r for r in rules if "pods" in r["resources"] and {"delete", "deletecollection"} & set(r["verbs"])]
    assert not deletes
    account = installed.api.as_user(chart.user(installed).token)
    assert account.request("DELETE", "/api/v1/namespaces/default/pods/any")[0] == 403
    assert account.request("GET", "/api/v1/pods")[0] == 200
    assert account.request("GET", "/api/v1/namespaces/default/secrets")[0] == 403


def test_every_values_file_is_accepted_field_by_field(installed: ControlPlane) -> None:
    """Server-side dry run with strict field validation: no unknown, misspelt or duplicate field in any object."""
    installed.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": "hami-system"}})
    for values in sorted((REPOSITORY / "tests" / "chart" / "values").glob("*.yaml")):
        command = [str(build.helm()), "template", "other", str(REPOSITORY / "chart"), "--namespace", "default", "-f"]
        run = subprocess.run([*command, str(values)], capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stderr
        seen = 0
        for body in yaml.safe_load_all(run.stdout):
            if not body or body["apiVersion"].split("/")[0] in ("monitoring.coreos.com", "cert-manager.io"):
                continue  # their CRDs are not here
            meta = body["metadata"]
            meta["name"] = meta["name"].replace("scheduling.hami.placement.com", "try.example.com")
            if body["kind"] == "CustomResourceDefinition":
                continue  # established by the installation
            path = f"{_collection(body)}?dryRun=All&fieldValidation=Strict"
            status, answer = installed.api.request("POST", path, body)
            assert status == 201, (values.name, body["kind"], answer)
            seen += 1
        assert seen >= 6


def _collection(body: dict[str, Any]) -> str:
    """The API path of an object's list."""
    group, plural = body["apiVersion"], f"{body['kind'].lower()}s".replace("policys", "policies")
    base = f"/api/{group}" if "/" not in group else f"/apis/{group}"
    namespace = body["metadata"].get("namespace")
    if namespace is None and body["kind"] == "ConfigMap":
        namespace = "default"
    return f"{base}/namespaces/{namespace}/{plural}" if namespace else f"{base}/{plural}"


def test_upgrade_and_removal_keep_what_was_written_and_nothing_that_acts(installed: ControlPlane) -> None:
    """One test: each step starts from the last one's installation, and the last is as the first."""
    body = [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": _ca()}]
    installed.api.call("PATCH", HOOK, body, content="application/json-patch+json")
    placement = {
        "apiVersion": "scheduling.hami.placement.com/v1", "kind": "HamiPodPlacement",
        "metadata": {"name": "kept", "namespace": "default"},
        "spec": {"reqID": "r1", "podSelector": {"matchLabels": {"app": "x"}}, "nodeName": "n", "gpuDevices": ["gpu-0"]},
    }  # fmt: skip
    installed.api.create(f"{GROUP}/namespaces/default/hamipodplacements", placement)

    folder = str(REPOSITORY / "chart")
    installed.helm(
        "upgrade", chart.RELEASE, folder, "--namespace", chart.NAMESPACE,
        "--set", "priorityClassName=system-cluster-critical", "--set", "dashboard.enabled=true",
        "--set", "replicaCount=3",
    )  # fmt: skip

    deployment = installed.api.get("/apis/apps/v1/namespaces/kube-system/deployments/gpu-descheduler")
    assert deployment["spec"]["template"]["spec"]["priorityClassName"] == "system-cluster-critical"
    assert deployment["spec"]["replicas"] == 3
    assert installed.api.get(HOOK)["webhooks"][0]["clientConfig"]["caBundle"] == _ca()
    assert installed.api.get(f"{GROUP}/namespaces/default/hamipodplacements/kept")["spec"]["reqID"] == "r1"
    assert installed.api.find("/api/v1/namespaces/kube-system/configmaps/gpu-descheduler-dashboard")

    own = {
        "/api/v1/namespaces/kube-system/secrets": certs.SECRET,
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases": leader.LEASE_NAME,
    }
    for path, name in own.items():
        installed.api.create(path, {"metadata": {"name": name, "labels": leader.LABELS}})
    installed.helm("uninstall", chart.RELEASE, "--namespace", chart.NAMESPACE)
    left = {path: installed.api.find(f"{path}/{name}") for path, name in own.items()}
    assert all(left.values()), "what the daemon makes for itself stays; the documentation has the lines that remove it"
    assert installed.api.find(HOOK) is None
    assert installed.api.find("/apis/apps/v1/namespaces/kube-system/deployments/gpu-descheduler") is None
    roles = installed.api.items(f"{ROLES}/clusterroles") + installed.api.items(f"{ROLES}/clusterrolebindings")
    assert not [r for r in roles if r["metadata"]["name"].startswith("gpu-descheduler")]
    assert installed.api.get(f"{GROUP}/namespaces/default/hamipodplacements/kept")

    installed.helm("install", chart.RELEASE, folder, "--namespace", chart.NAMESPACE)
    assert installed.api.get(f"{GROUP}/namespaces/default/hamipodplacements/kept")


def _ca() -> str:
    """Some real certificate: the API server checks what it is given to trust."""
    now = datetime.now(UTC).replace(microsecond=0, second=0, minute=0, hour=0)
    if not _CA:
        _CA.append(base64.b64encode(make_ca(now)[0]).decode())
    return _CA[0]


_CA: list[str] = []


def test_system_tests_start_the_daemon_as_the_chart_does() -> None:
    arguments = chart.container_arguments()

    assert arguments[0] == "run"
    flags = {argument.split("=")[0] for argument in arguments[1:]}
    assert {"--policies", "--api-address", "--webhook-address", "--namespace"} <= flags
