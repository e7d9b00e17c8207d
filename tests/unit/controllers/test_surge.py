"""SurgeFirst: the replacement is Ready on the target before the old pod goes; counts are as before afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from defragd.core.free import DELETION_COST
from defragd.core.model import Volume
from defragd.core.placement import COST_BEFORE, Phase, Step
from defragd.core.rules import Timeouts
from tests.support.engine_moves import ended
from tests.support.engine_world import EngineWorld, Killed, Replica, drive, node, start

LIMITS = Timeouts()


@pytest.fixture(params=["gate", "pin"])
def world(request: pytest.FixtureRequest) -> EngineWorld:
    world = EngineWorld([node("n1"), node("n2")])
    world.admission = request.param
    return world


def surge(world: EngineWorld, replicas: int = 1, **more: Any) -> tuple[str, Replica]:
    replica = start(world)
    world.deployment("a", replicas, on=[("n1", f"GPU-n1-{i % 2}") for i in range(replicas)], memory=6000)
    return world.place("p", node="n2", devices=["gpu-1"], evict="a-1", handover="SurgeFirst", **more), replica


def ready(world: EngineWorld) -> int:
    return sum(p.ready and not p.deleting for p in map(world.read, world.pods.values()))


def watched(world: EngineWorld, replica: Replica, key: str, least: int, seconds: float = 20.0) -> None:
    """Until the end; at no moment are fewer pods Ready."""

    def look() -> bool:
        assert ready(world) >= least
        return world.status(key).step is Step.ENDED

    drive(world, replica, seconds=seconds, until=look)


@pytest.mark.parametrize("replicas", [1, 3])
def test_the_old_pod_goes_when_the_new_one_is_ready(world: EngineWorld, replicas: int) -> None:
    world.budget("pdb", "a", replicas)  # allows no eviction at all
    key, replica = surge(world, replicas)
    others = {p.name for p in world.of(world.owners["owner-a"])} - {"a-1"}
    watched(world, replica, key, least=replicas)
    status = world.status(key)
    assert (status.phase, status.reason) == (Phase.COMPLETED, "Completed"), status.message
    pods = world.of(world.owners["owner-a"])
    assert len(pods) == world.owners["owner-a"].replicas == replicas
    assert "default/a-1" not in world.pods
    assert others < {p.name for p in pods}, "the others stayed"
    (new,) = [p for p in pods if p.uid == status.pod_uid]
    assert (new.node, new.devices) == ("n2", ("GPU-n2-1",))
    assert world.evictions == []
    assert [n.reason for n in replica.access.notes] == ["Evicting", "Completed"]
    assert [(before, after) for _, before, after, _ in world.scalings] == [
        (replicas, replicas + 1),
        (replicas + 1, replicas),
    ]
    assert not [p for p in pods if COST_BEFORE in p.annotations or DELETION_COST in p.annotations]


def test_calls_of_a_surge(world: EngineWorld) -> None:
    key, replica = surge(world)
    drive(world, replica, until=ended(world, key))
    calls = [call for call in replica.access.calls if call != "claim"]
    pins = ["patch"] if world.admission == "gate" else []
    assert calls == ["status", "status", "scale", *pins, "status", "patch", "scale", "status"]


@pytest.mark.parametrize("write", range(9))
@pytest.mark.parametrize("when", ["kill-before", "kill-after"])
def test_kill_around_every_write(world: EngineWorld, write: int, when: str) -> None:
    key, replica = surge(world, 2)
    replica.access.faults = ["ok"] * write + [when]
    try:
        drive(world, replica, seconds=20, until=ended(world, key))
    except Killed:
        for lane in replica.lanes:
            lane.waiting.clear()
        world.webhooks.clear()
        world.tick(0.1)
        replica = start(world)
    drive(world, replica, seconds=60, until=ended(world, key))
    assert world.status(key).phase in (Phase.COMPLETED, Phase.FAILED)
    drive(world, replica, seconds=15)
    assert world.owners["owner-a"].replicas == 2
    assert ready(world) == 2
    assert world.evictions == []
    assert not [p for p in map(world.read, world.pods.values()) if COST_BEFORE in p.annotations or p.gates]
    assert not world.breaches.found
    # without a webhook at the moment of its creation the second pod comes unpinned, and is taken back
    if world.status(key).reason != "Unpinned":
        assert world.status(key).phase is Phase.COMPLETED, world.status(key).message


@pytest.mark.parametrize("fault", ["lost-before", "lost-after", "conflict", "busy"])
@pytest.mark.parametrize("write", [2, 5, 6, 7])
def test_lost_answers_never_count_twice(world: EngineWorld, fault: str, write: int) -> None:
    key, replica = surge(world, 2)
    replica.access.faults = ["ok"] * write + [fault]
    drive(world, replica, seconds=60, until=ended(world, key))
    drive(world, replica, seconds=15)
    assert world.owners["owner-a"].replicas == 2
    assert max(after for _, _, after, _ in world.scalings) == 3
    assert world.status(key).phase is Phase.COMPLETED


def test_a_new_pod_that_never_gets_ready_is_taken_back_and_the_old_one_stays(world: EngineWorld) -> None:
    key, replica = surge(world, timeouts=Timeouts(start=LIMITS.hold / 20))
    drive(world, replica, seconds=2, until=lambda: len(world.pods) == 2)
    world.never_ready = {"a"}
    drive(world, replica, seconds=30, until=ended(world, key))
    assert world.status(key).reason == "StartTimeout"
    drive(world, replica, seconds=5)
    assert [p.name for p in world.of(world.owners["owner-a"])] == ["a-1"]
    assert world.owners["owner-a"].replicas == 1
    assert DELETION_COST not in world.pod("default/a-1").annotations
    assert world.evictions == []


def test_the_old_pod_stays_while_another_replica_is_not_ready(world: EngineWorld) -> None:
    """Its controller would let that one go first, whatever the costs."""
    key, replica = surge(world, 2)
    drive(world, replica, seconds=5, until=lambda: world.status(key).step is Step.PINNED)
    raw = world.pods["default/a-2"]
    raw["status"]["conditions"] = [c for c in raw["status"]["conditions"] if c["type"] != "Ready"]
    world.touch()
    drive(world, replica, seconds=6)
    assert len(world.scalings) == 1
    assert {"default/a-1", "default/a-2"} < set(world.pods)
    world._finish(raw, "ready")
    drive(world, replica, seconds=10, until=ended(world, key))
    assert world.status(key).phase is Phase.COMPLETED
    assert "default/a-2" in world.pods


def test_an_autoscaler_that_sets_the_count_keeps_it(world: EngineWorld) -> None:
    key, replica = surge(world)
    world.start = 5.0
    drive(world, replica, seconds=2, until=lambda: bool(world.scalings))
    drive(world, replica, seconds=1)
    world.owners["owner-a"].replicas = 4
    drive(world, replica, seconds=60, until=ended(world, key))
    assert world.status(key).reason == "SurgeOverridden"
    drive(world, replica, seconds=15)
    assert world.owners["owner-a"].replicas == 4
    assert len(world.scalings) == 1
    assert "default/a-1" in world.pods
    assert COST_BEFORE not in world.pod("default/a-1").annotations


def test_a_placement_deleted_in_the_middle_is_healed(world: EngineWorld) -> None:
    key, replica = surge(world)
    world.start = 5.0
    drive(world, replica, seconds=2, until=lambda: bool(world.scalings))
    drive(world, replica, seconds=1)
    del world.placements[key]
    world.touch()
    drive(world, replica, seconds=15)
    assert world.owners["owner-a"].replicas == 1
    assert [p.name for p in world.of(world.owners["owner-a"])] == ["a-1"]


def test_without_room_for_both_nothing_begins(world: EngineWorld) -> None:
    world.deployment("full", on=[("n2", "GPU-n2-1")], memory=12000)
    key, replica = surge(world, timeouts=Timeouts(hold=LIMITS.hold / 60))
    drive(world, replica, seconds=10, until=ended(world, key))
    assert world.status(key).reason == "HoldTimeout"
    assert world.scalings == []


def test_the_same_device_needs_room_for_both(world: EngineWorld) -> None:
    """A place that only the old pod's going makes is none for a surge."""
    replica = start(world)
    world.deployment("a", on=[("n1", "GPU-n1-0")], memory=9000)
    world.deployment("b", on=[("n1", "GPU-n1-1")], memory=9000)
    key = world.place(
        "p", node="n1", devices=["gpu-1"], evict="a-1", handover="SurgeFirst", timeouts=Timeouts(hold=LIMITS.hold / 60)
    )
    drive(world, replica, seconds=10, until=ended(world, key))
    assert (world.status(key).reason, world.scalings) == ("HoldTimeout", [])


def refused(world: EngineWorld, replica: Replica, name: str, key: str) -> str:
    drive(world, replica, seconds=10, until=ended(world, key))
    assert world.status(key).reason == "SurgeUnsupported", world.status(key)
    assert world.scalings == []
    return world.status(key).message


def test_kinds_that_cannot_surge_are_refused(world: EngineWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = start(world)
    world.deployment("s", kind="StatefulSet", on=[("n1", "GPU-n1-0")])
    key = world.place("p", node="n2", devices=["gpu-1"], evict="s-0", app="s", handover="SurgeFirst")
    assert "StatefulSet" in refused(world, replica, "s-0", key)
    key, replica = surge(world, group="g", req_id="x")
    assert "leave together" in refused(world, replica, "a-1", key)


def test_a_claim_that_two_pods_cannot_share_is_refused(world: EngineWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    read = EngineWorld.read
    volume = Volume("claim", claim="data", access_modes=("ReadWriteOnce",))

    def with_volume(raw: Any) -> Any:
        pod = read(raw)
        return replace(pod, scheduling=replace(pod.scheduling, volumes=(volume,)))

    monkeypatch.setattr(EngineWorld, "read", staticmethod(with_volume))
    key, replica = surge(world)
    assert "claim data" in refused(world, replica, "a-1", key)


def test_without_the_right_to_scale_nothing_has_happened(world: EngineWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    from defragd.ports import Outcome, Written

    key, replica = surge(world)
    monkeypatch.setattr(world, "scale", lambda *_: Written(Outcome.REFUSED, "deployments/scale is forbidden"))
    assert "surge.enabled" in refused(world, replica, "a-1", key)
    assert "default/a-1" in world.pods
