"""Pinning at admission (no scheduling gates): one claim per place, given back by nothing but the next comer."""

from __future__ import annotations

import copy
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from defragd.core.placement import CLAIM, PINNED, STEERED, Phase
from defragd.core.placement_pin import WOKEN
from tests.support.engine_moves import ended, moved
from tests.support.engine_world import EngineWorld, drive, node, start, template

USE = "nvidia.com/use-gpuuuid"


@pytest.fixture
def world() -> EngineWorld:
    world = EngineWorld([node("n1"), node("n2")])
    world.admission = "pin"
    return world


def pinned(world: EngineWorld) -> list[Any]:
    return [p for p in map(world.read, world.pods.values()) if PINNED in p.annotations]


def evicted(world: EngineWorld) -> Any:
    return lambda: bool(world.evictions)


def test_a_move_without_gates(world: EngineWorld) -> None:
    key, replica = moved(world)
    took = drive(world, replica, until=ended(world, key))
    status = world.status(key)
    assert (status.phase, status.reason) == (Phase.COMPLETED, "Completed"), status.message
    (pod,) = [world.pod(k) for k in world.pods]
    assert (pod.node, pod.devices, pod.gates, pod.annotations[CLAIM]) == ("n2", ("GPU-n2-1",), (), status.claim)
    assert took < 3.5
    assert len(replica.access.calls) + 1 <= 8, replica.access.calls


def test_of_many_created_at_once_one_is_pinned_and_the_rest_keep_off(world: EngineWorld) -> None:
    key, replica = moved(world)
    world.termination = 5.0
    drive(world, replica, seconds=5, until=evicted(world))
    world.owners["owner-a"].replicas, world.scheduler_down = 12, True
    drive(world, replica, seconds=1)
    assert len(pinned(world)) == 1
    others = [p for p in world.of(world.owners["owner-a"]) if PINNED not in p.annotations]
    assert len(others) == 11
    assert all(p.annotations[STEERED] == "GPU-n2-1" for p in others)
    world.scheduler_down = False
    drive(world, replica, until=ended(world, key))
    assert world.status(key).phase is Phase.COMPLETED
    assert pinned(world)[0].devices == ("GPU-n2-1",)


def test_creations_that_are_refused_use_up_nothing(world: EngineWorld) -> None:
    key, replica = moved(world)
    world.refuse_creations = 9
    drive(world, replica, seconds=5, until=evicted(world))
    drive(world, replica, until=ended(world, key))
    claims = [f for event, f in replica.access.hooks if event == "claim"]
    assert len(claims) >= 1
    # a retry within a moment of the refused one comes unpinned; later ones take the claim over
    assert world.status(key).reason in ("Completed", "Unpinned")
    world.refuse_creations = 0


def test_a_refused_creation_gives_its_claim_to_a_later_one(world: EngineWorld) -> None:
    key, replica = moved(world)
    world.termination = 0.2
    drive(world, replica, seconds=5, until=evicted(world))
    world.refuse_creations, owned = 1, world.owners["owner-a"]
    world._create(owned, 0)
    first = world.status(key).claim
    assert first
    owned.stopped = True
    drive(world, replica, seconds=1.0)
    owned.stopped = False
    drive(world, replica, until=ended(world, key))
    assert world.status(key).phase is Phase.COMPLETED
    assert world.status(key).claim != first


def test_a_dry_run_claims_nothing(world: EngineWorld) -> None:
    key, replica = moved(world)
    world.termination = 5.0
    world.owners["owner-a"].stopped = True
    drive(world, replica, seconds=5, until=evicted(world))
    raw = copy.deepcopy(world.owners["owner-a"].template)
    raw["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "a", "uid": "owner-a", "controller": True}]
    request = {"operation": "CREATE", "namespace": "default", "object": raw, "dryRun": True}
    ops = replica.access.admission("pin").decide(request)
    assert not world.status(key).claim
    assert not [op for op in ops if USE in str(op)]
    assert replica.access.admission("pin").decide({**request, "dryRun": False})
    assert world.status(key).claim


@pytest.mark.parametrize("fault", ["lost-before", "lost-after", "conflict", "busy"])
def test_a_claim_that_is_not_known_to_be_stored_pins_nothing(world: EngineWorld, fault: str) -> None:
    key, replica = moved(world)
    world.owners["owner-a"].stopped = True
    drive(world, replica, seconds=5, until=evicted(world))
    replica.access.faults = [fault]
    world._create(world.owners["owner-a"], 0)
    assert pinned(world) == []
    drive(world, replica, until=ended(world, key))
    assert world.status(key).reason == "Unpinned"


def test_two_replicas_asked_at_once_grant_one_claim(world: EngineWorld) -> None:
    key, replica = moved(world)
    other = start(world, "r1", leading=False)
    world.owners["owner-a"].stopped = True
    world.termination = 5.0
    drive(world, replica, other, seconds=5, until=evicted(world))
    other.access.freeze()
    for _ in range(4):
        world._create(world.owners["owner-a"], 0)
    assert len(pinned(world)) == 1
    other.access.freeze(False)
    world.owners["owner-a"].replicas = 4
    drive(world, replica, other, until=ended(world, key))
    assert world.status(key).phase is Phase.COMPLETED


def test_a_pod_that_comes_before_the_eviction_takes_no_place(world: EngineWorld) -> None:
    world.budget("pdb", "a", 1)
    key, replica = moved(world)
    drive(world, replica, seconds=3)
    world.owners["owner-a"].replicas = 2  # lets the budget allow it
    drive(world, replica, seconds=10, until=ended(world, key))
    assert world.status(key).phase is Phase.COMPLETED
    assert len(pinned(world)) == 1
    assert [uid for _, uid in world.evictions] == [world.status(key).evicted_uid]


def test_a_forgotten_pod_is_woken(world: EngineWorld) -> None:
    """Pinned to the device that its own predecessor held: kube-scheduler has given it up before that was gone."""
    world.forget = True
    replica = start(world)
    world.deployment("a", on=[("n2", "GPU-n2-0")], memory=9000)
    world.deployment("b", on=[("n2", "GPU-n2-1")], memory=9000)
    for name, device in (("a", "gpu-1"), ("b", "gpu-0")):
        world.place(name, node="n2", devices=[device], evict=f"{name}-1", group="swap", group_size=2)
    drive(world, replica, seconds=20, until=lambda: all(ended(world, f"default/{n}")() for n in "ab"))
    assert {world.status(f"default/{n}").phase for n in "ab"} == {Phase.COMPLETED}
    assert any(WOKEN in p.annotations for p in pinned(world))


def test_waiting_competitors_are_steered(world: EngineWorld) -> None:
    key, replica = moved(world)
    for device in ("GPU-n1-0", "GPU-n1-1", "GPU-n2-0"):
        world.deployment(f"full-{device}", on=[(device[4:6], device)], memory=16384 - 8192 * (device == "GPU-n1-0"))
    world.termination = 3.0
    drive(world, replica, seconds=5, until=evicted(world))
    world.scheduler_down = True
    webhooks, world.webhooks = world.webhooks, []
    world.bare("rival", memory=9000)
    world.webhooks, world.scheduler_down = webhooks, False
    world.nodes["n2"] = node("n2", ready=False)  # nothing binds for a moment
    drive(world, replica, seconds=0.5)
    world.nodes["n2"] = node("n2")
    world.touch()
    drive(world, replica, until=ended(world, key))
    assert world.pod("default/rival").devices != ("GPU-n2-1",) or world.status(key).reason == "PlaceStolen"


def test_arrivals_on_one_node_come_one_after_another(world: EngineWorld) -> None:
    """Without gates an eviction for a node waits until the last arrival there has bound."""
    replica = start(world)
    for i in range(3):
        world.deployment(f"d{i}", on=[("n1", f"GPU-n1-{i % 2}")], memory=4000)
    keys = [world.place(f"p{i}", node="n2", devices=["gpu-0"], evict=f"d{i}-1") for i in range(3)]
    drive(world, replica, seconds=20, until=lambda: all(ended(world, k)() for k in keys))
    assert {world.status(k).phase for k in keys} == {Phase.COMPLETED}
    times = sorted(world.status(k).evicting_at for k in keys)
    assert times[0]
    pins = sorted(world.status(k).pinned_at for k in keys)
    assert all(b - a >= timedelta(seconds=0.25) for a, b in pairwise(pins))


def test_a_selector_takes_the_pod_that_fits_and_leaves_the_others_alone(world: EngineWorld) -> None:
    replica = start(world)
    world.deployment("full", on=[("n2", "GPU-n2-0")], memory=10000)
    key = world.place("p", node="n2", devices=["gpu-0"], app="job")
    drive(world, replica, seconds=1)
    assert world.status(key).phase is Phase.AWAITING_POD
    world.bare("big", {"app": "job"}, memory=9000)
    world.bare("small", {"app": "job"}, memory=500)
    drive(world, replica, until=ended(world, key))
    assert world.status(key).pod_name == "small"
    assert PINNED not in world.pod("default/big").annotations


def test_the_users_own_constraints_are_tightened_and_kept(world: EngineWorld) -> None:
    replica = start(world)
    mine = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}
    kind = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = {"nodeAffinity": {kind: {"nodeSelectorTerms": [mine]}}, "podAntiAffinity": {}}
    key = world.place("p", node="n2", devices=["gpu-1"], app="job")
    drive(world, replica, seconds=1)
    raw = template({"app": "job"}, memory=100, affinity=affinity)
    raw["metadata"] |= {"name": "x", "annotations": {USE: "GPU-n2-1,GPU-n2-0"}}
    world.create(raw, None)
    drive(world, replica, until=ended(world, key))
    pod = world.pods["default/x"]
    (term,) = pod["spec"]["affinity"]["nodeAffinity"][kind]["nodeSelectorTerms"]
    assert term["matchExpressions"] == mine["matchExpressions"]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]
    assert "podAntiAffinity" in pod["spec"]["affinity"]
    assert pod["metadata"]["annotations"][USE] == "GPU-n2-1"
    assert pod["metadata"]["annotations"]["scheduling.hami.placement.com/user-uuids"] == f"{USE}=GPU-n2-1,GPU-n2-0"


def test_a_pod_of_a_claim_that_was_taken_over_is_nobodys_and_recycled(world: EngineWorld) -> None:
    """It was created late, when its claim had been given to another creation."""
    key, replica = moved(world)
    world.scheduler_down, world.termination = True, 2.0
    drive(world, replica, seconds=5, until=evicted(world))
    drive(world, replica, seconds=0.5)
    (late,) = pinned(world)
    world.pods[late.key]["metadata"]["annotations"][CLAIM] = "old"
    world.touch()
    drive(world, replica, seconds=30, until=ended(world, key))
    assert (world.status(key).reason, world.status(key).pod_uid) == ("Unpinned", "")
    drive(world, replica, seconds=70, step=1.0)
    assert (late.key, late.uid) in world.recycled
