"""node-drain."""

from __future__ import annotations

from dataclasses import dataclass

from defragd.core.strategy import Proposal, Scene


@dataclass(frozen=True, slots=True)
class NodeDrainArgs:
    """No arguments yet."""


@dataclass(frozen=True, slots=True)
class NodeDrain:
    name: str = "node-drain"
    args_type: type = NodeDrainArgs
    drain: bool = False

    def propose(self, scene: Scene) -> Proposal:
        return Proposal(stopped="infeasible")


STRATEGY = NodeDrain()
