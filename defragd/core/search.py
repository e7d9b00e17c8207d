"""Best plans for an objective: steepest descent, then search; and why each pod that stays does."""

from __future__ import annotations

import numpy as np

from defragd.core.budget import Books
from defragd.core.model import Pod
from defragd.core.plan import Place, Refusal
from defragd.core.reasons import Reason
from defragd.core.search_greedy import Greedy
from defragd.core.strategy import Proposal, Scene
from defragd.core.tables import Spot, World


class Caps:
    """The caps of a whole run while moves are chosen, and the reason they gave."""

    def __init__(self, scene: Scene, world: World) -> None:
        self.scene, self.world = scene, world
        self.books: Books = scene.budget_books()
        self.claims: dict[int, object] = {}
        self.refused: dict[int, Refusal] = {}

    def may_plan(self, pod: int, spot: Spot) -> str:
        """"" = yes, "target" = no more to that node, anything else = the pod must stay."""
        value = self.world.shapes.pods[pod]
        claim = self.scene.claim(value, self.world.fleet.names[spot.node])
        for permit in (self.books.may_plan(claim), self.books.ever_flies(claim)):
            if not permit.ok:
                self.refused[pod] = Refusal(value.key, permit.reason or Reason.OVER_BUDGET, permit.detail)
                return "target" if "perTargetNode" in permit.cap else "pod"
        return ""

    def plan(self, pod: int, spot: Spot | None) -> None:
        """Records where a pod is now planned to go (None = it stays)."""
        old = self.claims.pop(pod, None)
        if old is not None:
            self.books.undo(old)  # type: ignore[arg-type]
        if spot is not None:
            claim = self.scene.claim(self.world.shapes.pods[pod], self.world.fleet.names[spot.node])
            self.claims[pod] = claim
            self.books.take(claim)
            self.books.land(claim)
            self.refused.pop(pod, None)


def improve(scene: Scene, objective: str, *, use_idle_nodes: bool) -> Proposal:
    """Moves that improve ``objective`` within the policy's caps."""
    aim = scene.aim(objective)
    shapes = scene.shapes()
    world = scene.world(aim, shapes, use_idle_nodes=use_idle_nodes)
    caps = Caps(scene, world)
    costs = scene.costs(shapes)
    moved: dict[str, Pod | None] = {}

    def verify(pod: int, spot: Spot) -> bool:
        value = shapes.pods[pod]
        place = scene.place(spot)
        if (value.key, place.node) in scene.barred:
            return False
        if shapes.shapes[int(shapes.shape[pod])].plain:
            return True
        return scene.verify(value, place, moved) is None  # type: ignore[arg-type]

    greedy = Greedy(
        world,
        costs,
        limit=scene.rules.budgets.total,
        least=scene.rules.gain.per_move,
        may_plan=caps.may_plan,
        plan=caps.plan,
        verify=verify,
        should_stop=scene.should_stop,
    )
    stopped = greedy.run()
    refused = _why_not(scene, world, greedy, caps)
    return Proposal(
        moves=tuple((shapes.pods[pod].key, scene.place(_spot(world, pod))) for pod in greedy.moved),
        refused=tuple(refused),
        stopped=stopped,
        objective=objective,
    )


def _spot(world: World, pod: int) -> Spot:
    spot = world.spot[pod]
    assert spot is not None
    return spot


def _why_not(scene: Scene, world: World, greedy: Greedy, caps: Caps) -> list[Refusal]:
    """One reason for every movable pod that stays: over budget, no place, or no gain."""
    out: list[Refusal] = []
    gains = greedy.gains
    shapes = world.shapes
    score, _ = greedy._best(False)
    reachable = (gains.arrive > -np.inf).sum(axis=1)
    total = scene.rules.budgets.total
    full = total is not None and len(greedy.moved) >= total
    for pod, value in enumerate(shapes.pods):
        if pod in greedy.moved:
            continue
        if pod in caps.refused:
            out.append(caps.refused[pod])
        elif reachable[shapes.shape[pod]] == 0 and gains.inside[pod] == -np.inf:
            out.append(Refusal(value.key, Reason.NO_PLACE, "no other device or node has room for it"))
        elif full and score[pod] > greedy.least:
            out.append(Refusal(value.key, Reason.OVER_BUDGET, f"budgets.total = {total} moves are planned already"))
        else:
            out.append(Refusal(value.key, Reason.NO_GAIN, "no other place for it improves the objective"))
    out += [Refusal(key, Reason.NOT_BOUND, why) for key, why in shapes.left_out.items()]
    return out
