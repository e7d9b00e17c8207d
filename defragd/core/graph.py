"""Which move needs what another frees: a networkx graph with edges for the shortfall only.

"Every leaver before every arrival" would order far too much. An arrival waits only when its target has not enough room
without the leavers, and then only for as many of them, largest first, as cover what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from defragd.core.budget import Claim
from defragd.core.model import Pod

if TYPE_CHECKING:
    import networkx as nx  # imported where it is used: the daemon plans in a child, and 13 MiB are much for the rest

Room = tuple[str, int]
"""A resource: ("slots" | "memory" | "cores", device) or ("cpu" | "host" | "pods", node)."""


@dataclass(frozen=True)
class Step:
    """One move in numbers. ``leaves`` and ``arrives`` map rooms to amounts; ``whole`` are devices it needs for itself,
    ``zero`` devices on which it asks no cores (refused by HAMi where all cores are taken)."""

    index: int
    pod: Pod
    claim: Claim
    leaves: Mapping[Room, int]
    arrives: Mapping[Room, int]
    whole: frozenset[int] = frozenset()
    zero: frozenset[int] = frozenset()
    alone: frozenset[int] = frozenset()
    source_devices: frozenset[int] = frozenset()
    target_devices: frozenset[int] = frozenset()
    gain: float = 0.0
    cost: float = 1.0

    def takes(self, room: Room) -> int:
        """Net room needed: what the pod itself gives back at the same place counts."""
        return self.arrives.get(room, 0) - self.leaves.get(room, 0)


@dataclass
class Yard:
    """Idle room and holders of the devices and nodes that the moves touch."""

    free: dict[Room, int] = field(default_factory=dict)
    holders: dict[int, set[str]] = field(default_factory=dict)
    """Device -> pod keys on it."""

    def copy(self) -> Yard:
        return Yard(dict(self.free), {d: set(keys) for d, keys in self.holders.items()})

    def leave(self, step: Step) -> None:
        for room, amount in step.leaves.items():
            self.free[room] += amount
        for device in step.source_devices:
            self.holders[device].discard(step.pod.key)

    def arrive(self, step: Step) -> None:
        for room, amount in step.arrives.items():
            self.free[room] -= amount
        for device in step.target_devices:
            self.holders.setdefault(device, set()).add(step.pod.key)

    def run(self, step: Step) -> None:
        self.leave(step)
        self.arrive(step)


def shortfall_graph(
    steps: Sequence[Step], yard: Yard, *, sources: Iterable[Iterable[int]] | None = None
) -> nx.DiGraph[int]:
    """Edges i -> j where j needs what i frees. Arrivals take room in the order given.

    ``sources``: for each step, the indexes of steps it may wait for (default: all others).
    """
    import networkx as nx

    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(step.index for step in steps)
    leavers: dict[Room, list[Step]] = {}
    off: dict[int, list[Step]] = {}
    for step in steps:
        for room in step.leaves:
            leavers.setdefault(room, []).append(step)
        for device in step.source_devices:
            off.setdefault(device, []).append(step)
    for room, leaving in leavers.items():
        leaving.sort(key=lambda s: (-s.leaves[room], s.index))
    taken: dict[Room, int] = {}
    allowed = [set(s) for s in sources] if sources is not None else None
    for position, step in enumerate(steps):
        may = allowed[position] if allowed is not None else None
        for room, amount in sorted(step.arrives.items()):
            taken[room] = taken.get(room, 0) + step.takes(room)
            if step.takes(room) <= 0 and room not in step.leaves:
                continue
            missing = taken[room] - yard.free[room]
            if amount and missing > 0:
                _wait_for(graph, step, leavers.get(room, ()), room, missing, may)
        for device in step.whole | step.alone:
            for other in off.get(device, ()):
                if other is not step and (may is None or other.index in may):
                    graph.add_edge(other.index, step.index)
        for device in step.zero:
            room = ("cores", device)
            if yard.free[room] <= 0:
                _wait_for(graph, step, leavers.get(room, ()), room, 1, may)
    return graph


def _wait_for(
    graph: nx.DiGraph[int], step: Step, leaving: Sequence[Step], room: Room, missing: int, may: set[int] | None
) -> None:
    for other in leaving:
        if missing <= 0:
            return
        if other is step or (may is not None and other.index not in may):
            continue
        graph.add_edge(other.index, step.index)
        missing -= other.leaves[room]


def generations(graph: nx.DiGraph[int]) -> dict[int, int]:
    """Step -> its topological generation in the condensation (steps of a cycle share one)."""
    import networkx as nx

    condensed = nx.condensation(graph)
    rank: dict[int, int] = {}
    for depth, layer in enumerate(nx.topological_generations(condensed)):
        for node in layer:
            for member in condensed.nodes[node]["members"]:
                rank[member] = depth
    return rank


def dependents(graph: nx.DiGraph[int]) -> dict[int, int]:
    """Step -> how long the chain of steps is that wait for it (steps of a cycle share one)."""
    import networkx as nx

    condensed = nx.condensation(graph)
    height: dict[int, int] = {}
    for node in reversed(list(nx.topological_sort(condensed))):
        height[node] = 1 + max((height[after] for after in condensed.successors(node)), default=-1)
    return {member: height[node] for node in condensed for member in condensed.nodes[node]["members"]}


def cycles(graph: nx.DiGraph[int]) -> list[list[int]]:
    """Cyclic components that wait for nobody outside, smallest first: each could go as one co-evicted group."""
    import networkx as nx

    condensed = nx.condensation(graph)
    found = [
        sorted(condensed.nodes[node]["members"])
        for node in condensed
        if condensed.in_degree(node) == 0 and len(condensed.nodes[node]["members"]) > 1
    ]
    return sorted(found, key=lambda members: (len(members), members))
