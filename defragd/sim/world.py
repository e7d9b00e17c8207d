"""Small clusters to start a simulation from: a builder in a few words, and the world of the demo.

``App`` places its replicas by hand, so that a test or the demo can say exactly where the slices lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from defragd.core.model import (
    EMPTY,
    Allocation,
    Device,
    DeviceRequest,
    DisruptionBudget,
    Node,
    Owner,
    Pod,
    Resources,
    Scheduling,
    Workload,
)
from defragd.core.rules import equals
from defragd.core.snapshot import Snapshot
from defragd.sim.clock import EPOCH

KNOWN = frozenset({"pdbs", "workloads", "quotas", "placements", "volumes"})
GIB = 1024
HOST = Resources(cpu_milli=96_000, memory_bytes=512 << 30, pods=110)


@dataclass(frozen=True, slots=True)
class App:
    """A workload and where its replicas are: ``at`` lists (node, device index) or (node, (indexes...))."""

    name: str
    at: Sequence[tuple[str, int | tuple[int, ...]]]
    memory_mib: int = 8 * GIB
    cores: int = 0
    kind: str = "Deployment"
    namespace: str = "default"
    min_available: int | None = None
    annotations: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    cpu_milli: int = 500
    grace_seconds: int = 30


def node(
    name: str, devices: int, *, memory_mib: int = 24 * GIB, model: str = "NVIDIA-NVIDIA A10", slots: int = 10
) -> Node:
    """A Ready node with equal devices, UUIDs ``GPU-<node>-<index>``."""
    return Node(
        name=name,
        labels={"kubernetes.io/hostname": name},
        allocatable=HOST,
        devices=tuple(
            Device(
                uuid=f"GPU-{name}-{index}",
                node=name,
                vendor="NVIDIA",
                model=model,
                index=index,
                position=index,
                slots=slots,
                memory_mib=memory_mib,
                cores=100,
            )
            for index in range(devices)
        ),
    )


def build(nodes: Iterable[Node], apps: Iterable[App], *, now: datetime = EPOCH) -> Snapshot:
    """A running cluster: every replica bound, Ready and six hours old; one budget per app that asks for one."""
    pods: dict[str, Pod] = {}
    workloads: dict[str, Workload] = {}
    budgets: list[DisruptionBudget] = []
    for app in apps:
        top = Owner(app.kind, app.name, f"uid-{app.namespace}-{app.name}", "apps/v1")
        if app.kind == "Deployment":
            owner = Owner("ReplicaSet", f"{app.name}-5d4f9c", f"uid-rs-{app.namespace}-{app.name}", "apps/v1")
            workloads[top.uid] = Workload(top.kind, app.namespace, app.name, top.uid, len(app.at), len(app.at))
            workloads[owner.uid] = Workload(
                owner.kind, app.namespace, owner.name, owner.uid, len(app.at), len(app.at), top=top
            )
        else:
            owner = top
            workloads[top.uid] = Workload(top.kind, app.namespace, app.name, top.uid, len(app.at), len(app.at))
        for number, (host, indexes) in enumerate(app.at):
            pod = _pod(app, owner, number, host, (indexes,) if isinstance(indexes, int) else indexes, now)
            pods[pod.key] = pod
        if app.min_available is not None:
            budgets.append(
                DisruptionBudget(
                    namespace=app.namespace,
                    name=app.name,
                    selector=equals({"app": app.name}),
                    allowed=len(app.at) - app.min_available,
                    healthy=len(app.at),
                    desired=app.min_available,
                )
            )
    return Snapshot(
        nodes={n.name: n for n in nodes},
        pods=pods,
        budgets=tuple(budgets),
        workloads=workloads,
        known=KNOWN,
        taken_at=now,
    )


def _pod(app: App, owner: Owner, number: int, host: str, indexes: tuple[int, ...], now: datetime) -> Pod:
    name = f"{app.name}-{number}" if owner.kind == "StatefulSet" else f"{owner.name}-a{number:03d}"
    since = now - timedelta(hours=6)
    return Pod(
        namespace=app.namespace,
        name=name,
        uid=f"uid-{app.namespace}-{name}",
        labels={"app": app.name},
        annotations=app.annotations,
        owner=owner,
        scheduler="hami-scheduler",
        node=host,
        booked_node=host,
        bind_phase="success",
        ready_since=since,
        created=since,
        grace_seconds=app.grace_seconds,
        requests=(
            DeviceRequest(
                container=0,
                init=False,
                sidecar=False,
                vendor="NVIDIA",
                count=len(indexes),
                memory_mib=app.memory_mib,
                cores=app.cores,
            ),
        ),
        allocations=tuple(Allocation(0, f"GPU-{host}-{index}", app.memory_mib, app.cores) for index in indexes),
        scheduling=Scheduling(resources=Resources(cpu_milli=app.cpu_milli, memory_bytes=2 << 30)),
    )


def demo(now: datetime = EPOCH) -> Snapshot:
    """The demo's cluster: six nodes, 34 devices, 42 slices scattered over nearly all of them by weeks of coming and
    going; two budgets, a StatefulSet, a pod whose owner opted out, a service with whole devices."""
    nodes = [node(f"gpu-{name}", count) for name, count in (("a", 8), ("b", 8), ("c", 4), ("d", 4), ("e", 6), ("f", 4))]
    a, b, c, d, e, f = (n.name for n in nodes)
    apps = [
        App(
            "chat", [(a, 0), (b, 0), (c, 0), (d, 0), (e, 0)], memory_mib=10 * GIB, min_available=4, namespace="serving"
        ),
        App("embed", [(a, 1), (b, 1), (c, 1), (e, 1)], memory_mib=6 * GIB, namespace="serving", min_available=3),
        App("rerank", [(a, 2), (b, 2), (d, 1)], memory_mib=8 * GIB, namespace="serving"),
        App("ocr", [(a, 3), (c, 2), (e, 2), (f, 0)], memory_mib=5 * GIB, namespace="vision"),
        App("detect", [(b, 3), (d, 2), (f, 1)], memory_mib=12 * GIB, cores=40, namespace="vision"),
        App("speech", [(a, 4), (b, 4), (e, 3)], memory_mib=8 * GIB, cores=30, namespace="audio"),
        App("tts", [(c, 3), (d, 3)], memory_mib=7 * GIB, namespace="audio"),
        App("index", [(a, 5), (b, 5), (e, 4)], kind="StatefulSet", memory_mib=9 * GIB, namespace="search"),
        App("notebook", [(f, 2), (b, 6), (a, 6)], memory_mib=4 * GIB, namespace="research"),
        App("billing", [(e, 5), (a, 7)], memory_mib=6 * GIB, namespace="core", annotations=_OPTED_OUT),
        App("batch", [(b, 7), (f, 3)], memory_mib=11 * GIB, namespace="research"),
        App("filter", [(a, 0), (c, 0), (d, 1), (e, 1)], memory_mib=3 * GIB, namespace="serving"),
        App("rank", [(b, 1), (f, 0), (d, 2), (a, 2)], memory_mib=3 * GIB, cores=10, namespace="serving"),
    ]
    return build(nodes, apps, now=now)


_OPTED_OUT = {"defragd.io/do-not-move": "true"}
