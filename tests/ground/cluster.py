"""What a test holds in its hand: the control plane, the emulator, and short words for common steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.ground import objects
from tests.ground.api import WEBHOOKS, Api, wait_for
from tests.ground.controlplane import ControlPlane
from tests.ground.emulator import Emulator

DEVICES = "hami.io/vgpu-devices-allocated"
_WORKLOADS = (
    "/apis/apps/v1/{}deployments", "/apis/apps/v1/{}statefulsets", "/apis/apps/v1/{}replicasets",
    "/apis/batch/v1/{}jobs", "/apis/policy/v1/{}poddisruptionbudgets", "/api/v1/{}resourcequotas",
)  # fmt: skip


def devices_of(pod: Mapping[str, Any]) -> list[str]:
    """UUIDs of the pod's allocation record, in its order; a private decoder, independent of the product's."""
    record = (pod["metadata"].get("annotations") or {}).get(DEVICES, "")
    return [item.split(",")[0] for slot in record.split(";") for item in slot.split(":") if "," in item]


def is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


class Cluster:
    """A running cluster; ``api`` is the administrator's client."""

    def __init__(self, plane: ControlPlane, emulator: Emulator) -> None:
        self.plane, self.emulator = plane, emulator
        self.api: Api = plane.api

    # -- making -------------------------------------------------------------------------------------------------------

    def create(self, *bodies: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Creates objects made by `tests.ground.objects`; returns them as stored."""
        return [self.api.create(objects.path_of(body), body) for body in bodies]

    def add_node(self, name: str, devices: int | Sequence[dict[str, Any]] = 4, **shape: Any) -> dict[str, Any]:
        """A node that HAMi knows when this returns; see `objects.node`."""
        since = self.plane.processes["hami"].log_size() if self.plane.settings else 0
        made = self.create(objects.node(name, devices, **shape))[0]
        if self.plane.settings and devices:
            self.wait_known(name, since=since)
        return made

    def wait_known(self, *nodes: str, seconds: float = 30, since: int = 0) -> None:
        """Until HAMi has the devices of these nodes in its cache (``since``: a position in the real one's log)."""
        if self.plane.real_hami:
            for node in nodes:
                line = f'nodeName="{node}" deviceVendor="NVIDIA" nodeInfo='
                self.plane.processes["hami"].wait_for_log(line, seconds, since=since)
            return
        wait_for(
            lambda: set(nodes) <= set(self.plane.hami("/ground/nodes")[1]["nodes"]), seconds, f"HAMi knows {nodes}"
        )

    def habits(self, **changes: Any) -> None:
        """Switches bad habits of the stand-in (see `tests.ground.hami.habits`) while it runs."""
        status, answer = self.plane.hami("/ground/habits", changes)
        assert status == 200, answer

    # -- reading ------------------------------------------------------------------------------------------------------

    def pods(self, namespace: str | None = "default", app: str | None = None) -> list[dict[str, Any]]:
        """Pods of a namespace (None: all), of one ``app`` label."""
        path = "/api/v1/pods" if namespace is None else f"/api/v1/namespaces/{namespace}/pods"
        return self.api.items(path + (f"?labelSelector=app={app}" if app else ""))

    def pod(self, name: str, namespace: str = "default") -> dict[str, Any]:
        found: dict[str, Any] = self.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
        return found

    def ready_pods(self, namespace: str | None = "default", app: str | None = None) -> list[dict[str, Any]]:
        return [p for p in self.pods(namespace, app) if is_ready(p) and not p["metadata"].get("deletionTimestamp")]

    def wait_ready(self, count: int, seconds: float = 30, **which: Any) -> list[dict[str, Any]]:
        """Until exactly that many pods are Ready and none is on its way out; returns them."""

        def ready() -> list[dict[str, Any]]:
            every = self.pods(**which)
            good = [p for p in every if is_ready(p) and not p["metadata"].get("deletionTimestamp")]
            return good if len(good) == count and len(every) == count else []

        return wait_for(ready, seconds, f"{count} pods Ready {which or ''}")

    def placed(self, namespace: str | None = "default") -> dict[str, tuple[str, list[str]]]:
        """pod name -> (node, UUIDs) of every bound pod."""
        return {
            p["metadata"]["name"]: (p["spec"]["nodeName"], devices_of(p))
            for p in self.pods(namespace)
            if p["spec"].get("nodeName")
        }

    def events(self, name: str, namespace: str = "default") -> list[tuple[str, str]]:
        """(reason, message) of the Events on an object."""
        found = self.api.items(f"/api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.name={name}")
        return [(event["reason"], event.get("message", "")) for event in found]

    def placement(self, name: str, namespace: str = "default") -> dict[str, Any]:
        path = objects.COLLECTIONS["HamiPodPlacement"].format(ns=namespace)
        found: dict[str, Any] = self.api.get(f"{path}/{name}")
        return found

    def wait(self, condition: Callable[[], Any], seconds: float = 30, what: str = "") -> Any:
        return wait_for(condition, seconds, what)

    # -- acting -------------------------------------------------------------------------------------------------------

    def evict(self, name: str, namespace: str = "default", *, uid: str = "", dry_run: bool = False) -> tuple[int, Any]:
        """The eviction sub-resource: (status, answer)."""
        options: dict[str, Any] = {}
        if uid:
            options["preconditions"] = {"uid": uid}
        if dry_run:
            options["dryRun"] = ["All"]
        body = {
            "apiVersion": "policy/v1", "kind": "Eviction", "deleteOptions": options,
            "metadata": {"name": name, "namespace": namespace},
        }  # fmt: skip
        return self.api.request("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)

    def annotate(self, kind: str, name: str, annotations: Mapping[str, str | None], namespace: str = "default") -> None:
        path = objects.COLLECTIONS[kind].format(ns=namespace)
        self.api.patch(f"{path}/{name}", {"metadata": {"annotations": dict(annotations)}})

    def scale(self, kind: str, name: str, replicas: int, namespace: str = "default") -> None:
        path = objects.COLLECTIONS[kind].format(ns=namespace)
        self.api.patch(f"{path}/{name}", {"spec": {"replicas": replicas}})

    def reset(self) -> None:
        """Empties the cluster for the next test: no workload, budget, placement, node or namespace stays."""
        self.emulator.reset()
        if self.plane.settings and not self.plane.real_hami:
            self.habits(**dict(self.plane.settings.habits), reset=True)
        for hook in self.api.items(WEBHOOKS):
            if hook["metadata"]["name"] != "hami-webhook":
                self.api.delete(f"{WEBHOOKS}/{hook['metadata']['name']}")
        names = [n["metadata"]["name"] for n in self.api.items("/api/v1/namespaces")]
        for name in names:
            for template in _WORKLOADS:
                self.api.delete(template.format(f"namespaces/{name}/") + "?propagationPolicy=Background")
            self._drop_placements(name)
            self.api.delete(f"/api/v1/namespaces/{name}/events")
        for lease in self.api.items("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"):
            if lease["metadata"]["name"].startswith("gpu-descheduler"):
                self.api.delete(
                    f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{lease['metadata']['name']}"
                )
        self.api.delete("/api/v1/namespaces/kube-system/secrets")

        def gone() -> bool:
            for pod in self.pods(None):
                ns, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
                self.api.delete(f"/api/v1/namespaces/{ns}/pods/{name}?gracePeriodSeconds=0")
            return not self.pods(None)

        wait_for(gone, 30, "pods gone", 0.1)
        self.api.delete("/api/v1/nodes")
        for name in names:
            if name != "default" and not name.startswith("kube-"):
                self.api.delete(f"/api/v1/namespaces/{name}")
        if self.plane.settings and not self.plane.real_hami:
            wait_for(lambda: not self.plane.hami("/ground/nodes")[1]["nodes"], 10, "HAMi forgets the nodes")

    def _drop_placements(self, namespace: str) -> None:
        for plural in ("hamipodplacements", "defragruns"):
            base = f"/apis/scheduling.hami.placement.com/v1/namespaces/{namespace}/{plural}"
            status, listed = self.api.request("GET", base)
            if status != 200:
                continue
            for item in listed["items"]:
                path = f"{base}/{item['metadata']['name']}"
                if item["metadata"].get("finalizers"):
                    self.api.patch(path, {"metadata": {"finalizers": None}})
                self.api.delete(path)
