"""A place that is lost after the eviction: another device of the node that the placement names, else a clean end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from defragd.core.placement import Phase, Step
from defragd.core.placement_retarget import alternatives
from defragd.core.plan import Move, Place
from tests.support.engine_moves import ended
from tests.support.engine_world import EngineWorld, Killed, Replica, drive, node, start

USE = "nvidia.com/use-gpuuuid"


@pytest.fixture(params=["gate", "pin"])
def world(request: pytest.FixtureRequest) -> EngineWorld:
    world = EngineWorld([node("n1"), node("n2", devices=3)])
    world.admission = request.param
    return world


def moved(world: EngineWorld, *others: str, **more: Any) -> tuple[str, Replica]:
    replica = start(world)
    world.deployment("a", on=[("n1", "GPU-n1-0")], memory=9000)
    world.termination = 4.0
    key = world.place("p", node="n2", devices=["gpu-1"], evict="a-1", alternatives=others, **more)
    drive(world, replica, seconds=5, until=lambda: bool(world.evictions))
    return key, replica


def steal(world: EngineWorld, uuid: str) -> None:
    """A pod that nobody steered takes the device."""
    webhooks, world.webhooks = world.webhooks, []
    raw = world.bare(f"thief-{uuid.lower()}", memory=9000)
    world.webhooks = webhooks
    world._book(raw, "n2", (uuid,))


def test_a_stolen_place_is_exchanged_for_one_that_the_plan_allows(world: EngineWorld) -> None:
    if world.admission == "pin":
        world.scheduler_down = True  # else the pod binds long before its predecessor is gone
    key, replica = moved(world, "gpu-0", "gpu-2")
    steal(world, "GPU-n2-1")
    drive(world, replica, seconds=7)
    world.scheduler_down = False
    drive(world, replica, seconds=30, until=ended(world, key))
    status = world.status(key)
    assert status.phase is Phase.COMPLETED, status
    (pod,) = world.of(world.owners["owner-a"])
    assert (pod.node, pod.devices, status.devices) == ("n2", ("GPU-n2-0",), ("GPU-n2-0",))
    assert len(world.evictions) == 1
    assert "Retargeted" in [n.reason for n in replica.access.notes]
    assert not world.breaches.found


def test_without_one_it_ends_cleanly(world: EngineWorld) -> None:
    world.scheduler_down = world.admission == "pin"
    key, replica = moved(world)
    steal(world, "GPU-n2-1")
    drive(world, replica, seconds=7)
    world.scheduler_down = False
    drive(world, replica, seconds=30, until=ended(world, key))
    assert world.status(key).reason == "PlaceStolen"
    drive(world, replica, seconds=5)
    (pod,) = world.of(world.owners["owner-a"])
    assert pod.ready


def test_alternatives_that_are_taken_too_do_not_help(world: EngineWorld) -> None:
    world.scheduler_down = world.admission == "pin"
    key, replica = moved(world, "gpu-2")
    steal(world, "GPU-n2-1")
    world.nodes["n2"] = replace(world.nodes["n2"], lock=None)
    steal(world, "GPU-n2-2")
    drive(world, replica, seconds=7)
    world.scheduler_down = False
    drive(world, replica, seconds=30, until=ended(world, key))
    assert world.status(key).reason == "PlaceStolen"


@pytest.mark.parametrize("change", [{"healthy": False}, {"cordoned": True}])
def test_a_device_that_fails_meanwhile(world: EngineWorld, change: dict[str, bool]) -> None:
    world.scheduler_down = world.admission == "pin"
    key, replica = moved(world, "gpu-2")
    world.tick()  # the replacement is there
    two = world.nodes["n2"]
    devices = tuple(replace(d, **change) if d.uuid == "GPU-n2-1" else d for d in two.devices)
    world.nodes["n2"] = replace(two, devices=devices)
    world.touch()
    drive(world, replica, seconds=7)
    world.scheduler_down = False
    drive(world, replica, seconds=30, until=ended(world, key))
    assert world.status(key).phase is Phase.COMPLETED, world.status(key)
    assert world.of(world.owners["owner-a"])[0].devices == ("GPU-n2-2",)


def pinned_and_stolen(world: EngineWorld) -> tuple[str, Replica]:
    key, replica = moved(world, "gpu-0")
    world.scheduler_down = True
    drive(world, replica, seconds=8, until=lambda: world.status(key).step is Step.PINNED)
    steal(world, "GPU-n2-1")
    return key, replica


def test_after_the_pin_the_list_on_the_pod_follows(world: EngineWorld) -> None:
    if world.admission == "pin":
        world.scheduler_down = True
    key, replica = pinned_and_stolen(world)
    drive(world, replica, seconds=4)
    (raw,) = [p for p in world.pods.values() if p["metadata"]["annotations"].get(USE)]
    assert raw["metadata"]["annotations"][USE] == "GPU-n2-0"
    world.scheduler_down = False
    drive(world, replica, seconds=30, until=ended(world, key))
    assert world.status(key).phase is Phase.COMPLETED
    assert world.of(world.owners["owner-a"])[0].devices == ("GPU-n2-0",)
    assert world.recycled == []


def test_killed_between_the_record_and_the_new_list(world: EngineWorld) -> None:
    if world.admission == "pin":
        world.scheduler_down = True
    key, replica = pinned_and_stolen(world)
    replica.access.faults = ["kill-after"]
    with pytest.raises(Killed):
        drive(world, replica, seconds=10)
    assert world.status(key).devices == ("GPU-n2-0",)
    world.webhooks.clear()
    replica = start(world)
    world.scheduler_down = False
    drive(world, replica, seconds=30, until=ended(world, key))
    assert world.status(key).phase is Phase.COMPLETED
    assert len(world.evictions) == 1


def test_a_pod_of_two_devices_exchanges_the_lost_one(world: EngineWorld) -> None:
    replica = start(world)
    world.deployment("a", on=[], gpus=2, memory=9000)
    raw = next(iter(world.pods.values()))
    world._book(raw, "n1", ("GPU-n1-0", "GPU-n1-1"))
    world._finish(raw, "allocated")
    world._finish(raw, "ready")
    world.scheduler_down, world.termination = world.admission == "pin", 4.0
    key = world.place("p", node="n2", devices=["gpu-0", "gpu-1"], evict="a-1", alternatives=("gpu-2",))
    drive(world, replica, seconds=5, until=lambda: bool(world.evictions))
    steal(world, "GPU-n2-1")
    drive(world, replica, seconds=7)
    world.scheduler_down = False
    drive(world, replica, seconds=30, until=ended(world, key))
    assert world.status(key).phase is Phase.COMPLETED, world.status(key)
    assert set(world.of(world.owners["owner-a"])[0].devices) == {"GPU-n2-0", "GPU-n2-2"}


def test_what_a_plan_names() -> None:
    """Alike, not part of the plan, and not idle unless the target is: an idle device is what a plan frees."""
    world = EngineWorld([node("n1"), node("n2", devices=4)])
    world.deployment("busy", 2, on=[("n2", "GPU-n2-1"), ("n2", "GPU-n2-2")], memory=1000)
    move = Move("m", "default/a-1", "u", Place("n1", ("GPU-n1-0",)), Place("n2", ("GPU-n2-1",)))
    other = Move("o", "default/b-1", "u", Place("n2", ("GPU-n2-3",)), Place("n1", ("GPU-n1-1",)))
    snapshot = world.seen().snapshot
    assert alternatives(snapshot, move, [move, other]) == ("GPU-n2-2",)
    onto_idle = replace(move, target=Place("n2", ("GPU-n2-0",)))
    assert alternatives(snapshot, onto_idle, [onto_idle, other]) == ("GPU-n2-1", "GPU-n2-2")
    two = world.nodes["n2"]
    world.nodes["n2"] = replace(
        two, devices=tuple(replace(d, model="NVIDIA L4", memory_mib=24000) for d in two.devices[2:]) + two.devices[:2]
    )
    world.touch()
    assert alternatives(world.seen().snapshot, move, [move]) == ()
