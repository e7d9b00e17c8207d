"""Kubernetes Events about pods, placements and runs: a background queue that never raises and never holds anyone up.

core/v1 Events with the new fields filled (action, reporting component), because every server since 1.24 takes them and
`kubectl describe` shows them.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any

from defragd.core.placement import KIND as PLACEMENT_KIND
from defragd.kube.client import Client, no_hook
from defragd.kube.lease import micro
from defragd.kube.placements import API_VERSION
from defragd.kube.runs import KIND as RUN_KIND
from defragd.ports import Hook, Note

COMPONENT = "gpu-descheduler"
DEDUPE_SECONDS = 120.0
LONGEST = 1024
"""The API server refuses longer messages."""
_QUEUE = 1000
_MEMORY = 4096


class KubeEvents:
    """ports.EventSink. A full queue drops the newest note and says so through the hook, once per burst."""

    def __init__(self, client: Client, *, identity: str, hook: Hook = no_hook) -> None:
        self._client, self._identity, self._hook = client, identity[:128], hook
        self._queue: queue.Queue[Note | None] = queue.Queue(_QUEUE)
        self._said: OrderedDict[Note, float] = OrderedDict()
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._count = 0
        self._dropping = False

    def emit(self, note: Note) -> None:
        tick = time.monotonic()
        with self._guard:
            last = self._said.get(note)
            if last is not None and tick - last < DEDUPE_SECONDS:
                return
            self._said[note] = tick
            self._said.move_to_end(note)
            while len(self._said) > _MEMORY:
                self._said.popitem(last=False)
        try:
            self._queue.put_nowait(note)
            self._dropping = False
        except queue.Full:
            if not self._dropping:
                self._dropping = True
                self._hook("event.dropped", {"object": f"{note.namespace}/{note.name}", "reason": "queue is full"})

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 3.0) -> None:
        """Sends what is queued, as far as time allows."""
        try:
            self._queue.put(None, timeout=timeout)
        except queue.Full:
            return
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while (note := self._queue.get()) is not None:
            try:
                namespace = note.namespace or "default"
                body = self._body(note, namespace)
                result = self._client.write("POST", f"/api/v1/namespaces/{namespace}/events", body, timeout=5.0)
                if not result.ok:
                    self._hook("event.failed", {"object": f"{namespace}/{note.name}", "reason": result.message})
            except Exception as err:  # noqa: BLE001 - an Event is never worth a dead thread
                self._hook("event.failed", {"object": f"{note.namespace}/{note.name}", "reason": str(err)})

    def _body(self, note: Note, namespace: str) -> dict[str, Any]:
        self._count += 1
        now = datetime.now(UTC)
        seconds = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        about = {
            "apiVersion": API_VERSION if note.kind in (PLACEMENT_KIND, RUN_KIND) else "v1",
            "kind": note.kind,
            "namespace": namespace,
            "name": note.name,
        }
        if note.uid:
            about["uid"] = note.uid
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "namespace": namespace,
                "name": f"{note.name[:200]}.{time.time_ns():x}{self._count % 16:x}",
            },
            "involvedObject": about,
            "reason": str(note.reason)[:128],
            "message": _short(note.message),
            "type": "Warning" if note.warning else "Normal",
            "action": str(note.reason)[:128],
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._identity,
            "eventTime": micro(now),
            "firstTimestamp": seconds,
            "lastTimestamp": seconds,
            "count": 1,
        }


def _short(text: str) -> str:
    data = text.encode()
    return text if len(data) <= LONGEST else data[: LONGEST - 3].decode("utf-8", "ignore") + "…"
