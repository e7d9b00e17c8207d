"""Cross checks: what they remember never differs from looking at everything again."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from defragd.core.model import Allocation, Device, Node, Pod
from defragd.hami.cross_checks import CrossChecks


def node(name: str, *uuids: str) -> Node:
    return Node(name=name, devices=tuple(Device(uuid=u, vendor="NVIDIA", node=name, model="NVIDIA A10") for u in uuids))


def pod(name: str, booked: str, *uuids: str, runs: str = "", problem: str = "", phase: str = "Running") -> Pod:
    held = tuple(Allocation(0, u, 1000, 10, "NVIDIA") for u in uuids)
    return Pod(
        namespace="a", name=name, uid=name, node=runs or booked, booked_node=booked, allocations=held, problem=problem,
        phase=phase,
    )  # fmt: skip


def both(checks: CrossChecks, nodes: dict[str, Node], pods: dict[str, Pod]) -> None:
    """The remembering checks and fresh ones say the same."""
    fresh = CrossChecks()
    mine, found = checks.nodes(nodes)
    theirs, wanted = fresh.nodes(nodes)
    assert mine == theirs
    assert found == wanted
    assert sorted(p.detail + p.object for p in checks.pods(pods)) == sorted(
        p.detail + p.object for p in fresh.pods(pods)
    )


@pytest.mark.parametrize("seed", range(12))
def test_random_changes(seed: int) -> None:
    random, checks = Random(seed), CrossChecks()
    nodes: dict[str, Node] = {}
    pods: dict[str, Pod] = {}
    uuids = [f"g{i}" for i in range(6)]
    for _ in range(60):
        name = f"n{random.randrange(4)}"
        action = random.randrange(6)
        if action == 0:
            nodes = {k: v for k, v in nodes.items() if k != name}
        elif action in (1, 2):
            nodes = {**nodes, name: node(name, *random.sample(uuids, random.randint(0, 3)))}
        elif action == 3:
            pods = {k: v for k, v in pods.items() if random.random() < 0.7}
        elif pods and action == 4:
            key = random.choice(list(pods))
            pods = {**pods, key: replace(pods[key], revision=str(random.random()))}
        else:
            key = f"a/p{random.randrange(8)}"
            problem, phase = random.choice(("", "", "odd")), random.choice(("Running", "Running", "Failed"))
            runs = random.choice(("", "", "n0"))
            pods = {**pods, key: pod(key[2:], name, random.choice(uuids), runs=runs, problem=problem, phase=phase)}
        both(checks, nodes, pods)


def test_a_device_that_moved_is_trusted_again() -> None:
    checks = CrossChecks()
    nodes = {"old": node("old", "g0", "g1"), "new": node("new", "g0")}
    seen, problems = checks.nodes(nodes)
    assert [p.object for p in problems] == ["Node/old", "Node/new"]
    assert [bool(d.distrusted) for d in seen["old"].devices] == [True, False]

    seen, problems = checks.nodes({"new": nodes["new"]})
    assert not problems
    assert not seen["new"].devices[0].distrusted


def test_a_booking_counts_when_its_node_comes() -> None:
    checks = CrossChecks()
    pods = {"a/p": pod("p", "n1", "g0")}
    checks.nodes({})
    assert checks.pods(pods) == []
    checks.nodes({"n1": node("n1")})
    assert "unknown on node n1" in checks.pods(pods)[0].detail
    checks.nodes({"n1": node("n1", "g0")})
    assert checks.pods(pods) == []
