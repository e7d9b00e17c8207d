"""A proposal into a reply: order, gates, proof, figures, and a reason for every pod that stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from defragd.core.aims import SCORE_NAMES, Aim
from defragd.core.arrays import Books, Ints
from defragd.core.budget import Floor
from defragd.core.eligibility import warnings
from defragd.core.exact import Exact
from defragd.core.free import scatter_hints
from defragd.core.gangs import gang_of, members
from defragd.core.graph import Step
from defragd.core.model import Pod
from defragd.core.moves import expand, landed, make_step, make_yard
from defragd.core.pdb import Ledger
from defragd.core.plan import Move, Place, PlanReply, PlanRequest, Refusal, Score
from defragd.core.plan_notes import hole_note
from defragd.core.reasons import Reason
from defragd.core.score import score_books
from defragd.core.strategy import Proposal, Scene
from defragd.core.tables import Spot
from defragd.core.waves import Order, order

SAME_LOSS = 1e-10
"""Losses that differ by less are equal: one copy of any class weighs more."""


@dataclass
class _Draft:
    """What is left of a proposal: pods in order, with their places, and what fell out."""

    places: dict[str, Place]
    refused: dict[str, Refusal] = field(default_factory=dict)
    barred: set[tuple[str, str]] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    stopped: str = "complete"


class Build:
    """Makes replies for one scene; what does not depend on the proposal is computed once."""

    def __init__(self, scene: Scene, request: PlanRequest) -> None:
        self.scene, self.request = scene, request
        self.exact = Exact(scene.snapshot, scene.vendors)
        self.ledger = Ledger.of(scene.snapshot, partial=True)
        self.floor = Floor.of(scene.snapshot, self.ledger, partial=True)
        self._cycles: dict[str, Refusal] = {}
        """Pods of exchanges that would have been better, had all of them been allowed out at once."""
        self.before = score_books(scene.arena.fleet, scene.arena.books, scene.yardstick)

    # -- order and proof -----------------------------------------------------------------------------------------------

    def steps(self, places: Mapping[str, Place]) -> list[Step]:
        scene = self.scene
        out = []
        for index, (key, place) in enumerate(places.items()):
            pod = scene.movable[key]
            out.append(
                make_step(
                    index,
                    pod,
                    landed(pod, place, scene.snapshot.devices),
                    scene.arena,
                    scene.claim(pod, place.node),
                    gain=0.0,
                    cost=scene.cost.get(key, 1.0),
                    alone="mutex" in pod.selection.device_policy,
                )
            )
        return out

    def order(self, steps: Sequence[Step]) -> Order:
        yard = make_yard(self.scene.snapshot, self.scene.arena, steps)
        return order(steps, yard, budgets=self.scene.rules.budgets, ledger=self.ledger, floor=self.floor)

    def orderable(self, places: Mapping[str, Place]) -> int | None:
        """`Scene.orderable` for these places."""
        steps = self.steps(places)
        found = self.order(steps)
        for index, (reason, detail) in found.dropped.items():
            if reason is Reason.CYCLE_NEEDS_BOTH_OUT:
                pod = steps[index].pod.key
                self._cycles.setdefault(pod, Refusal(pod, reason, detail))
        return None if found.dropped else len(found.group)

    def reply(self, proposal: Proposal) -> tuple[PlanReply, frozenset[tuple[str, str]]]:
        """The reply, and (pod, node) pairs that turned out impossible (worth another proposal)."""
        draft = _Draft(dict(proposal.moves), stopped=proposal.stopped, notes=list(proposal.notes))
        aim = self.scene.aim(proposal.objective)
        while True:
            split = self._split_gangs(draft.places)
            if split:
                self._drop(draft, proposal, split)
                continue
            steps = self.steps(draft.places)
            found = self.order(steps)
            if found.dropped:
                self._drop(draft, proposal, {steps[i].pod.key: why for i, why in found.dropped.items()})
                continue
            refused = self._prove(steps, draft.places, found)
            if refused is not None:
                pod, why = refused
                draft.barred.add((pod.key, draft.places[pod.key].node))
                self._drop(draft, proposal, {pod.key: (Reason(why.reason), why.detail)})
                continue
            gains = self._gains(aim, draft.places, [steps[i].pod.key for wave in found.waves for i in wave])
            total = sum(gains.values())
            worth = total > max(self.scene.rules.gain.total, 1e-10) and self._better(proposal, draft.places)
            if proposal.trim and draft.places and not worth:
                self._below(draft, total)
                continue
            break
        return self._finish(proposal, draft, steps, found, gains), frozenset(draft.barred)

    def _split_gangs(self, places: Mapping[str, Place]) -> dict[str, tuple[Reason, str]]:
        """Pods whose gang would move in part only, where the policy wants gangs whole."""
        if self.scene.rules.protect.gangs != "Whole":
            return {}
        bad: dict[str, tuple[Reason, str]] = {}
        for key in places:
            gang = gang_of(self.scene.movable[key])
            stays = [p.key for p in self._members.get(gang.key, ()) if p.key not in places] if gang else []
            if gang and stays:
                bad[key] = (
                    Reason.PART_OF_GANG,
                    f"{gang.kind} {gang.name} is moved whole or not at all; {stays[0]} stays",
                )
        return bad

    @cached_property
    def _members(self) -> dict[str, tuple[Pod, ...]]:
        return members(self.scene.snapshot.pods)

    def _drop(self, draft: _Draft, proposal: Proposal, bad: Mapping[str, tuple[Reason, str]]) -> None:
        """Takes moves out, and with them the rest of their goal unless partial goals are accepted."""
        for key, (reason, detail) in bad.items():
            draft.places.pop(key, None)
            draft.refused[key] = Refusal(key, reason, detail)
        if self.scene.rules.partial:
            return
        for goal in proposal.goals:
            if goal & bad.keys():
                blocker = sorted(goal & bad.keys())[0]
                for key in goal & draft.places.keys():
                    del draft.places[key]
                    draft.refused.setdefault(
                        key, Refusal(key, Reason.GOAL_UNREACHABLE, f"makes sense only together with {blocker}")
                    )
                if not draft.places:
                    draft.stopped = "infeasible"

    def _below(self, draft: _Draft, total: float) -> None:
        if total > 1e-10:
            draft.notes.append(
                f"the moves found would gain {total:.4g}, below gain.total {self.scene.rules.gain.total:.4g}"
            )
        for key in draft.places:
            draft.refused[key] = Refusal(key, Reason.NO_GAIN, "the plan as a whole gains too little")
        draft.places.clear()

    def _prove(self, steps: Sequence[Step], places: Mapping[str, Place], found: Order) -> tuple[Pod, Refusal] | None:
        waves = [[(steps[i].pod, places[steps[i].pod.key], i in found.group) for i in wave] for wave in found.waves]
        _, refused = self.exact.replay(waves)
        return refused

    def lowers_loss(self, reply: PlanReply) -> bool:
        return reply.before.loss - reply.after.loss > SAME_LOSS

    def _better(self, proposal: Proposal, places: Mapping[str, Place]) -> bool:
        """The state after the moves is better in the figures that people see: L, then idle devices, then idle nodes.
        The weights of `core.aims` only stand for that order; here it is held to the letter."""
        if proposal.objective != "auto":
            return True
        scene = self.scene
        after = score_books(scene.arena.fleet, self._books_after(places), scene.yardstick)
        less = self.before.loss - after.loss
        if abs(less) > SAME_LOSS:
            return less > 0
        return (after.idle_devices, after.idle_nodes) > (self.before.idle_devices, self.before.idle_nodes)

    # -- figures ------------------------------------------------------------------------------------------------------

    def _books_after(self, places: Mapping[str, Place]) -> Books:
        scene = self.scene
        books = scene.arena.books.copy()
        for step in self.steps(places):
            for sign, rooms in ((-1, step.leaves), (1, step.arrives)):
                for (kind, at), amount in rooms.items():
                    column = {"cpu": books.cpu, "host": books.host_memory, "slots": books.slots}.get(kind)
                    if column is None:
                        column = {"memory": books.memory, "cores": books.cores, "pods": books.pods}[kind]
                    column[at] += sign * amount
        return books

    def _gains(self, aim: Aim, places: Mapping[str, Place], line: Sequence[str]) -> dict[str, float]:
        """What each move adds, taken in the plan's order; they sum up to the plan's gain."""
        scene = self.scene
        if not line:
            return {}
        pods = {key: scene.movable[key] for key in line}
        shapes = scene.shapes(pods)
        world = scene.world(aim, shapes, use_idle_nodes=True)
        at = {pod.key: position for position, pod in enumerate(shapes.pods)}
        fleet = scene.arena.fleet
        gains: dict[str, float] = {}
        value = world.value
        for key in line:
            position, place = at[key], places[key]
            uuids = place.devices
            if len(uuids) != len(pods[key].devices):
                uuids = tuple(dict.fromkeys(uuids))
            world.lift(position)
            world.put(position, Spot(fleet.node_index[place.node], tuple(fleet.device_index[uuid] for uuid in uuids)))
            gains[key] = world.value - value
            value = world.value
        return gains

    def _finish(
        self, proposal: Proposal, draft: _Draft, steps: Sequence[Step], found: Order, gains: Mapping[str, float]
    ) -> PlanReply:
        scene = self.scene
        fleet = scene.arena.fleet
        name: dict[int, str] = {}
        for wave in found.waves:
            for index in wave:
                name[index] = f"m{len(name) + 1}"
        waits = {index: [name[other] for other in name if index in found.after.get(other, ())] for index in name}
        moves: list[Move] = []
        for number, wave in enumerate(found.waves, start=1):
            for index in wave:
                step = steps[index]
                pod = step.pod
                place = expand(pod, draft.places[pod.key])
                why = proposal.why.get(pod.key) or _why(gains.get(pod.key, 0.0), waits[index], proposal)
                moves.append(
                    Move(
                        id=name[index],
                        pod=pod.key,
                        uid=pod.uid,
                        source=Place(pod.booked_node, tuple(a.uuid for a in pod.allocations)),
                        target=place,
                        wave=number,
                        after=tuple(name[i] for i in found.after.get(index, ())),
                        group=found.group.get(index, ""),
                        gain=gains.get(pod.key, 0.0),
                        cost=step.cost,
                        why=why,
                        workload=scene.workload.get(pod.key, ""),
                    )
                )
        books = self._books_after(draft.places)
        after: Score = score_books(fleet, books, scene.yardstick) if draft.places else self.before
        held = scene.arena.books.slots
        refused = {**scene.standing}
        refused.update({item.object: item for item in proposal.refused})
        refused.update(draft.refused)
        for key, cycle in self._cycles.items():
            if key in refused and refused[key].reason in (Reason.NO_PLACE, Reason.NO_GAIN):
                refused[key] = cycle
        for key in draft.places:
            refused.pop(key, None)
        hole = hole_note(fleet, scene.arena.books, books) if draft.places else ""
        notes = [*draft.notes, *([hole] if hole else []), *scatter_hints(scene.snapshot)]
        return PlanReply(
            policy=self.request.policy,
            strategy=self.request.strategy,
            score_name=proposal.score_name or SCORE_NAMES.get(proposal.objective, "L"),
            before=self.before,
            after=after,
            moves=tuple(moves),
            waves=tuple(tuple(name[i] for i in wave) for wave in found.waves),
            refused=tuple(sorted(refused.values(), key=lambda item: item.object)),
            warnings=(*warnings(scene.snapshot), *self.ledger.warnings(), *_problems(scene)),
            notes=tuple(dict.fromkeys(notes)),
            stopped=draft.stopped,
            freed_devices=int((books.slots == 0).sum() - (held == 0).sum()),
            freed_nodes=_idle_nodes(books.slots, fleet.first) - _idle_nodes(held, fleet.first),
        )


def _idle_nodes(slots: Ints, first: Ints) -> int:
    return int(np.logical_and.reduceat(slots == 0, first[:-1]).sum()) if len(first) > 1 else 0


def _problems(scene: Scene) -> tuple[Refusal, ...]:
    found = tuple(Refusal(p.object, p.reason, p.detail) for p in scene.snapshot.problems)
    if "workloads" in scene.snapshot.known or scene.snapshot.workloads or not scene.snapshot.pods:
        return found
    text = "no ReplicaSets or other owners were read, so their replicas are taken to be the pods in sight"
    return (*found, Refusal("ReplicaSet/*", Reason.OWNER_UNKNOWN, text))


def _why(gain: float, waits: Sequence[str], proposal: Proposal) -> str:
    unit = SCORE_NAMES.get(proposal.objective, "L")
    if gain > 1e-7:
        text = f"{unit} improves by {gain:.4f}" if unit in ("L", "phi") else f"frees {gain:.3g} {unit}"
        return f"{text}; makes room for {', '.join(waits)}" if waits else text
    if waits:
        return f"makes room for {', '.join(waits)}"
    return "frees devices" if gain > 0 else "part of a chain of moves that gains as a whole"
