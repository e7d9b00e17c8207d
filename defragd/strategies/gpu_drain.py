"""gpu-drain."""

from __future__ import annotations

from dataclasses import dataclass

from defragd.core.strategy import Proposal, Scene


@dataclass(frozen=True, slots=True)
class GpuDrainArgs:
    """No arguments yet."""


@dataclass(frozen=True, slots=True)
class GpuDrain:
    name: str = "gpu-drain"
    args_type: type = GpuDrainArgs
    drain: bool = False

    def propose(self, scene: Scene) -> Proposal:
        return Proposal(stopped="infeasible")


STRATEGY = GpuDrain()
