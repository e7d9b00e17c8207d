"""Leases (coordination.k8s.io/v1) as plain requests: read, create, replace, delete. Used by leader and heartbeats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from defragd.errors import MissingResource
from defragd.kube.client import Client
from defragd.kube.errors import BrokenObject
from defragd.kube.times import parse_time
from defragd.kube.wire import ObjectMeta, Wire
from defragd.ports import Written

LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"


class LeaseSpecWire(Wire):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class LeaseWire(Wire):
    metadata: ObjectMeta
    spec: LeaseSpecWire = msgspec.field(default_factory=LeaseSpecWire)


@dataclass(frozen=True, slots=True)
class Record:
    """What a Lease says. ``holder`` "" = free; ``revision`` "" = the object does not exist."""

    holder: str = ""
    duration: float = 0.0
    acquired: datetime | None = None
    renewed: datetime | None = None
    transitions: int = 0
    revision: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)


def record_of(obj: LeaseWire) -> Record:
    """Odd times count as missing: such a lease is free to take once it stops changing."""
    spec = obj.spec

    def when(text: str | None) -> datetime | None:
        try:
            return parse_time(text)
        except BrokenObject:
            return None

    return Record(
        holder=spec.holder_identity or "",
        duration=float(spec.lease_duration_seconds or 0),
        acquired=when(spec.acquire_time),
        renewed=when(spec.renew_time),
        transitions=spec.lease_transitions or 0,
        revision=obj.metadata.resource_version,
        annotations=obj.metadata.annotations or {},
    )


_DECODER = msgspec.json.Decoder(LeaseWire)


def micro(value: datetime) -> str:
    """metav1.MicroTime wants exactly six digits."""
    return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def read_lease(client: Client, namespace: str, name: str, *, timeout: float) -> Record:
    """An empty Record when there is none. Raises ClusterError and its kinds."""
    try:
        data = client.get(f"{LEASES.format(namespace)}/{name}", timeout=timeout).data
    except MissingResource:
        return Record()
    try:
        return record_of(_DECODER.decode(data))
    except msgspec.DecodeError as err:
        raise BrokenObject(f"Lease {namespace}/{name} cannot be read: {err}; delete it") from err


def write_lease(
    client: Client,
    namespace: str,
    name: str,
    spec: Mapping[str, Any],
    *,
    revision: str,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    pod: tuple[str, str] | None = None,
    timeout: float = 5.0,
) -> Written:
    """Creates it when ``revision`` is "", else replaces exactly that revision (409 when somebody was faster).
    ``pod``: (name, UID) of the pod that owns the lease, which is then collected with it."""
    meta: dict[str, Any] = {"namespace": namespace, "name": name}
    if annotations:
        meta["annotations"] = dict(annotations)
    if labels:
        meta["labels"] = dict(labels)
    if pod is not None:
        meta["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "name": pod[0], "uid": pod[1]}]
    body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": dict(spec)}
    base = LEASES.format(namespace)
    if not revision:
        return client.write("POST", base, body, timeout=timeout)
    meta["resourceVersion"] = revision
    return client.write("PUT", f"{base}/{name}", body, timeout=timeout)


def delete_lease(client: Client, namespace: str, name: str, *, revision: str = "", timeout: float = 5.0) -> Written:
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
    if revision:
        options["preconditions"] = {"resourceVersion": revision}
    return client.write("DELETE", f"{LEASES.format(namespace)}/{name}", options, timeout=timeout)
