"""Writes to pods, placements and runs. An answer that carries the object goes into the store at once, so whoever wrote
never decides on what it knows to be old. Writes of a leader pass the fence: NotLeader as soon as the lease is in doubt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from defragd.core.model import Pod, Workload
from defragd.core.placement import KIND, PINNED, Placement, PlacementStatus
from defragd.core.run import Run
from defragd.errors import NotLeader
from defragd.kube import evictor
from defragd.kube.client import MERGE_PATCH, Client
from defragd.kube.decode import ListDecoder, key_of
from defragd.kube.kinds import PODS
from defragd.kube.placements import API_VERSION, path_of, placement_to_object, status_to_object
from defragd.kube.runs import KIND as RUN_KIND
from defragd.kube.runs import PLURAL as RUNS
from defragd.kube.runs import run_status_to_object, run_to_object
from defragd.kube.store import Store
from defragd.kube.view import View
from defragd.kube.wire import Pod as PodWire
from defragd.kube.wire_custom import PlacementWire, RunWire
from defragd.ports import Leadership, Outcome, Written

T = TypeVar("T")
CLAIM_SECONDS = 0.8
"""An admission must answer within the webhook's timeout (2 s), whatever the API server does."""


class Fence:
    """Who may write what only a leader may write. Without a leadership (tests, --no-leader-elect) everybody may."""

    def __init__(self) -> None:
        self.leadership: Leadership | None = None

    def check(self, what: str) -> None:
        if self.leadership is not None and not self.leadership.is_leader():
            raise NotLeader(f"{what}: not sent, the lease is held by {self.leadership.holder() or 'nobody'}")


def absorb(
    store: Store[T] | None, decoder: ListDecoder[T], result: Written, data: bytes, *, current: bool = True
) -> Written:
    """Take the object of a good answer into the store. ``current``: see `Store.upsert`."""
    if store is not None and result.ok and data:
        try:
            item = decoder.item(data)
        except msgspec.DecodeError:
            return result  # a Status, not the object; the watch will tell
        meta: Any = item.metadata  # type: ignore[attr-defined]
        if meta.name and meta.resource_version:
            store.upsert(key_of(meta.namespace, meta.name), item, meta.resource_version, current=current)
    return result


class KubePods:
    """ports.PodWriter."""

    def __init__(self, client: Client, fence: Fence, store: Store[PodWire] | None = None) -> None:
        self._client, self._fence, self._store = client, fence, store
        self._decoder = PODS.decoder()

    def evict(self, pod: Pod, *, dry_run: bool = False, check_revision: bool = False) -> Written:
        self._fence.check(f"eviction of {pod.key}")
        revision = pod.revision if check_revision else ""
        return evictor.evict(self._client, pod.namespace, pod.name, uid=pod.uid, revision=revision, dry_run=dry_run)

    def patch_pod(self, namespace: str, name: str, patch: Mapping[str, Any]) -> Written:
        annotations = (patch.get("metadata") or {}).get("annotations") or {}
        if annotations.get(PINNED):
            # Every replica may let a gated pod go; only the leader may pin one.
            self._fence.check(f"pin of {namespace}/{name}")
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        result, data = self._client.write_raw("PATCH", path, dict(patch), content_type=MERGE_PATCH)
        if result.outcome is Outcome.REFUSED and "metadata.uid" in result.message:
            # The API server says 422 "field is immutable" when the pod of this name has another UID.
            return replace(result, outcome=Outcome.CONFLICT)
        return absorb(self._store, self._decoder, result, data)


class KubeWorkloads:
    """ports.WorkloadWriter. Nothing but replica counts is ever written, through the sub-resource made for that."""

    def __init__(self, client: Client, fence: Fence) -> None:
        self._client, self._fence = client, fence

    def scale(self, workload: Workload, replicas: int, *, manager: str) -> Written:
        self._fence.check(f"scale of {workload.key}")
        path = f"/apis/apps/v1/namespaces/{workload.namespace}/deployments/{workload.name}/scale"
        body = {"metadata": {"resourceVersion": workload.revision}, "spec": {"replicas": replicas}}
        query = {"fieldManager": manager}
        return self._client.write_raw("PATCH", path, body, content_type=MERGE_PATCH, query=query)[0]


class KubePlacements:
    """ports.PlacementStore over the cache of the watch."""

    def __init__(
        self, client: Client, fence: Fence, store: Store[PlacementWire], view: View[PlacementWire, Placement]
    ) -> None:
        self._client, self._fence, self._store, self._view = client, fence, store, view
        self._decoder = ListDecoder(PlacementWire, KIND)

    def list(self) -> Sequence[Placement]:
        return tuple(self._view.read().values())

    def get(self, namespace: str, name: str) -> Placement | None:
        return self._view.read().get(f"{namespace}/{name}")

    def seen(self) -> int:
        """The newest revision of placements that this process has taken in; what a heartbeat says (`Beat.seen`)."""
        return self._store.latest

    def create(self, placement: Placement) -> Written:
        self._fence.check(f"creation of placement {placement.key}")
        result, data = self._client.write_raw("POST", path_of(placement.namespace), placement_to_object(placement))
        return absorb(self._store, self._decoder, result, data)

    def write_status(self, placement: Placement, status: PlacementStatus) -> Written:
        self._fence.check(f"status of placement {placement.key}")
        return self._put_status(placement, status)

    def claim(self, placement: Placement, status: PlacementStatus) -> Written:
        """ports.ClaimWriter: no lease is needed, the revision decides; an admission cannot wait for long. What this
        replica says to have seen stays what its watch has shown: the leader relies on that."""
        return self._put_status(placement, status, timeout=CLAIM_SECONDS, current=False)

    def _put_status(
        self, placement: Placement, status: PlacementStatus, *, timeout: float | None = None, current: bool = True
    ) -> Written:
        body = _identity(KIND, placement.namespace, placement.name, placement.uid, placement.revision)
        body["status"] = status_to_object(status)
        path = path_of(placement.namespace, placement.name) + "/status"
        result, data = self._client.write_raw("PUT", path, body, timeout=timeout)
        return absorb(self._store, self._decoder, result, data, current=current)

    def delete(self, placement: Placement) -> Written:
        self._fence.check(f"deletion of placement {placement.key}")
        return _delete(self._client, path_of(placement.namespace, placement.name), placement.uid)


class KubeRuns:
    """ports.RunStore. Creating and commanding runs is open to every replica; progress is the leader's."""

    def __init__(
        self, client: Client, fence: Fence, namespace: str, store: Store[RunWire], view: View[RunWire, Run]
    ) -> None:
        self._client, self._fence, self._namespace = client, fence, namespace
        self._store, self._view = store, view
        self._decoder = ListDecoder(RunWire, RUN_KIND)

    def list(self) -> Sequence[Run]:
        return tuple(self._view.read().values())

    def get(self, name: str) -> Run | None:
        return self._view.read().get(f"{self._namespace}/{name}")

    def create(self, run: Run) -> Written:
        """The object, then its status, as the API server takes them apart. Without the second a run has not begun."""
        result, data = self._client.write_raw("POST", path_of(run.namespace, plural=RUNS), run_to_object(run))
        absorb(self._store, self._decoder, result, data)
        if not result.ok:
            return result
        meta = result.body.get("metadata") or {}
        return self._put_status(run, str(meta.get("uid") or ""), result.revision)

    def write_status(self, run: Run) -> Written:
        self._fence.check(f"status of run {run.key}")
        return self._put_status(run, run.uid, run.revision)

    def write_desired(self, name: str, desired: str, by: str) -> Written:
        body = {"spec": {"desired": desired, "desiredBy": by[:1024]}}
        path = path_of(self._namespace, name, plural=RUNS)
        result, data = self._client.write_raw("PATCH", path, body, content_type=MERGE_PATCH)
        return absorb(self._store, self._decoder, result, data)

    def delete(self, run: Run) -> Written:
        self._fence.check(f"deletion of run {run.key}")
        return _delete(self._client, path_of(run.namespace, run.name, plural=RUNS), run.uid)

    def _put_status(self, run: Run, uid: str, revision: str) -> Written:
        body = _identity(RUN_KIND, run.namespace, run.name, uid, revision)
        body["status"] = run_status_to_object(run)
        path = path_of(run.namespace, run.name, plural=RUNS) + "/status"
        result, data = self._client.write_raw("PUT", path, body)
        return absorb(self._store, self._decoder, result, data)


def _identity(kind: str, namespace: str, name: str, uid: str, revision: str) -> dict[str, Any]:
    """An update of the status sub-resource: everything but ``status`` is ignored, the revision is the precondition."""
    meta = {"namespace": namespace, "name": name}
    if uid:
        meta["uid"] = uid
    if revision:
        meta["resourceVersion"] = revision
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": meta}


def _delete(client: Client, path: str, uid: str) -> Written:
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
    if uid:
        options["preconditions"] = {"uid": uid}
    result = client.write("DELETE", path, options)
    return Written(Outcome.OK, "already gone") if result.outcome is Outcome.GONE else result
