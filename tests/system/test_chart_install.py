"""The chart on a real API server: every object accepted, CRDs established, rights as narrow as promised."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.ground import build, chart
from tests.ground.api import wait_for
from tests.ground.commands import REPOSITORY
from tests.ground.controlplane import ControlPlane

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(180)]
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
    hook = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/scheduling.hami.placement.com"
    assert installed.api.get(hook)["webhooks"][0]["failurePolicy"] == "Ignore"


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


def test_an_upgrade_is_accepted(installed: ControlPlane) -> None:
    folder = str(REPOSITORY / "chart")
    installed.helm(
        "upgrade",
        chart.RELEASE,
        folder,
        "--namespace",
        chart.NAMESPACE,
        "--set",
        "priorityClassName=system-cluster-critical",
    )
    deployment = installed.api.get("/apis/apps/v1/namespaces/kube-system/deployments/gpu-descheduler")
    assert deployment["spec"]["template"]["spec"]["priorityClassName"] == "system-cluster-critical"


def test_system_tests_start_the_daemon_as_the_chart_does() -> None:
    arguments = chart.container_arguments()

    assert arguments[0] == "run"
    flags = {argument.split("=")[0] for argument in arguments[1:]}
    assert {"--policies", "--api-address", "--webhook-address", "--namespace"} <= flags
