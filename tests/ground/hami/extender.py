"""`/filter` and `/bind`: decides, writes the choice onto the pod, takes the node lock, binds."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from datetime import UTC, datetime
from typing import Any

from tests.ground.api import PODS, Api, ApiError
from tests.ground.hami import books
from tests.ground.hami.caches import Caches
from tests.ground.hami.decide import Answer, decide
from tests.ground.objects import utc


class BindError(Exception):
    """What HAMi answers kube-scheduler."""


class Extender:
    """Uses the caches for decisions and the limited client for writes. ``lock_seconds``: expiry of a node lock."""

    def __init__(self, caches: Caches, api: Api, *, lock_seconds: float = 300) -> None:
        self.caches, self.api, self.lock_seconds = caches, api, lock_seconds
        self._deciding = threading.Lock()

    # -- filter -------------------------------------------------------------------------------------------------------

    def filter(self, body: dict[str, Any]) -> dict[str, Any]:
        """The extender's answer; blocks until the nodes are known."""
        names = body.get("NodeNames") or body.get("nodenames") or []
        pod = body.get("Pod") or body.get("pod") or {}
        self.caches.started.wait(30)
        time.sleep(self.caches.habits.filter_delay)
        with self._deciding:
            with self.caches.lock:
                answer = decide(self.caches.world, pod, names)
                if answer.passed:
                    return _result(names)
                self.caches.world.bookings.pop(pod["metadata"]["uid"], None)
            if answer.error:
                return {"Error": answer.error}
            if not answer.fitting:
                self._event(pod, "FilteringFailed", f"no available node, {len(names)} nodes do not meet", "Warning")
                return {**_result(None), "FailedNodes": dict(answer.reasons)}
            return self._take(pod, answer)

    def _take(self, pod: dict[str, Any], answer: Answer) -> dict[str, Any]:
        node = random.choice(answer.winners)
        annotations = {books.NODE: node, books.TIME: str(int(time.time())), **answer.fitting[node].written}
        booked = books.booking({**pod, "metadata": {**pod["metadata"], "annotations": annotations}})
        with self.caches.lock:
            if booked:
                self.caches.world.bookings[pod["metadata"]["uid"]] = booked
        try:
            # HAMi mirrors the node's name into a label: this is what breaks for names beyond 63 characters.
            self._patch_pod(pod, {"metadata": {"annotations": annotations, "labels": {books.NODE: node}}})
        except ApiError as error:
            with self.caches.lock:
                self.caches.world.bookings.pop(pod["metadata"]["uid"], None)
            return {"Error": str(error.body.get("message") if isinstance(error.body, dict) else error.body)}
        self._event(pod, "FilteringSucceed", f"find fit node({node})")
        return _result([node])

    # -- bind ---------------------------------------------------------------------------------------------------------

    def bind(self, body: dict[str, Any]) -> dict[str, Any]:
        """{"Error": ""} when bound."""
        namespace, name = body.get("PodNamespace", ""), body.get("PodName", "")
        node = body.get("Node", "")
        with self.caches.lock:
            pod = self.caches.pods.get(f"{namespace}/{name}")
            known = node in self.caches.nodes
        try:
            if pod is None or not known:
                raise BindError(f"pod {namespace}/{name} or node {node} is not in the cache")
            self._lock_node(node, namespace, name)
            try:
                marks = {books.BIND_PHASE: "allocating", books.BIND_TIME: str(int(time.time()))}
                self._patch_pod(pod, {"metadata": {"annotations": marks}})
                self._call(
                    "POST",
                    f"{PODS.format(ns=namespace)}/{name}/binding",
                    {
                        "metadata": {"name": name, "namespace": namespace, "uid": body.get("PodUID", "")},
                        "target": {"kind": "Node", "name": node},
                    },
                )
            except ApiError:
                self._release_node(node, namespace, name)
                raise
        except (BindError, ApiError) as error:
            if pod is not None:
                self._event(pod, "BindingFailed", str(error), "Warning")
            return {"Error": str(error)}
        self._event(pod, "BindingSucceed", f"Successfully binding node [{node}] to {namespace}/{name}")
        return {"Error": ""}

    def _lock_node(self, node: str, namespace: str, name: str) -> None:
        mine = f"{namespace},{name}"
        for _ in range(5):
            found = self._call("GET", f"/api/v1/nodes/{node}")
            value = (found["metadata"].get("annotations") or {}).get(books.LOCK)
            if value and value.split(",", 1)[-1] == mine:
                return
            if value and not self._stale(value):
                raise BindError(f"node {node} has been locked within 5m0s: node lock contention")
            for _again in range(2):  # HAMi reads the node three times per bind: it counts where requests are limited
                self._call("GET", f"/api/v1/nodes/{node}")
            changed = {
                "resourceVersion": found["metadata"]["resourceVersion"],
                "annotations": {books.LOCK: f"{datetime.now(UTC).strftime('%Y-%m-%dT%H:%M:%SZ')},{mine}"},
            }
            try:
                self._call("PATCH", f"/api/v1/nodes/{node}", {"metadata": changed})
                return
            except ApiError as error:
                if error.status != 409:
                    raise
                time.sleep(0.1)
        raise BindError(f"node {node}: lock not taken after 5 attempts")

    def _stale(self, value: str) -> bool:
        """Expired, or its holder is gone. Raises BindError for a value that is none: there is no expiry for that."""
        stamp, _, holder = value.partition(",")
        try:
            taken = datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        except ValueError:
            raise BindError(f"malformed lock annotation {value!r}") from None
        if (datetime.now(UTC) - taken).total_seconds() > self.lock_seconds:
            return True
        parts = holder.split(",")
        if len(parts) != 2:
            return not holder and (datetime.now(UTC) - taken).total_seconds() > self.lock_seconds
        with self.caches.lock:
            return f"{parts[0]}/{parts[1]}" not in self.caches.pods

    def _release_node(self, node: str, namespace: str, name: str) -> None:
        with contextlib.suppress(ApiError):
            found = self._call("GET", f"/api/v1/nodes/{node}")
            value = (found["metadata"].get("annotations") or {}).get(books.LOCK, "")
            if value.endswith(f",{namespace},{name}"):
                self._call("PATCH", f"/api/v1/nodes/{node}", {"metadata": {"annotations": {books.LOCK: None}}})

    # -- writes -------------------------------------------------------------------------------------------------------

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        self.caches.limiter.wait()
        content = "application/merge-patch+json" if method == "PATCH" else "application/json"
        return self.api.call(method, path, body, content)

    def _patch_pod(self, pod: dict[str, Any], change: dict[str, Any]) -> None:
        meta = pod["metadata"]
        self._call("PATCH", f"{PODS.format(ns=meta['namespace'])}/{meta['name']}", change)

    def _event(self, pod: dict[str, Any], reason: str, message: str, kind: str = "Normal") -> None:
        """Events go through the same limiter, but nobody waits for them."""
        meta = pod["metadata"]
        body = {
            "metadata": {"generateName": f"{meta['name']}.", "namespace": meta["namespace"]},
            "involvedObject": {
                "kind": "Pod", "apiVersion": "v1", "namespace": meta["namespace"], "name": meta["name"],
                "uid": meta.get("uid", ""),
            },
            "reason": reason, "message": message, "type": kind, "source": {"component": "hami-scheduler"},
            "firstTimestamp": utc(), "lastTimestamp": utc(), "count": 1,
        }  # fmt: skip

        def send() -> None:
            with contextlib.suppress(ApiError):
                self._call("POST", f"/api/v1/namespaces/{meta['namespace']}/events", body)

        threading.Thread(target=send, daemon=True).start()


def _result(names: list[str] | None) -> dict[str, Any]:
    return {"Nodes": None, "NodeNames": names, "FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": ""}
