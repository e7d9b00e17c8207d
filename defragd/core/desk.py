"""What every search works on: the what-if world of the movable pods, the caps of the run, and the exact rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from defragd.core.arrays import Bools
from defragd.core.budget import Claim
from defragd.core.model import Pod
from defragd.core.moves import landed
from defragd.core.plan import Place, Refusal
from defragd.core.reasons import Reason
from defragd.core.strategy import Scene
from defragd.core.tables import Spot


class Desk:
    """World, shapes, costs and caps for one objective. Pods are numbers here; ``number`` finds one by key."""

    def __init__(
        self,
        scene: Scene,
        objective: str = "auto",
        *,
        use_idle_nodes: bool = False,
        closed: Bools | None = None,
        pods: Mapping[str, Pod] | None = None,
        wanted: Sequence[Pod] = (),
    ) -> None:
        self.scene = scene
        self.aim = scene.aim(objective)
        self.shapes = scene.shapes(pods, wanted)
        self.world = scene.world(self.aim, self.shapes, use_idle_nodes=use_idle_nodes, closed=closed)
        self.cost = scene.costs(self.shapes)
        self.number = {pod.key: position for position, pod in enumerate(self.shapes.pods)}
        self.books = scene.budget_books()
        self.claims: dict[int, Claim] = {}
        self.refused: dict[int, Refusal] = {}

    # -- exact rules ---------------------------------------------------------------------------------------------------

    def verify(self, pod: int, spot: Spot) -> bool:
        """Whether the pod may stand there, as far as tables cannot tell: pairs an earlier round found impossible, and
        the exact rules for pods that look at other pods, volumes, ports or anything else the tables do not know."""
        value = self.shapes.pods[pod]
        if self.scene.barred and (value.key, self.world.fleet.names[spot.node]) in self.scene.barred:
            return False
        if self.shapes.shapes[int(self.shapes.shape[pod])].plain:
            return True
        return self.scene.verify(value, self.scene.place(spot), self.moved_pods()) is None

    def moved_pods(self) -> dict[str, Pod]:
        """Pods that stand elsewhere than in the snapshot, as they would stand there."""
        devices = self.scene.snapshot.devices
        return {
            self.shapes.pods[pod].key: landed(self.shapes.pods[pod], self.scene.place(spot), devices)
            for pod, spot in self.moved().items()
        }

    def moved(self) -> dict[int, Spot]:
        world = self.world
        return {
            pod: spot
            for pod, (spot, home) in enumerate(zip(world.spot, world.home, strict=True))
            if spot is not None and spot != home
        }

    def places(self, pods: Iterable[int] | None = None) -> tuple[tuple[str, Place], ...]:
        """Moves in the proposal's form."""
        moved = self.moved()
        chosen = moved if pods is None else [p for p in pods if p in moved]
        return tuple((self.shapes.pods[pod].key, self.scene.place(moved[pod])) for pod in chosen)

    # -- caps of the whole run -----------------------------------------------------------------------------------------

    def may_plan(self, pod: int, spot: Spot) -> str:
        """ "" = yes, "target" = no more to that node, anything else = the pod must stay (why is in ``refused``)."""
        value = self.shapes.pods[pod]
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
            self.books.undo(old)
        if spot is not None and spot != self.world.home[pod]:
            claim = self.scene.claim(self.shapes.pods[pod], self.world.fleet.names[spot.node])
            self.claims[pod] = claim
            self.books.take(claim)
            self.books.land(claim)
            self.refused.pop(pod, None)
