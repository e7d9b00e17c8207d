"""Triggers show every term with both sides."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from defragd.core.model import Allocation, Device, Node, Pod
from defragd.core.reasons import Reason
from defragd.core.snapshot import Snapshot
from defragd.policy.schema import TriggerSpec
from defragd.policy.triggers import evaluate, light_nodes, pending_pods

NOW = datetime(2026, 12, 1, tzinfo=UTC)


def world(*used, pending=0, of=8):
    """Nodes of 8 devices, so many of them held."""
    nodes, pods = {}, {}
    for n, held in enumerate(used):
        devices = tuple(
            Device(f"G{n}-{i}", f"n{n}", "NVIDIA", "T4", slots=1, memory_mib=10, cores=100) for i in range(of)
        )
        nodes[f"n{n}"] = Node(f"n{n}", devices=devices)
        for i in range(held):
            pods[f"t/p{n}-{i}"] = Pod(
                "t",
                f"p{n}-{i}",
                f"u{n}-{i}",
                node=f"n{n}",
                booked_node=f"n{n}",
                allocations=(Allocation(0, f"G{n}-{i}", 10, 100),),
            )
    for i in range(pending):
        pods[f"t/w{i}"] = Pod("t", f"w{i}", f"w{i}", phase="Pending", ready=False)
    pods["t/gated"] = Pod("t", "gated", "g", phase="Pending", ready=False, gates=("x",))
    return Snapshot(nodes, pods)


def test_two_light_nodes_and_minutes_since_the_last_eviction():
    trigger = TriggerSpec.model_validate(
        {"minFragmentation": None, "lightNodes": {"count": 2}, "sinceLastEviction": "5m"}
    )
    state = world(2, 3)
    early = evaluate(trigger, state, fragmentation=0.0, now=NOW, last_eviction=NOW - timedelta(minutes=3))
    assert not early.ok and "3m ago of at least 5m (no)" in str(early) and "2 nodes at most 50% used" in str(early)
    later = evaluate(trigger, state, fragmentation=0.0, now=NOW, last_eviction=NOW - timedelta(minutes=6))
    assert later.ok
    assert not evaluate(trigger, world(2, 5), fragmentation=0.0, now=NOW).ok


def test_light_means_used_a_little_and_not_idle():
    assert light_nodes(world(0, 4, 5, 8), 0.5) == 1


@pytest.mark.parametrize(
    ("fragmentation", "pending", "reason"),
    [
        (0.15, 50, None),
        (0.149, 0, Reason.BELOW_TRIGGER),
        (0.5, 51, Reason.TOO_MANY_PENDING),
    ],
)
def test_defaults(fragmentation, pending, reason):
    state = world(1, pending=pending)
    assert pending_pods(state) == pending
    found = evaluate(TriggerSpec(), state, fragmentation=fragmentation, now=NOW)
    assert found.reason is reason and found.ok is (reason is None)
    assert len(found.terms) == 2


def test_a_clock_set_back_does_not_satisfy_a_pause():
    trigger = TriggerSpec.model_validate({"sinceLastEviction": "5m"})
    assert not evaluate(trigger, world(1), fragmentation=1.0, now=NOW, last_eviction=NOW + timedelta(hours=1)).ok


@pytest.mark.parametrize(("minutes", "ok"), [((), True), ((5, 10, 70, 80), True), ((5, 10, 50), False)])
def test_no_run_while_moves_fail(minutes, ok):
    trigger = TriggerSpec.model_validate({"minFragmentation": None, "recentFailures": {"atMost": 2, "within": "1h"}})
    failed = [NOW - timedelta(minutes=m) for m in minutes]
    found = evaluate(trigger, world(2), fragmentation=0.0, now=NOW, failed=failed)
    assert found.ok is ok
    assert ok or (found.reason is Reason.RECENT_FAILURES and "3 moves failed within 1h of at most 2" in str(found))
