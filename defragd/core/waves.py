"""Moves into waves: what may be under way together, in whatever order, without overbooking anything.

A move joins a wave only when it fits beside every arrival of the wave while nobody of the wave has left yet; what needs
room that the wave itself frees goes into a later one. Budgets in flight, disruption budgets and the floor per workload
are counted per wave: a wave starts when the one before has landed. Where nothing can start alone, a cycle of moves is
one co-evicted group, if every limit can bear all its pods out at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from defragd.core.budget import Books, Floor
from defragd.core.graph import Step, Yard, cycles, dependents, shortfall_graph
from defragd.core.pdb import Ledger
from defragd.core.reasons import Reason
from defragd.core.rules import Budgets


@dataclass
class Order:
    """Waves of step indexes, groups by step index, what each step waits for, and what could not be ordered."""

    waves: list[list[int]] = field(default_factory=list)
    group: dict[int, str] = field(default_factory=dict)
    after: dict[int, tuple[int, ...]] = field(default_factory=dict)
    dropped: dict[int, tuple[Reason, str]] = field(default_factory=dict)


class _Wave:
    """What is under way together: limits in flight, and the worst case of every place that receives."""

    def __init__(self, yard: Yard, budgets: Budgets, ledger: Ledger, floor: Floor) -> None:
        self.yard = yard
        self.books = Books(budgets)
        self.ledger = ledger.copy()
        self.floor = floor.copy(self.ledger)
        self.members: list[Step] = []
        self.free: dict[tuple[str, int], int] = {}
        self.arrivals: dict[int, list[Step]] = {}

    def limits(self, step: Step) -> tuple[Reason, str] | None:
        for permit in (self.books.may_fly(step.claim), self.ledger.may_evict(step.pod), self.floor.may_leave(step.pod)):
            if not permit.ok:
                return permit.reason or Reason.OVER_BUDGET, permit.detail
        return None

    def room(self, step: Step) -> bool:
        """The arrival fits whatever the order: nobody of the wave has left, everybody has arrived."""
        free = self.yard.free
        for room in step.arrives:
            net = step.takes(room)
            if net > 0 and self.free.get(room, free[room]) < net:
                return False
            if room not in step.leaves and net > self.free.get(room, free[room]):
                return False
        for device in step.target_devices:
            others = self.yard.holders.get(device, set()) - {step.pod.key}
            mates = self.arrivals.get(device, [])
            if device in step.whole | step.alone and (others or mates):
                return False
            if any(device in mate.whole | mate.alone for mate in mates):
                return False
            cores = self.free.get(("cores", device), free[("cores", device)]) - step.takes(("cores", device))
            if cores <= 0 and (device in step.zero or any(device in mate.zero for mate in mates)):
                return False
        return True

    def add(self, step: Step) -> None:
        self.members.append(step)
        self.books.take(step.claim)
        self.ledger.take(step.pod)
        self.floor.take(step.pod)
        for room in step.arrives:
            self.free[room] = self.free.get(room, self.yard.free[room]) - step.takes(room)
        for device in step.target_devices:
            self.arrivals.setdefault(device, []).append(step)


def order(steps: Sequence[Step], yard: Yard, *, budgets: Budgets, ledger: Ledger, floor: Floor) -> Order:
    """Waves for all steps. Steps that no order allows are in ``dropped`` with their reason; the rest stands without
    them. Steps others wait for go first, then by gain per cost."""
    first = shortfall_graph(sorted(steps, key=_worth), yard)
    chain = dependents(first)
    best: Order | None = None
    boosted: frozenset[int] = frozenset()
    for _ in range(3):
        found, stuck = _attempt(steps, yard.copy(), chain, boosted, budgets, ledger, floor)
        if best is None or len(found.dropped) < len(best.dropped):
            best = found
        if not found.dropped or stuck <= boosted:
            break
        boosted = boosted | stuck
    assert best is not None
    _waits(steps, yard, best)
    return best


def _worth(step: Step) -> tuple[float, int]:
    return (-step.gain / step.cost, step.index)


def _attempt(
    steps: Sequence[Step],
    yard: Yard,
    chain: dict[int, int],
    boosted: frozenset[int],
    budgets: Budgets,
    ledger: Ledger,
    floor: Floor,
) -> tuple[Order, frozenset[int]]:
    """One run of filling waves; the second value are steps that got stuck (they go first in the next attempt)."""
    out = Order()
    stuck: frozenset[int] = frozenset()
    queue = sorted(steps, key=lambda s: (s.index not in boosted, -chain.get(s.index, 0), *_worth(s)))
    while queue:
        wave = _Wave(yard, budgets, ledger, floor)
        for step in queue:
            if wave.limits(step) is None and wave.room(step):
                wave.add(step)
        members = wave.members
        if not members:
            members, blocked = _group(queue, yard, budgets, ledger, floor)
            if members:
                name = f"g{1 + len(set(out.group.values()))}"
                out.group.update({step.index: name for step in members})
            else:
                stuck |= frozenset(blocked)
                for step in queue:
                    if step.index in blocked:
                        out.dropped[step.index] = blocked[step.index]
                queue = [step for step in queue if step.index not in blocked]
                continue
        for step in members:
            yard.leave(step)
        for step in members:
            yard.arrive(step)
        out.waves.append([step.index for step in members])
        gone = {step.index for step in members}
        queue = [step for step in queue if step.index not in gone]
    return out, stuck


def _group(
    queue: Sequence[Step], yard: Yard, budgets: Budgets, ledger: Ledger, floor: Floor
) -> tuple[list[Step], dict[int, tuple[Reason, str]]]:
    """A co-evicted cycle that can go now, or what has to be dropped (and why) because none can."""
    by_index = {step.index: step for step in queue}
    blocked: dict[int, tuple[Reason, str]] = {}
    for step in queue:
        why = _Wave(yard, budgets, ledger, floor).limits(step)
        if why is not None:
            blocked[step.index] = why
    if blocked:
        return [], blocked
    graph = shortfall_graph(queue, yard)
    why_not: dict[int, tuple[Reason, str]] = {}
    for members in cycles(graph):
        group = [by_index[i] for i in members]
        against = _bearable(group, yard, budgets, ledger, floor)
        if against is None:
            return group, {}
        names = ", ".join(step.pod.key for step in group)
        for step in group:
            why_not[step.index] = (
                Reason.CYCLE_NEEDS_BOTH_OUT,
                f"{names} need each other's places, so all {len(group)} would be out at once: {against}",
            )
    if why_not:
        return [], why_not
    # No cycle is free to go and nothing fits: what waits for steps that were dropped has no place any more.
    return [], {step.index: (Reason.NO_PLACE, "its place is not freed by the moves that can be made") for step in queue}


def _bearable(group: Sequence[Step], yard: Yard, budgets: Budgets, ledger: Ledger, floor: Floor) -> str | None:
    """None when all of the group may be out at once and then all fit; else what stands against it."""
    wave = _Wave(yard, budgets, ledger, floor)
    for step in group:
        why = wave.limits(step)
        if why is not None:
            return why[1]
        wave.add(step)
    after = yard.copy()
    for step in group:
        after.leave(step)
    bare = {room: free for room, free in after.free.items() if room[0] == "cores"}
    for step in group:
        if any(bare[("cores", device)] <= 0 for device in step.zero):
            return "a pod without cores would come to a device with all cores taken"
        after.arrive(step)
    touched = {room for step in group for room in step.arrives}
    if any(after.free[room] < 0 for room in touched):
        return "together they would not fit"
    for step in group:
        for device in step.target_devices:
            others = after.holders.get(device, set()) - {step.pod.key}
            if device in step.whole | step.alone and others:
                return "a pod that needs a whole device would share it"
    return None


def _waits(steps: Sequence[Step], yard: Yard, found: Order) -> None:
    """``after``: the earlier steps each one needs, by the order the waves have."""
    by_index = {step.index: step for step in steps}
    line: list[Step] = []
    earlier: list[set[int]] = []
    done: set[int] = set()
    for wave in found.waves:
        for index in wave:
            line.append(by_index[index])
            earlier.append(set(done))
        done |= set(wave)
    graph = shortfall_graph(line, yard, sources=earlier)
    found.after = {step.index: tuple(sorted(graph.predecessors(step.index))) for step in line}
