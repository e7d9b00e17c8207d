"""A strategy as a third party would ship it: keeps one node quiet.

Nothing of defragd is changed or rebuilt for it; the wheel's entry point is enough:

    [project.entry-points."defragd.strategies"]
    quiet-node = "defragd_lucky_dip:STRATEGY"
"""

from __future__ import annotations

from dataclasses import dataclass

from defragd.core.plan import Place, Refusal
from defragd.core.reasons import Reason
from defragd.core.strategy import Proposal, Scene


@dataclass(frozen=True)
class QuietNodeArgs:
    """``node`` is to hold at most ``keep`` pods that use devices."""

    node: str
    keep: int = 0

    def __post_init__(self) -> None:
        if self.keep < 0:
            raise ValueError("keep must not be negative")


class QuietNode:
    name = "quiet-node"
    args_type = QuietNodeArgs
    drain = False

    def propose(self, scene: Scene) -> Proposal:
        """Pods in order of name, each to the first place where the exact rules let it be."""
        args: QuietNodeArgs = scene.args
        here = sorted(key for key, pod in scene.movable.items() if pod.node == args.node)
        moves: list[tuple[str, Place]] = []
        moved = {}
        refused: list[Refusal] = []
        for key in here[args.keep :]:
            place = self._place(scene, key, args.node, moved)
            if place is None:
                refused.append(Refusal(key, Reason.NO_PLACE, "no device elsewhere takes it"))
                continue
            moves.append((key, place))
            moved[key] = None
        return Proposal(moves=tuple(moves), refused=tuple(refused), score_name="devices", trim=False,
                        why={key: "keeps the node quiet" for key, _ in moves})  # fmt: skip

    def _place(self, scene: Scene, key: str, node: str, moved: dict) -> Place | None:
        pod = scene.movable[key]
        for name in sorted(scene.scope_nodes - {node}):
            for device in scene.snapshot.nodes[name].devices:
                place = Place(name, (device.uuid,))
                if device.usable and scene.verify(pod, place, moved) is None:
                    return place
        return None


STRATEGY = QuietNode()
