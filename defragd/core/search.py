"""Best plans for an objective: steepest descent, then search; and why each pod that stays does."""

from __future__ import annotations

import numpy as np

from defragd.core.desk import Desk
from defragd.core.plan import Refusal
from defragd.core.reasons import Reason
from defragd.core.search_greedy import Greedy
from defragd.core.strategy import Proposal, Scene


def improve(scene: Scene, objective: str, *, use_idle_nodes: bool) -> Proposal:
    """Moves that improve ``objective`` within the policy's caps."""
    desk = Desk(scene, objective, use_idle_nodes=use_idle_nodes)
    greedy = Greedy(
        desk.world,
        desk.cost,
        limit=scene.rules.budgets.total,
        least=scene.rules.gain.per_move,
        may_plan=desk.may_plan,
        plan=desk.plan,
        verify=desk.verify,
        should_stop=scene.should_stop,
    )
    stopped = greedy.run()
    return Proposal(
        moves=desk.places(),
        refused=tuple(_why_not(desk, greedy)),
        stopped=stopped,
        objective=objective,
    )


def _why_not(desk: Desk, greedy: Greedy) -> list[Refusal]:
    """One reason for every movable pod that stays: over budget, no place, or no gain."""
    out: list[Refusal] = []
    scene, gains, shapes = desk.scene, greedy.gains, desk.shapes
    score, _ = greedy._best(False)
    reachable = (gains.arrive > -np.inf).sum(axis=1)
    total = scene.rules.budgets.total
    full = total is not None and len(greedy.moved) >= total
    for pod, value in enumerate(shapes.pods):
        if pod in greedy.moved:
            continue
        if pod in desk.refused:
            out.append(desk.refused[pod])
        elif reachable[shapes.shape[pod]] == 0 and gains.inside[pod] == -np.inf:
            out.append(Refusal(value.key, Reason.NO_PLACE, "no other device or node has room for it"))
        elif full and score[pod] > greedy.least:
            out.append(Refusal(value.key, Reason.OVER_BUDGET, f"budgets.total = {total} moves are planned already"))
        else:
            out.append(Refusal(value.key, Reason.NO_GAIN, "no other place for it improves the objective"))
    out += [Refusal(key, Reason.NOT_BOUND, why) for key, why in shapes.left_out.items()]
    return out
