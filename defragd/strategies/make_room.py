"""make-room."""

from __future__ import annotations

from dataclasses import dataclass

from defragd.core.strategy import Proposal, Scene


@dataclass(frozen=True, slots=True)
class MakeRoomArgs:
    """No arguments yet."""


@dataclass(frozen=True, slots=True)
class MakeRoom:
    name: str = "make-room"
    args_type: type = MakeRoomArgs
    drain: bool = False

    def propose(self, scene: Scene) -> Proposal:
        return Proposal(stopped="infeasible")


STRATEGY = MakeRoom()
