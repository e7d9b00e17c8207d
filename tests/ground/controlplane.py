"""A real etcd, kube-apiserver, kube-controller-manager and kube-scheduler on loopback, and HAMi's extender beside them.

    with ControlPlane() as plane:          # ready in 3 to 6 s
        plane.api.items("/api/v1/nodes")

HAMi is the stand-in of `tests.ground.hami`, or the real scheduler when DEFRAGD_HAMI_SCHEDULER names its binary.
Everything is bound to 127.0.0.1, lives in a temporary folder and ends with ``stop()``.
"""

from __future__ import annotations

import atexit
import base64
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.ground import build, commands, pki
from tests.ground.api import WEBHOOKS, Api, wait_for
from tests.ground.audit import POLICY, Audit
from tests.ground.commands import REPOSITORY, HamiSettings
from tests.ground.process import Process, free_port

COMPONENTS = ("kcm", "scheduler", "hami", "emulator")

HAMI = HamiSettings()
"""HAMi with its webhook and without its bad habits."""


@dataclass(frozen=True)
class User:
    """A ServiceAccount with exactly the given rules. ``name`` is what the audit log calls it."""

    name: str
    token: str
    kubeconfig: Path


class ControlPlane:
    """The processes, their ports, users and audit log."""

    def __init__(
        self,
        *,
        hami: HamiSettings | None = HAMI,
        audit: bool = True,
        node_lifecycle: bool = False,
        scheduler_backoff: tuple[int, int] = (1, 10),
        scheduler_qps: int | None = 500,
        api_arguments: Sequence[str] = (),
        folder: Path | None = None,
    ) -> None:
        self.bin = build.controlplane()
        self.own_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="defragd-ground-"))
        self.settings, self.node_lifecycle, self.api_arguments = hami, node_lifecycle, tuple(api_arguments)
        self.scheduler_backoff, self.scheduler_qps, self.audited = scheduler_backoff, scheduler_qps, audit
        self.ports = {name: free_port() for name in ("etcd", "peer", "api", "kcm", "scheduler", "hami", "metrics")}
        self.url = f"https://127.0.0.1:{self.ports['api']}"
        self.ca = pki.Authority(self.folder)
        self.audit = Audit(self.folder / "audit.log")
        self.api = Api(self.url, "ground-admin", str(self.ca.path))
        self.kubeconfig = self.write_kubeconfig("kubeconfig", "ground-admin")
        self.processes: dict[str, Process] = {}
        self.started_in = 0.0

    def __enter__(self) -> ControlPlane:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- processes ----------------------------------------------------------------------------------------------------

    def start(self) -> ControlPlane:
        begin = time.monotonic()
        atexit.register(self.stop)
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and threading.current_thread() is threading.main_thread():
            # The components live in sessions of their own: a terminated test run must not leave them behind.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            self._prepare()
            self._launch("etcd", commands.etcd(self))
            self._launch("apiserver", commands.apiserver(self))
            self.wait_api()
            self._launch("kcm", commands.controller_manager(self))
            if self.settings:
                self._launch("hami", *commands.hami(self, self.settings))
            self._launch("scheduler", commands.scheduler(self))
            if self.settings:
                self.wait_hami()
                self._put_device_config()
                if self.settings.webhook:
                    self.register_hami_webhook()
        except BaseException as error:
            text = self.logs()
            self.stop()
            if isinstance(error, Exception):
                raise AssertionError(f"the control plane did not start: {error}\n{text}") from error
            raise
        self.started_in = time.monotonic() - begin
        return self

    def stop(self) -> None:
        self.api.close()
        for process in reversed(self.processes.values()):
            process.kill()
        atexit.unregister(self.stop)
        if self.own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _launch(self, name: str, command: Sequence[object], env: Mapping[str, str] | None = None) -> Process:
        process = self.processes[name] = Process(name, command, self.folder, env)
        return process.start()

    def kill(self, name: str) -> None:
        """kill -9 of etcd, apiserver, kcm, scheduler or hami."""
        self.processes[name].kill()

    def restart(self, name: str, *, wait: bool = True) -> None:
        self.processes[name].restart()
        if wait and name in ("etcd", "apiserver"):
            self.wait_api()
        if wait and name == "hami":
            self.wait_hami()

    def freeze(self, name: str) -> None:
        self.processes[name].freeze()

    def thaw(self, name: str) -> None:
        self.processes[name].thaw()

    def logs(self, lines: int = 15) -> str:
        """The ends of all logs, for a failure report."""
        return "\n".join(
            f"--- {name} ({'running' if process.running else f'exit {process.exit_code}'})\n{process.tail(lines)}"
            for name, process in self.processes.items()
        )

    def wait_api(self, seconds: float = 60) -> None:
        def ready() -> bool:
            if not self.processes["apiserver"].running:
                raise AssertionError(f"kube-apiserver ended:\n{self.processes['apiserver'].tail()}")
            return self.api.request("GET", "/readyz")[0] == 200

        wait_for(ready, seconds, "kube-apiserver ready")

    def wait_hami(self, seconds: float = 30) -> None:
        wait_for(lambda: self.hami("/healthz")[0] == 200, seconds, "HAMi's scheduler answers")

    def _prepare(self) -> None:
        pki.key_pair(self.folder / "sa.key", self.folder / "sa.pub")
        self.ca.issue("apiserver")
        self.ca.issue("hami")
        (self.folder / "audit.json").write_text(json.dumps(POLICY))
        rows = [f'ground-{name},{name},{name},"system:masters"' for name in ("admin", *COMPONENTS)]
        (self.folder / "tokens.csv").write_text("\n".join(rows) + "\n")
        for name in COMPONENTS:
            self.write_kubeconfig(f"kubeconfig-{name}", f"ground-{name}")

    # -- HAMi ---------------------------------------------------------------------------------------------------------

    @property
    def real_hami(self) -> bool:
        """Whether HAMi's own scheduler runs instead of the stand-in."""
        return bool(commands.real_hami())

    def hami(self, path: str, body: Any = None) -> tuple[int, Any]:
        """GET, or POST with a body, one of HAMi's HTTP paths: (status, decoded answer)."""
        client = Api(f"https://127.0.0.1:{self.ports['hami']}", "", str(self.ca.path))
        try:
            return client.request("GET" if body is None else "POST", path, body)
        finally:
            client.close()

    def _put_device_config(self) -> None:
        """The ConfigMap that HAMi's chart makes; the daemon reads resource names and defaults from it."""
        text = (self.folder / "device-config.yaml").read_text()
        body = {"metadata": {"name": "hami-scheduler-device"}, "data": {"device-config.yaml": text}}
        self.api.create("/api/v1/namespaces/kube-system/configmaps", body)

    def register_hami_webhook(self) -> None:
        """HAMi's MutatingWebhookConfiguration as its chart makes it, with a URL instead of a Service."""
        selector = {"matchExpressions": [{"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}]}
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"], "scope": "*"}
        hook = {
            "name": "vgpu.hami.io",
            "admissionReviewVersions": ["v1beta1"],
            "sideEffects": "None",
            "failurePolicy": "Ignore",
            "matchPolicy": "Equivalent",
            "reinvocationPolicy": "Never",
            "timeoutSeconds": 10,
            "namespaceSelector": selector,
            "objectSelector": selector,
            "clientConfig": {
                "url": f"https://127.0.0.1:{self.ports['hami']}/webhook",
                "caBundle": self.ca.bundle,
            },
            "rules": [rule],
        }
        self.api.create(WEBHOOKS, {"metadata": {"name": "hami-webhook"}, "webhooks": [hook]})

    # -- users --------------------------------------------------------------------------------------------------------

    def write_kubeconfig(self, name: str, token: str, url: str | None = None) -> Path:
        """A kubeconfig file for that token; ``url``: another address, such as a fault proxy's."""
        bundle = base64.b64encode(self.ca.path.read_bytes()).decode()
        path = self.folder / name
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "ground",
                    "clusters": [
                        {
                            "name": "ground",
                            "cluster": {"server": url or self.url, "certificate-authority-data": bundle},
                        }
                    ],
                    "users": [{"name": "user", "user": {"token": token}}],
                    "contexts": [{"name": "ground", "context": {"cluster": "ground", "user": "user"}}],
                }
            )
        )
        return path

    def service_account(
        self,
        name: str,
        rules: Sequence[Mapping[str, Any]],
        *,
        namespace: str = "kube-system",
        namespaced_rules: Sequence[Mapping[str, Any]] = (),
    ) -> User:
        """A ServiceAccount bound to exactly these rules (cluster-wide and in its namespace), with a token."""
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        subject = [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]
        self._put(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
        for path, kind, wanted in (
            (rbac, "ClusterRole", rules),
            (f"{rbac}/namespaces/{namespace}", "Role", namespaced_rules),
        ):
            plural = f"{kind.lower()}s"
            role = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": f"ground-{name}"}
            meta = {"metadata": {"name": f"ground-{name}"}}
            self._put(f"{path}/{plural}", {**meta, "rules": list(wanted)})
            self._put(f"{path}/{kind.lower()}bindings", {**meta, "roleRef": role, "subjects": subject})
        return self.token(name, namespace=namespace)

    def token(self, name: str, *, namespace: str = "kube-system", hours: int = 24) -> User:
        """A fresh token and kubeconfig for a ServiceAccount that exists (such as the one a chart made)."""
        request = {"spec": {"expirationSeconds": hours * 3600}}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        token = self.api.create(path, request)["status"]["token"]
        return User(
            f"system:serviceaccount:{namespace}:{name}", token, self.write_kubeconfig(f"kubeconfig-{name}", token)
        )

    def _put(self, path: str, body: dict[str, Any]) -> None:
        """Creates, or replaces what is there."""
        status, answer = self.api.request("POST", path, body)
        if status == 409:
            self.api.call("PUT", f"{path}/{body['metadata']['name']}", body)
        elif status != 201:
            raise AssertionError(f"POST {path}: {status} {answer}")

    def install_crds(self, folder: Path = REPOSITORY / "crds") -> list[str]:
        """Creates the CRDs of a folder and waits until they are established; returns their names."""
        import yaml

        crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        names: list[str] = []
        for file in sorted(folder.glob("*.yaml")):
            for body in yaml.safe_load_all(file.read_text()):
                if body and body.get("kind") == "CustomResourceDefinition":
                    status, answer = self.api.request("POST", crds, body)
                    if status not in (201, 409):
                        raise AssertionError(f"{file.name}: {status} {answer}")
                    names.append(body["metadata"]["name"])

        def established(name: str) -> bool:
            conditions = self.api.get(f"{crds}/{name}").get("status", {}).get("conditions") or []
            return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

        for name in names:
            wait_for(lambda name=name: established(name), 20, f"CRD {name} established")  # type: ignore[misc]
        return names

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Runs kubectl as administrator; its standard output. AssertionError with its message otherwise."""
        return self._tool([str(build.kubectl()), "--kubeconfig", str(self.kubeconfig), *arguments], stdin)

    def helm(self, *arguments: str) -> str:
        return self._tool([str(build.helm()), "--kubeconfig", str(self.kubeconfig), *arguments], None)

    @staticmethod
    def _tool(command: list[str], stdin: str | None) -> str:
        run = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=100)
        if run.returncode:
            raise AssertionError(f"{' '.join(command[3:])}: exit {run.returncode}: {run.stderr.strip()[-800:]}")
        return run.stdout
