"""make-room: the fewest moves after which pods that wait, or a wished shape, fit.

Arguments (``strategy.args`` of a policy):

- ``pod``: NS/NAME of one pending pod;
- ``shape``: ``{gpus, cores, memMiB, count}``: room for ``count`` pods of ``gpus`` devices each on one node, with this
  share of cores and memory per device (neither given = whole devices);
- nothing: every pending pod that asks for devices, by priority, then age.

Pods that fit as it stands need no move. A pod for which no room can be made is named with the reason; the others are
planned all the same. For a named pod or a shape the plan is all or nothing unless the policy accepts partial goals.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from defragd.core.desk import Desk
from defragd.core.model import DeviceRequest, Pod
from defragd.core.plan import Refusal
from defragd.core.reasons import Reason
from defragd.core.room import MOST, Room, RoomMaker
from defragd.core.strategy import Proposal, Scene

NAMED = 10
"""Pods that fit as it stands and are named; the others are counted."""
LAST = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class WishedShape:
    """Room for ``count`` pods of ``gpus`` devices, each device with ``cores`` percent and ``mem_mib`` MiB free."""

    gpus: int = 1
    cores: int = 0
    mem_mib: int = field(default=0, metadata={"key": "memMiB"})
    count: int = 1

    def __post_init__(self) -> None:
        if self.gpus < 1 or self.count < 1:
            raise ValueError("shape: gpus and count must be at least 1")
        if not 0 <= self.cores <= 100 or self.mem_mib < 0:
            raise ValueError("shape: cores must be 0 to 100 and memMiB not negative")


@dataclass(frozen=True, slots=True)
class MakeRoomArgs:
    """For whom to make room; neither = all pending pods."""

    pod: str = ""
    shape: WishedShape | None = field(default=None, metadata={"type": WishedShape})

    def __post_init__(self) -> None:
        if self.pod and self.shape is not None:
            raise ValueError("pod and shape exclude each other")


@dataclass(frozen=True, slots=True)
class MakeRoom:
    name: str = "make-room"
    args_type: type = MakeRoomArgs
    drain: bool = False

    def propose(self, scene: Scene) -> Proposal:
        args: MakeRoomArgs = scene.args
        wanted, missing = _wanted(scene, args)
        if missing is not None:
            return Proposal(stopped="infeasible", refused=(missing,), score_name="pods", trim=False)
        if not wanted:
            return Proposal(notes=("no pod that asks for devices is pending",), score_name="pods", trim=False)
        desk = Desk(scene, use_idle_nodes=True, wanted=wanted)
        return _make(scene, args, desk, wanted)


def _make(scene: Scene, args: MakeRoomArgs, desk: Desk, wanted: list[Pod]) -> Proposal:
    maker = RoomMaker(desk)
    total = scene.rules.budgets.total
    goals: list[frozenset[str]] = []
    refused: list[Refusal] = []
    fits: list[tuple[str, str]] = []
    why: dict[str, str] = {}
    stopped = "complete"
    for pod, shape in zip(wanted, desk.shapes.wanted, strict=True):
        left = MOST if total is None else max(total - len(maker.fixed), 0)
        room: Room = maker.make(shape, most=min(left, MOST))
        name = f"a pod of the wished shape ({pod.name})" if args.shape else pod.key
        if room.spot is None:
            refused.append(_no_room(scene, desk, pod, room, left))
            if scene.should_stop():
                stopped = "time"
            continue
        node = scene.arena.fleet.names[room.spot.node]
        if not room.moves:
            fits.append((name, node))
            continue
        keys = [desk.shapes.pods[p].key for p in room.moves]
        goals.append(frozenset(keys))
        why.update(dict.fromkeys(keys, f"makes room for {name} on {node}"))
    notes = [f"{name} fits already, on {node}" for name, node in fits[:NAMED]]
    if len(fits) > NAMED:
        notes.append(f"{len(fits) - NAMED} more fit already")
    strict = bool(args.pod or args.shape) and not scene.rules.partial
    if refused and strict:
        stopped = stopped if stopped == "time" else "infeasible"
        if maker.fixed:
            notes.append(f"room for {len(wanted) - len(refused)} of {len(wanted)} could be made")
        return Proposal(refused=tuple(refused), notes=tuple(notes), stopped=stopped, score_name="pods", trim=False)
    if refused and not goals and stopped == "complete":
        stopped = "infeasible"
    return Proposal(
        moves=desk.places(),
        goals=tuple(goals),
        refused=tuple(refused),
        notes=tuple(notes),
        stopped=stopped,
        score_name="pods",
        trim=False,
        why=why,
    )


def _wanted(scene: Scene, args: MakeRoomArgs) -> tuple[list[Pod], Refusal | None]:
    if args.shape is not None:
        return [_synthetic(scene, args.shape, i) for i in range(args.shape.count)], None
    pending = [pod for pod in scene.snapshot.pods.values() if waits(pod)]
    if args.pod:
        pod = scene.snapshot.pods.get(args.pod)
        if pod is None:
            return [], Refusal(args.pod, Reason.POD_UNKNOWN, "no such pod in the snapshot")
        if not waits(pod):
            return [], Refusal(args.pod, Reason.GOAL_UNREACHABLE, "it is not pending, or asks for no device")
        return [pod], None
    return sorted(pending, key=lambda p: (-p.priority, p.created or LAST, p.key)), None


def waits(pod: Pod) -> bool:
    """Pending, asks for devices, not held back by a gate, and nothing is booked for it."""
    return bool(
        pod.live and pod.requests and not pod.node and not pod.booked_node and not pod.gates and not pod.deleting
    )


def _synthetic(scene: Scene, shape: WishedShape, number: int) -> Pod:
    vendor = scene.rules.scope.vendors[0] if scene.rules.scope.vendors else scene.arena.fleet.kinds[0].vendor
    whole = not shape.cores and not shape.mem_mib
    request = DeviceRequest(
        container=0,
        init=False,
        sidecar=False,
        vendor=vendor,
        count=shape.gpus,
        memory_mib=shape.mem_mib,
        memory_pct=100 if whole else 0,
        cores=100 if whole else shape.cores,
    )
    if not shape.mem_mib and not whole:
        request = DeviceRequest(0, False, False, vendor, shape.gpus, 0, shape.cores, shape.cores)
    return Pod("", f"wish-{number + 1}", f"wish-{number + 1}", requests=(request,))


def _no_room(scene: Scene, desk: Desk, pod: Pod, room: Room, left: int) -> Refusal:
    name = pod.key if pod.namespace else f"Shape/{pod.name}"
    if left == 0:
        return Refusal(
            name, Reason.OVER_BUDGET, f"budgets.total = {scene.rules.budgets.total} moves are planned already"
        )
    if scene.should_stop():
        return Refusal(name, Reason.GOAL_UNREACHABLE, "no room was found in the time there was")
    return Refusal(
        name,
        Reason.GOAL_UNREACHABLE,
        f"no room can be made for it within {min(left, MOST)} moves ({room.tried} sets of moves tried)",
    )


STRATEGY = MakeRoom()
