"""The plan's JSON object (design section 2.1) and back: one form for CLI, API, run records and tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from defragd.core.plan import Move, Place, PlanReply, Refusal, Score


def plan_to_json(reply: PlanReply) -> dict[str, Any]:
    """The documented object; numbers are plain, waves count from 1."""
    return {
        "policy": reply.policy,
        "strategy": reply.strategy,
        "dryRun": True,
        "score": {
            "name": reply.score_name if reply.score_name in ("phi", "devices", "nodes") else "L",
            "before": _objective(reply, reply.before),
            "after": _objective(reply, reply.after),
        },
        "fragmentation": {"before": score_to_json(reply.before), "after": score_to_json(reply.after)},
        "freed": {"devices": reply.freed_devices, "nodes": reply.freed_nodes},
        "moves": [move_to_json(move) for move in reply.moves],
        "waves": [list(wave) for wave in reply.waves],
        "refused": [_refusal(item) for item in reply.refused],
        "warnings": [_refusal(item) for item in reply.warnings],
        "notes": list(reply.notes),
        "stopped": reply.stopped,
        "elapsedSeconds": round(reply.elapsed_seconds, 3),
    }


def _objective(reply: PlanReply, score: Score) -> float:
    values = {"phi": score.phi, "devices": float(score.idle_devices), "nodes": float(score.idle_nodes)}
    return round(values.get(reply.score_name, score.loss), 6)


def score_to_json(score: Score) -> dict[str, Any]:
    return {
        "L": round(score.loss, 6),
        "phi": round(score.phi, 6),
        "causes": {name: round(value, 6) for name, value in score.causes.items()},
        "idleDevices": score.idle_devices,
        "idleNodes": score.idle_nodes,
        "idleGPUs": round(score.idle_gpus, 4),
        "classes": [
            {"shape": c.label, "weight": round(c.weight, 6), "fits": c.fits, "pooled": c.pooled} for c in score.classes
        ],
    }


def move_to_json(move: Move) -> dict[str, Any]:
    out: dict[str, Any] = {
        "id": move.id,
        "pod": move.pod,
        "uid": move.uid,
        "workload": move.workload,
        "from": {"node": move.source.node, "devices": list(move.source.devices)},
        "to": {"node": move.target.node, "devices": list(move.target.devices)},
        "wave": move.wave,
        "after": list(move.after),
        "gain": round(move.gain, 6),
        "cost": round(move.cost, 3),
        "why": move.why,
    }
    if move.group:
        out["group"] = move.group
    return out


def move_from_json(obj: Mapping[str, Any]) -> Move:
    """Raises KeyError or TypeError when the object is not a move."""
    return Move(
        id=str(obj["id"]),
        pod=str(obj["pod"]),
        uid=str(obj.get("uid", "")),
        source=Place(str(obj["from"]["node"]), tuple(obj["from"]["devices"])),
        target=Place(str(obj["to"]["node"]), tuple(obj["to"]["devices"])),
        wave=int(obj.get("wave", 1)),
        after=tuple(str(x) for x in obj.get("after") or ()),
        group=str(obj.get("group", "")),
        gain=float(obj.get("gain", 0.0)),
        cost=float(obj.get("cost", 1.0)),
        why=str(obj.get("why", "")),
        workload=str(obj.get("workload", "")),
    )


def _refusal(item: Refusal) -> dict[str, str]:
    return {"object": item.object, "reason": str(item.reason), "detail": item.detail}
