"""The leader's loop over all open placements: look, ask the state machine, write, act, learn from the answers.

Level-triggered. Truth is in the cluster; what is kept here are this process's own last words (newer than a cache that
lags) and attempts with their pauses. Losing the lease drops both. Within one cycle the order is: places that pods wait
for, then pods on their way, then evictions, then new work, so that many new placements cannot delay a gated pod.

Decisions are made by one thread, on one picture of the world; the calls they ask for run in a lane beside each other,
one per placement at a time. Until such a call is answered its effect counts as if it had come true wherever that is the
cautious side: a hold that is being written is held, an eviction under way uses up its budgets, a pin occupies its node.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from defragd.controllers.heartbeats import lowest_seen, newest
from defragd.controllers.lane import InlineLane, Lane
from defragd.controllers.sending import STALE, Report, Sender, Task
from defragd.core.gating import release_patch
from defragd.core.model import Pod
from defragd.core.placement import POLICY_LABEL, Placement, Step
from defragd.core.placement_answers import durations, learn
from defragd.core.placement_pin import uuid_lists
from defragd.core.placement_steering import held_devices, steering
from defragd.core.placement_world import Decision, Evict, Memory, PatchPod, Scale, Tuning, World, arrivals
from defragd.core.progress import step
from defragd.core.validate import SCHEDULERS
from defragd.core.vendor import Vendor
from defragd.errors import NotLeader
from defragd.ports import (
    Clock,
    ClusterReader,
    EventSink,
    Heartbeats,
    Hook,
    Leadership,
    Outcome,
    PlacementStore,
    PodWriter,
    WorkloadWriter,
    Written,
)

MAX_AGE_SECONDS = 90.0
"""Older data is no ground for action (I9). A quiet watch proves itself by a bookmark about once a minute."""
STEPS_PER_CYCLE, TUNING = 12, Tuning()
WRITE_PAUSE = {
    Outcome.CONFLICT: 0.1,
    Outcome.UNKNOWN: 1.0,
    Outcome.BLOCKED: 1.0,
    Outcome.REFUSED: 10.0,
}
"""Seconds before a status write is tried again."""
BUSY_LOOK = 0.02
"""While calls are under way the cache is looked at so often, in seconds; a call's answer is noticed at once."""
SURPLUS = "surplus:"


class PlacementController:
    """Drives placements while this replica leads. ``cycle`` is one pass; tests and the simulation call it."""

    def __init__(
        self,
        *,
        reader: ClusterReader,
        placements: PlacementStore,
        pods: PodWriter,
        events: EventSink,
        leadership: Leadership,
        heartbeats: Heartbeats,
        clock: Clock,
        hook: Hook,
        vendors: Mapping[str, Vendor],
        seen: Callable[[], int] | None = None,
        heartbeats_ready: Callable[[], bool] = lambda: True,
        schedulers: Collection[str] = SCHEDULERS,
        tuning: Tuning = TUNING,
        max_age_seconds: float = MAX_AGE_SECONDS,
        slice_seconds: float = 0.25,
        paused: Callable[[], str] = lambda: "",
        lane: Lane | None = None,
        admission: str = "gate",
        workloads: WorkloadWriter | None = None,
    ) -> None:
        """``seen``: newest placement revision that this replica's own webhook acts on (default: of the cache).
        ``slice_seconds``: a cycle ends after about so long and starts again with a fresh snapshot. ``paused`` says
        why nothing new may begin ("" = it may); what is under way goes on. ``lane``: where calls run (default: at
        once, in this thread). ``admission``: how the webhooks keep pods for us, "gate" or "pin".
        ``workloads``: for surges."""
        self._reader, self._placements, self._pods = reader, placements, pods
        self._sender = Sender(placements, pods, events, clock.monotonic, workloads)
        self._lane, self._admission = lane or InlineLane(), admission
        self._leadership, self._heartbeats, self._clock, self._hook = leadership, heartbeats, clock, hook
        self._vendors, self._schedulers, self._tuning = vendors, schedulers, tuning
        self._seen = seen or (lambda: newest(placements))
        self._heartbeats_ready = heartbeats_ready
        self._max_age, self._slice, self._paused = max_age_seconds, slice_seconds, paused
        self._memories: dict[str, Memory] = {}
        self._mine: dict[str, Placement] = {}
        """Placements as this process wrote them last, where the cache may be behind."""
        self._not_before: dict[str, float] = {}
        """Placement key -> monotonic time before which its status is not written again."""
        self._released: dict[str, float] = {}
        """Surplus pod UID -> when it may be let go again (the cache has not shown the last attempt yet)."""
        self._coming: dict[str, Placement] = {}
        """Placements whose status is being written, as they will be."""
        self._epoch = 0
        """Term as leader: answers to calls of an earlier one teach nothing."""
        self._writes, self._say_from, self.beat = 0, 0.0, clock.monotonic()

    # -- loop -----------------------------------------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        """Until ``stop``. A lost lease is no error: the loop looks again, the new leader goes on."""
        version = -1
        while not stop.is_set():
            wake: datetime | None = None
            try:
                version = self._reader.version()
                wake = self.cycle()
            except NotLeader:
                self.lost()
            except Exception as error:  # noqa: BLE001 - a loop that dies would leave pods gated until their deadline
                self._hook("loop.failed", {"loop": "placements", "error": f"{type(error).__name__}: {error}"})
                stop.wait(1.0)
            self.beat = self._clock.monotonic()
            pause = 1.0 if wake is None else (wake - self._clock.now()).total_seconds()
            self._rest(version, min(max(pause, 0.01), 1.0))
            stop.wait(0.01)
        self._lane.close()

    def _rest(self, version: int, pause: float) -> None:
        """Until something changes, a call is answered, or the pause is over."""
        end = self._clock.monotonic() + pause
        while self._lane.busy() and (self._lane.full() or self._reader.version() <= version):
            left = end - self._clock.monotonic()
            if left <= 0:
                return
            self._lane.wait(min(left, BUSY_LOOK))
            if self._lane.ready():
                return
        self._reader.wait(version, max(end - self._clock.monotonic(), 0.0))

    def cycle(self) -> datetime | None:
        """One pass over all open placements and gated pods. Returns when to look again, even if nothing changes; None
        = nothing is under way. Raises NotLeader when the lease is lost in the middle: nothing was written after."""
        if not self._leadership.is_leader():
            self.lost()
            return None
        if not self._reader.synced() or self._reader.age_seconds() > self._max_age:
            return self._clock.now() + timedelta(seconds=1)
        stored = self._placements.list()
        if not stored and not self._memories and not self._mine:
            return None
        self._take_answers(None)
        current = self._merge(stored)
        now = self._clock.now()
        world = self._world(current, now)
        began = self._clock.monotonic()
        wakes: list[datetime] = []
        opened = [p for p in current.values() if p.open and not p.deleting]
        for key in [p.key for p in sorted(opened, key=lambda p: _urgency(p, world))]:
            if self._lane.full():  # the next answer makes room for the most urgent of what is left
                break
            if self._clock.monotonic() - began > self._slice:
                wakes.append(now)
                break
            wake = self._advance(key, world)
            if wake is not None:
                wakes.append(wake)
        self._let_surplus_go(world)
        if self._writes and self._clock.monotonic() >= self._say_from:  # one line a second: passes are many
            self._hook("cycle", {"loop": "placements", "open": len(opened), "writes": self._writes})
            self._writes, self._say_from = 0, self._clock.monotonic() + 1.0
        return min(wakes, default=None)

    def _world(self, current: Mapping[str, Placement], now: datetime) -> World:
        snapshot = self._reader.snapshot()
        if self._heartbeats_ready():
            seen, who = lowest_seen(self._heartbeats, self._seen())
        else:
            seen, who = -1, "the other replicas' state"
        return World(
            snapshot=snapshot,
            placements=current,
            vendors=self._vendors,
            seen=seen,
            unseen_by=who,
            memories=self._memories,
            schedulers=self._schedulers,
            tuning=self._tuning,
            arrivals=arrivals(current.values(), snapshot, self._memories, now, self._tuning),
            coming=dict(self._coming),
            admission=self._admission,
        )

    def _merge(self, stored: Collection[Placement]) -> dict[str, Placement]:
        """The cache, with our own last word where it is newer. What is gone from the cache is gone."""
        current: dict[str, Placement] = {}
        for placement in stored:
            mine = self._mine.get(placement.key)
            if mine is not None:
                if mine.uid == placement.uid and _newer(mine, placement):
                    placement = replace(placement, status=mine.status, revision=mine.revision)
                else:
                    del self._mine[placement.key]
            current[placement.key] = placement
        opened = {key for key, placement in current.items() if placement.open}
        self._memories = {key: memory for key, memory in self._memories.items() if key in opened}
        self._not_before = {key: until for key, until in self._not_before.items() if key in opened}
        self._mine = {key: placement for key, placement in self._mine.items() if key in current}
        self._coming = {key: placement for key, placement in self._coming.items() if key in current}
        return current

    def lost(self) -> None:
        """This replica does not lead (any more): what it knows belongs to an earlier term."""
        self._epoch += 1
        self._sender.epoch = self._epoch
        self._coming.clear()
        self._memories.clear()
        self._mine.clear()
        self._not_before.clear()
        self._released.clear()

    # -- one placement --------------------------------------------------------------------------------------------

    def _advance(self, key: str, world: World) -> datetime | None:
        """Asks the state machine until it has nothing more to do now."""
        wait = self._not_before.get(key)
        if wait is not None:
            if self._clock.monotonic() < wait:
                return self._clock.now() + timedelta(seconds=wait - self._clock.monotonic())
            del self._not_before[key]
        if self._paused() and world.placements[key].status.step is Step.NEW:
            return None
        for _ in range(STEPS_PER_CYCLE):
            if key in self._lane.busy():
                return None
            placement = world.placements[key]
            decision = step(placement, world, self._clock.now())
            before = world.memories.get(key, Memory())
            world.memories[key] = decision.memory
            if decision.status is None and not decision.actions:
                return decision.wake
            self._submit(placement, decision, before, world)
            self._take_answers(world)
            wait = self._not_before.get(key)
            if wait is not None:
                return self._clock.now() + timedelta(seconds=max(0.0, wait - self._clock.monotonic()))
        return self._clock.now()

    def _submit(self, placement: Placement, decision: Decision, before: Memory, world: World) -> None:
        tick = self._clock.monotonic()
        task = Task(placement, decision.status, decision.actions, decision.memory, before, self._epoch, tick)
        if decision.status is not None and task.written.open:
            self._coming[placement.key] = world.coming[placement.key] = task.written
            world.promised()
        for action in decision.actions:
            if isinstance(action, Evict) and not action.dry_run and not action.recycle:
                # before it is sent: its replacement may be there before its answer is
                world.memories[placement.key] = replace(decision.memory, evicted="Unknown")
                world.ledger.take(action.pod)
            elif isinstance(action, Scale) and not world.memories[placement.key].evicted:
                world.memories[placement.key] = replace(decision.memory, evicted="Unknown")
            elif isinstance(action, PatchPod) and action.why == "pin":
                world.arrivals[placement.spec.node_name] = placement.key
        self._lane.submit(placement.key, lambda: self._sender.carry_out(task))

    def _take_answers(self, world: World | None) -> None:
        """What the calls that have ended since teach. ``world``: the picture of this cycle, if there is one yet."""
        failed: Exception | None = None
        for done in self._lane.collect():
            if done.error is not None:
                failed = failed or done.error
                self._coming.pop(done.key, None)
            elif isinstance(done.value, Report):
                self._writes += done.value.writes
                if done.value.task.epoch == self._epoch:
                    self._learn(done.value, world)
            elif not done.value:
                self._released[done.key.removeprefix(SURPLUS)] = self._clock.monotonic() + 0.2
        if failed is not None:
            raise failed

    def _learn(self, report: Report, world: World | None) -> None:
        task, key = report.task, report.task.placement.key
        self._coming.pop(key, None)
        if world is not None and world.coming.pop(key, None) is not None:
            world.promised()
        if report.stored is not None and not report.stored.ok:
            self._retry_later(report.stored, key)
            self._memories[key] = task.before
            return
        placement = task.placement
        if report.stored is not None:
            placement = replace(task.written, revision=report.stored.revision or task.placement.revision)
            self._mine[key] = placement
            if world is not None and key in world.placements:
                world.changed(placement)
            self._tell(task.placement, placement)
        memory = task.memory
        for action, answer in report.answers:
            if answer is STALE:  # never sent, so no attempt
                memory = replace(memory, pin_uid=task.before.pin_uid, pin_tries=task.before.pin_tries)
                continue
            memory = learn(memory, action, str(answer.outcome), answer.message, answer.retry_after, self._clock.now())
            fields = {"result": str(answer.outcome), "reason": answer.message, "placement": key}
            if isinstance(action, Scale):
                self._hook("surge", {**fields, "workload": action.workload.key, "replicas": action.replicas})
                continue
            fields["pod"] = action.pod.key
            if isinstance(action, PatchPod):
                self._hook("pod.patched", {**fields, "why": action.why})
                if action.why == "pin" and answer.outcome not in (Outcome.OK, Outcome.UNKNOWN) and world is not None:
                    world.arrivals.pop(placement.spec.node_name, None)
            elif not action.dry_run:
                self._hook("recycle" if action.recycle else "eviction", fields)
        self._memories[key] = memory

    def _retry_later(self, answer: Written, key: str) -> None:
        pause = max(WRITE_PAUSE.get(answer.outcome, 1.0), answer.retry_after or 0.0)
        self._not_before[key] = self._clock.monotonic() + pause
        self._hook("placement.retry", {"placement": key, "outcome": str(answer.outcome), "reason": answer.message})

    # -- gates ----------------------------------------------------------------------------------------------------

    def _let_surplus_go(self, world: World) -> None:
        """Gated pods for which nobody waits start at once, kept off held devices so that they do not take the place."""
        surplus = world.reseat().surplus
        tick = self._clock.monotonic()
        self._released = {uid: until for uid, until in self._released.items() if until > tick}
        if not surplus:
            return
        held = held_devices(world.placements.values())
        for pod in surplus:
            if pod.uid in self._released:
                continue
            key = SURPLUS + pod.uid
            if key in self._lane.busy():
                continue
            self._writes += 1
            self._released[pod.uid] = tick + 1.0
            self._lane.submit(key, partial(self._let_go, pod, self._surplus_patch(pod, held)))
        self._take_answers(world)

    def _let_go(self, pod: Pod, patch: Mapping[str, Any]) -> bool:
        """In the lane."""
        answer = self._pods.patch_pod(pod.namespace, pod.name, patch)
        if answer.ok:
            self._hook("gate.released", {"pod": pod.key, "why": "surplus"})
        return answer.ok

    def _surplus_patch(self, pod: Pod, held: Mapping[str, str]) -> dict[str, Any]:
        patch = release_patch(pod)
        wanted = {uuid: word for uuid, word in held.items() if any(r.vendor == word for r in pod.requests)}
        patch["metadata"]["annotations"] |= steering(
            {**pod.annotations, **uuid_lists(pod, self._vendors)}, wanted, self._vendors
        )
        return patch

    # -- telling --------------------------------------------------------------------------------------------------

    def _tell(self, before: Placement, after: Placement) -> None:
        status = after.status
        fields = {
            "placement": after.key,
            "policy": after.labels.get(POLICY_LABEL, ""),
            "phase": str(status.phase),
            "reason": status.reason,
            "message": status.message,
        }
        if status.step is Step.ENDED and before.status.step is not Step.ENDED:
            self._hook("placement.ended", {**fields, "result": str(status.phase), "seconds": durations(after)})
        elif (status.phase, status.reason) != (before.status.phase, before.status.reason):
            self._hook("placement.phase", fields)


def _urgency(placement: Placement, world: World) -> tuple[int, str, str]:
    """Places that pods wait for first, new work last; the older one first among equals."""
    match placement.status.step:
        case Step.EVICTING:
            rank = 0 if world.leaving(placement) else 2
        case Step.PINNED:
            rank = 1
        case Step.HELD:
            rank = 3 if placement.spec.evict_pod else 1
        case _:
            rank = 4
    return (rank, placement.created.isoformat() if placement.created else "", placement.key)


def _newer(mine: Placement, stored: Placement) -> bool:
    if mine.revision.isdecimal() and stored.revision.isdecimal():
        return int(mine.revision) > int(stored.revision)
    return mine.revision != stored.revision
