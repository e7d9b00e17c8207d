"""node-drain: empty whole nodes.

Arguments (``strategy.args`` of a policy), ``node`` or ``count``:

- ``node``: the node to empty;
- ``count: K``: the K nodes that are cheapest to empty (summed cost of their pods), of four devices or more where there
  are such nodes; idle nodes are not refilled;
- ``allOrNothing`` (default true): a node is emptied completely or left alone. With false, what can go goes;
- ``extent``: ``gpus`` (default), pods that hold devices; ``node``, every pod that stands in the way of removing the
  node: pods without devices that are not of a DaemonSet or static cannot be moved by us and make it infeasible.
"""

from __future__ import annotations

from dataclasses import dataclass

from defragd.core.aims import GUARDED
from defragd.core.desk import Desk
from defragd.core.drain import Drainer, Target
from defragd.core.plan import Refusal
from defragd.core.reasons import Reason
from defragd.core.score import idle_nodes
from defragd.core.strategy import Proposal, Scene
from defragd.strategies.gpu_drain import finish, target_of

PUSHES = 2
PATIENCE = 40
"""Failed attempts with a push before counting drains give up."""
BESIDE = ("DaemonSet", "Node")
"""Owners whose pods do not stand in the way of removing a node."""


@dataclass(frozen=True, slots=True)
class NodeDrainArgs:
    """Which nodes to empty, and how completely."""

    node: str = ""
    count: int = 0
    all_or_nothing: bool = True
    extent: str = "gpus"

    def __post_init__(self) -> None:
        if bool(self.node) == bool(self.count):
            raise ValueError("exactly one of node and count is needed")
        if self.count < 0:
            raise ValueError("count must be at least 1")
        if self.extent not in ("gpus", "node"):
            raise ValueError(f"extent {self.extent!r}: gpus or node")


@dataclass(frozen=True, slots=True)
class NodeDrain:
    name: str = "node-drain"
    args_type: type = NodeDrainArgs
    drain: bool = True

    def propose(self, scene: Scene) -> Proposal:
        args: NodeDrainArgs = scene.args
        if args.count:
            return _cheapest(scene, args)
        return _named(scene, args)


def _named(scene: Scene, args: NodeDrainArgs) -> Proposal:
    if args.node not in scene.snapshot.nodes:
        refusal = Refusal(f"Node/{args.node}", Reason.NODE_UNKNOWN, "no such node in the snapshot")
        return Proposal(stopped="infeasible", refused=(refusal,), score_name="nodes", trim=False)
    target = node_target(scene, args.node, args.extent)
    best: Proposal | None = None
    for idle in (False, True):
        desk = Desk(scene, use_idle_nodes=idle)
        if args.node in scene.arena.fleet.node_index:
            desk.world.open_node[scene.arena.fleet.node_index[args.node]] = False
        drainer = Drainer(desk, pushes=PUSHES, keep_partial=not args.all_or_nothing or scene.rules.partial)
        if not target.blockers and not drainer.pods_on(target):
            return Proposal(score_name="nodes", trim=False, notes=(f"node {args.node} holds no pod with devices",))
        done = drainer.empty(target, near=False)
        proposal = _finish(desk, drainer, args, wanted=1)
        if best is None or len(proposal.moves) > len(best.moves):
            best = proposal
        if done or scene.should_stop():
            break
    assert best is not None
    return best


def _cheapest(scene: Scene, args: NodeDrainArgs) -> Proposal:
    fleet, books = scene.arena.fleet, scene.arena.books
    desk = Desk(scene)
    idle = idle_nodes(fleet, books)
    desk.world.open_node &= ~idle
    large = [n for n in range(len(fleet.names)) if fleet.size[n] >= GUARDED]
    nodes = large or list(range(len(fleet.names)))
    drainer = Drainer(desk, pushes=0, keep_partial=False)
    targets = [
        node_target(scene, fleet.names[n], args.extent)
        for n in nodes
        if not idle[n] and fleet.names[n] in scene.scope_nodes
    ]
    targets = [t for t in targets if not t.blockers and drainer.pods_on(t)]
    targets.sort(key=lambda t: (drainer.cost(t), -len(t.devices), min(t.devices)))
    drainer.try_cheap(targets, args.count, near=False, patience=PATIENCE)
    return finish(desk, drainer, wanted=args.count, unit="nodes", quiet=True)


def _finish(desk: Desk, drainer: Drainer, args: NodeDrainArgs, *, wanted: int) -> Proposal:
    proposal = finish(desk, drainer, wanted=wanted, unit="nodes")
    if drainer.out.done or args.all_or_nothing or not drainer.out.partial:
        return proposal
    return Proposal(
        moves=desk.places(),
        refused=proposal.refused,
        notes=(f"node {args.node} cannot be emptied completely; what can go goes",),
        score_name="nodes",
        trim=False,
    )


def node_target(scene: Scene, name: str, extent: str) -> Target:
    """All devices of the node; pods that cannot go are its blockers."""
    fleet = scene.arena.fleet
    at = fleet.node_index.get(name)
    devices = list(fleet.devices_of(at)) if at is not None else []
    found = target_of(scene, devices, f"Node/{name}")
    blockers = list(found.blockers)
    for pod in scene.snapshot.pods_on.get(name, ()):
        if pod.allocations or pod.booked_node:
            continue
        if pod.requests:
            blockers.append(
                Refusal(pod.key, Reason.IN_USE_OUTSIDE_HAMI, "it uses devices of the node outside HAMi's books")
            )
        elif extent == "node" and not (pod.owner is not None and pod.owner.kind in BESIDE):
            what = Reason.BARE_POD if pod.owner is None else Reason.NOT_HAMI
            blockers.append(Refusal(pod.key, what, "it holds no device, so it cannot be placed by us"))
    return Target(f"Node/{name}", frozenset(devices), tuple(blockers))


STRATEGY = NodeDrain()
