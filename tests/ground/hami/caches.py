"""HAMi's view of the cluster, fed by watches: pods, nodes, quotas. As late and as forgetful as the habits say."""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections.abc import Mapping
from typing import Any

from tests.ground.api import Api, ApiError
from tests.ground.hami import books
from tests.ground.hami.decide import World
from tests.ground.hami.habits import Habits
from tests.ground.hami.quota import Quotas
from tests.ground.hami.request import integer


class Limiter:
    """A token bucket in front of the API server, as HAMi's client has one."""

    def __init__(self, qps: float, burst: int) -> None:
        self.qps, self.burst = qps, burst
        self._tokens, self._last = float(burst), time.monotonic()
        self._lock = threading.Lock()

    def wait(self) -> None:
        with self._lock:
            now = time.monotonic()
            self._tokens = min(self.burst, self._tokens + (now - self._last) * self.qps) - 1
            self._last = now
            debt = -self._tokens / self.qps
        if debt > 0:
            time.sleep(debt)


class Caches:
    """``world`` is what decisions see; ``lock`` guards it."""

    def __init__(self, api: Api, world: World, habits: Habits, limiter: Limiter) -> None:
        self.api, self.world, self.habits, self.limiter = api, world, habits, limiter
        self.lock = threading.RLock()
        self.stop = threading.Event()
        self.started, self.begin = threading.Event(), time.monotonic()
        self.pods: dict[str, dict[str, Any]] = {}
        """The informer's pods by "namespace/name"."""
        self.nodes: dict[str, dict[str, Any]] = {}
        self._remembered: dict[str, tuple[int, str]] = {}
        """Per node: allocatable count and register text at the last look."""
        self._deletions = 0
        self._look = threading.Event()
        self._pods_synced, self._nodes_synced = threading.Event(), threading.Event()
        self._quotas: dict[str, dict[str, Any]] = {}

    def start(self) -> None:
        for target in (self._watch_pods, self._watch_nodes, self._watch_quotas, self._register):
            threading.Thread(target=target, daemon=True, name=target.__name__).start()

    # -- pods ---------------------------------------------------------------------------------------------------------

    def _watch_pods(self) -> None:
        for event in self.api.watch("/api/v1/pods", self.stop):
            with self.lock:
                if event["type"] == "SYNC":
                    self._sync(event["items"])
                elif event["type"] == "DELETED":
                    self._deleted(event["object"])
                else:
                    self._seen(event["object"])

    def _sync(self, items: list[dict[str, Any]]) -> None:
        now = {f"{p['metadata']['namespace']}/{p['metadata']['name']}": p for p in items}
        for key, old in list(self.pods.items()):
            if key not in now or now[key]["metadata"]["uid"] != old["metadata"]["uid"]:
                self._forget(old)
        for pod in items:
            self._seen(pod)
        self._pods_synced.set()

    def _seen(self, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        self.pods[f"{meta['namespace']}/{meta['name']}"] = pod
        annotations = meta.get("annotations") or {}
        if books.NODE not in annotations:
            return
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            self.world.bookings.pop(meta["uid"], None)
            return
        known = meta["uid"] in self.world.bookings
        if meta.get("deletionTimestamp") and not known and self.habits.forget_terminating:
            return
        if not known and not self.habits.phantom and not pod["spec"].get("nodeName"):
            return
        booked = books.booking(pod)
        if booked:
            self.world.bookings[meta["uid"]] = booked

    def _deleted(self, pod: dict[str, Any]) -> None:
        self._deletions += 1
        lag = self.habits.deletion_lag
        if lag and self._deletions % self.habits.deletion_lag_every == 0:
            timer = threading.Timer(lag, self._forget, [pod])
            timer.daemon = True
            timer.start()
        else:
            self._forget(pod)

    def _forget(self, pod: dict[str, Any]) -> None:
        with self.lock:
            meta = pod["metadata"]
            key = f"{meta['namespace']}/{meta['name']}"
            if key in self.pods and self.pods[key]["metadata"]["uid"] == meta["uid"]:
                del self.pods[key]
            if books.NODE in (meta.get("annotations") or {}):  # stripped annotations leak the booking
                self.world.bookings.pop(meta["uid"], None)

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _watch_nodes(self) -> None:
        for event in self.api.watch("/api/v1/nodes", self.stop):
            with self.lock:
                if event["type"] == "SYNC":
                    names = {node["metadata"]["name"] for node in event["items"]}
                    for name in set(self.nodes) - names:
                        self._drop_node(name)
                    self.nodes = {node["metadata"]["name"]: node for node in event["items"]}
                    self._nodes_synced.set()
                elif event["type"] == "DELETED":
                    self._drop_node(event["object"]["metadata"]["name"])
                else:
                    self.nodes[event["object"]["metadata"]["name"]] = event["object"]
                    if event["type"] == "ADDED":
                        self._look.set()

    def _drop_node(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.world.nodes.pop(name, None)
        self._remembered.pop(name, None)

    def _register(self) -> None:
        """Looks at the nodes once after the start delay, then at every tick and at every node that is added."""
        self._pods_synced.wait()
        self._nodes_synced.wait()
        while time.monotonic() - self.begin < self.habits.start_delay and not self.stop.wait(0.05):
            pass
        last = 0.0
        while not self.stop.is_set():
            if not self.started.is_set() or self._look.is_set() or time.monotonic() - last >= self.habits.tick:
                self._look.clear()
                last = time.monotonic()
                with self.lock:
                    nodes = copy.copy(self.nodes)
                for name, node in nodes.items():
                    self._look_at(name, node)
                self.started.set()
            self._look.wait(0.1)

    def _look_at(self, name: str, node: Mapping[str, Any]) -> None:
        annotations = node["metadata"].get("annotations") or {}
        count = integer((node["status"].get("allocatable") or {}).get("nvidia.com/gpu", 0)) or 0
        register = annotations.get(books.REGISTER, "")
        before_count, before_register = self._remembered.get(name, (0, ""))
        healthy, refresh = self._handshake(name, annotations.get(books.HANDSHAKE), count)
        if count == 0:
            healthy = healthy and before_count == 0
        elif count != before_count:
            healthy, refresh = True, True
        elif register != before_register:
            refresh = True
        with self.lock:
            self._remembered[name] = (count, register)
            if not healthy:
                self.world.nodes.pop(name, None)
            elif refresh:
                # An annotation that cannot be decoded (or is missing) leaves the old cards in the cache.
                with contextlib.suppress(ValueError, KeyError):
                    self.world.nodes[name] = books.inventory(node)
        if not healthy and books.HANDSHAKE in annotations:
            self._annotate(name, None)

    def _handshake(self, name: str, value: str | None, count: int) -> tuple[bool, bool]:
        """(healthy, refresh)."""
        if value is None or "Requesting" not in value:
            self._annotate(name, time.strftime("Requesting_%Y-%m-%d %H:%M:%S"))
            return True, True
        try:
            asked = time.mktime(time.strptime(value, "Requesting_%Y-%m-%d %H:%M:%S"))
        except ValueError:
            return True, False
        return time.time() - asked < 60 or count > 0, False

    def _annotate(self, node: str, handshake: str | None) -> None:
        self.limiter.wait()
        with contextlib.suppress(ApiError):
            self.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": {books.HANDSHAKE: handshake}}})

    # -- quotas -------------------------------------------------------------------------------------------------------

    def _watch_quotas(self) -> None:
        for event in self.api.watch("/api/v1/resourcequotas", self.stop):
            with self.lock:
                if event["type"] == "SYNC":
                    self._quotas = {q["metadata"]["uid"]: q for q in event["items"]}
                elif event["type"] == "DELETED":
                    self._quotas.pop(event["object"]["metadata"]["uid"], None)
                else:
                    self._quotas.pop(event["object"]["metadata"]["uid"], None)
                    self._quotas[event["object"]["metadata"]["uid"]] = event["object"]
                fresh = Quotas()
                for quota in self._quotas.values():
                    fresh.put(quota, self.world.nvidia)
                self.world.quotas = fresh
