"""kubelet and HAMi's device plugin, emulated: what happens to a pod between its binding and its end.

Per bound pod, in the plugin's order: empty the to-allocate annotations, set ``bind-phase``, drop the node lock; then
Running and Ready. A pod with a deletion mark is deleted with grace 0 after a delay; until then its device stays booked.
Driven by a watch. Every delay and fault is set per pod:

    emulator.defaults = Behaviour(allocate=0.3, ready=0.3, delete=0.5)
    emulator.behave(lambda pod: pod.name.startswith("web-"), never_ready=True)
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.ground.api import MERGE, PODS, Api
from tests.ground.objects import utc

PHASE, NODE = "hami.io/bind-phase", "hami.io/vgpu-node"
LOCK = "hami.io/mutex.lock"
TO_ALLOCATE, ALLOCATED = "-devices-to-allocate", "-devices-allocated"


@dataclass(frozen=True)
class Behaviour:
    """Delays in seconds; faults are off by default."""

    allocate: float = 0.0
    ready: float = 0.1
    delete: float | None = 0.2
    """None: the pod's deletion never ends (a lost node, a stuck volume)."""
    allocate_fails: bool = False
    """The plugin refuses: bind-phase failed, the pod becomes Failed (UnexpectedAdmissionError)."""
    allocate_hangs: bool = False
    """Allocate is never called: the node lock stays."""
    never_ready: bool = False
    crash_after: float | None = None
    """Ready, and that many seconds later not Ready any more (CrashLoopBackOff)."""
    wrong_device: str | None = None
    """The plugin takes another device: the allocation record names this UUID."""
    finish_after: float | None = None
    """Succeeded that many seconds after it was Ready (a job)."""
    fail_after: float | None = None
    """Failed that many seconds after it was Ready."""


@dataclass(frozen=True)
class PodRef:
    """What a rule sees of a pod."""

    body: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.body["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        return str(self.body["metadata"]["uid"])

    @property
    def node(self) -> str:
        return str(self.body["spec"].get("nodeName") or "")

    @property
    def labels(self) -> dict[str, str]:
        return self.body["metadata"].get("labels") or {}

    @property
    def annotations(self) -> dict[str, str]:
        return self.body["metadata"].get("annotations") or {}

    @property
    def phase(self) -> str:
        return str((self.body.get("status") or {}).get("phase") or "Pending")

    @property
    def path(self) -> str:
        return f"{PODS.format(ns=self.namespace)}/{self.name}"


@dataclass
class Timeline:
    """When things happened to one pod (monotonic seconds)."""

    name: str
    marks: dict[str, float] = field(default_factory=dict)

    def at(self, mark: str) -> float:
        return self.marks[mark]


class Retry(Exception):
    """The API server did not answer; the step is tried again, as a kubelet would."""


class Emulator:
    """Plays all nodes of one cluster. ``errors`` must stay empty in a healthy test."""

    def __init__(self, api: Api, *, workers: int = 2) -> None:
        self.api = api
        self.defaults = Behaviour()
        self.errors: list[str] = []
        self.timelines: dict[str, Timeline] = {}
        self._rules: list[tuple[Callable[[PodRef], bool], dict[str, Any]]] = []
        self._stop, self._paused = threading.Event(), threading.Event()
        self._queue: list[tuple[float, int, Callable[[PodRef, Behaviour], None], PodRef, Behaviour]] = []
        self._ready = threading.Condition()
        self._order = itertools.count()
        self._seen: set[tuple[str, str]] = set()
        self._threads = [threading.Thread(target=self._watch, daemon=True, name="emulator-watch")]
        self._threads += [threading.Thread(target=self._work, daemon=True, name="emulator") for _ in range(workers)]

    def __enter__(self) -> Emulator:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Emulator:
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        with self._ready:
            self._ready.notify_all()
        for thread in self._threads:
            thread.join(5)

    def pause(self) -> None:
        """All kubelets stand still (what is due happens after `resume`)."""
        self._paused.set()

    def resume(self) -> None:
        self._paused.clear()
        with self._ready:
            self._ready.notify_all()

    def behave(self, rule: Callable[[PodRef], bool] | str, **changes: Any) -> None:
        """From now on pods for which ``rule`` holds behave differently; a text: pods whose name starts with it.

        Later rules win. A rule is asked when the step is due to be planned, so it may count or change its mind.
        """
        chosen = (lambda pod: pod.name.startswith(rule)) if isinstance(rule, str) else rule
        self._rules.append((chosen, changes))

    def reset(self) -> None:
        """Back to the defaults; forgets rules, errors and timelines."""
        self.defaults = Behaviour()
        self._rules.clear()
        self.errors.clear()
        self.timelines.clear()
        self._seen.clear()
        with self._ready:
            self._queue.clear()
        self.resume()

    def behaviour(self, pod: PodRef) -> Behaviour:
        chosen = self.defaults
        for rule, changes in list(self._rules):
            if rule(pod):
                chosen = replace(chosen, **changes)
        return chosen

    # -- what the watch sees ------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        self._follow()
        self.api.close()

    def _follow(self) -> None:
        for event in self.api.watch("/api/v1/pods", self._stop):
            bodies = event["items"] if event["type"] == "SYNC" else [event["object"]]
            for body in bodies:
                try:
                    self._see(PodRef(body), gone=event["type"] == "DELETED")
                except Exception as error:
                    self.errors.append(f"{body['metadata']['name']}: {error!r}")

    def _mark(self, pod: PodRef, name: str) -> None:
        line = self.timelines.setdefault(pod.uid, Timeline(f"{pod.namespace}/{pod.name}"))
        line.marks.setdefault(name, time.monotonic())

    def _see(self, pod: PodRef, *, gone: bool) -> None:
        self._mark(pod, "created")
        if gone:
            self._mark(pod, "deleted")
            return
        if pod.body["metadata"].get("deletionTimestamp"):
            self._mark(pod, "deleting")
            if pod.node:
                self._later("delete", pod, lambda b: b.delete, self._finish_delete)
            return
        if not pod.node or pod.phase in ("Succeeded", "Failed"):
            return
        self._mark(pod, "bound")
        conditions = pod.body["status"].get("conditions") or []
        if any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
            self._mark(pod, "ready")
        bind_phase = pod.annotations.get(PHASE)
        if bind_phase == "allocating":
            self._later("allocate", pod, lambda b: None if b.allocate_hangs else b.allocate, self._allocate)
        elif pod.phase == "Pending" and (bind_phase == "success" or NODE not in pod.annotations):
            self._mark(pod, "allocated")
            self._later("ready", pod, lambda b: None if b.never_ready else b.ready, self._start_pod)

    def _later(
        self,
        step: str,
        pod: PodRef,
        delay: Callable[[Behaviour], float | None],
        action: Callable[[PodRef, Behaviour], None],
    ) -> None:
        if (pod.uid, step) in self._seen:
            return
        self._seen.add((pod.uid, step))
        behaviour = self.behaviour(pod)
        seconds = delay(behaviour)
        if seconds is not None:
            self._push(seconds, action, pod, behaviour)

    def _push(self, seconds: float, action: Callable[[PodRef, Behaviour], None], pod: PodRef, how: Behaviour) -> None:
        with self._ready:
            heapq.heappush(self._queue, (time.monotonic() + seconds, next(self._order), action, pod, how))
            self._ready.notify()

    def _work(self) -> None:
        while not self._stop.is_set():
            with self._ready:
                now = time.monotonic()
                if self._paused.is_set() or not self._queue or self._queue[0][0] > now:
                    due = self._queue[0][0] - now if self._queue and not self._paused.is_set() else 0.5
                    self._ready.wait(min(0.5, max(0.001, due)))
                    continue
                _, _, action, pod, behaviour = heapq.heappop(self._queue)
            try:
                action(pod, behaviour)
            except Retry:
                self._push(0.2, action, pod, behaviour)
            except Exception as error:
                self.errors.append(f"{action.__name__} {pod.name}: {error!r}")
        self.api.close()

    # -- steps --------------------------------------------------------------------------------------------------------

    def _call(self, method: str, path: str, body: Any = None, content: str = MERGE) -> tuple[int, Any]:
        status, answer = self.api.request(method, path, body, content if method == "PATCH" else "application/json")
        if status == 0 or status == 429 or status >= 500:
            raise Retry
        return status, answer

    def _finish_delete(self, pod: PodRef, _: Behaviour) -> None:
        self._call("DELETE", pod.path, {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}})

    def _allocate(self, pod: PodRef, behaviour: Behaviour) -> None:
        status, now = self._call("GET", pod.path)
        if status != 200 or now["metadata"]["uid"] != pod.uid or now["metadata"].get("deletionTimestamp"):
            return  # a kubelet does not start a pod that is being deleted; the node lock stays behind
        annotations = now["metadata"].get("annotations") or {}
        changes = {key: ";" * value.count(";") for key, value in annotations.items() if key.endswith(TO_ALLOCATE)}
        changes[PHASE] = "failed" if behaviour.allocate_fails else "success"
        if behaviour.wrong_device:
            changes |= {
                key: _other_device(value, behaviour.wrong_device)
                for key, value in annotations.items()
                if key.endswith(ALLOCATED)
            }
        self._call("PATCH", pod.path, {"metadata": {"uid": pod.uid, "annotations": changes}})
        _, node = self._call("GET", f"/api/v1/nodes/{pod.node}")
        lock = (
            (node["metadata"].get("annotations") or {}).get(LOCK, "")
            if isinstance(node, dict) and "metadata" in node
            else ""
        )
        if lock.endswith(f",{pod.namespace},{pod.name}"):
            self._call("PATCH", f"/api/v1/nodes/{pod.node}", {"metadata": {"annotations": {LOCK: None}}})
        if behaviour.allocate_fails:
            failed = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed (emulated)"}
            self._call("PATCH", f"{pod.path}/status", {"status": failed})

    def _start_pod(self, pod: PodRef, behaviour: Behaviour) -> None:
        self.set_ready(pod)
        for seconds, action in (
            (behaviour.crash_after, lambda p, b: self.set_ready(p, ready=False)),
            (behaviour.finish_after, lambda p, b: self.finish(p, "Succeeded")),
            (behaviour.fail_after, lambda p, b: self.finish(p, "Failed")),
        ):
            if seconds is not None:
                self._push(seconds, action, pod, behaviour)

    def set_ready(self, pod: PodRef, *, ready: bool = True) -> None:
        """Running, Ready or not; init containers have run."""
        moment = utc()
        waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off (emulated)"}}
        running = {"running": {"startedAt": moment}}
        containers = [
            {
                "name": c["name"], "image": c["image"], "imageID": "emulated", "ready": ready, "started": ready,
                "restartCount": 0 if ready else 3, "state": running if ready else waiting,
            }
            for c in pod.body["spec"]["containers"]
        ]  # fmt: skip
        ended = {"terminated": {"exitCode": 0, "startedAt": moment, "finishedAt": moment}}
        inits = [
            {
                "name": c["name"], "image": c["image"], "imageID": "emulated", "ready": True, "restartCount": 0,
                "state": running if c.get("restartPolicy") == "Always" else ended,
            }
            for c in pod.body["spec"].get("initContainers") or []
        ]  # fmt: skip
        conditions = [
            {
                "type": name,
                "status": "True" if ready or name in ("Initialized", "PodScheduled") else "False",
                "lastTransitionTime": moment,
            }
            for name in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
        ]
        status = {
            "phase": "Running", "startTime": moment, "conditions": conditions, "containerStatuses": containers,
            "podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}],
        }  # fmt: skip
        if inits:
            status["initContainerStatuses"] = inits
        self._call("PATCH", f"{pod.path}/status", {"metadata": {"uid": pod.uid}, "status": status})

    def finish(self, pod: PodRef, phase: str) -> None:
        """The pod ends by itself: Succeeded or Failed."""
        conditions = [
            {"type": name, "status": "False", "reason": "PodCompleted", "lastTransitionTime": utc()}
            for name in ("Ready", "ContainersReady")
        ]
        self._call(
            "PATCH",
            f"{pod.path}/status",
            {"metadata": {"uid": pod.uid}, "status": {"phase": phase, "conditions": conditions}},
        )


def _other_device(encoded: str, uuid: str) -> str:
    """The same allocation record with every UUID replaced."""
    slots = []
    for slot in encoded.split(";"):
        devices = [f"{uuid},{item.split(',', 1)[1]}" if "," in item else item for item in slot.split(":")]
        slots.append(":".join(devices))
    return ";".join(slots)
