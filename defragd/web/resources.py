"""Domain values as the API's JSON: camelCase, RFC 3339 times, plain numbers with units in their names."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from defragd.core.model import Problem
from defragd.core.placement import Placement
from defragd.core.plan import Score
from defragd.core.plan_json import score_to_json
from defragd.core.run import MoveState, Run, RunMove
from defragd.web.cluster_view import DeviceView, NodeView, Summary
from defragd.web.deps import PolicyView, StartView

Json = dict[str, Any]


def stamp(when: datetime | None) -> str | None:
    """RFC 3339 in UTC with seconds, None stays None."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if when else None


def node_json(view: NodeView) -> Json:
    """A node with its devices; ``state`` is idle, busy, unready or unschedulable."""
    return {
        "name": view.node.name,
        "pool": view.pool,
        "ready": view.node.ready,
        "schedulable": view.node.schedulable,
        "state": view.state,
        "pods": view.pods,
        "lock": {"holder": view.node.lock.holder, "since": stamp(view.node.lock.since)} if view.node.lock else None,
        "devices": [device_json(item) for item in view.devices],
    }


def device_json(view: DeviceView) -> Json:
    """A device with capacity, health, usage and who holds it; shares are 0..1 of the whole device."""
    device = view.device
    return {
        "uuid": device.uuid,
        "node": device.node,
        "index": device.index,
        "vendor": device.vendor,
        "model": device.model,
        "numa": device.numa,
        "mode": device.mode,
        "state": view.state,
        "health": {"healthy": device.healthy, "cordoned": device.cordoned, "distrusted": device.distrusted},
        "capacity": {"slots": device.slots, "memoryMiB": device.memory_mib, "cores": device.cores},
        "usage": {"slots": view.use.slots, "memoryMiB": view.use.memory_mib, "cores": view.use.cores},
        "exclusive": view.use.exclusive,
        "freeShare": round(view.free, 4),
        "holders": [
            {
                "pod": None if s.hold else s.holder,
                "placement": s.holder.removeprefix("hold:") if s.hold else None,
                "slots": s.slots,
                "memoryMiB": s.memory_mib,
                "cores": s.cores,
                "share": round(s.share, 4),
            }
            for s in view.segments
        ],
    }


def summary_json(item: Summary) -> Json:
    return {
        "nodes": item.nodes,
        "idleNodes": item.idle_nodes,
        "unreadyNodes": item.unready_nodes,
        "devices": item.devices,
        "devicesByState": dict(item.states),
        "memoryMiB": item.memory_mib,
        "usedMemoryMiB": item.used_mib,
        "idleDeviceEquivalents": round(item.free, 4),
    }


def fragmentation_json(score: Score | None) -> Json | None:
    return score_to_json(score) if score else None


def problem_json(problem: Problem) -> Json:
    return {"object": problem.object, "reason": str(problem.reason), "detail": problem.detail}


def placement_json(placement: Placement) -> Json:
    """A placement: what was asked, how far it is and which pod got which device."""
    spec, status = placement.spec, placement.status
    times = {
        "held": status.held_at,
        "evicting": status.evicting_at,
        "evicted": status.evicted_at,
        "pinned": status.pinned_at,
        "consumed": status.consumed_at,
        "ready": status.ready_at,
        "ended": status.ended_at,
    }
    return {
        "namespace": placement.namespace,
        "name": placement.name,
        "uid": placement.uid,
        "reqID": spec.req_id,
        "created": stamp(placement.created),
        "open": placement.open,
        "phase": str(status.phase),
        "reason": str(status.reason),
        "message": status.message,
        "nodeName": spec.node_name,
        "gpuDevices": list(spec.gpu_devices),
        "devices": list(status.devices),
        "evictPod": spec.evict_pod or None,
        "pod": {"name": status.pod_name, "uid": status.pod_uid} if status.pod_name or status.pod_uid else None,
        "suspend": spec.suspend,
        "policy": placement.labels.get("defragd.io/policy"),
        "run": placement.labels.get("defragd.io/run"),
        "move": placement.labels.get("defragd.io/move"),
        "consumedAt": stamp(status.consumed_at),
        "times": {name: stamp(when) for name, when in times.items() if when},
        "assignmentDetails": [
            {"podName": a.pod_name, "podUID": a.pod_uid, "gpuDevice": a.gpu_device, "uuid": a.uuid}
            for a in status.assignments
        ],
        "conditions": [
            {
                "type": c.type,
                "status": c.status,
                "reason": str(c.reason),
                "message": c.message,
                "lastTransitionTime": stamp(c.last_transition),
            }
            for c in status.conditions
        ],
    }


def start_json(start: StartView) -> Json:
    return {"utc": stamp(start.utc), "local": start.local, "allowed": start.allowed, "reason": start.reason}


def policy_json(policy: PolicyView) -> Json:
    return {
        "name": policy.name,
        "source": policy.source,
        "digest": policy.digest,
        "strategy": policy.strategy,
        "args": dict(policy.args),
        "mode": policy.mode,
        "schedule": policy.schedule,
        "timeZone": policy.time_zone,
        "nextStarts": [start_json(start) for start in policy.next_starts],
        "lastStart": stamp(policy.last_start),
        "lastRun": policy.last_run or None,
        "waiting": policy.waiting,
        "lastError": policy.error or None,
        "spec": dict(policy.spec),
    }


def move_counts(run: Run) -> dict[str, int]:
    """planned, done, failed, refused of a run (dropped moves count as refused)."""
    states = [move.state for move in run.moves]
    return {
        "planned": len(states) or len(run.plan.get("moves") or ()),
        "done": states.count(MoveState.DONE),
        "failed": states.count(MoveState.FAILED),
        "refused": states.count(MoveState.REFUSED) + states.count(MoveState.DROPPED),
    }


def run_json(run: Run) -> Json:
    """A run as the list shows it."""
    return {
        "id": run.name,
        "namespace": run.namespace,
        "policy": run.policy,
        "strategy": run.strategy,
        "mode": run.mode,
        "trigger": run.trigger,
        "phase": str(run.phase),
        "desired": run.desired,
        "desiredBy": run.desired_by,
        "created": stamp(run.created),
        "scheduledFor": stamp(run.scheduled_for),
        "started": stamp(run.started),
        "finished": stamp(run.finished),
        "wave": run.wave,
        "moves": {**move_counts(run), "inFlight": sum(1 for m in run.moves if m.state is MoveState.IN_FLIGHT)},
        "reason": str(run.reason),
        "message": run.message,
    }


def run_detail_json(run: Run) -> Json:
    """A run with its plan and what became of each move."""
    return {**run_json(run), "plan": plan_json(run), "moveStates": [run_move_json(move) for move in run.moves]}


def run_move_json(move: RunMove) -> Json:
    return {
        "id": move.id,
        "state": str(move.state),
        "placement": move.placement or None,
        "reason": str(move.reason),
        "message": move.message,
        "started": stamp(move.started),
        "finished": stamp(move.finished),
    }


_EMPTY_PLAN: Mapping[str, Any] = {
    "score": None,
    "freed": {"devices": 0, "nodes": 0},
    "moves": [],
    "refused": [],
    "stopped": "",
    "elapsedSeconds": 0.0,
}
"""What a record of another version may lack; the contract's fields are always there."""


def has_plan(run: Run) -> bool:
    """A plan was computed. Runs that were held back or failed before only note policy and strategy."""
    return "waves" in run.plan


def plan_json(run: Run) -> Json | None:
    """The plan object of a run with its id (the run's name) and when it was made."""
    if not has_plan(run):
        return None
    plan: Mapping[str, Any] = run.plan
    return {
        **_EMPTY_PLAN,
        "policy": run.policy,
        "strategy": run.strategy,
        **plan,
        "id": run.name,
        "created": stamp(run.created),
        "dryRun": run.mode == "DryRun",
    }
