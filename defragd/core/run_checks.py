"""Is a planned move still right, now, on fresh data? Asked right before its placement is created.

Between plan and action a pod may have been opted out, moved, replaced or made unready, a node cordoned, a device lost,
the place taken, or the gain gone with another move. The answer is a value: start, wait (it may change by itself) or
drop, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from defragd.core.eligibility import NOT_NOW, eligible
from defragd.core.fit import fit_pod
from defragd.core.kube_fit import kube_fit
from defragd.core.mix import given_mix
from defragd.core.model import EMPTY, Pod
from defragd.core.plan import Move, Score
from defragd.core.reasons import Reason
from defragd.core.rules import Rules
from defragd.core.score import score
from defragd.core.snapshot import Snapshot
from defragd.core.vendor import Vendor

WORTH_WAITING = timedelta(minutes=10)
"""A pod that may be moved again within so long is waited for; a later hour is a matter of the next run."""


@dataclass(frozen=True, slots=True)
class Check:
    """``pod`` when the move may start; else ``wait`` says whether to ask again or to drop the move."""

    pod: Pod | None = None
    wait: bool = False
    reason: str = ""
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.pod is not None


def _drop(reason: Reason | str, detail: str) -> Check:
    return Check(reason=str(reason), detail=detail)


def _wait(reason: Reason | str, detail: str) -> Check:
    return Check(wait=True, reason=str(reason), detail=detail)


def recheck(
    move: Move,
    snapshot: Snapshot,
    rules: Rules,
    now: datetime,
    *,
    vendors: Mapping[str, Vendor],
    drain: bool = False,
    leaving: frozenset[str] = frozenset(),
    unsettled: bool = False,
    last_moved: Mapping[str, datetime] = EMPTY,
    arrivals: Mapping[str, datetime] = EMPTY,
) -> Check:
    """``leaving``: pods of the same co-evicted group. ``unsettled``: other moves are under way, so a place that is
    taken now may come free. ``last_moved``, ``arrivals``: by other runs (cooldowns do not part moves of one run).
    Budgets and disruption budgets are asked apart from this."""
    pod = snapshot.pods.get(move.pod)
    if pod is None or not pod.live:
        return _drop(Reason.POD_UNKNOWN, f"{move.pod} is gone")
    if move.uid and pod.uid != move.uid:
        return _drop(Reason.POD_CHANGED, f"{move.pod} is another pod than the plan's (its UID changed)")
    if pod.deleting:
        return _drop(Reason.TERMINATING, f"{move.pod} is terminating already")
    if pod.node != move.source.node or set(pod.devices) != set(move.source.devices):
        return _drop(Reason.POD_CHANGED, f"{move.pod} is no longer on {move.source.node} with the planned devices")
    may = eligible(
        snapshot,
        pod,
        rules,
        now,
        drain=drain,
        vendors=vendors,
        whole_gangs=True,
        last_moved=last_moved,
        arrivals=arrivals,
    )
    if not may.ok:
        soon = may.kind == NOT_NOW and may.until is not None and may.until - now <= WORTH_WAITING
        return (_wait if soon else _drop)(may.reason or Reason.OUT_OF_SCOPE, may.detail)
    # make before break: the old pod is still there when the new one starts
    gone = leaving if rules.execution.handover == "SurgeFirst" else leaving | {pod.key}
    return _place(move, snapshot, pod, vendors=vendors, without=gone, unsettled=unsettled)


def _place(
    move: Move,
    snapshot: Snapshot,
    pod: Pod,
    *,
    vendors: Mapping[str, Vendor],
    without: frozenset[str],
    unsettled: bool,
) -> Check:
    node = snapshot.nodes.get(move.target.node)
    answer = _wait if unsettled else _drop
    if node is None:
        return _drop(Reason.NODE_UNKNOWN, f"node {move.target.node} is gone")
    if not node.ready:
        return answer(Reason.NODE_NOT_READY, f"node {node.name} is not Ready")
    if not node.schedulable:
        return _drop(Reason.NODE_UNSCHEDULABLE, f"node {node.name} is cordoned")
    devices = {device.uuid: device for device in node.devices}
    for uuid in move.target.devices:
        device = devices.get(uuid)
        if device is None:
            return _drop(Reason.DEVICE_UNKNOWN, f"device {uuid} is no longer registered on {node.name}")
        if not device.usable:
            why = "unhealthy" if not device.healthy else "cordoned" if device.cordoned else device.distrusted
            reason = Reason.DEVICE_UNHEALTHY if not device.healthy else Reason.DEVICE_CORDONED
            return _drop(reason if not device.distrusted else Reason.DEVICE_DISTRUSTED, f"device {uuid}: {why}")
    host = kube_fit(snapshot, pod, node.name, without=without)
    if not host.ok:
        return answer(host.reason or Reason.NODE_UNFIT, host.detail)
    fit = fit_pod(snapshot, pod, node.name, vendors=vendors, devices=move.target.devices, without=without)
    if not fit.ok:
        return answer(fit.reason or Reason.NO_PLACE, f"{pod.key} does not fit on its target any more: {fit.text}")
    return Check(pod=pod)


def after_moves(snapshot: Snapshot, moves: Iterable[Move], *, vendors: Mapping[str, Vendor]) -> Snapshot:
    """The cluster as it would be with ``moves`` done (those that fit; the others stay where they are)."""
    todo = [m for m in moves if m.pod in snapshot.pods]
    progress = True
    while todo and progress:
        progress = False
        for move in list(todo):
            pod, node = snapshot.pods[move.pod], snapshot.nodes.get(move.target.node)
            if node is None:
                continue
            fit = fit_pod(
                snapshot, pod, node.name, vendors=vendors, devices=move.target.devices, without=frozenset({pod.key})
            )
            if not fit.ok:
                continue
            moved = replace(pod, node=node.name, booked_node=node.name, allocations=fit.allocations)
            snapshot = snapshot.with_pods({pod.key: moved})
            todo.remove(move)
            progress = True
    return snapshot


def improves(before: Score, after: Score) -> bool:
    """Any measure that a policy can aim at is better."""
    return (
        after.loss < before.loss - 1e-9
        or after.phi < before.phi - 1e-9
        or after.idle_devices > before.idle_devices
        or after.idle_nodes > before.idle_nodes
    )


def still_gains(snapshot: Snapshot, rules: Rules, moves: Iterable[Move], *, vendors: Mapping[str, Vendor]) -> bool:
    """Whether the moves that are left (started ones count as done) make the cluster better at all."""
    mix = given_mix(rules.gain.expected_mix) if rules.gain.expected_mix else None
    return improves(score(snapshot, mix=mix), score(after_moves(snapshot, moves, vendors=vendors), mix=mix))
