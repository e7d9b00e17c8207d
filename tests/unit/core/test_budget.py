"""Caps on moves: which one binds, what counts for how long, and the floor under every workload."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defragd.core.budget import Books, Claim, Entry, Floor
from defragd.core.model import DisruptionBudget, Owner, Pod, Workload
from defragd.core.pdb import Ledger
from defragd.core.reasons import Reason
from defragd.core.rules import Budgets, Cap, equals
from defragd.core.snapshot import Snapshot

NOW = datetime(2026, 3, 2, 2, 0, tzinfo=UTC)
WIDE = Budgets(
    total=None,
    concurrent=None,
    per_source_node=Cap(),
    per_target_node=Cap(),
    per_namespace=Cap(),
    per_workload=Cap(),
    spacing=timedelta(0),
    rate=None,
)


def claim(n: int, *, workload: str = "w", ns: str = "ns", source: str = "s", target: str = "t") -> Claim:
    return Claim(f"m{n}", workload, ns, source, target)


@pytest.mark.parametrize(
    ("budgets", "cap"),
    [
        (replace(WIDE, total=2), "budgets.total"),
        (replace(WIDE, per_day=2), "budgets.perDay"),
        (replace(WIDE, concurrent=2), "budgets.concurrent"),
        (replace(WIDE, per_source_node=Cap(in_flight=2)), "budgets.perSourceNode.inFlight"),
        (replace(WIDE, per_source_node=Cap(per_run=2)), "budgets.perSourceNode.perRun"),
        (replace(WIDE, per_target_node=Cap(in_flight=2)), "budgets.perTargetNode.inFlight"),
        (replace(WIDE, per_namespace=Cap(per_day=2)), "budgets.perNamespace.perDay"),
        (replace(WIDE, per_workload=Cap(in_flight=2)), "budgets.perWorkload.inFlight"),
        (replace(WIDE, rate=(2, timedelta(minutes=1))), "budgets.rate"),
        (replace(WIDE, spacing=timedelta(seconds=5)), "budgets.spacing"),
    ],
)
def test_the_binding_cap_is_named(budgets: Budgets, cap: str) -> None:
    books = Books(budgets)
    for n in range(2):
        books.take(claim(n), NOW)
    permit = books.may_start(claim(2), NOW)
    assert (permit.reason, permit.cap) == (Reason.OVER_BUDGET, cap)
    assert cap.split(".")[1] in permit.detail or cap in ("budgets.rate", "budgets.spacing")


def test_no_limit_means_no_limit() -> None:
    books = Books(WIDE)
    for n in range(500):
        assert books.may_start(claim(n), NOW).ok
        books.take(claim(n), NOW)


@pytest.mark.parametrize("other", [{"workload": "v"}, {"source": "s2"}, {"target": "t2"}, {"ns": "ns2"}])
def test_caps_count_their_own_key_only(other: dict[str, str]) -> None:
    one = Cap(in_flight=1)
    name = {"workload": "per_workload", "source": "per_source_node", "target": "per_target_node", "ns": "per_namespace"}
    books = Books(replace(WIDE, **{name[next(iter(other))]: one}))
    books.take(claim(0), NOW)
    assert not books.may_start(claim(1), NOW).ok
    assert books.may_start(claim(1, **other), NOW).ok


def test_landing_frees_the_place_in_flight_but_not_the_run() -> None:
    books = Books(replace(WIDE, concurrent=1, total=2))
    for n in range(2):
        assert books.may_start(claim(n), NOW).ok
        books.take(claim(n), NOW)
        assert not books.may_fly(claim(9)).ok
        books.land(claim(n), NOW)
        books.land(claim(n), NOW)
    assert books.may_start(claim(2), NOW).cap == "budgets.total"


def test_spacing_counts_from_the_end_of_the_former_move() -> None:
    books = Books(replace(WIDE, spacing=timedelta(seconds=30)))
    books.take(claim(0), NOW)
    books.land(claim(0), NOW + timedelta(seconds=100))
    assert books.may_start(claim(1), NOW + timedelta(seconds=129)).cap == "budgets.spacing"
    assert books.may_start(claim(1), NOW + timedelta(seconds=130)).ok
    assert books.may_start(claim(1, workload="v"), NOW).ok


def test_a_pod_that_settles_is_no_arrival_any_more() -> None:
    budgets = replace(WIDE, per_target_node=Cap(in_flight=1), concurrent=2)
    flying = Books.of(budgets, [Entry(claim(0), NOW)], now=NOW)
    settling = Books.of(budgets, [Entry(claim(0), NOW, landed=True)], now=NOW)
    assert flying.may_fly(claim(1)).cap == "budgets.perTargetNode.inFlight"
    assert settling.may_fly(claim(1)).ok
    settling.take(claim(1), NOW)
    assert settling.may_fly(claim(2, target="t2")).cap == "budgets.concurrent"
    settling.land(claim(0))
    assert settling.may_fly(claim(2)).cap == "budgets.perTargetNode.inFlight"


def test_books_are_rebuilt_from_records() -> None:
    """After a restart: other runs count per day and in flight, old moves not at all, the own run's moves always."""
    day = Cap(per_day=2, per_run=3, in_flight=1)
    budgets = replace(WIDE, per_workload=day)
    yesterday = NOW - timedelta(hours=25)
    done = timedelta(minutes=1)
    old = [Entry(claim(n), yesterday, yesterday + done, own=False) for n in range(5)]
    assert Books.of(budgets, old, now=NOW).may_start(claim(9), NOW).ok
    lately = [Entry(claim(n), NOW - done * 9, NOW - done * 8, own=False) for n in range(2)]
    assert Books.of(budgets, old + lately, now=NOW).may_start(claim(9), NOW).cap == "budgets.perWorkload.perDay"
    own = [Entry(claim(n), yesterday, yesterday + done) for n in range(3)]
    assert Books.of(budgets, own, now=NOW).may_start(claim(9), NOW).cap == "budgets.perWorkload.perRun"
    flying = [Entry(claim(0), yesterday, own=False)]
    assert Books.of(budgets, flying, now=NOW).may_start(claim(9), NOW).cap == "budgets.perWorkload.inFlight"


def test_history_counts_in_a_plan() -> None:
    books = Books.for_plan(replace(WIDE, per_workload=Cap(per_day=3)), {"w": 3})
    assert books.may_plan(claim(0)).cap == "budgets.perWorkload.perDay"
    assert books.may_plan(claim(0, workload="v")).ok


@given(
    st.lists(st.tuples(st.sampled_from("tlu"), st.integers(0, 5), st.integers(0, 2), st.integers(0, 2)), max_size=60)
)
def test_no_interleaving_exceeds_a_cap_or_goes_below_zero(steps: list[tuple[str, int, int, int]]) -> None:
    budgets = replace(WIDE, total=8, concurrent=3, per_source_node=Cap(in_flight=2), per_workload=Cap(in_flight=1))
    books = Books(budgets)
    flying: dict[str, Claim] = {}
    started = 0
    for step, n, w, s in steps:
        one = claim(n, workload=f"w{w}", source=f"s{s}")
        if step == "t" and one.id not in flying and books.may_start(one, NOW).ok:
            books.take(one, NOW)
            flying[one.id] = one
            started += 1
        elif step == "l" and one.id in flying:
            books.land(flying.pop(one.id), NOW)
        elif step == "u" and one.id in flying:
            books.undo(flying.pop(one.id))
            started -= 1
        assert len(flying) <= 3
        assert 0 <= started <= 8
        for key in {f"s{i}" for i in range(3)}:
            assert sum(c.source == key for c in flying.values()) <= 2
        for key in {f"w{i}" for i in range(3)}:
            assert sum(c.workload == key for c in flying.values()) <= 1
        assert set(books.flying) == set(flying)


# -- the floor ------------------------------------------------------------------------------------------------------

TOP = Owner("Deployment", "w", "top")


def replica(name: str, *, rs: str = "rs", ready: bool = True) -> Pod:
    return Pod("ns", name, f"uid-{name}", labels={"app": "w"}, owner=Owner("ReplicaSet", rs, rs), ready=ready)


def service(pods: list[Pod], *, budget: bool = False, replicas: int | None = None) -> Snapshot:
    sets = {p.owner.uid for p in pods if p.owner}
    share = (len(pods) if replicas is None else replicas) // max(len(sets), 1)
    return Snapshot(
        nodes={},
        pods={p.key: p for p in pods},
        budgets=(DisruptionBudget("ns", "w", equals({"app": "w"}), 9, len(pods), 0),) if budget else (),
        workloads={uid: Workload("ReplicaSet", "ns", uid, uid, share, top=TOP) for uid in sets},
        known=frozenset({"pdbs"}),
    )


@pytest.mark.parametrize(
    ("pods", "budget", "may"),
    [
        pytest.param([replica("a"), replica("b"), replica("c")], False, 2, id="one of three stays"),
        pytest.param([replica("a"), replica("b", rs="rs2")], False, 1, id="a rollout's two sets are one workload"),
        pytest.param([replica("a"), replica("b", ready=False)], False, 1, id="last Ready one stays"),
        pytest.param([replica("a"), replica("b")], True, 2, id="a budget decides instead"),
        pytest.param([replica("a")], False, 1, id="one replica is a matter of eligibility"),
        pytest.param([replace(replica("a"), owner=None)], False, 1, id="no owner"),
    ],
)
def test_floor(pods: list[Pod], budget: bool, may: int) -> None:
    snapshot = service(pods, budget=budget)
    floor = Floor.of(snapshot, Ledger.of(snapshot))
    granted = 0
    for pod in pods:
        permit = floor.may_leave(pod)
        assert permit.ok or permit.reason is Reason.ALL_REPLICAS_OUT
        if permit.ok:
            floor.take(pod)
            granted += 1
    assert granted == may


def test_the_floor_stands_while_a_replacement_is_missing() -> None:
    """Two replicas wanted, one there: it is the last one although it is the only one in sight."""
    pods = [replica("a")]
    snapshot = service(pods, replicas=2)
    floor = Floor.of(snapshot, Ledger.of(snapshot))
    assert floor.may_leave(pods[0]).reason is Reason.ALL_REPLICAS_OUT
    what_if = floor.copy(Ledger.of(snapshot))
    assert not what_if.may_leave(pods[0]).ok


@pytest.mark.parametrize(
    ("pods", "said", "ready", "may"),
    [
        pytest.param([replica("a")], 2, 2, 1, id="the other is Ready, says the owner"),
        pytest.param([replica("a")], 2, None, 1, id="an owner without a status"),
        pytest.param([replica("a")], 2, 1, 0, id="the other is not Ready"),
        pytest.param([replica("a")], 2, 0, 0, id="an old status"),
        pytest.param([replica("a"), replica("b", ready=False)], 2, 2, 0, id="both in sight: seen counts"),
        pytest.param([replica("a"), replace(replica("b"), deleting=True)], 2, 2, 0, id="one is leaving in sight"),
        pytest.param([replica("a"), replica("b")], 3, 3, 2, id="the third one may be out of sight"),
    ],
)
def test_a_plan_believes_the_owner_about_replicas_that_a_file_leaves_out(
    pods: list[Pod], said: int, ready: int | None, may: int
) -> None:
    snapshot = service(pods, replicas=said)
    told = {uid: replace(workload, ready=ready) for uid, workload in snapshot.workloads.items()}
    snapshot = replace(snapshot, workloads=told)
    floor = Floor.of(snapshot, Ledger.of(snapshot), partial=True)
    granted = 0
    for pod in pods:
        if pod.ready and not pod.deleting and floor.may_leave(pod).ok:
            floor.take(pod)
            granted += 1
    assert granted == may


def test_giving_back_lets_the_next_one_leave() -> None:
    pods = [replica("a"), replica("b")]
    snapshot = service(pods)
    floor = Floor.of(snapshot, Ledger.of(snapshot))
    floor.take(pods[0])
    assert not floor.may_leave(pods[1]).ok
    floor.give_back(pods[0])
    assert floor.may_leave(pods[1]).ok
