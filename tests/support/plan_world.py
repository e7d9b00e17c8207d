"""Small worlds for planner tests in the cases' notation: ``world("n1 { g0 24G: a 10G/30c; g1 24G: - }")``.

``x 2x20G`` asks for two devices, ``whole`` for all of one, ``a@A`` names the workload. Every pod belongs to a
Deployment of its own with two replicas unless a workload is named.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from defragd.core.model import (
    Allocation,
    Device,
    DeviceRequest,
    DisruptionBudget,
    Expression,
    Node,
    Owner,
    Pod,
    Resources,
    Scheduling,
    Selector,
    Workload,
)
from defragd.core.plan import PlanReply, PlanRequest
from defragd.core.planner import plan
from defragd.core.rules import Budgets, Cap, Gain, Protection, Rules
from defragd.core.snapshot import Snapshot
from defragd.hami.vendors import VENDORS
from defragd.strategies import best_fit, gpu_drain, make_room, node_drain

NOW = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
OLD = NOW - timedelta(days=10)
GIB = 1024
STRATEGIES = {s.STRATEGY.name: s.STRATEGY for s in (best_fit, gpu_drain, node_drain, make_room)}
UNLIMITED = Rules(
    budgets=Budgets(
        total=None,
        concurrent=None,
        per_source_node=Cap(),
        per_target_node=Cap(in_flight=1),
        per_namespace=Cap(),
        per_workload=Cap(in_flight=1),
    )
)
MODEL = "NVIDIA A30"
HOST = Resources(cpu_milli=1_000_000, memory_bytes=1 << 42, pods=200)


def _request(text: str) -> tuple[int, int, int, int]:
    """(count, MiB, percent, cores) of ``10G/30c``, ``2x20G``, ``whole`` or ``4xwhole``."""
    count, _, what = text.rpartition("x")
    n = int(count) if count else 1
    if what == "whole":
        return n, 0, 100, 100
    size, _, cores = what.partition("/")
    return n, int(float(size.removesuffix("G")) * GIB), 0, int(cores.removesuffix("c")) if cores else 0


def make_pod(
    name: str, request: str, *, workload: str = "", devices: list[Device] | None = None, **fields: object
) -> Pod:
    """A pod of namespace ``ns``; with ``devices`` it runs on them, without it is pending."""
    count, mib, pct, cores = _request(request)
    owner = workload or name
    ask = DeviceRequest(0, False, False, "NVIDIA", count, mib, pct, cores)
    held = tuple(Allocation(0, d.uuid, ask.memory_on(d), cores) for d in devices or [])
    node = devices[0].node if devices else ""
    pod = Pod(
        namespace="ns",
        name=name,
        uid=f"uid-{name}",
        labels={"app": owner},
        owner=Owner("ReplicaSet", owner, f"rs-{owner}", "apps/v1"),
        scheduler="hami-scheduler",
        node=node,
        booked_node=node,
        bind_phase="success" if node else "",
        phase="Running" if node else "Pending",
        ready=bool(node),
        ready_since=OLD if node else None,
        created=OLD,
        requests=(ask,),
        allocations=held,
        scheduling=Scheduling(resources=Resources(cpu_milli=0, memory_bytes=0)),
    )
    return replace(pod, **fields)  # type: ignore[arg-type]


def world(text: str, *, pending: str = "", budgets: dict[str, int] | None = None) -> Snapshot:
    """A snapshot from the notation above. ``budgets``: workload -> disruptions allowed now."""
    nodes: dict[str, Node] = {}
    pods: dict[str, Pod] = {}
    for name, body in re.findall(r"(\w+)\s*\{([^}]*)\}", text):
        devices: list[Device] = []
        places: list[tuple[str, str]] = []
        for index, part in enumerate(p for p in body.split(";") if p.strip()):
            head, _, who = part.partition(":")
            words = head.split()
            devices.append(
                Device(
                    uuid=f"GPU-{name}-{words[0]}",
                    node=name,
                    vendor="NVIDIA",
                    model=MODEL,
                    index=index,
                    position=index,
                    slots=10,
                    memory_mib=int(words[1].removesuffix("G")) * GIB,
                    cores=100,
                    healthy="unhealthy" not in words,
                    mode="hami-core",
                )
            )
            places += [(w.strip(), devices[-1].uuid) for w in who.split(",") if w.strip() not in ("", "-")]
        nodes[name] = Node(name=name, allocatable=HOST, devices=tuple(devices))
        by_uuid = {d.uuid: d for d in devices}
        held: dict[str, list[Device]] = {}
        asked: dict[str, str] = {}
        for what, uuid in places:
            pod, _, request = what.partition(" ")
            held.setdefault(pod, []).append(by_uuid[uuid])
            asked[pod] = request or asked[pod]
        for pod, on in held.items():
            short, _, workload = pod.partition("@")
            made = make_pod(short, asked[pod], workload=workload, devices=on)
            pods[made.key] = made
    for what in (w.strip() for w in pending.split(",") if w.strip()):
        pod, _, request = what.partition(" ")
        made = make_pod(pod, request)
        pods[made.key] = made
    return complete(Snapshot(nodes=nodes, pods=pods, taken_at=NOW), budgets or {})


def complete(snapshot: Snapshot, budgets: dict[str, int]) -> Snapshot:
    """Workloads for all owners (two replicas at least, the unseen ones Ready) and the given budgets."""
    sizes: dict[str, int] = {}
    for pod in snapshot.pods.values():
        if pod.owner is not None:
            sizes[pod.owner.name] = sizes.get(pod.owner.name, 0) + 1
    pods = dict(snapshot.pods)
    for name, count in sizes.items():
        if count == 1:  # the replica out of the picture: Ready, without devices
            other = make_pod(f"{name}-other", "1G", workload=name)
            pods[other.key] = replace(
                other, requests=(), node="elsewhere", ready=True, ready_since=OLD, phase="Running", scheduler="default"
            )
    snapshot = replace(snapshot, pods=pods)
    workloads = {
        f"rs-{name}": Workload("ReplicaSet", "ns", name, f"rs-{name}", replicas=max(2, n), ready=max(2, n))
        for name, n in sizes.items()
    }
    found = tuple(
        DisruptionBudget("ns", name, Selector((Expression("app", "In", (name,)),)), allowed=n, healthy=9, desired=0)
        for name, n in budgets.items()
    )
    known = frozenset({"pdbs", "workloads", "quotas", "placements", "volumes"})
    return replace(snapshot, workloads=workloads, budgets=found, known=known)


def make_plan(
    snapshot: Snapshot,
    strategy: str = "best-fit",
    args: dict[str, object] | None = None,
    *,
    rules: Rules = UNLIMITED,
    history: dict[str, int] | None = None,
    seed: int = 0,
    max_steps: int | None = None,
) -> PlanReply:
    request = PlanRequest(
        snapshot,
        policy="test",
        strategy=strategy,
        args=args or {},
        rules=rules,
        now=NOW,
        seed=seed,
        max_steps=max_steps,
        history=history or {},
        vendors=VENDORS,
    )
    return plan(request, strategies=STRATEGIES)


__all__ = ["NOW", "STRATEGIES", "UNLIMITED", "Gain", "Protection", "make_plan", "make_pod", "world"]
