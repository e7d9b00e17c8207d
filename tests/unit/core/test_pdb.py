"""Disruption budgets decided as the eviction API decides them, and over several evictions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defragd.core.model import DisruptionBudget, Expression, Pod, Problem, Selector
from defragd.core.pdb import Ledger, asks_budget, budgets_of
from defragd.core.reasons import Reason
from defragd.core.rules import equals
from defragd.core.snapshot import Snapshot

KNOWN = frozenset({"pdbs"})


def pod(name: str, *, app: str = "a", ready: bool = True, phase: str = "Running", deleting: bool = False) -> Pod:
    return Pod("ns", name, f"uid-{name}", labels={"app": app}, ready=ready, phase=phase, deleting=deleting)


def budget(
    name: str = "a",
    *,
    allowed: int = 1,
    healthy: int = 3,
    desired: int = 2,
    observed: bool = True,
    always: bool = False,
    selector: Selector | None = None,
) -> DisruptionBudget:
    chosen = equals({"app": "a"}) if selector is None else selector
    return DisruptionBudget("ns", name, chosen, allowed, healthy, desired, observed, always)


def world(pods: list[Pod], budgets: list[DisruptionBudget], known: frozenset[str] = KNOWN) -> Snapshot:
    return Snapshot(nodes={}, pods={p.key: p for p in pods}, budgets=tuple(budgets), known=known)


THREE = [pod("a1"), pod("a2"), pod("a3")]


@pytest.mark.parametrize(
    ("pods", "budgets", "reason"),
    [
        pytest.param(THREE, [], None, id="no budget"),
        pytest.param(THREE, [budget()], None, id="one allowed"),
        pytest.param(THREE, [budget(allowed=0)], Reason.PDB_BLOCKS, id="status says none"),
        pytest.param([pod("a1"), pod("a2", ready=False)], [budget()], Reason.PDB_BLOCKS, id="status is old"),
        pytest.param(THREE, [budget(observed=False)], Reason.PDB_BLOCKS, id="not observed"),
        pytest.param(THREE, [budget("a"), budget("b")], Reason.SEVERAL_PDBS, id="two budgets"),
        pytest.param(THREE, [budget(allowed=0, selector=equals({"app": "z"}))], None, id="another app's"),
        pytest.param(THREE, [budget(allowed=0, selector=Selector())], Reason.PDB_BLOCKS, id="empty selects all"),
        pytest.param(THREE, [replace(budget(allowed=0), selector=None)], None, id="no selector selects none"),
        pytest.param([pod("a1", phase="Pending"), *THREE[1:]], [budget(allowed=0)], None, id="Pending asks nobody"),
        pytest.param([pod("a1", deleting=True), *THREE[1:]], [budget(allowed=0)], None, id="terminating"),
        pytest.param([pod("a1", ready=False), *THREE[1:]], [budget(allowed=0, always=True)], None, id="AlwaysAllow"),
        pytest.param(
            [pod("a1", ready=False), *THREE[1:]], [budget(allowed=0, healthy=2)], None, id="healthy meets the demand"
        ),
        pytest.param(
            [pod("a1", ready=False), pod("a2")],
            [budget(allowed=0, healthy=1)],
            Reason.PDB_BLOCKS,
            id="healthy below the demand",
        ),
        pytest.param(
            [pod("a1", ready=False)], [budget(allowed=0, healthy=0, desired=0)], Reason.PDB_BLOCKS, id="no demand"
        ),
    ],
)
def test_one_eviction(pods: list[Pod], budgets: list[DisruptionBudget], reason: Reason | None) -> None:
    permit = Ledger.of(world(pods, budgets)).may_evict(pods[0])
    assert (permit.ok, permit.reason) == (reason is None, reason)
    assert permit.ok or permit.detail


def test_broken_pod_goes_free_and_ready_ones_stay() -> None:
    """A crash-looping pod under AlwaysAllow may go; it takes nothing, and its Ready siblings stay blocked."""
    pods = [pod("a1", ready=False), pod("a2"), pod("a3")]
    ledger = Ledger.of(world(pods, [budget(allowed=0, healthy=2, always=True)]))
    ledger.take(pods[0])
    assert [ledger.may_evict(p).ok for p in pods] == [True, False, False]


def test_take_counts_once_and_comes_back() -> None:
    snapshot = world(THREE, [budget(allowed=1)])
    ledger = Ledger.of(snapshot)
    what_if = ledger.copy()
    ledger.take(THREE[0])
    ledger.take(THREE[0])
    blocked = ledger.may_evict(THREE[1])
    assert not blocked.ok
    assert "1 taken by moves before" in blocked.detail
    assert blocked.cap == "ns/a"
    assert what_if.may_evict(THREE[1]).ok
    ledger.give_back(THREE[0])
    ledger.give_back(THREE[0])
    assert ledger.may_evict(THREE[1]).ok
    assert ledger.left(snapshot.budgets[0]) == 1


def test_unknown_budgets_are_said() -> None:
    assert not Ledger.of(world(THREE, [])).warnings()
    warning = Ledger.of(world(THREE, [], known=frozenset())).warnings()
    assert [w.reason for w in warning] == [Reason.PDB_UNKNOWN]


def test_index_finds_what_a_scan_finds() -> None:
    selectors = [
        equals({"app": "a"}),
        equals({"app": "a", "tier": "x"}),
        Selector((Expression("app", "In", ("a", "b")),)),
        Selector((Expression("tier", "DoesNotExist"),)),
        Selector((Expression("tier", "Exists"), Expression("app", "NotIn", ("b",)))),
    ]
    budgets = [budget(f"b{i}", selector=s) for i, s in enumerate(selectors)]
    pods = [
        replace(pod("p1"), labels={"app": "a"}),
        replace(pod("p2"), labels={"app": "a", "tier": "x"}),
        replace(pod("p3"), labels={"app": "b", "tier": "y"}),
        replace(pod("p4"), labels={}),
        replace(pod("p5"), namespace="elsewhere"),
    ]
    snapshot = world(pods, budgets)
    ledger = Ledger.of(snapshot)
    for one in pods:
        assert ledger.budgets_of(one) == budgets_of(snapshot, one)
    assert [len(budgets_of(snapshot, one)) for one in pods] == [3, 4, 1, 1, 0]


@given(
    ready=st.lists(st.booleans(), min_size=1, max_size=8),
    desired=st.integers(0, 8),
    lag=st.integers(0, 3),
    order=st.permutations(range(8)),
)
def test_ready_pods_never_fall_below_the_demand(ready: list[bool], desired: int, lag: int, order: list[int]) -> None:
    """Whatever the status claims and in whatever order: granted evictions leave as many Ready pods as are needed."""
    pods = [pod(f"p{i}", ready=r) for i, r in enumerate(ready)]
    healthy = sum(ready)
    claimed = budget(allowed=max(0, healthy + lag - desired), healthy=healthy + lag, desired=desired)
    ledger = Ledger.of(world(pods, [claimed]))
    out = 0
    for index in order:
        if index < len(pods) and ledger.may_evict(pods[index]).ok:
            ledger.take(pods[index])
            out += pods[index].ready
    assert out == 0 or healthy - out >= desired


@pytest.mark.parametrize(("phase", "asks"), [("Running", True), ("Pending", False), ("Failed", False)])
def test_who_asks(phase: str, asks: bool) -> None:
    assert asks_budget(pod("p", phase=phase)) is asks


@pytest.mark.parametrize(
    ("pods", "expected", "healthy", "may"),
    [
        pytest.param([pod("a1")], 3, 3, True, id="two that the file leaves out"),
        pytest.param([pod("a1")], 1, 3, False, id="the status is old: one pod is all there is"),
        pytest.param([pod("a1"), pod("a2", ready=False), pod("a3")], 3, 3, True, id="no pod is missing"),
        pytest.param([pod("a1"), pod("a2", ready=False)], 2, 3, False, id="the other is not Ready"),
        pytest.param([pod("a1")], 3, 2, False, id="no more healthy ones than needed"),
    ],
)
def test_a_plan_believes_the_budget_about_pods_that_a_file_leaves_out(
    pods: list[Pod], expected: int, healthy: int, may: bool
) -> None:
    snapshot = world(pods, [replace(budget(allowed=1, healthy=healthy, desired=2), expected=expected)])
    strict = Ledger.of(snapshot).may_evict(pods[0]).ok
    assert Ledger.of(snapshot, partial=True).may_evict(pods[0]).ok is (may and (strict or len(pods) < expected))
    assert strict is (sum(p.ready for p in pods) > 2)


def test_a_budget_that_cannot_be_read_may_cover_every_pod_of_its_namespace() -> None:
    broken = Problem("PodDisruptionBudget/ns/odd", "UnreadableObject", "cannot be read")
    ledger = Ledger.of(replace(world([pod("a1")], []), problems=(broken,))).copy()
    assert ledger.may_evict(pod("a1")).reason is Reason.PDB_UNKNOWN
    assert ledger.may_evict(replace(pod("a1"), namespace="other")).ok
