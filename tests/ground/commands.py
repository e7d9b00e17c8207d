"""The command lines and configuration files of the control plane's programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.ground.hami import config as hami_config

if TYPE_CHECKING:
    from tests.ground.controlplane import ControlPlane

REPOSITORY = Path(__file__).resolve().parents[2]
CONTROLLERS = (
    "deployment-controller", "replicaset-controller", "replicationcontroller-controller", "statefulset-controller",
    "daemonset-controller", "job-controller", "cronjob-controller", "disruption-controller",
    "garbage-collector-controller", "namespace-controller", "resourcequota-controller",
    "pod-garbage-collector-controller", "serviceaccount-controller", "taint-eviction-controller",
    "ttl-after-finished-controller", "horizontal-pod-autoscaler-controller",
)  # fmt: skip


@dataclass(frozen=True)
class HamiSettings:
    """How HAMi is installed. ``qps`` None: the default install, 5 requests/s, burst 10. ``habits``: `hami.habits`."""

    node_policy: str = "binpack"
    gpu_policy: str = "spread"
    webhook: bool = True
    qps: int | None = 500
    nvidia: Mapping[str, Any] = field(default_factory=dict)
    habits: Mapping[str, Any] = field(default_factory=dict)
    verbosity: int = 4
    arguments: tuple[str, ...] = ()


def real_hami() -> str:
    """Path of HAMi's own scheduler to run instead of the stand-in ("" = the stand-in)."""
    return os.environ.get("DEFRAGD_HAMI_SCHEDULER", "")


def etcd(plane: ControlPlane) -> list[object]:
    client, peer = f"http://127.0.0.1:{plane.ports['etcd']}", f"http://127.0.0.1:{plane.ports['peer']}"
    return [
        plane.bin / "etcd", "--data-dir", plane.folder / "etcd", "--unsafe-no-fsync", "--log-level=warn",
        "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
        "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
    ]  # fmt: skip


def apiserver(plane: ControlPlane) -> list[object]:
    audit = [f"--audit-policy-file={plane.folder}/audit.json", f"--audit-log-path={plane.folder}/audit.log"]
    return [
        plane.bin / "kube-apiserver",
        f"--etcd-servers=http://127.0.0.1:{plane.ports['etcd']}",
        f"--secure-port={plane.ports['api']}",
        "--bind-address=127.0.0.1",
        f"--tls-cert-file={plane.folder}/apiserver.crt",
        f"--tls-private-key-file={plane.folder}/apiserver.key",
        f"--cert-dir={plane.folder}/certs",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={plane.folder}/sa.pub",
        f"--service-account-signing-key-file={plane.folder}/sa.key",
        "--service-cluster-ip-range=10.0.0.0/24",
        f"--token-auth-file={plane.folder}/tokens.csv",
        "--authorization-mode=RBAC",
        # ServiceAccount would put token volumes into pods; TaintNodesByCondition needs node-lifecycle.
        f"--disable-admission-plugins=ServiceAccount{'' if plane.node_lifecycle else ',TaintNodesByCondition'}",
        "--endpoint-reconciler-type=none",
        "--allow-privileged=true",
        "--max-requests-inflight=2000",
        "--max-mutating-requests-inflight=1000",
        *(audit if plane.audited else ()),
        *plane.api_arguments,
    ]


def controller_manager(plane: ControlPlane) -> list[object]:
    controllers = [*CONTROLLERS, *(["node-lifecycle-controller"] if plane.node_lifecycle else [])]
    return [
        plane.bin / "kube-controller-manager", f"--kubeconfig={plane.folder}/kubeconfig-kcm", "--leader-elect=false",
        f"--secure-port={plane.ports['kcm']}", "--bind-address=127.0.0.1", "--authentication-skip-lookup",
        f"--service-account-private-key-file={plane.folder}/sa.key", f"--root-ca-file={plane.ca.path}",
        # Requests come from the controllers' own accounts, as in real clusters: webhooks see who creates a pod.
        "--use-service-account-credentials=true", f"--controllers={','.join(controllers)}",
        "--kube-api-qps=500", "--kube-api-burst=1000",
    ]  # fmt: skip


def scheduler(plane: ControlPlane) -> list[object]:
    client: dict[str, Any] = {"kubeconfig": str(plane.folder / "kubeconfig-scheduler")}
    if plane.scheduler_qps:
        client |= {"qps": plane.scheduler_qps, "burst": 2 * plane.scheduler_qps}
    settings: dict[str, Any] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": client,
        "podInitialBackoffSeconds": plane.scheduler_backoff[0],
        "podMaxBackoffSeconds": plane.scheduler_backoff[1],
        "profiles": [{"schedulerName": "default-scheduler"}, {"schedulerName": "hami-scheduler"}],
    }
    if plane.settings:
        settings["extenders"] = [
            {
                "urlPrefix": f"https://127.0.0.1:{plane.ports['hami']}",
                "enableHTTPS": True,
                "tlsConfig": {"insecure": True},
                "filterVerb": "filter",
                "bindVerb": "bind",
                "nodeCacheCapable": True,
                "weight": 1,
                "httpTimeout": "30s",
                "managedResources": [{"name": n, "ignoredByScheduler": True} for n in hami_config.MANAGED],
            }
        ]
    (plane.folder / "scheduler.json").write_text(json.dumps(settings))
    return [
        plane.bin / "kube-scheduler", f"--config={plane.folder}/scheduler.json", "--bind-address=127.0.0.1",
        f"--secure-port={plane.ports['scheduler']}",
    ]  # fmt: skip


def hami(plane: ControlPlane, settings: HamiSettings) -> tuple[list[object], dict[str, str]]:
    """The stand-in and the real scheduler understand the same flags; habits are the stand-in's own."""
    device_config = plane.folder / "device-config.yaml"
    device_config.write_text(json.dumps(hami_config.device_config(dict(settings.nvidia)), indent=1))
    verbosity = 5 if real_hami() else settings.verbosity  # nodes becoming known are read from the real one's log
    flags: list[object] = [
        f"--http_bind=127.0.0.1:{plane.ports['hami']}", f"--metrics-bind-address=127.0.0.1:{plane.ports['metrics']}",
        "--scheduler-name=hami-scheduler", f"--device-config-file={device_config}", "--leader-elect=false",
        f"--node-scheduler-policy={settings.node_policy}", f"--gpu-scheduler-policy={settings.gpu_policy}",
        f"--cert_file={plane.folder}/hami.crt", f"--key_file={plane.folder}/hami.key", f"-v={verbosity}",
        *([f"--kube-qps={settings.qps}", f"--kube-burst={2 * settings.qps}"] if settings.qps else ()),
        *settings.arguments,
    ]  # fmt: skip
    env = {
        "KUBECONFIG": str(plane.folder / "kubeconfig-hami"), "POD_NAMESPACE": "kube-system", "POD_NAME": "hami-0",
        "NODE_NAME": "none", "HOME": str(plane.folder), "PYTHONPATH": str(REPOSITORY),
    }  # fmt: skip
    if real_hami():
        return [real_hami(), "--enable-ascend=true", "--enable-iluvatar=true", *flags], env
    habits = [f"--habits={json.dumps(dict(settings.habits))}"]
    return [sys.executable, "-m", "tests.ground.hami", *flags, *habits], env
