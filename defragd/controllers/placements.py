"""The leader's loop over all open placements: look, ask the state machine, write, act, learn from the answers.

Level-triggered. Truth is in the cluster; what is kept here are this process's own last words (newer than a cache that
lags) and attempts with their pauses. Losing the lease drops both. Within one cycle the order is: places that pods wait
for, then pods on their way, then evictions, then new work, so that many new placements cannot delay a gated pod.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from defragd.controllers.heartbeats import lowest_seen, newest
from defragd.core.gating import release_patch
from defragd.core.model import Pod
from defragd.core.placement import KIND, POLICY_LABEL, Placement, PlacementStatus, Step
from defragd.core.placement_answers import learn
from defragd.core.placement_pin import uuid_lists
from defragd.core.placement_steering import held_devices, steering
from defragd.core.placement_world import Action, Emit, Evict, Memory, PatchPod, Tuning, World, arrivals
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
    Note,
    Outcome,
    PlacementStore,
    PodWriter,
    Written,
)

MAX_AGE_SECONDS = 90.0
"""Older data is no ground for action (I9). A quiet watch proves itself by a bookmark about once a minute."""
STEPS_PER_CYCLE = 12
TUNING = Tuning()
WRITE_PAUSE = {
    Outcome.CONFLICT: 0.1,
    Outcome.UNKNOWN: 1.0,
    Outcome.BLOCKED: 1.0,
    Outcome.REFUSED: 10.0,
}
"""Seconds before a status write is tried again."""


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
    ) -> None:
        """``seen``: newest placement revision that this replica's own webhook acts on (default: of the cache).
        ``slice_seconds``: a cycle ends after about so long and starts again with a fresh snapshot. ``paused`` says
        why nothing new may begin ("" = it may); what is under way goes on."""
        self._reader, self._placements, self._pods, self._events = reader, placements, pods, events
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
        self._writes = 0
        self.beat = clock.monotonic()

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
                self._forget()
            except Exception as error:  # noqa: BLE001 - a loop that dies would leave pods gated until their deadline
                self._hook("loop.failed", {"loop": "placements", "error": f"{type(error).__name__}: {error}"})
                stop.wait(1.0)
            self.beat = self._clock.monotonic()
            pause = 1.0 if wake is None else (wake - self._clock.now()).total_seconds()
            self._reader.wait(version, min(max(pause, 0.01), 1.0))
            stop.wait(0.01)

    def cycle(self) -> datetime | None:
        """One pass over all open placements and gated pods. Returns when to look again, even if nothing changes; None
        = nothing is under way. Raises NotLeader when the lease is lost in the middle: nothing was written after."""
        if not self._leadership.is_leader():
            self._forget()
            return None
        if not self._reader.synced() or self._reader.age_seconds() > self._max_age:
            return self._clock.now() + timedelta(seconds=1)
        stored = self._placements.list()
        if not stored and not self._memories and not self._mine:
            return None
        self._writes = 0
        current = self._merge(stored)
        now = self._clock.now()
        world = self._world(current, now)
        began = self._clock.monotonic()
        wakes: list[datetime] = []
        opened = [p for p in current.values() if p.open and not p.deleting]
        for key in [p.key for p in sorted(opened, key=lambda p: _urgency(p, world))]:
            if self._clock.monotonic() - began > self._slice:
                wakes.append(now)
                break
            wake = self._advance(key, world)
            if wake is not None:
                wakes.append(wake)
        self._let_surplus_go(world)
        if self._writes:
            self._hook("cycle", {"loop": "placements", "open": len(opened), "writes": self._writes})
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
        return current

    def _forget(self) -> None:
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
            placement = world.placements[key]
            decision = step(placement, world, self._clock.now())
            if decision.status is not None and not self._write(placement, decision.status, world):
                return self._clock.now() + timedelta(seconds=0.1)
            world.memories[key] = decision.memory
            for action in decision.actions:
                self._act(world.placements[key], action, world)
            if decision.status is None and not decision.actions:
                return decision.wake
        return self._clock.now()

    def _write(self, placement: Placement, status: PlacementStatus, world: World) -> bool:
        """Stores a status; nothing is done on the strength of one that is not known to be stored."""
        answer = self._placements.write_status(placement, status)
        self._writes += 1
        if not answer.ok:
            pause = max(WRITE_PAUSE.get(answer.outcome, 1.0), answer.retry_after or 0.0)
            self._not_before[placement.key] = self._clock.monotonic() + pause
            fields = {"placement": placement.key, "outcome": str(answer.outcome), "reason": answer.message}
            self._hook("placement.retry", fields)
            return False
        written = replace(placement, status=status, revision=answer.revision or placement.revision)
        self._mine[placement.key] = written
        world.changed(written)
        self._tell(placement, written)
        return True

    def _act(self, placement: Placement, action: Action, world: World) -> None:
        now = self._clock.now
        if isinstance(action, Emit):
            self._emit(placement, action)
            return
        answer = self._send(action)
        self._writes += 1
        memory = world.memories.get(placement.key, Memory())
        learnt = learn(memory, action, str(answer.outcome), answer.message, answer.retry_after, now())
        world.memories[placement.key] = learnt
        if isinstance(action, Evict) and not action.dry_run:
            kind = "recycle" if action.recycle else "eviction"
            fields = {"pod": action.pod.key, "result": str(answer.outcome), "reason": answer.message}
            self._hook(kind, {**fields, "placement": placement.key})
            if answer.outcome in (Outcome.OK, Outcome.UNKNOWN) and not action.recycle:
                world.ledger.take(action.pod)
        elif isinstance(action, PatchPod):
            if action.why == "pin" and answer.outcome in (Outcome.OK, Outcome.UNKNOWN):
                world.arrivals[placement.spec.node_name] = placement.key
            fields = {"pod": action.pod.key, "why": action.why, "result": str(answer.outcome)}
            self._hook("pod.patched", {**fields, "reason": answer.message, "placement": placement.key})

    def _send(self, action: Evict | PatchPod) -> Written:
        if isinstance(action, Evict):
            return self._pods.evict(action.pod, dry_run=action.dry_run, check_revision=True)
        return self._pods.patch_pod(action.pod.namespace, action.pod.name, action.patch)

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
            answer = self._pods.patch_pod(pod.namespace, pod.name, self._surplus_patch(pod, held))
            self._writes += 1
            self._released[pod.uid] = tick + (1.0 if answer.ok else 0.2)
            if answer.ok:
                self._hook("gate.released", {"pod": pod.key, "why": "surplus"})

    def _surplus_patch(self, pod: Pod, held: Mapping[str, str]) -> dict[str, Any]:
        patch = release_patch(pod)
        wanted = {uuid: word for uuid, word in held.items() if any(r.vendor == word for r in pod.requests)}
        patch["metadata"]["annotations"] |= steering(
            {**pod.annotations, **uuid_lists(pod, self._vendors)}, wanted, self._vendors
        )
        return patch

    # -- telling --------------------------------------------------------------------------------------------------

    def _emit(self, placement: Placement, action: Emit) -> None:
        pod = action.pod
        if pod is not None:
            note = Note("Pod", pod.namespace, pod.name, pod.uid, action.reason, action.message, action.warning)
        else:
            note = Note(
                KIND, placement.namespace, placement.name, placement.uid, action.reason, action.message, action.warning
            )
        self._events.emit(note)

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
            self._hook("placement.ended", {**fields, "result": str(status.phase), "seconds": _durations(after)})
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


def _durations(placement: Placement) -> dict[str, float]:
    """Seconds per phase, as far as the status knows them."""
    status = placement.status
    marks = [
        ("pending", placement.created, status.held_at or status.ended_at),
        ("held", status.held_at, status.evicting_at or status.ended_at),
        ("evicting", status.evicting_at, status.evicted_at or status.ended_at),
        ("awaiting", status.evicted_at, status.pinned_at or status.ended_at),
        ("starting", status.pinned_at, status.ready_at or status.ended_at),
        ("settling", status.ready_at, status.ended_at),
    ]
    return {name: round((end - begin).total_seconds(), 3) for name, begin, end in marks if begin and end}
