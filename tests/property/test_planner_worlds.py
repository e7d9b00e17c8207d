"""Random small worlds: plans are valid by an own replay, never worse, settle, keep budgets, and are deterministic."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from defragd.core.plan import PlanReply
from defragd.core.rules import Budgets, Cap
from defragd.core.snapshot import Snapshot, collapse
from tests.support.effort import amount, examples
from tests.support.plan_world import UNLIMITED, make_plan, world

"""1 = ten thousand worlds."""
SIZES = [("4G/10c"), ("8G/20c"), ("10G/40c"), ("12G/50c"), ("6G"), ("whole"), ("16G/15c")]


@st.composite
def worlds(draw) -> tuple[Snapshot, dict[str, int]]:
    lines, number = [], 0
    used: list[str] = []
    for n in range(draw(st.integers(1, 4))):
        parts = []
        for g in range(draw(st.integers(1, 3))):
            total = draw(st.sampled_from([24, 24, 24, 16]))
            memory, cores, on = total, 100, []
            for size in draw(st.lists(st.sampled_from(SIZES), max_size=3)):
                if size == "whole":
                    need, share = total, 100
                else:
                    gib, _, c = size.partition("/")
                    need, share = int(gib[:-1]), int(c[:-1]) if c else 0
                if need > memory or share > cores or (size == "whole" and on) or cores <= 0:
                    continue
                owner = draw(st.sampled_from(["", "", "A", "B"]))
                number += 1
                on.append(f"p{number}@{owner or f'p{number}'} {size}")
                used.append(owner or f"p{number}")
                memory, cores = memory - need, cores - share
            parts.append(f"g{g} {total}G: {', '.join(on) or '-'}")
        lines.append(f"n{n} {{ {'; '.join(parts)} }}")
    budgets = {w: draw(st.integers(0, 2)) for w in sorted(set(used)) if draw(st.booleans())}
    return world(" ".join(lines), budgets=budgets), budgets


RULES = replace(
    UNLIMITED,
    budgets=Budgets(
        total=6,
        concurrent=3,
        per_source_node=Cap(in_flight=2),
        per_target_node=Cap(in_flight=1),
        per_workload=Cap(in_flight=1),
    ),
)


def replay(snapshot: Snapshot, reply: PlanReply) -> Snapshot:
    """Carries the plan out by its own arithmetic; asserts capacity wave by wave, evict first."""
    where = dict(snapshot.pods)
    by_id = {m.id: m for m in reply.moves}
    assert sorted(i for wave in reply.waves for i in wave) == sorted(by_id)
    seen: set[str] = set()
    done: set[str] = set()
    for wave in reply.waves:
        moves = [by_id[i] for i in wave]
        for move in moves:
            assert move.pod not in seen, "moved twice"
            seen.add(move.pod)
            assert set(move.after) <= done
            pod = where[move.pod]
            assert pod.node == move.source.node
            assert (move.source.node, move.source.devices) != (move.target.node, move.target.devices)
            entries = tuple(
                replace(a, uuid=u, memory_mib=pod.requests[a.slot].memory_on(snapshot.devices[u]))
                for a, u in zip(pod.allocations, move.target.devices, strict=True)
            )
            where[move.pod] = replace(pod, node=move.target.node, booked_node=move.target.node, allocations=entries)
        done |= set(wave)
        check_capacity(snapshot, where)
    return replace(snapshot, pods=where)


def check_capacity(snapshot: Snapshot, pods) -> None:
    use: dict[str, list[int]] = {u: [0, 0, 0] for u in snapshot.devices}
    full: Counter[str] = Counter()
    for pod in pods.values():
        for uuid, (slots, memory, cores) in collapse(pod.allocations, init_done=pod.init_done).items():
            use[uuid] = [use[uuid][0] + slots, use[uuid][1] + memory, use[uuid][2] + cores]
        full.update({a.uuid for a in pod.allocations if a.cores >= 100})
    for uuid, (slots, memory, cores) in use.items():
        device = snapshot.devices[uuid]
        assert slots <= device.slots
        assert memory <= device.memory_mib
        assert cores <= device.cores
        assert not (full[uuid] and slots > 1)


def value(score) -> tuple[float, int, int]:
    return (round(-score.loss, 9), score.idle_devices, score.idle_nodes)


def keeps(snapshot: Snapshot, budgets: dict[str, int], reply: PlanReply) -> None:
    """Caps in flight and disruption budgets hold in every wave."""
    for wave in reply.waves:
        moves = [m for m in reply.moves if m.id in wave]
        assert len(moves) <= 3
        assert max(Counter(m.target.node for m in moves).values()) <= 1
        owners = Counter(snapshot.pods[m.pod].owner.name for m in moves)
        assert max(owners.values()) <= 1
        for owner, count in owners.items():
            assert owner not in budgets or count <= budgets[owner]


def check(drawn: tuple[Snapshot, dict[str, int]]) -> None:
    snapshot, budgets = drawn
    reply = make_plan(snapshot, rules=RULES, max_steps=60)
    after = replay(snapshot, reply)
    assert len(reply.moves) <= 6
    assert value(reply.after) >= value(reply.before)
    if reply.moves:
        assert sum(m.gain for m in reply.moves) > 0
    keeps(snapshot, budgets, reply)
    assert reply == make_plan(snapshot, rules=RULES, max_steps=60)
    if reply.after.loss > reply.before.loss - 1e-10:
        assert reply.moves == make_plan(snapshot, rules=RULES, max_steps=0).moves, "a search for less than loss"
    # pools are frozen per plan; between devices of one size they do not change, so nothing is left to gain
    if len(reply.moves) < 6 and len({d.memory_mib for d in snapshot.devices.values()}) == 1:
        assert make_plan(after, rules=RULES, max_steps=0).moves == ()
        again = make_plan(after, rules=RULES, max_steps=60)
        assert again.moves == () or again.after.loss < again.before.loss


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(worlds())
def test_plans_of_random_worlds(drawn):
    check(drawn)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=amount(10_000, 300), deadline=None, suppress_health_check=list(HealthCheck))
@given(worlds())
def test_plans_of_many_random_worlds(drawn):
    check(drawn)


@settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck))
@given(worlds(), st.sampled_from(["gpu-drain", "node-drain", "make-room"]), st.integers(1, 2))
def test_drains_and_room_of_random_worlds(drawn, strategy, count):
    snapshot, budgets = drawn
    args = {"shape": {"gpus": count}} if strategy == "make-room" else {"count": count}
    reply = make_plan(snapshot, strategy, args, rules=RULES, max_steps=60)
    after = replay(snapshot, reply)
    keeps(snapshot, budgets, reply)
    assert reply == make_plan(snapshot, strategy, args, rules=RULES, max_steps=60)
    if strategy == "gpu-drain" and reply.moves:
        assert reply.freed_devices >= count
    if strategy == "node-drain" and reply.moves:
        assert reply.freed_nodes >= count
    assert after.nodes == snapshot.nodes
