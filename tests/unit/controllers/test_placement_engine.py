"""Moves from end to end on the small world, and every way in which one can fail."""

from __future__ import annotations

from datetime import timedelta

import pytest

from defragd.core.placement import GATE, PINNED, PLACEMENT, STEERED, Phase, Step
from defragd.core.rules import Timeouts
from tests.support.engine_moves import ended, moved
from tests.support.engine_world import EngineWorld, drive, node, start


@pytest.fixture
def world() -> EngineWorld:
    return EngineWorld([node("n1"), node("n2")])


def test_a_move_from_end_to_end(world: EngineWorld) -> None:
    key, replica = moved(world)
    took = drive(world, replica, until=ended(world, key))
    status = world.status(key)
    assert (status.phase, status.reason) == (Phase.COMPLETED, "Completed"), status.message
    (pod,) = [world.pod(k) for k in world.pods]
    assert (pod.node, pod.devices, pod.ready, pod.gates) == ("n2", ("GPU-n2-1",), True, ())
    assert pod.annotations[PINNED] == "p"
    assert pod.labels[PLACEMENT] == "p"
    assert status.pod_uid == pod.uid
    assert [(a.pod_name, a.gpu_device, a.uuid) for a in status.assignments] == [(pod.name, "gpu-1", "GPU-n2-1")]
    assert status.consumed_at is not None
    assert world.evictions == [("default/a-1", status.evicted_uid)]
    assert {c.type: c.status for c in status.conditions} == {
        "Held": "False",
        "Pinned": "True",
        "Completed": "True",
        "Ready": "True",
    }
    # 0.5 s termination, 0.3 + 0.3 s Allocate and start, 1 s settle from the end of the whole second, steps
    assert took < 3.5
    assert len(replica.access.notes) <= 2


def test_a_successful_move_takes_at_most_eight_calls(world: EngineWorld) -> None:
    world.budget("pdb", "a", 0)
    key, replica = moved(world)
    drive(world, replica, until=ended(world, key))
    calls = replica.access.calls
    assert world.status(key).phase is Phase.COMPLETED
    assert calls == ["status", "evict-dry", "status", "evict", "patch", "status", "status"]
    assert len(calls) + 1 <= 8  # + the creation


def test_statefulset_pod_comes_back_under_its_name(world: EngineWorld) -> None:
    replica = start(world)
    world.deployment("s", 2, kind="StatefulSet", on=[("n1", "GPU-n1-0"), ("n1", "GPU-n1-0")])
    old = world.pod("default/s-1").uid
    key = world.place("p", node="n2", devices=["gpu-0"], evict="s-1", app="s")
    world.termination = 3.0
    drive(world, replica, seconds=2.0)
    assert world.status(key).step is Step.EVICTING  # uid 111 terminates for seconds: that is no success
    drive(world, replica, until=ended(world, key))
    pod = world.pod("default/s-1")
    assert world.status(key).phase is Phase.COMPLETED
    assert pod.uid != old
    assert pod.devices == ("GPU-n2-0",)


def test_only_the_replacement_is_taken_of_many_pods_created_at_once(world: EngineWorld) -> None:
    key, replica = moved(world)
    drive(world, replica, seconds=5, until=lambda: bool(world.evictions))
    world.owners["owner-a"].replicas = 4
    drive(world, replica, until=ended(world, key))
    assert world.status(key).phase is Phase.COMPLETED
    marked = [p for p in world.of(world.owners["owner-a"]) if PINNED in p.annotations]
    assert len(marked) == 1
    drive(world, replica, seconds=3)
    assert len(world.of(world.owners["owner-a"])) == 4
    assert not world.gated()
    assert all(p.ready for p in world.of(world.owners["owner-a"]))


def test_surplus_pods_are_let_go_at_once_and_keep_off_the_held_device(world: EngineWorld) -> None:
    key, replica = moved(world)
    world.termination = 5.0
    drive(world, replica, seconds=5, until=lambda: bool(world.evictions))
    world.owners["owner-a"].replicas = 2
    took = drive(
        world, replica, seconds=5, until=lambda: len(world.of(world.owners["owner-a"])) == 2 and len(world.gated()) == 1
    )
    assert took <= 0.2
    (free,) = [p for p in world.of(world.owners["owner-a"]) if not p.gates]
    assert free.annotations[STEERED] == "GPU-n2-1"
    drive(world, replica, until=ended(world, key))
    drive(world, replica, seconds=5)
    (free,) = [p for p in world.of(world.owners["owner-a"]) if p.uid == free.uid]
    assert STEERED not in free.annotations
    assert "nvidia.com/nouse-gpuuuid" not in free.annotations


def test_without_evict_pod_exactly_one_of_ten_is_pinned(world: EngineWorld) -> None:
    replica = start(world)
    key = world.place("p", node="n2", devices=["gpu-1"], app="job")
    drive(world, replica, seconds=1)
    assert world.status(key).phase is Phase.AWAITING_POD
    assert world.status(key).hold == ()
    for i in range(10):
        world.bare(f"job-{i}", {"app": "job"}, memory=1024)
    assert len(world.gated()) == 10
    replica.once()
    replica.once()
    assert not world.gated()
    drive(world, replica, until=ended(world, key))
    assert world.status(key).phase is Phase.COMPLETED
    marked = [p for p in map(world.read, world.pods.values()) if PINNED in p.annotations]
    assert [p.devices for p in marked] == [("GPU-n2-1",)]
    drive(world, replica, seconds=10)
    assert all(world.read(p).ready for p in world.pods.values())


def test_without_evict_pod_the_first_that_fits_is_taken(world: EngineWorld) -> None:
    replica = start(world)
    world.deployment("x", on=[("n2", "GPU-n2-1")], memory=10000)
    key = world.place("p", node="n2", devices=["gpu-1"], app="job")
    drive(world, replica, seconds=0.5)
    world.bare("job-big", {"app": "job"}, memory=8000)
    world.bare("job-small", {"app": "job"}, memory=4000)
    drive(world, replica, until=ended(world, key))
    assert world.status(key).pod_name == "job-small"
    drive(world, replica, seconds=2)
    assert world.pod("default/job-big").ready


def test_without_evict_pod_the_wait_expires(world: EngineWorld) -> None:
    replica = start(world)
    limits = Timeouts(pod=timedelta(seconds=4))
    key = world.place("p", node="n2", devices=["gpu-1"], app="job", timeouts=limits)
    drive(world, replica, until=ended(world, key))
    assert (world.status(key).phase, world.status(key).reason) == (Phase.EXPIRED, "PodTimeout")


def test_eight_arrivals_on_one_node_go_one_after_the_other() -> None:
    world = EngineWorld([node("n1", 8), node("n2", 8)])
    replica = start(world)
    keys = []
    for i in range(8):
        world.deployment(f"a{i}", on=[("n1", f"GPU-n1-{i}")])
        keys.append(world.place(f"p{i}", node="n2", devices=[f"gpu-{i}"], evict=f"a{i}-1", app=f"a{i}"))
    arrived = lambda: all(len([p for p in world.of(world.owners[f"owner-a{i}"]) if p.ready]) for i in range(8))
    drive(world, replica, seconds=1.0)
    took = drive(world, replica, until=arrived)
    assert took < 4.0
    drive(world, replica, until=lambda: all(world.status(k).step is Step.ENDED for k in keys))
    assert {world.status(k).phase for k in keys} == {Phase.COMPLETED}
    assert len(world.evictions) == 8


def test_swap_of_two_pods_between_two_full_devices(world: EngineWorld) -> None:
    replica = start(world)
    world.deployment("a", on=[("n1", "GPU-n1-0")], memory=16384)
    world.deployment("b", on=[("n2", "GPU-n2-0")], memory=16384)
    group = {"group": "g", "group_size": 2}
    one = world.place("p1", node="n2", devices=["GPU-n2-0"], evict="a-1", **group)
    drive(world, replica, seconds=2)
    assert world.status(one).step is Step.NEW  # alone it has no place: the other pod is not known to leave
    assert not world.evictions
    two = world.place("p2", node="n1", devices=["GPU-n1-0"], evict="b-1", **group)
    drive(world, replica, until=lambda: all(world.status(k).step is Step.ENDED for k in (one, two)))
    assert {world.status(k).phase for k in (one, two)} == {Phase.COMPLETED}, world.status(one).message
    assert [p.devices for p in world.of(world.owners["owner-a"])] == [("GPU-n2-0",)]
    assert [p.devices for p in world.of(world.owners["owner-b"])] == [("GPU-n1-0",)]


# -- refusals before anything happens --------------------------------------------------------------------------------


def opt_out(world: EngineWorld) -> None:
    world.pods["default/a-1"]["metadata"].setdefault("annotations", {})["defragd.io/do-not-move"] = "true"
    world.pods["default/a-1"]["metadata"]["resourceVersion"] = world.touch()


def test_an_opt_out_set_after_the_hold_is_seen_before_the_eviction(world: EngineWorld) -> None:
    key, replica = moved(world, group="g", group_size=2)  # the group keeps it in Held
    drive(world, replica, seconds=1)
    assert world.status(key).step is Step.HELD
    opt_out(world)
    world.deployment("b", on=[("n1", "GPU-n1-1")])
    other = world.place("p2", node="n2", devices=["gpu-0"], evict="b-1", group="g", group_size=2)
    drive(world, replica, until=ended(world, key))
    assert world.status(key).reason == "OptedOut"
    drive(world, replica, until=ended(world, other))
    assert world.status(other).reason == "WaitingForGroup"
    assert not world.evictions


def test_budget_without_room_waits_and_is_never_overdrawn(world: EngineWorld) -> None:
    world.budget("pdb", "a", 1)
    key, replica = moved(world, timeouts=Timeouts(hold=timedelta(seconds=20)))
    drive(world, replica, seconds=10)
    assert not world.evictions
    assert (world.status(key).phase, world.status(key).reason) == (Phase.PENDING, "PDBBlocks")
    drive(world, replica, seconds=20, until=ended(world, key))
    assert world.status(key).reason == "HoldTimeout"


def test_budget_that_gets_room_lets_the_move_go_on(world: EngineWorld) -> None:
    world.budget("pdb", "a", 1)
    key, replica = moved(world)
    drive(world, replica, seconds=3)
    world.owners["owner-a"].replicas = 2
    drive(world, replica, seconds=20, until=ended(world, key))
    assert world.status(key).phase is Phase.COMPLETED


def test_several_budgets_are_refused_at_once(world: EngineWorld) -> None:
    world.budget("one", "a", 0)
    world.budget("two", "a", 0)
    key, replica = moved(world)
    drive(world, replica, seconds=1, until=ended(world, key))
    assert world.status(key).reason == "SeveralPDBs"
    assert not world.evictions


def test_two_placements_cannot_hold_one_place(world: EngineWorld) -> None:
    replica = start(world)
    world.deployment("a", 2, on=[("n1", "GPU-n1-0"), ("n1", "GPU-n1-1")], memory=16384)
    keys = [world.place(f"p{i}", node="n2", devices=["gpu-0"], evict=f"a-{i}", app="a") for i in (1, 2)]
    drive(world, replica, seconds=2)
    steps = sorted(str(world.status(k).step) for k in keys)
    assert "" in steps  # one of them is still at its start
    assert len(world.evictions) == 1


def test_duplicate_request_is_refused(world: EngineWorld) -> None:
    key, replica = moved(world)
    replica.once()
    again = world.place("p-again", node="n2", devices=["gpu-0"], evict="a-1", req_id="p")
    drive(world, replica, seconds=1, until=ended(world, again))
    assert world.status(again).reason == "DuplicateRequest"
    drive(world, replica, until=ended(world, key))
    assert world.status(key).phase is Phase.COMPLETED


def test_suspend_before_the_eviction_releases_the_hold(world: EngineWorld) -> None:
    from dataclasses import replace

    key, replica = moved(world, suspend=True)
    drive(world, replica, seconds=2)
    assert (world.status(key).phase, world.status(key).reason) == (Phase.PENDING, "Suspended")
    assert not world.evictions
    placement = world.placements[key]
    world.placements[key] = replace(placement, spec=replace(placement.spec, suspend=False), revision=world.touch())
    drive(world, replica, until=ended(world, key))
    assert world.status(key).phase is Phase.COMPLETED


def test_a_replica_that_has_not_seen_the_placement_delays_and_then_ends_it(world: EngineWorld) -> None:
    from defragd.ports import Beat

    key, replica = moved(world, timeouts=Timeouts(hold=timedelta(seconds=5)))
    replica.access.beats = [Beat("slow", 1, world.clock.now())]
    drive(world, replica, seconds=3)
    assert not world.evictions
    assert world.status(key).reason == "WebhookNotSeen"
    drive(world, replica, until=ended(world, key))
    assert world.status(key).reason == "WebhookNotSeen"
    assert not world.evictions
    assert "slow" in world.status(key).message


def test_a_replica_that_does_not_serve_is_not_waited_for(world: EngineWorld) -> None:
    from defragd.ports import Beat

    key, replica = moved(world)
    replica.access.beats = [Beat("draining", 1, world.clock.now(), serving=False)]
    drive(world, replica, until=ended(world, key))
    assert world.status(key).phase is Phase.COMPLETED


def test_stale_data_means_no_action(world: EngineWorld) -> None:
    key, replica = moved(world)
    replica.access.stale = 1000.0
    drive(world, replica, seconds=3)
    assert replica.access.calls == []
    assert world.status(key).step is Step.NEW


# -- what goes wrong on the way --------------------------------------------------------------------------------------


def test_webhook_down_is_unpinned_and_no_second_eviction(world: EngineWorld) -> None:
    key, replica = moved(world)
    world.webhooks.clear()
    drive(world, replica, seconds=20, until=ended(world, key))
    assert world.status(key).reason == "Unpinned"
    drive(world, replica, seconds=20)
    assert len(world.evictions) == 1


def test_owner_scaled_down_is_replacement_missing(world: EngineWorld) -> None:
    key, replica = moved(world)
    world.termination = 1.0
    world.owners["owner-a"].stopped = True
    drive(world, replica, seconds=5, until=lambda: bool(world.evictions))
    world.owners["owner-a"].replicas = 0
    drive(world, replica, seconds=20, until=ended(world, key))
    assert world.status(key).reason == "ReplacementMissing"


def test_owner_that_stands_still_is_replacement_missing_in_time(world: EngineWorld) -> None:
    key, replica = moved(world, timeouts=Timeouts(start=timedelta(seconds=8)))
    world.owners["owner-a"].stopped = True
    drive(world, replica, seconds=30, until=ended(world, key))
    assert world.status(key).reason == "ReplacementMissing"
    assert world.status(key).evicted_at is not None


def test_allocate_failure_is_told_apart_and_not_repeated(world: EngineWorld) -> None:
    key, replica = moved(world)
    world.fail_allocate.add("a")
    drive(world, replica, seconds=20, until=ended(world, key))
    assert world.status(key).reason == "AllocateFailed"
    world.fail_allocate.clear()
    drive(world, replica, seconds=5)
    assert len(world.evictions) == 1


def test_never_ready_ends_in_time_and_the_pod_is_left_alone(world: EngineWorld) -> None:
    key, replica = moved(world, timeouts=Timeouts(start=timedelta(seconds=6)))
    world.never_ready.add("a")
    drive(world, replica, seconds=20, until=ended(world, key))
    assert world.status(key).reason == "StartTimeout"
    assert len(world.evictions) + len(world.recycled) == 1


def test_place_stolen_before_the_pin_is_noticed_within_seconds(world: EngineWorld) -> None:
    key, replica = moved(
        world,
    )
    world.termination = 3.0
    drive(world, replica, seconds=5, until=lambda: bool(world.gated()))
    world.webhooks.clear()  # the thief is not steered
    thief = world.bare("thief", memory=16384)
    world._book(thief, "n2", ("GPU-n2-1",))
    took = drive(world, replica, seconds=30, until=ended(world, key))
    assert world.status(key).reason == "PlaceStolen"
    assert took < 3.0 + 3.0
    drive(world, replica, seconds=3)
    assert not world.gated()
    (pod,) = world.of(world.owners["owner-a"])
    assert pod.ready
    assert PINNED not in pod.annotations


def test_place_stolen_after_the_pin_recycles_the_pending_pod_once(world: EngineWorld) -> None:
    key, replica = moved(world)
    world.forget = True
    drive(world, replica, seconds=10, until=lambda: world.status(key).step is Step.PINNED)
    (pod,) = world.of(world.owners["owner-a"])
    world.webhooks.clear()
    thief = world.bare("thief", memory=16384)
    world._book(thief, "n2", ("GPU-n2-1",))
    world.forget = False
    drive(world, replica, seconds=20, until=ended(world, key))
    assert world.status(key).reason == "PlaceStolen"
    assert world.recycled == [(pod.key, pod.uid)]
    assert len(world.evictions) == 1
    drive(world, replica, seconds=3)
    (again,) = world.of(world.owners["owner-a"])
    assert again.ready
    assert PINNED not in again.annotations


def test_a_forgotten_pod_is_woken(world: EngineWorld) -> None:
    key, replica = moved(world)
    drive(world, replica, seconds=5, until=lambda: bool(world.evictions))
    world.nodes["n2"] = node("n2", lock=None)
    original = world._schedule

    def forgetful() -> None:
        """HAMi still counts the dead pod when kube-scheduler asks: the pod is put aside and nobody wakes it."""
        for raw in world.pods.values():
            meta = raw["metadata"]
            if PINNED in meta.get("annotations", {}) and "x-tried" not in meta:
                meta["x-tried"] = meta["x-forgotten"] = True
                raw["status"]["conditions"] = [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}
                ]
                meta["resourceVersion"] = world.touch()
        original()

    world._schedule = forgetful  # type: ignore[method-assign]
    drive(world, replica, seconds=20, until=ended(world, key))
    assert world.status(key).phase is Phase.COMPLETED
    assert ("wake", "OK") in [(f.get("why"), f.get("result")) for e, f in replica.access.hooks if e == "pod.patched"]


def test_node_lock_left_behind_is_waited_for_with_the_gate_kept(world: EngineWorld) -> None:
    from dataclasses import replace

    from defragd.core.model import NodeLock

    key, replica = moved(world, timeouts=Timeouts(start=timedelta(minutes=10)))
    drive(world, replica, seconds=5, until=lambda: bool(world.evictions))
    world.deployment("x", on=[("n1", "GPU-n1-1")])
    begun = world.clock.now()
    world.nodes["n2"] = replace(world.nodes["n2"], lock=NodeLock("default/x-1", begun, "x"))
    world.touch()
    took = drive(world, replica, seconds=400, step=0.5, until=ended(world, key))
    assert world.status(key).phase is Phase.COMPLETED, world.status(key).message
    assert took > 290
    assert len(world.evictions) == 1


def test_malformed_node_lock_is_reported_and_never_removed(world: EngineWorld) -> None:
    from dataclasses import replace

    from defragd.core.model import NodeLock

    key, replica = moved(world, timeouts=Timeouts(hold=timedelta(seconds=15)))
    world.nodes["n2"] = replace(world.nodes["n2"], lock=NodeLock("", None, "garbage"))
    drive(world, replica, seconds=10)
    assert world.status(key).reason == "NodeLockMalformed"
    drive(world, replica, seconds=10, until=ended(world, key))
    assert world.status(key).reason == "HoldTimeout"
    assert not world.evictions
    assert world.nodes["n2"].lock is not None


def test_placement_deleted_in_the_middle_lets_the_pod_go(world: EngineWorld) -> None:
    key, replica = moved(world)
    world.termination = 5.0
    drive(world, replica, seconds=5, until=lambda: bool(world.gated()))
    del world.placements[key]
    world.touch()
    took = drive(world, replica, seconds=10, until=lambda: not world.gated())
    assert took <= 0.1
    drive(world, replica, seconds=3)
    (pod,) = world.of(world.owners["owner-a"])
    assert pod.ready


def test_evicted_pod_that_never_goes_ends_in_time(world: EngineWorld) -> None:
    key, replica = moved(world, timeouts=Timeouts(evict=timedelta(seconds=10)))
    world.termination = 10_000.0
    drive(world, replica, seconds=200, step=0.5, until=ended(world, key))
    assert world.status(key).reason == "EvictTimeout"
    drive(world, replica, seconds=200, step=0.5)
    assert len(world.evictions) == 1
    assert not world.gated()


def test_a_grace_period_longer_than_the_limit_is_waited_for(world: EngineWorld) -> None:
    replica = start(world)
    world.deployment("a", on=[("n1", "GPU-n1-0")], grace=600)
    key = world.place("p", node="n2", devices=["gpu-1"], evict="a-1", timeouts=Timeouts(evict=timedelta(seconds=30)))
    world.termination = 500.0
    drive(world, replica, seconds=600, step=0.5, until=ended(world, key))
    assert world.status(key).phase is Phase.COMPLETED, world.status(key).message


# -- crashes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["kill-before", "kill-after", "lost-before", "lost-after", "conflict", "busy"])
@pytest.mark.parametrize("nth", range(7))
def test_a_fault_at_every_write(nth: int, when: str) -> None:
    """Every write of a move, before and after it took effect: the next process finishes the move, once."""
    from tests.support.engine_world import Killed

    world = EngineWorld([node("n1"), node("n2")])
    world.budget("pdb", "a", 0)
    key, replica = moved(world)
    replica.access.faults = ["ok"] * nth + [when]
    died = 0
    while world.status(key).step is not Step.ENDED and world.clock.seconds < 60:
        try:
            replica.once()
        except Killed:
            died += 1
            world.webhooks.clear()
            replica = start(world, f"r{died}")
        world.tick()
    assert world.status(key).phase is Phase.COMPLETED, world.status(key).message
    assert len(world.evictions) == 1
    assert world.pinned[key] == {world.status(key).pod_uid}
    assert not world.gated()
    assert not world.breaches.found
    assert died == when.startswith("kill")


def test_all_leaders_dead_the_gate_goes_at_its_deadline(world: EngineWorld) -> None:
    _key, replica = moved(world)
    other = start(world, "r1", leading=False)
    world.termination = 1.0
    drive(world, replica, other, seconds=5, until=lambda: bool(world.gated()))
    took = drive(world, other, seconds=200, step=0.5, until=lambda: not world.gated())
    assert 80 < took <= 91  # 30 s grace + 60 s
    (pod,) = world.of(world.owners["owner-a"])
    assert GATE not in pod.gates


def test_lost_leadership_writes_nothing_more(world: EngineWorld) -> None:
    key, replica = moved(world)
    drive(world, replica, seconds=0.2)
    replica.access.leading = False
    before = list(replica.access.calls)
    drive(world, replica, seconds=1)
    assert replica.access.calls == before
    assert world.status(key).step is not Step.ENDED


def test_lost_answer_of_an_eviction_and_a_cache_that_stands_still(world: EngineWorld) -> None:
    """The eviction happened, nobody told us, and our cache shows the pod alive for long: no second one."""
    key, replica = moved(world, timeouts=Timeouts(evict=timedelta(seconds=120)))
    world.termination = 40.0
    drive(world, replica, seconds=5, until=lambda: world.status(key).step is Step.EVICTING)
    replica.access.faults = ["lost-after"]
    replica.access.freeze()
    drive(world, replica, seconds=20)
    assert len(world.evictions) == 1
    assert not world.breaches.found
    assert replica.access.calls.count("evict") > 1, "it was tried again, and refused by the revision"
    replica.access.freeze(False)
    drive(world, replica, seconds=60, until=ended(world, key))
    assert world.status(key).phase is Phase.COMPLETED
    assert len(world.evictions) == 1


def test_lost_answer_of_a_pin_sticks_to_the_pod(world: EngineWorld) -> None:
    """The pin was written, nobody told us, and meanwhile an older gated pod becomes visible: still one pod."""
    key, replica = moved(world)
    world.owners["owner-a"].replicas = 2
    drive(world, replica, seconds=10, until=lambda: len(world.of(world.owners["owner-a"])) == 2)
    drive(world, replica, seconds=5, until=lambda: bool(world.gated()) and world.status(key).step is Step.EVICTING)
    while "default/a-1" in world.pods:
        world.tick()
    replica.access.faults = ["lost-after"]
    replica.access.freeze()
    drive(world, replica, seconds=1)
    assert len(world.pinned[key]) == 1
    for raw in world.pods.values():  # another pod of the owner, older by its UID
        if "scheduling.hami.placement.com/pinned" not in raw["metadata"].get("annotations", {}):
            raw["metadata"]["uid"] = "a-first"
    replica.access.freeze(False)
    drive(world, replica, until=ended(world, key))
    assert len(world.pinned[key]) == 1
    assert world.status(key).phase is Phase.COMPLETED
