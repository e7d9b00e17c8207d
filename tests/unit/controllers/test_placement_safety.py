"""One test per safety rule that the end-to-end tests would not miss by themselves (see test_engine_mutations.py)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from defragd.core.model import NodeLock
from defragd.core.placement import PINNED, Phase, Step
from defragd.core.rules import Timeouts
from defragd.ports import Beat
from tests.support.engine_moves import ended, moved
from tests.support.engine_world import EngineWorld, drive, node, start


@pytest.fixture
def world() -> EngineWorld:
    return EngineWorld([node("n1"), node("n2")])


def pinned(world: EngineWorld) -> list[Any]:
    return [p for p in map(world.read, world.pods.values()) if PINNED in p.annotations and not p.gates and p.live]


def test_another_device_than_promised_is_no_success(world: EngineWorld) -> None:
    key, replica = moved(world)
    world.scheduler_down = True
    drive(world, replica, until=lambda: world.status(key).step is Step.PINNED)
    (pod,) = pinned(world)
    world._book(world.pods[pod.key], "n2", ("GPU-n2-0",))
    drive(world, replica, until=ended(world, key))
    assert world.status(key).reason == "WrongDevice"
    assert world.status(key).assignments[0].uuid == "GPU-n2-0"


def test_arrivals_of_one_node_do_not_overlap() -> None:
    world = EngineWorld([node("n1", devices=4), node("n2", devices=4)])
    replica = start(world)
    keys = []
    for i in range(4):
        world.deployment(f"w{i}", on=[("n1", f"GPU-n1-{i}")])
        keys.append(world.place(f"p{i}", node="n2", devices=[f"gpu-{i}"], evict=f"w{i}-1"))
    most = 0
    for _ in range(200):
        drive(world, replica, seconds=0.05)
        most = max(most, sum(1 for pod in pinned(world) if pod.bind_phase != "success"))
    assert {world.status(key).phase for key in keys} == {Phase.COMPLETED}
    assert most == 1


def test_a_pin_sticks_to_its_pod_while_its_answer_is_unknown(world: EngineWorld) -> None:
    """While the pin of one pod is on its way a second one becomes visible that would come first; letting that one go
    fails, then the pin's answer is lost."""
    replica = start(world)
    key = world.place("p", node="n2", devices=["gpu-1"], app="job", timeouts=Timeouts())
    drive(world, replica, until=lambda: world.status(key).step is Step.HELD)
    world.bare("job-b", {"app": "job"}, memory=500)
    replica.access.delays, replica.access.faults = [0.2], ["lost-before", "lost-after"]
    replica.once()
    assert replica.lanes[1].waiting, "the pin is under way"
    world.bare("job-a", {"app": "job"}, memory=500)["metadata"]["uid"] = "pod-0000"
    world.touch()
    replica.access.freeze()
    drive(world, replica, seconds=3)
    assert len(world.pinned[key]) == 1
    replica.access.freeze(False)
    drive(world, replica, until=ended(world, key))
    assert len(world.pinned[key]) == 1
    assert world.status(key).pod_name == "job-b"


def test_a_stranded_pod_is_recycled(world: EngineWorld) -> None:
    """Its placement is deleted between the pin and the binding, and somebody has the place: it could never start."""
    key, replica = moved(world)
    world.scheduler_down = True
    drive(world, replica, until=lambda: world.status(key).step is Step.PINNED)
    (pod,) = pinned(world)
    world.webhooks.clear()
    world._book(world.bare("thief", memory=16384), "n2", ("GPU-n2-1",))
    del world.placements[key]
    world.touch()
    world.scheduler_down = False
    drive(world, replica, seconds=50, step=0.5)
    assert not world.recycled
    drive(world, replica, seconds=20, step=0.5)
    assert world.recycled == [(pod.key, pod.uid)]
    (again,) = world.of(world.owners["owner-a"])
    assert again.ready
    assert PINNED not in again.annotations


@pytest.mark.parametrize("who", ["engine", "janitor"])
def test_a_bare_pod_is_never_evicted_but_gets_its_choice_of_devices_back(world: EngineWorld, who: str) -> None:
    replica = start(world)
    key = world.place("p", node="n2", devices=["gpu-1"], app="job")
    drive(world, replica, until=lambda: world.status(key).step is Step.HELD)
    world.scheduler_down = True
    pod = world.bare("job", {"app": "job"}, memory=9000)
    drive(world, replica, until=lambda: world.status(key).step is Step.PINNED)
    world.webhooks.clear()
    world._book(world.bare("thief", memory=16384), "n2", ("GPU-n2-1",))
    if who == "janitor":
        del world.placements[key]
    world.touch()
    world.scheduler_down = False
    drive(world, replica, seconds=70, step=0.2)
    if who == "engine":
        assert world.status(key).reason == "PlaceStolen"
    assert not world.recycled
    found = world.read(world.pods["default/job"])
    assert (found.uid, found.node, found.devices) == (pod["metadata"]["uid"], "n2", ("GPU-n2-0",))
    assert found.ready


def test_done_means_ready_for_the_settle_time(world: EngineWorld) -> None:
    key, replica = moved(world, settle=timedelta(seconds=5))
    drive(world, replica, until=lambda: any(pod.ready for pod in pinned(world)))
    drive(world, replica, seconds=4)
    assert world.status(key).step is Step.PINNED
    drive(world, replica, seconds=3, until=ended(world, key))
    assert world.status(key).phase is Phase.COMPLETED


def test_nothing_is_pinned_while_hami_binds_another_pod_there(world: EngineWorld) -> None:
    key, replica = moved(world)
    drive(world, replica, until=lambda: bool(world.evictions))
    world.deployment("x", on=[("n1", "GPU-n1-1")])
    world.nodes["n2"] = replace(world.nodes["n2"], lock=NodeLock("default/x-1", world.clock.now(), "x"))
    world.touch()
    drive(world, replica, seconds=4)
    assert not pinned(world)
    world.nodes["n2"] = replace(world.nodes["n2"], lock=None)
    world.touch()
    drive(world, replica, until=ended(world, key))
    assert world.status(key).phase is Phase.COMPLETED


def test_a_hold_that_is_being_written_is_held(world: EngineWorld) -> None:
    replica = start(world)
    keys = []
    for i in range(2):
        world.deployment(f"w{i}", on=[("n1", f"GPU-n1-{i}")], memory=9000)
        keys.append(world.place(f"p{i}", node="n2", devices=["gpu-1"], evict=f"w{i}-1"))
    replica.access.delays = [0.3, 0.3]
    drive(world, replica, seconds=1)
    assert [world.status(key).step for key in keys].count(Step.NEW) == 1
    assert len(world.seen().snapshot.holds) == 1


def test_all_is_proven_again_right_before_the_eviction(world: EngineWorld) -> None:
    """The status says Evicting, a replica has not seen it yet, and meanwhile the node is cordoned."""
    key, replica = moved(world, timeouts=Timeouts(hold=timedelta(seconds=8)))
    replica.access.beats = [Beat("slow", 1, world.clock.now())]
    drive(world, replica, until=lambda: world.status(key).step is Step.EVICTING)
    world.nodes["n2"] = replace(world.nodes["n2"], schedulable=False)
    world.touch()
    replica.access.beats = []
    drive(world, replica, seconds=20, until=ended(world, key))
    assert not world.evictions
    assert world.status(key).phase is Phase.FAILED


def test_a_call_that_hangs_keeps_no_other_placement_waiting(world: EngineWorld) -> None:
    replica = start(world)
    keys = []
    for i in range(2):
        world.deployment(f"w{i}", on=[("n1", f"GPU-n1-{i}")])
        keys.append(world.place(f"p{i}", node="n2", devices=[f"gpu-{i}"], evict=f"w{i}-1"))
    replica.access.delays = [15.0]
    took = drive(world, replica, until=lambda: any(world.status(key).phase is Phase.COMPLETED for key in keys))
    assert took < 4
    drive(world, replica, seconds=25, until=lambda: all(world.status(key).phase is Phase.COMPLETED for key in keys))
    assert {world.status(key).phase for key in keys} == {Phase.COMPLETED}


def test_an_eviction_under_way_uses_up_its_budget(world: EngineWorld) -> None:
    """Two replicas, a budget of one: the second eviction is not even tried while the first is on its way."""
    replica = start(world)
    world.deployment("w", 2, on=[("n1", "GPU-n1-0"), ("n1", "GPU-n1-1")])
    world.tick(1)
    world.budget("pdb", "w", 1)
    keys = [world.place(f"p{i}", node="n2", devices=[f"gpu-{i}"], evict=f"w-{i + 1}", app="w") for i in range(2)]
    drive(world, replica, until=lambda: any(world.status(key).step is Step.EVICTING for key in keys))
    replica.access.delays = [3.0]
    drive(world, replica, seconds=2)
    assert replica.access.calls.count("evict") == 0, "it hangs before it is sent, and so must the other"
    drive(world, replica, seconds=30, until=lambda: all(world.status(key).step is Step.ENDED for key in keys))
    assert {world.status(key).phase for key in keys} == {Phase.COMPLETED}
    assert len(world.evictions) == 2


def test_the_fence_closes_between_decision_and_call(world: EngineWorld) -> None:
    key, replica = moved(world)
    drive(world, replica, until=lambda: world.status(key).step is Step.EVICTING)
    replica.access.delays = [1.0]
    replica.once()
    assert replica.lanes[1].waiting, "the eviction is about to be sent"
    replica.access.leading = False
    drive(world, replica, seconds=3)
    assert not world.evictions
    other = start(world, "r1")
    drive(world, replica, other, until=ended(world, key))
    assert world.status(key).phase is Phase.COMPLETED
    assert len(world.evictions) == 1


def test_an_index_that_means_another_device_by_now_is_not_pinned(world: EngineWorld) -> None:
    key, replica = moved(world)
    world.termination = 2.0
    drive(world, replica, until=lambda: bool(world.evictions))
    first, second = world.nodes["n2"].devices
    world.nodes["n2"] = replace(world.nodes["n2"], devices=(first, replace(second, uuid="GPU-n2-new")))
    world.touch()
    drive(world, replica, until=ended(world, key))
    assert world.status(key).reason == "DeviceUnknown"
    drive(world, replica, seconds=3)
    assert not pinned(world)
    assert not world.gated()
