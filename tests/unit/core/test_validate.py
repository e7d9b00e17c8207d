"""Each rule of "validate, then evict" with its typed refusal, and whether waiting can help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from defragd.core.model import NodeLock
from defragd.core.placement import RUN_LABEL, Placement
from defragd.core.placement_evicting import proven
from defragd.core.placement_world import World
from defragd.core.reasons import Reason
from defragd.core.validate import Validation
from defragd.hami.vendors import VENDORS
from tests.support.engine_world import START, EngineWorld, node

Change = Callable[[EngineWorld], None]


def check(change: Change = lambda world: None, **more: Any) -> Validation:
    world = EngineWorld([node("n1"), node("n2")])
    world.deployment("a", 2, on=[("n1", "GPU-n1-0"), ("n1", "GPU-n1-1")])
    labels = more.pop("labels", {})
    facts: dict[str, Any] = {"node": "n2", "devices": ["gpu-1"], "evict": "a-1"} | more
    key = world.place("p", **facts)
    change(world)
    world.placements[key] = replace(world.placements[key], labels=labels)
    placements: dict[str, Placement] = world.placements
    return proven(placements[key], World(world.seen().snapshot, placements, VENDORS), START)


def on_node(**changes: Any) -> Change:
    return lambda world: world.nodes.update(n2=replace(world.nodes["n2"], **changes))


def on_device(**changes: Any) -> Change:
    def act(world: EngineWorld) -> None:
        first, second = world.nodes["n2"].devices
        world.nodes["n2"] = replace(world.nodes["n2"], devices=(first, replace(second, **changes)))

    return act


def doubted_source(world: EngineWorld) -> None:
    devices = tuple(replace(device, distrusted="metrics differ") for device in world.nodes["n1"].devices)
    world.nodes["n1"] = replace(world.nodes["n1"], devices=devices)


def on_pod(**parts: Any) -> Change:
    def act(world: EngineWorld) -> None:
        raw = world.pods["default/a-1"]
        for part, changes in parts.items():
            raw[part] = {**raw[part], **changes}

    return act


def annotated(**annotations: str) -> Change:
    def act(world: EngineWorld) -> None:
        meta = world.pods["default/a-1"]["metadata"]
        meta["annotations"] |= {f"defragd.io/{key.replace('_', '-')}": value for key, value in annotations.items()}

    return act


def taken(memory: int) -> Change:
    return lambda world: world._book(world.bare("x", memory=memory), "n2", ("GPU-n2-1",))


def owner(**ref: Any) -> Change:
    return on_pod(
        metadata={"ownerReferences": [{"kind": "ReplicaSet", "name": "a", "uid": "o", "controller": True} | ref]}
    )


def budgets(*needs: int) -> Change:
    return lambda world: [world.budget(f"pdb{i}", "a", need) for i, need in enumerate(needs)] and None


OLD = START - timedelta(minutes=1)
TABLE: list[tuple[str, Change, dict[str, Any], Reason, bool]] = [
    ("no such node", lambda w: None, {"node": "n9"}, Reason.NODE_UNKNOWN, False),
    ("node not Ready", on_node(ready=False), {}, Reason.NODE_NOT_READY, True),
    ("node cordoned", on_node(schedulable=False), {}, Reason.NODE_UNSCHEDULABLE, True),
    ("no such index", lambda w: None, {"devices": ["gpu-7"]}, Reason.DEVICE_UNKNOWN, False),
    ("device of another node", lambda w: None, {"devices": ["GPU-n1-1"]}, Reason.DEVICE_UNKNOWN, False),
    ("one device twice", lambda w: None, {"devices": ["gpu-1", "GPU-n2-1"]}, Reason.DUPLICATE_DEVICE, False),
    ("too many devices", lambda w: None, {"devices": ["gpu-0", "gpu-1"]}, Reason.DEVICE_COUNT, False),
    ("unhealthy", on_device(healthy=False), {}, Reason.DEVICE_UNHEALTHY, False),
    ("cordoned device", on_device(cordoned=True), {}, Reason.DEVICE_CORDONED, False),
    ("books disagree", on_device(distrusted="metrics differ"), {}, Reason.DEVICE_DISTRUSTED, False),
    ("full", taken(9000), {}, Reason.DEVICE_FULL, True),
    ("no such pod", lambda w: None, {"evict": "a-9", "app": "a"}, Reason.POD_UNKNOWN, False),
    ("another pod by UID", lambda w: None, {"evict_pod_uid": "else"}, Reason.POD_CHANGED, False),
    ("selector", lambda w: None, {"app": "b"}, Reason.SELECTOR_MISMATCH, False),
    ("bare pod", on_pod(metadata={"ownerReferences": None}), {}, Reason.NOT_RECREATED, False),
    ("DaemonSet", owner(kind="DaemonSet"), {}, Reason.DAEMONSET_POD, False),
    ("static pod", owner(kind="Node"), {}, Reason.STATIC_POD, False),
    ("Job", owner(kind="Job"), {}, Reason.OWNER_EXCLUDED, False),
    ("scaled to zero", lambda w: setattr(w.owners["owner-a"], "replicas", 0), {}, Reason.NOT_RECREATED, False),
    ("other scheduler", on_pod(spec={"schedulerName": "default"}), {}, Reason.NOT_HAMI_SCHEDULER, False),
    ("terminating", lambda w: w.delete("default/a-1"), {}, Reason.TERMINATING, False),
    ("ended", on_pod(status={"phase": "Failed"}), {}, Reason.FINISHED, False),
    ("opted out", annotated(do_not_move="true"), {}, Reason.OPTED_OUT, False),
    ("malformed annotation", annotated(do_not_move="maybe"), {}, Reason.MALFORMED_ANNOTATION, False),
    ("budget", budgets(2), {}, Reason.PDB_BLOCKS, True),
    ("two budgets", budgets(0, 0), {}, Reason.SEVERAL_PDBS, False),
    ("there already", lambda w: None, {"node": "n1", "devices": ["gpu-0"]}, Reason.NO_GAIN, False),
    (
        "node lock of a stuck bind",
        on_node(lock=NodeLock("default/a-2", OLD, "x")),
        {},
        Reason.NODE_LOCKED,
        True,
    ),
    ("malformed lock", on_node(lock=NodeLock("", None, "x")), {}, Reason.NODE_LOCK_MALFORMED, True),
    (
        "hours of a planned move",
        annotated(allowed_hours="03:00-04:00"),
        {"labels": {RUN_LABEL: "r"}},
        Reason.OUTSIDE_ALLOWED_HOURS,
        True,
    ),
    (
        "source of a planned move in doubt",
        doubted_source,
        {"labels": {RUN_LABEL: "r"}},
        Reason.DEVICE_DISTRUSTED,
        False,
    ),
]


@pytest.mark.parametrize(
    ("change", "more", "reason", "temporary"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_refusals(change: Change, more: dict[str, Any], reason: Reason, temporary: bool) -> None:
    found = check(change, **more)
    assert (found.ok, found.reason, found.temporary) == (False, reason, temporary), found.detail
    assert found.detail


@pytest.mark.parametrize(
    ("change", "more"),
    [
        pytest.param(lambda w: None, {}, id="plain"),
        pytest.param(lambda w: None, {"devices": ["GPU-n2-1"]}, id="by UUID"),
        pytest.param(taken(8000), {}, id="room beside another"),
        pytest.param(budgets(1), {}, id="budget with room"),
        pytest.param(annotated(do_not_move="2026-01-05T01:00:00Z"), {}, id="opt-out that has ended"),
        pytest.param(annotated(allowed_hours="03:00-04:00"), {}, id="hours bind plans, not people"),
        pytest.param(on_node(lock=NodeLock("default/a-2", START, "x")), {}, id="a bind in progress"),
        pytest.param(on_node(lock=NodeLock("default/gone", OLD, "x")), {}, id="lock of a missing pod"),
        pytest.param(on_node(lock=NodeLock("default/a-2", START - timedelta(minutes=6), "x")), {}, id="expired lock"),
        pytest.param(lambda w: None, {"node": "n1", "devices": ["gpu-1"]}, id="other device of its node"),
    ],
)
def test_goes_through(change: Change, more: dict[str, Any]) -> None:
    found = check(change, **more)
    assert found.ok, found.detail
    assert [a.memory_mib for a in found.allocations] == [8192]


def test_jobs_move_where_their_owner_says_so() -> None:
    def act(world: EngineWorld) -> None:
        owner(kind="Job")(world)
        annotated(move="allow")(world)

    assert check(act).ok
