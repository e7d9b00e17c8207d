"""The chart's objects without an installation: its RBAC and webhook are what system tests run the daemon under."""

from __future__ import annotations

import subprocess
from collections.abc import Collection
from typing import Any

import yaml

from tests.ground import build
from tests.ground.commands import REPOSITORY
from tests.ground.controlplane import ControlPlane, User

RELEASE, NAMESPACE = "gpu-descheduler", "kube-system"
ACCESS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "MutatingWebhookConfiguration")
_PATHS = {
    "ServiceAccount": "/api/v1/namespaces/{ns}/serviceaccounts",
    "ConfigMap": "/api/v1/namespaces/{ns}/configmaps",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/rolebindings",
    "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
}


def render(*settings: str) -> list[dict[str, Any]]:
    """`helm template` with the README's release name and namespace; ``settings`` as for --set."""
    command = [str(build.helm()), "template", RELEASE, str(REPOSITORY / "chart"), "--namespace", NAMESPACE]
    for setting in settings:
        command += ["--set", setting]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if run.returncode:
        raise AssertionError(f"helm template: {run.stderr.strip()[-800:]}")
    return [body for body in yaml.safe_load_all(run.stdout) if body]


def apply(plane: ControlPlane, kinds: Collection[str] = ACCESS, *settings: str) -> None:
    """Creates the rendered objects of these kinds (again)."""
    for body in render(*settings):
        if body["kind"] not in kinds:
            continue
        path = _PATHS[body["kind"]].format(ns=body["metadata"].get("namespace", NAMESPACE))
        status, answer = plane.api.request("POST", path, body)
        if status == 409:
            existing = f"{path}/{body['metadata']['name']}"
            body["metadata"]["resourceVersion"] = plane.api.get(existing)["metadata"]["resourceVersion"]
            plane.api.call("PUT", existing, body)
        elif status != 201:
            raise AssertionError(f"{body['kind']}/{body['metadata']['name']}: {status} {answer}")


def user(plane: ControlPlane) -> User:
    """A token for the ServiceAccount that the chart makes."""
    accounts = [body for body in render() if body["kind"] == "ServiceAccount"]
    return plane.token(accounts[0]["metadata"]["name"], namespace=NAMESPACE)


def container_arguments() -> list[str]:
    """What the Deployment starts the daemon with."""
    (deployment,) = [body for body in render() if body["kind"] == "Deployment"]
    found: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return found
