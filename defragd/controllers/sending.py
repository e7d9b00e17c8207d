"""Carrying out one decision: the status first, then its actions, each answer kept. Runs in a lane and decides nothing.

Every write passes the leader's fence right before it is sent (in the adapters): a decision made while this replica led
is not carried out once the lease is in doubt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from defragd.core.placement import KIND, Placement, PlacementStatus
from defragd.core.placement_world import Action, Emit, Evict, Memory, Scale, Write
from defragd.ports import EventSink, Note, Outcome, PlacementStore, PodWriter, WorkloadWriter, Written

STALE_SECONDS = 2.0
"""A decision that waited longer for its turn is not carried out but made anew."""
STALE = Written(Outcome.CONFLICT, "not sent: the decision is out of date")


@dataclass(frozen=True, slots=True)
class Task:
    """What a decision asks for. ``memory`` is the decision's, ``before`` the one to go back to when the status cannot
    be stored; ``epoch`` tells tasks of an earlier term as leader; ``decided``: monotonic seconds."""

    placement: Placement
    status: PlacementStatus | None
    actions: tuple[Action, ...]
    memory: Memory
    before: Memory
    epoch: int = 0
    decided: float = 0.0

    @property
    def written(self) -> Placement:
        """The placement as it is once the status is stored (its revision apart)."""
        return self.placement if self.status is None else replace(self.placement, status=self.status)


@dataclass(frozen=True, slots=True)
class Report:
    """``stored``: the answer to the status write, if there was one. ``answers``: those to the actions, in order."""

    task: Task
    stored: Written | None = None
    answers: tuple[tuple[Write, Written], ...] = ()

    @property
    def writes(self) -> int:
        return len(self.answers) + (self.stored is not None)


class Sender:
    """The ports a decision is carried out with. ``epoch`` is the present term as leader."""

    def __init__(
        self,
        placements: PlacementStore,
        pods: PodWriter,
        events: EventSink,
        monotonic: Callable[[], float],
        workloads: WorkloadWriter | None = None,
    ) -> None:
        self._placements, self._pods, self._events, self._monotonic = placements, pods, events, monotonic
        self._workloads = workloads
        self.epoch = 0

    def _stale(self, task: Task) -> bool:
        return task.epoch != self.epoch or self._monotonic() - task.decided > STALE_SECONDS

    def carry_out(self, task: Task) -> Report:
        """Nothing is done on the strength of a status that is not known to be stored. Raises NotLeader."""
        stored = None
        if task.status is not None:
            stored = STALE if self._stale(task) else self._placements.write_status(task.placement, task.status)
            if not stored.ok:
                return Report(task, stored)
        answers: list[tuple[Write, Written]] = []
        for action in task.actions:
            if isinstance(action, Emit):
                if all(answer.outcome in (Outcome.OK, Outcome.UNKNOWN) for _, answer in answers):
                    self._emit(task.placement, action)
                continue
            stop = self._stale(task) or (isinstance(action, Evict | Scale) and self._withdrawn(task.placement))
            answers.append((action, STALE if stop else self._send(action)))
        return Report(task, stored, tuple(answers))

    def _withdrawn(self, placement: Placement) -> bool:
        """The placement was deleted while the call waited for its turn."""
        found = self._placements.get(placement.namespace, placement.name)
        return found is None or found.deleting or found.uid != placement.uid

    def _send(self, action: Write) -> Written:
        if isinstance(action, Scale):
            if self._workloads is None:
                return Written(Outcome.REFUSED, "this process has no way to scale")
            return self._workloads.scale(action.workload, action.replicas, manager=action.manager)
        if isinstance(action, Evict):
            return self._pods.evict(action.pod, dry_run=action.dry_run, check_revision=True)
        return self._pods.patch_pod(action.pod.namespace, action.pod.name, action.patch)

    def _emit(self, placement: Placement, action: Emit) -> None:
        """An Event tells what happened, so not of a write that was refused."""
        pod = action.pod
        kind, about = ("Pod", pod) if pod is not None else (KIND, placement)
        self._events.emit(
            Note(kind, about.namespace, about.name, about.uid, action.reason, action.message, action.warning)
        )
