"""The move that most tests of the engine begin with, and what they wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from defragd.core.placement import Step
from tests.support.engine_world import EngineWorld, Replica, start


def moved(world: EngineWorld, **more: Any) -> tuple[str, Replica]:
    """One Deployment pod on n1, a placement to n2, one replica."""
    replica = start(world)
    world.deployment("a", on=[("n1", "GPU-n1-0")])
    return world.place("p", node="n2", devices=["gpu-1"], evict="a-1", **more), replica


def ended(world: EngineWorld, key: str) -> Callable[[], bool]:
    return lambda: world.status(key).step is Step.ENDED
