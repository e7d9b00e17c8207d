"""DefragRun objects <-> `core.run.Run`. Only form; what a run does is in the controllers."""

from __future__ import annotations

from typing import Any

import msgspec

from defragd.core.run import MoveState, Run, RunMove, RunPhase
from defragd.kube.errors import BrokenObject
from defragd.kube.placements import API_VERSION
from defragd.kube.times import format_time, parse_time
from defragd.kube.wire_custom import CountsWire, RunMoveWire, RunStatusWire, RunWire

KIND = "DefragRun"
PLURAL = "defragruns"
DESIRED = "defragd.io/desired"
"""Annotation on a run: Approved, Paused or Cancelled. Of it and ``spec.desired`` the stricter holds (Cancelled, Paused,
Approved); take the annotation away to go on after Paused."""
WISHES = ("", "Approved", "Paused", "Cancelled")


def run_from_wire(obj: RunWire) -> Run:
    """Raises BrokenObject when the status was written by a version with other words."""
    meta, spec, status = obj.metadata, obj.spec, obj.status
    asked = (meta.annotations or {}).get(DESIRED, "").strip()
    known = spec.desired if spec.desired in WISHES else ""
    by_annotation = asked in WISHES and WISHES.index(asked) > WISHES.index(known)
    try:
        return Run(
            namespace=meta.namespace,
            name=meta.name,
            policy=spec.policy,
            mode=spec.mode,
            strategy=spec.strategy,
            plan=spec.plan or {},
            trigger=spec.trigger,
            scheduled_for=parse_time(spec.scheduled_for),
            settings=spec.settings or {},
            desired=asked if by_annotation else spec.desired,
            desired_by=f"annotation {DESIRED}" if by_annotation else spec.desired_by,
            phase=RunPhase(status.phase) if status.phase else _first_phase(spec.mode),
            reason=status.reason,
            message=status.message,
            wave=status.wave,
            moves=tuple(_move(move) for move in status.moves or ()),
            created=parse_time(meta.creation_timestamp),
            started=parse_time(status.started),
            finished=parse_time(status.finished),
            uid=meta.uid,
            revision=meta.resource_version,
            annotations=meta.annotations or {},
        )
    except (BrokenObject, ValueError) as err:
        raise BrokenObject(f"{KIND} {meta.namespace}/{meta.name}: {err}") from err


def _first_phase(mode: str) -> RunPhase:
    """A run whose first status write is still missing has not begun; only Approve runs may be driven from there."""
    return RunPhase.AWAITING_APPROVAL if mode == "Approve" else RunPhase.PLANNED


def _move(move: RunMoveWire) -> RunMove:
    return RunMove(
        id=move.id,
        state=MoveState(move.state or MoveState.WAITING),
        placement=move.placement,
        reason=move.reason,
        message=move.message,
        started=parse_time(move.started),
        finished=parse_time(move.finished),
    )


def run_to_object(run: Run) -> dict[str, Any]:
    """A new object to create. The status is not in it: the API server drops it, so write it right after."""
    meta: dict[str, Any] = {"namespace": run.namespace, "name": run.name}
    if run.annotations:
        meta["annotations"] = dict(run.annotations)
    meta["labels"] = {"defragd.io/policy": run.policy[:63].rstrip("-._")}
    spec: dict[str, Any] = {"policy": run.policy, "mode": run.mode, "strategy": run.strategy, "trigger": run.trigger}
    if run.scheduled_for is not None:
        spec["scheduledFor"] = format_time(run.scheduled_for)
    if run.plan:
        spec["plan"] = dict(run.plan)
    if run.settings:
        spec["settings"] = dict(run.settings)
    if run.desired:
        spec["desired"] = run.desired
    if run.desired_by:
        spec["desiredBy"] = run.desired_by
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec}


def run_status_to_object(run: Run) -> dict[str, Any]:
    """Phase, reason, message, wave, moves, times and the counts that `kubectl get dfr` shows."""
    planned = len(run.moves) or len(run.plan.get("moves") or ())
    states = [move.state for move in run.moves]
    wire = RunStatusWire(
        phase=run.phase.value,
        reason=str(run.reason),
        message=run.message[:4096],
        wave=run.wave,
        counts=CountsWire(
            planned=planned,
            done=states.count(MoveState.DONE),
            failed=states.count(MoveState.FAILED),
            refused=states.count(MoveState.REFUSED) + states.count(MoveState.DROPPED),
        ),
        moves=[
            RunMoveWire(
                move.id,
                move.state.value,
                move.placement,
                str(move.reason),
                move.message[:4096],
                format_time(move.started),
                format_time(move.finished),
            )
            for move in run.moves
        ]
        or None,
        started=format_time(run.started),
        finished=format_time(run.finished),
    )
    built: dict[str, Any] = msgspec.to_builtins(wire)
    return built
