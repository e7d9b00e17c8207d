"""A small fragmented cluster with policies, runs and placements behind fakes of the ports, for tests and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from defragd.core.model import (
    Allocation,
    Device,
    DeviceRequest,
    Hold,
    Node,
    Owner,
    Pod,
    Problem,
    Resources,
    Selector,
    Workload,
)
from defragd.core.placement import Assignment, Condition, Phase, Placement, PlacementSpec, PlacementStatus, Step
from defragd.core.plan import Move, Place, PlanReply, Refusal
from defragd.core.plan_json import plan_to_json
from defragd.core.run import MoveState, Run, RunMove, RunPhase
from defragd.core.snapshot import Snapshot
from defragd.hami.vendors import VENDORS
from defragd.obs.cluster import Reading
from defragd.obs.metrics import Metrics
from defragd.policy.loaded import PolicySet
from defragd.web.deps import ApiDeps, PolicyView, StartView, User
from defragd.web.explainer import build_explain
from tests.support.web_fakes import NOW, Clock, Leader, Placements, Reader, Runs, authorize, build_score

MODELS = (("NVIDIA A100-SXM4-80GB", 81920), ("NVIDIA L40S", 46068), ("NVIDIA Tesla T4", 15360))


def _pod(name: str, node: str, uuids: Sequence[str], mib: int, cores: int, number: int) -> Pod:
    namespace = ("ads", "search", "vision", "research")[number % 4]
    app = name.rsplit("-", 2)[0]
    return Pod(
        namespace=namespace,
        name=name,
        uid=f"uid-{number:04d}",
        labels={"app": app},
        owner=Owner("ReplicaSet", f"{app}-66c9d", f"owner-{app}", "apps/v1"),
        scheduler="hami-scheduler",
        node=node,
        booked_node=node,
        created=NOW - timedelta(hours=number % 90),
        requests=(DeviceRequest(0, False, False, "NVIDIA", len(uuids), memory_mib=mib, cores=cores),),
        allocations=tuple(Allocation(0, uuid, mib, cores) for uuid in uuids),
    )


def build_snapshot(nodes: int = 12, *, per_node: int = 4) -> Snapshot:
    """``nodes`` nodes of three models; some idle, some full, most of them fragmented. The same every time."""
    found: dict[str, Node] = {}
    pods: dict[str, Pod] = {}
    number = 0
    for n in range(nodes):
        model, size = MODELS[n % 3]
        name = f"gpu-node-{n + 1:02d}"
        devices = []
        for d in range(per_node):
            uuid = f"GPU-{n:04x}{d:04x}-5d1b-4c1e-9b7d-0f1e2d3c4b5a"
            sick = (n, d) == (7, 2)
            devices.append(
                Device(
                    uuid,
                    name,
                    "NVIDIA",
                    model,
                    index=d,
                    position=d,
                    slots=10,
                    memory_mib=size,
                    cores=100,
                    numa=d // 2,
                    mode="hami-core",
                    healthy=not sick,
                    cordoned=(n, d) == (4, 3),
                )
            )
            for share in _shares(n, d):
                app = ("embed", "rank", "chat", "ocr", "train")[number % 5]
                pod = _pod(
                    f"{app}-{number // 5:03d}-x{number:04d}", name, (uuid,), int(size * share), int(share * 100), number
                )
                pods[pod.key] = pod
                number += 1
        found[name] = Node(
            name,
            labels={"kubernetes.io/hostname": name},
            ready=n != 9 or nodes < 10,
            devices=tuple(devices),
            allocatable=Resources(96000, 384 << 30, 110),
        )
    found["cpu-node-01"] = Node("cpu-node-01", allocatable=Resources(64000, 256 << 30, 110))
    waiting = replace(
        _pod("bigtrain-000-x9999", "", (), 81920, 100, 3),
        uid="uid-9999",
        phase="Pending",
        booked_node="",
        ready=False,
        requests=(DeviceRequest(0, False, False, "NVIDIA", 4, memory_pct=100, cores=100),),
        unschedulable="0/13 nodes are available: 12 NodeUnfitPod, 1 node unregistered.",
    )
    pods[waiting.key] = waiting
    second = next(iter(found.values())).devices
    workloads = {
        pod.owner.uid: Workload(
            "ReplicaSet", pod.namespace, pod.owner.name, pod.owner.uid, replicas=1 if "ocr" in pod.name else 4, ready=4
        )
        for pod in pods.values()
        if pod.owner
    }
    hold = Hold("ads/defrag-7-m2", "gpu-node-01", (Allocation(0, second[3].uuid, 8192, 10),))
    return Snapshot(
        nodes=found,
        pods=pods,
        workloads=workloads,
        holds=(hold,),
        known=frozenset({"pdbs", "workloads", "placements"}),
        problems=(Problem("Node/gpu-node-77", "UnreadableAllocation", "register annotation: item 3 has no id"),),
        taken_at=NOW - timedelta(seconds=2),
    )


def _shares(n: int, d: int) -> tuple[float, ...]:
    kind = (n * 7 + d * 3) % 11
    table = (
        (),
        (0.25,),
        (0.5, 0.25),
        (1.0,),
        (0.12, 0.12, 0.3),
        (0.4,),
        (0.5, 0.48),
        (),
        (0.2, 0.1),
        (0.75,),
        (0.33, 0.33, 0.33),
    )
    return () if n == 5 else table[kind]


def build_plan(snapshot: Snapshot) -> PlanReply:
    """Moves of lone small pods onto other partly used devices, in two or three waves."""
    lone = []
    for node in snapshot.nodes.values():
        for uuid, use in snapshot.usage(node.name).items():
            if 1 <= len(use.holders) <= 2 and use.holders[0] in snapshot.pods and use.cores <= 50:
                lone.append((node.name, uuid, use.holders[0]))
    moves = []
    for k, (source, target) in enumerate(zip(lone[0::2], lone[1::2], strict=False)):
        wave = 1 + k // 3
        after = (f"m{k - 2}",) if wave > 1 else ()
        moves.append(
            Move(
                f"m{k + 1}",
                source[2],
                snapshot.pods[source[2]].uid,
                Place(source[0], (source[1],)),
                Place(target[0], (target[1],)),
                wave=wave,
                after=after,
                gain=0.012 - k * 0.001,
                cost=1.0,
                why=f"empties {source[1][:12]} on {source[0]}; fits beside one pod",
            )
        )
    before, after_score = build_score(), build_score(better=True)
    waves = tuple(tuple(m.id for m in moves if m.wave == w) for w in sorted({m.wave for m in moves}))
    refused = (Refusal("ads/rank-001-x0006", "PDBBlocks", "budget ads/rank allows no disruption now"),)
    notes = ("hami-scheduler spreads pods over nodes (node policy spread); binpack would cause less fragmentation",)
    return PlanReply(
        "nightly-consolidation",
        "best-fit",
        "loss",
        before,
        after_score,
        tuple(moves),
        waves,
        refused,
        (),
        notes,
        freed_devices=len(moves),
        freed_nodes=1,
        elapsed_seconds=0.84,
    )


def build_runs(snapshot: Snapshot) -> list[Run]:
    reply = build_plan(snapshot)
    plan = plan_to_json(reply)
    ids = [m.id for m in reply.moves]
    states = [MoveState.DONE, MoveState.DONE, MoveState.FAILED, MoveState.IN_FLIGHT]
    moves = tuple(
        RunMove(
            name,
            states[k] if k < 4 else MoveState.WAITING,
            placement=f"ads/run-3-{name}" if k < 4 else "",
            reason="StartTimeout" if k == 2 else "",
            message="not Ready within 5m" if k == 2 else "",
            started=NOW - timedelta(minutes=9 - k) if k < 4 else None,
            finished=NOW - timedelta(minutes=8 - k) if k < 3 else None,
        )
        for k, name in enumerate(ids)
    )
    base = Run("kube-system", "nightly-consolidation-1", "nightly-consolidation", "DryRun", "best-fit", plan=plan)
    return [
        replace(base, created=NOW - timedelta(days=1), finished=NOW - timedelta(days=1)),
        replace(
            base,
            name="weekly-drain-1",
            policy="weekly-drain",
            mode="Approve",
            strategy="gpu-drain",
            phase=RunPhase.AWAITING_APPROVAL,
            created=NOW - timedelta(hours=3),
        ),
        replace(
            base,
            name="nightly-consolidation-3",
            mode="Auto",
            phase=RunPhase.RUNNING,
            wave=1,
            moves=moves,
            created=NOW - timedelta(minutes=10),
            started=NOW - timedelta(minutes=9),
        ),
        replace(
            base,
            name="nightly-consolidation-2",
            mode="Auto",
            phase=RunPhase.ABORTED,
            reason="FailureRatio",
            plan={},
            message="3 of 8 moves failed, more than the 30% of abortAbove",
            created=NOW - timedelta(hours=20),
        ),
    ]


def build_placements(snapshot: Snapshot) -> list[Placement]:
    spec = PlacementSpec("run-3-m1", Selector(), "gpu-node-02", ("gpu-1",), evict_pod="embed-000-x0000")
    done = PlacementStatus(
        Phase.COMPLETED,
        Step.ENDED,
        reason="Completed",
        pod_name="embed-000-x0400",
        pod_uid="uid-0400",
        consumed_at=NOW - timedelta(minutes=8),
        ended_at=NOW - timedelta(minutes=7),
        conditions=(Condition("Completed", "True", "Completed", "Ready on the planned device", NOW),),
        assignments=(Assignment("embed-000-x0400", "uid-0400", "gpu-1", "GPU-00010001-5d1b-4c1e-9b7d-0f1e2d3c4b5a"),),
    )
    held = PlacementStatus(Phase.AWAITING_POD, Step.EVICTING, reason="AwaitingPod", message="waits for the replacement")
    failed = PlacementStatus(Phase.FAILED, Step.ENDED, reason="StartTimeout", message="not Ready within 5m, recycled")
    return [
        Placement(
            "ads",
            "run-3-m1",
            spec,
            done,
            uid="p1",
            created=NOW - timedelta(minutes=9),
            labels={"defragd.io/policy": "nightly-consolidation"},
        ),
        Placement(
            "ads", "run-3-m4", replace(spec, req_id="run-3-m4"), held, uid="p2", created=NOW - timedelta(minutes=5)
        ),
        Placement(
            "ads", "run-3-m3", replace(spec, req_id="run-3-m3"), failed, uid="p3", created=NOW - timedelta(minutes=7)
        ),
    ]


def build_policies() -> list[PolicyView]:
    starts = [
        StartView(NOW + timedelta(hours=3), "2026-12-01T10:05:00+08:00"),
        StartView(NOW + timedelta(hours=12), "2026-12-01T19:05:00+08:00", False, "window: 9-17 on weekdays"),
    ]
    return [
        PolicyView(
            "nightly-consolidation",
            "policies/best-fit.yaml",
            "ab12cd34ef567890",
            "best-fit",
            {"objective": "auto"},
            "Auto",
            "0 2 * * *",
            "Asia/Shanghai",
            starts,
            NOW - timedelta(minutes=10),
            "nightly-consolidation-3",
            spec={"budgets": {"total": 50, "concurrent": 5}},
        ),
        PolicyView(
            "weekly-drain",
            "policies/gpu-drain.yaml",
            "99887766",
            "gpu-drain",
            {"unhealthy": True},
            "Approve",
            "0 3 * * 7",
            "UTC",
            [StartView(NOW + timedelta(days=5), "2026-12-06T03:00:00Z")],
            error="policies/gpu-drain.yaml:12:5: unknown field 'budgetz', did you mean 'budgets'?",
        ),
        PolicyView(
            "make-room",
            "policies/make-room.yaml",
            "1234",
            "make-room",
            {},
            "DryRun",
            "",
            "UTC",
            waiting="BreakerOpen: pool NVIDIA L40S came back to a known state, until 2026-12-01T12:00:00Z",
        ),
    ]


@dataclass
class WebWorld:
    """Everything behind `deps`, to poke at."""

    clock: Clock
    reader: Reader
    placements: Placements
    runs: Runs
    leader: Leader
    metrics: Metrics
    events: list[tuple[str, Mapping[str, Any]]]
    deps: ApiDeps


def build_world(nodes: int = 12, *, per_node: int = 4, snapshot: Snapshot | None = None, **changes: Any) -> WebWorld:
    """A world whose `deps` serve everything; ``changes`` replace fields of `ApiDeps`."""
    snap = snapshot if snapshot is not None else build_snapshot(nodes, per_node=per_node)
    clock, reader, leader = Clock(), Reader(snap), Leader()
    placements, runs = Placements(build_placements(snap)), Runs(build_runs(snap))
    metrics = Metrics(process=False)
    score = build_score()
    metrics.watch_cluster(
        lambda: Reading(
            snapshot=reader.world,
            scores={"all": score},
            placements=placements.items,
            runs=runs.items,
            snapshot_age_seconds=1.5,
            leader=leader.leading,
            synced={"pods": True, "nodes": True},
            certificate_expiry=NOW.timestamp() + 86400,
            policies={"ok": 2, "broken": 1},
            gated_pods=0,
        )
    )
    events: list[tuple[str, Mapping[str, Any]]] = []

    def plan_now(policy: str, user: User) -> Run | Refusal:
        if policy == "make-room":
            return Refusal("Policy/make-room", "BreakerOpen", "the breaker is open until noon")
        return runs.items[0]

    given: dict[str, Any] = {
        "reader": reader,
        "placements": placements,
        "runs": runs,
        "leadership": leader,
        "clock": clock,
        "policies": build_policies,
        "score": lambda: score,
        "metrics": metrics,
        "plan_now": plan_now,
        "explain": build_explain(reader, PolicySet, clock, vendors=VENDORS),
        "live": {"loops": lambda: ""},
        "ready": {"caches": lambda: "", "webhook": lambda: ""},
        "authorize": authorize,
        "writes_enabled": True,
        "settings": {"namespace": "kube-system"},
        "hook": lambda event, fields: events.append((event, dict(fields))),
        "title": "prod-eu-1",
    }
    return WebWorld(clock, reader, placements, runs, leader, metrics, events, ApiDeps(**{**given, **changes}))
