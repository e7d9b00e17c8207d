"""The simulated cluster answers and behaves as the real one was measured to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from defragd.core.model import DisruptionBudget, Pod
from defragd.core.placement import GATE, PINNED
from defragd.core.placement_pin import USER_UUIDS
from defragd.core.rules import equals
from defragd.core.run import Run
from defragd.core.snapshot import Snapshot
from defragd.errors import NotLeader
from defragd.ports import Outcome
from defragd.sim.access import SimAccess
from defragd.sim.cluster import SimCluster
from defragd.sim.faults import Faults
from defragd.sim.patches import as_template
from defragd.sim.world import GIB, App, build, node

WEB = App("web", [("n1", 0), ("n2", 0), ("n1", 1)], min_available=2)
DB = App("db", [("n1", 0), ("n2", 1)], kind="StatefulSet")


def start(*apps: App, faults: Faults | None = None) -> SimAccess:
    world = build([node("n1", 2), node("n2", 2)], apps or (WEB, DB))
    return SimAccess(SimCluster(world, faults=faults))


def pod(access: SimAccess, name: str) -> Pod:
    return next(p for p in access.snapshot().pods.values() if p.name.startswith(name))


def ready(access: SimAccess, app: str) -> list[Pod]:
    return [p for p in access.snapshot().pods.values() if p.labels["app"] == app and p.ready and not p.deleting]


def test_an_evicted_replica_is_replaced_at_once_and_ready_in_time() -> None:
    access = start()
    old = pod(access, "web")
    assert access.evict(old).ok
    access.cluster.advance(0.1)
    alive = [p for p in access.snapshot().pods.values() if p.labels["app"] == "web" and not p.deleting]
    assert len(alive) == 3
    access.cluster.advance(0.3)
    assert access.snapshot().pods[old.key].deleting, "the old object is still there"
    access.cluster.advance(0.6)
    assert old.key not in access.snapshot().pods
    assert len(ready(access, "web")) == 3


def test_a_stateful_pod_comes_back_under_its_name_with_another_uid() -> None:
    access = start()
    old = pod(access, "db-0")
    assert access.evict(old).ok
    access.cluster.advance(0.4)
    assert access.snapshot().pods["default/db-0"].deleting
    access.cluster.advance(1.2)
    new = access.snapshot().pods["default/db-0"]
    assert new.uid != old.uid
    assert new.ready


def two_budgets(snapshot: Snapshot) -> Snapshot:
    other = DisruptionBudget("default", "second", equals({"app": "web"}), 1, 3, 2)
    return replace(snapshot, budgets=(*snapshot.budgets, other))


def test_answers_to_evictions() -> None:
    access = start()
    first, second = [p for p in access.snapshot().pods.values() if p.labels["app"] == "web"][:2]
    assert access.evict(replace(first, uid="other")).outcome is Outcome.CONFLICT
    assert access.evict(replace(first, revision="0"), check_revision=True).outcome is Outcome.CONFLICT
    assert access.evict(replace(first, name="nobody")).outcome is Outcome.GONE
    assert access.evict(first, dry_run=True).ok
    assert access.evict(first).ok
    assert access.evict(first).ok, "a pod that terminates already may be asked again; nothing more happens"
    blocked = access.evict(second)
    assert blocked.outcome is Outcome.BLOCKED
    assert blocked.retry_after is None
    assert len(access.cluster.evictions) == 1
    access.cluster.advance(2)
    assert access.evict(second).ok
    assert not access.cluster.overdrawn
    several = SimAccess(SimCluster(two_budgets(access.cluster.start)))
    assert several.evict(pod(several, "web")).outcome is Outcome.REFUSED


def test_a_budget_that_is_not_processed_yet_asks_for_patience() -> None:
    access = start()
    budget = access.cluster.budgets["default/web"]
    access.cluster.budgets["default/web"] = replace(budget, observed=False)
    answer = access.evict(pod(access, "web"))
    assert (answer.outcome, answer.retry_after) == (Outcome.BLOCKED, 10.0)


def test_gates_and_pins() -> None:
    """A gated pod waits; the patch that lifts the gate may pin it; affinity cannot be changed later."""
    access = start(WEB)
    template = as_template(pod(access, "web"))
    made = access.cluster.create_pod(replace(template, name="w", uid="w", gates=(GATE,), owner=None))
    access.cluster.advance(5)
    assert not access.snapshot().pods[made.key].node
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    pin = {
        "metadata": {"uid": "w", "annotations": {"nvidia.com/use-gpuuuid": "GPU-n2-1", PINNED: "p"}},
        "spec": {"schedulingGates": None, "affinity": affinity},
    }
    assert access.patch_pod("default", "w", {**pin, "metadata": {"uid": "x"}}).outcome is Outcome.CONFLICT
    assert access.patch_pod("default", "w", pin).ok
    access.cluster.advance(1)
    landed = access.snapshot().pods[made.key]
    assert (landed.node, landed.devices, landed.ready) == ("n2", ("GPU-n2-1",), True)
    assert access.patch_pod("default", "w", {"spec": {"affinity": affinity}}).outcome is Outcome.REFUSED
    assert access.patch_pod("default", "w", {"spec": {"schedulingGates": [{"name": "g"}]}}).outcome is Outcome.REFUSED


def test_a_template_carries_nothing_of_ours() -> None:
    access = start(WEB)
    old = pod(access, "web")
    pinned = replace(
        old,
        annotations={"nvidia.com/use-gpuuuid": "GPU-n1-0", PINNED: "p", "defragd.io/allowed-hours": "01:00-05:00"},
        labels={**old.labels, "hami.io/vgpu-node": "n1", "pod-template-hash": "5d"},
        selection=replace(old.selection, pinned_by_us=True, pin_uuids=frozenset({"GPU-n1-0"}), pin_node="n1"),
    )
    template = as_template(pinned)
    assert dict(template.annotations) == {"defragd.io/allowed-hours": "01:00-05:00"}
    assert set(template.labels) == {"app", "pod-template-hash"}
    assert template.selection.pin_uuids is None
    assert (template.node, template.allocations, template.phase) == ("", (), "Pending")


def test_a_template_has_the_users_devices_again() -> None:
    access = start(WEB)
    old = pod(access, "web")
    notes = {"nvidia.com/use-gpuuuid": "GPU-n1-0", PINNED: "p", USER_UUIDS: "nvidia.com/use-gpuuuid=GPU-n1-0,GPU-n2-0"}
    pinned = replace(old, annotations=notes, selection=replace(old.selection, pinned_by_us=True))
    template = as_template(pinned)
    assert dict(template.annotations) == {"nvidia.com/use-gpuuuid": "GPU-n1-0,GPU-n2-0"}
    assert template.selection.use_uuids == {"GPU-n1-0", "GPU-n2-0"}


def test_binds_on_one_node_go_one_after_the_other() -> None:
    """Two pods at once: the second meets the node's lock and backs off (measured: 0.7 s and 2.1 s)."""
    access = start(App("one", [("n1", 0)]), App("two", [("n1", 1)]))
    cluster = access.cluster
    cluster.nodes = {"n1": cluster.nodes["n1"]}
    times: dict[str, float] = {}
    for name in ("one", "two"):
        access.evict(pod(access, name))
    began = cluster.clock.monotonic()
    for _ in range(100):
        cluster.advance(0.05)
        for name in ("one", "two"):
            if ready(access, name) and name not in times:
                times[name] = cluster.clock.monotonic() - began
    first, second = sorted(times.values())
    assert first == pytest.approx(0.7, abs=0.1)
    assert second == pytest.approx(1.7, abs=0.5)


@pytest.mark.parametrize(
    ("faults", "phases"),
    [
        (Faults(crash={"web-5d4f9c"}), {"Failed"}),
        (Faults(fail_allocate={"web-5d4f9c": 1}), {"Failed", "Running"}),
        (Faults(never_ready={"web-5d4f9c"}), {"Running"}),
        (Faults(no_replacement={"web-5d4f9c"}), set()),
    ],
)
def test_faults_of_replacements(faults: Faults, phases: set[str]) -> None:
    access = start(faults=faults)
    old = {p.key for p in access.snapshot().pods.values()}
    access.evict(pod(access, "web"))
    access.cluster.advance(2.5)
    new = [p for p in access.snapshot().pods.values() if p.key not in old]
    assert {p.phase for p in new} >= phases
    assert bool(new) is bool(phases)
    if faults.never_ready or faults.crash:
        assert not any(p.ready for p in new)


def test_a_pod_that_fits_nowhere_says_why_and_gets_in_when_it_can() -> None:
    access = start(WEB)
    template = as_template(pod(access, "web"))
    request = replace(template.requests[0], memory_mib=20 * GIB, count=2)
    access.cluster.create_pod(replace(template, name="big", uid="big", requests=(request,), owner=None))
    access.cluster.advance(1)
    assert access.snapshot().pods["default/big"].unschedulable
    for victim in [p for p in access.snapshot().pods.values() if p.node == "n1"]:
        access.cluster.remove_pod(victim.key, victim.uid)
        access.cluster.owners.clear()
    access.cluster.advance(2)
    assert access.snapshot().pods["default/big"].node == "n1"


def test_a_lagging_cache_shows_the_past() -> None:
    access = start()
    access.snapshot()
    access.cluster.faults.cache_lag = 1.0
    victim = pod(access, "web")
    access.evict(victim)
    access.cluster.advance(0.2)
    assert not access.snapshot().pods[victim.key].deleting
    for _ in range(12):
        access.cluster.advance(0.1)
        access.snapshot()
    later = access.snapshot().pods.get(victim.key)
    assert later is None or later.deleting


def test_writes_need_the_lease_and_the_right_revision() -> None:
    access = start()
    run = Run("ns", "r", "p", "DryRun", "s")
    assert access.runs.create(run).ok
    assert access.runs.create(run).outcome is Outcome.CONFLICT
    stored = access.runs.get("r")
    assert stored is not None
    assert access.runs.write_desired("r", "Paused", "kim").ok
    assert access.runs.write_status(stored).outcome is Outcome.CONFLICT
    newest = access.runs.get("r")
    assert newest is not None
    assert newest.desired == "Paused"
    assert access.runs.write_status(newest).ok
    access.leadership.leading = False
    with pytest.raises(NotLeader):
        access.runs.write_status(newest)
    with pytest.raises(NotLeader):
        access.evict(pod(access, "web"))
