"""`defragd run` as real processes under the chart's ServiceAccount, several replicas behind one webhook address."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.ground import chart
from tests.ground.api import wait_for
from tests.ground.balancer import Balancer
from tests.ground.controlplane import ControlPlane
from tests.ground.process import Process, free_port

PROGRAM = os.environ.get("DEFRAGD_PROGRAM") or str(Path(sys.executable).with_name("defragd"))
"""The daemon under test; another build of it can be named by the environment."""
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"


class Replica:
    """One process; ``api`` asks its plain HTTP port."""

    def __init__(
        self, name: str, folder: Path, kubeconfig: Path, policies: Path, webhook_url: str, arguments: Sequence[str]
    ) -> None:
        self.name, self.api_port, self.webhook_port = name, free_port(), free_port()
        command = [
            PROGRAM, "run", f"--kubeconfig={kubeconfig}",
            f"--policies={policies}",
            f"--api-address=127.0.0.1:{self.api_port}", f"--webhook-address=127.0.0.1:{self.webhook_port}",
            f"--webhook-url={webhook_url}", f"--namespace={chart.NAMESPACE}", *arguments,
        ]  # fmt: skip
        self.process = Process(name, command, folder, {"POD_NAME": name})

    def get(self, path: str, *, timeout: float = 5) -> tuple[int, Any]:
        """(status, decoded answer); status 0 when nobody answers."""
        return self.call("GET", path, timeout=timeout)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout: float = 5,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        client = http.client.HTTPConnection("127.0.0.1", self.api_port, timeout=timeout)
        try:
            data = None if body is None else json.dumps(body)
            client.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            answer = client.getresponse()
            raw = answer.read()
        except OSError as error:
            return 0, str(error)
        finally:
            client.close()
        try:
            return answer.status, json.loads(raw)
        except ValueError:
            return answer.status, raw.decode(errors="replace")

    def ready(self) -> bool:
        if not self.process.running:
            raise AssertionError(f"{self.name} ended with {self.process.exit_code}:\n{self.process.tail(30)}")
        return self.get("/readyz")[0] == 200

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's series that carry these labels."""
        status, text = self.get("/metrics")
        assert status == 200, text
        total = 0.0
        for line in str(text).splitlines():
            series, _, value = line.rpartition(" ")
            if series.split("{")[0] == name and all(f'{k}="{v}"' in series for k, v in labels.items()):
                total += float(value)
        return total


class Daemon:
    """Replicas of the daemon in one cluster. ``with Daemon(plane, policies) as daemon: ...``"""

    def __init__(
        self,
        plane: ControlPlane,
        policies: Sequence[Mapping[str, Any]] = (),
        *,
        replicas: int = 2,
        config: Mapping[str, Any] | None = None,
        arguments: Sequence[str] = (),
        kubeconfig: Path | None = None,
    ) -> None:
        self.plane, self.balancer = plane, Balancer()
        chart.apply(plane)
        self.user = chart.user(plane)
        self.folder = plane.folder / f"daemon-{time.monotonic_ns()}"
        self.policies = self.folder / "policies"
        self.policies.mkdir(parents=True)
        for policy in policies:
            (self.policies / f"{policy['metadata']['name']}.yaml").write_text(yaml.safe_dump(dict(policy)))
        settings = self.folder / "config.yaml"
        settings.write_text(yaml.safe_dump(dict(config or {})))
        url = f"https://127.0.0.1:{self.balancer.port}/mutate"
        self.replicas = [
            Replica(
                f"replica-{number}", self.folder, kubeconfig or self.user.kubeconfig, self.policies, url,
                [*([f"--config={settings}"] if config else []), *arguments],
            )
            for number in range(replicas)
        ]  # fmt: skip
        self.balancer.backends = [replica.webhook_port for replica in self.replicas]

    def __enter__(self) -> Daemon:
        return self.start()

    def __exit__(self, kind: object, *_: object) -> None:
        self.stop()
        if kind:
            print(self.logs())

    def start(self, seconds: float = 30) -> Daemon:
        for replica in self.replicas:
            replica.process.start()
        try:
            self.wait_ready(seconds)
        except BaseException:
            print(self.logs())
            self.stop()
            raise
        return self

    def wait_ready(self, seconds: float = 30) -> None:
        """Every running replica is ready and one leads."""
        for replica in self.replicas:
            wait_for(replica.ready, seconds, f"{replica.name} ready")
        wait_for(self.leader_name, seconds, "a leader")

    def stop(self) -> list[int | None]:
        """SIGTERM to all at once; exit codes."""
        for replica in self.replicas:
            if replica.process.running:
                replica.process.send(signal.SIGTERM)
        codes = [replica.process.terminate(wait=15) for replica in self.replicas]
        self.balancer.close()
        return codes

    def leader_name(self) -> str:
        """holderIdentity of the leader's Lease; "" when there is none."""
        lease = self.plane.api.find(f"{LEASES}/gpu-descheduler")
        return str(((lease or {}).get("spec") or {}).get("holderIdentity") or "")

    def leader(self) -> Replica:
        """The replica that holds the Lease and runs."""
        name = self.leader_name()
        for replica in self.replicas:
            if replica.process.running and name.startswith(replica.name):
                return replica
        raise KeyError(f"no running replica is {name!r}")

    def followers(self) -> list[Replica]:
        leader = self.leader_name()
        return [r for r in self.replicas if r.process.running and not leader.startswith(r.name)]

    def runs(self, policy: str | None = None) -> list[dict[str, Any]]:
        """DefragRun objects, oldest first."""
        path = "/apis/scheduling.hami.placement.com/v1/namespaces/kube-system/defragruns"
        found = [r for r in self.plane.api.items(path) if policy in (None, r["spec"].get("policy"))]
        return sorted(found, key=lambda run: (run["metadata"]["creationTimestamp"], run["metadata"]["name"]))

    def logs(self, lines: int = 40) -> str:
        return "\n".join(f"--- {r.name} (exit {r.process.exit_code})\n{r.process.tail(lines)}" for r in self.replicas)
