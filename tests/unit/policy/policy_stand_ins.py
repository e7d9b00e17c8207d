"""Stand-ins for strategies, so that policy files are tested without any planner."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    gpus: int = 1
    mem_mib: int = 0


@dataclass(frozen=True)
class Args:
    objective: str = "auto"
    use_idle_nodes: bool = False
    unhealthy: bool = False
    count: int | None = None
    all_or_nothing: bool = True
    extent: str = "gpus"
    shape: Shape | None = None
    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise ValueError("count must be 1 or more")


def stand_in(name):
    return type("Strategy", (), {"name": name, "args_type": Args, "propose": lambda self: None})()
