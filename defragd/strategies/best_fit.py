"""best-fit: the few moves that make the most of the idle capacity usable.

Arguments (``strategy.args`` of a policy):

- ``objective``: ``auto`` (default) lowers the schedulability loss L first and, among equal losses, frees whole devices
  and whole nodes; ``loss`` is L alone; ``fgd`` lowers phi; ``devices`` frees whole devices; ``nodes`` frees whole
  nodes (of four devices or more where there are such, each counted by its share of the largest node).
- ``useIdleNodes``: idle nodes of four devices or more are never refilled unless this is true.

The plan is found by steepest descent first (one move after another, each the best gain for its cost) and then by
search from there, until the deadline or the step limit. Without pressure on the limits the result cannot be improved
by a single move, so that planning again gives nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from defragd.core.search import improve
from defragd.core.strategy import Proposal, Scene

OBJECTIVES = ("auto", "loss", "fgd", "devices", "nodes")


@dataclass(frozen=True, slots=True)
class BestFitArgs:
    """What to optimise for, and whether large idle nodes may be used."""

    objective: str = "auto"
    use_idle_nodes: bool = False

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective {self.objective!r}: one of {', '.join(OBJECTIVES)}")


@dataclass(frozen=True, slots=True)
class BestFit:
    name: str = "best-fit"
    args_type: type = BestFitArgs
    drain: bool = False

    def propose(self, scene: Scene) -> Proposal:
        args: BestFitArgs = scene.args
        return improve(scene, args.objective, use_idle_nodes=args.use_idle_nodes)


STRATEGY = BestFit()
