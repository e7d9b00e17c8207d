"""How a run goes on: which moves start, wait or are dropped, and when the run stops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from defragd.core import run_starts
from defragd.core.model import Pod
from defragd.core.pdb import Permit
from defragd.core.placement import RUN_LABEL, Phase, Placement, PlacementStatus, Step
from defragd.core.plan import Move, Place
from defragd.core.plan_json import move_to_json
from defragd.core.reasons import Reason
from defragd.core.rules import Budgets, Cap, Execution, Protection, Rules
from defragd.core.run import MoveState, Run, RunMove, RunPhase
from defragd.core.run_moves import placement_name, selector_for
from defragd.core.run_progress import Around, RunDecision, advance
from defragd.core.snapshot import Snapshot
from defragd.hami.vendors import VENDORS
from defragd.sim.clock import EPOCH
from defragd.sim.world import App, build, node

NOW = EPOCH + timedelta(minutes=10)
RULES = Rules(
    budgets=Budgets(concurrent=None, per_source_node=Cap(), per_target_node=Cap(), spacing=timedelta(0), rate=None),
    execution=Execution(settle=timedelta(seconds=10)),
)


def world(*apps: App) -> Snapshot:
    return build([node("n1", 4), node("n2", 4), node("t", 4)], apps, now=EPOCH)


def app(name: str, *at: tuple[str, int], **more: object) -> App:
    return App(name, at, **more)  # type: ignore[arg-type]


A = app("a", ("n1", 0), ("n2", 0))
B = app("b", ("n1", 1), ("n2", 1))
C = app("c", ("n1", 2), ("n2", 2))


def pod_of(snapshot: Snapshot, name: str, number: int = 0) -> Pod:
    return next(p for p in snapshot.pods.values() if p.labels["app"] == name and p.name.endswith(f"{number:03d}"))


def move(snapshot: Snapshot, name: str, target: int, *, number: int = 0, **more: object) -> Move:
    pod = pod_of(snapshot, name, number)
    found = Move(
        id=f"{name}{number}",
        pod=pod.key,
        uid=pod.uid,
        source=Place(pod.node, pod.devices),
        target=Place("t", (f"GPU-t-{target}",)),
        wave=1,
        workload=f"Deployment/default/{name}",
    )
    return replace(found, **more)  # type: ignore[arg-type]


def run_of(*moves: Move, **more: object) -> Run:
    made = Run(
        namespace="kube-system",
        name="nightly-1",
        policy="nightly",
        mode="Auto",
        strategy="best-fit",
        plan={"moves": [move_to_json(m) for m in moves]},
        phase=RunPhase.RUNNING,
        moves=tuple(RunMove(m.id) for m in moves),
        created=NOW,
        started=NOW,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def go(
    run: Run,
    snapshot: Snapshot,
    placements: Sequence[Placement] = (),
    rules: Rules = RULES,
    *,
    later: float = 0,
    **around: object,
) -> RunDecision:
    context = Around(vendors=VENDORS, **around)  # type: ignore[arg-type]
    return advance(run, placements, snapshot, rules, NOW + timedelta(seconds=later), around=context)


def states(decision: RunDecision) -> dict[str, str]:
    return {s.id: str(s.state) for s in decision.update.moves}


def ended(placement: Placement, phase: Phase, *, evicted: bool = True, reason: str = "X") -> Placement:
    status = PlacementStatus(phase=phase, step=Step.ENDED, reason=reason, eviction_accepted=evicted, ended_at=NOW)
    return replace(placement, status=status, created=NOW)


def flying(placement: Placement, phase: Phase = Phase.BINDING, step: Step = Step.EVICTING) -> Placement:
    return replace(placement, status=PlacementStatus(phase=phase, step=step), created=NOW)


# -- starting -------------------------------------------------------------------------------------------------------


def test_what_a_placement_of_a_move_says() -> None:
    snapshot = world(A, B)
    decision = go(run_of(move(snapshot, "a", 0)), snapshot)
    (placement,) = decision.create
    pod = pod_of(snapshot, "a")
    assert placement.name == "nightly-1-a0"
    assert placement.labels[RUN_LABEL] == "nightly-1"
    assert placement.spec.req_id == placement.name
    assert (placement.spec.node_name, placement.spec.gpu_devices) == ("t", ("GPU-t-0",))
    assert (placement.spec.evict_pod, placement.spec.evict_pod_uid) == (pod.name, pod.uid)
    assert placement.spec.settle == RULES.execution.settle
    assert states(decision) == {"a0": "InFlight"}
    again = go(run_of(move(snapshot, "a", 0)), snapshot)
    assert again.create[0].name == placement.name, "created again after a crash it is the same object"


@pytest.mark.parametrize(
    ("labels", "kept"),
    [
        ({"app": "x", "pod-template-hash": "5d"}, {"app"}),
        ({"app": "x", "hami.io/vgpu-node": "n"}, {"app"}),
        ({"app": "x", "statefulset.kubernetes.io/pod-name": "x-0", "apps.kubernetes.io/pod-index": "0"}, {"app"}),
        ({"pod-template-hash": "5d"}, {"pod-template-hash"}),
    ],
)
def test_selector_holds_for_the_replacement(labels: dict[str, str], kept: set[str]) -> None:
    selector = selector_for(Pod("ns", "p", "u", labels=labels))
    assert {e.key for e in selector.expressions} == kept


def test_placement_names_are_labels() -> None:
    name = placement_name("policy-with-a-name-of-fifty-characters-260302-0100-and-more", "Move_12/with odd.id")
    assert len(name) <= 63
    assert name == name.lower()
    assert not set(name) - set("abcdefghijklmnopqrstuvwxyz0123456789-")


def test_after_is_waited_for() -> None:
    snapshot = world(A, B)
    first, second = move(snapshot, "a", 0), move(snapshot, "b", 1, after=("a0",), wave=2)
    decision = go(run_of(first, second), snapshot)
    assert states(decision) == {"a0": "InFlight", "b0": "Waiting"}
    assert "a0" in decision.waiting
    done = ended(decision.create[0], Phase.COMPLETED)
    assert states(go(decision.update, snapshot, [done])) == {"a0": "Done", "b0": "InFlight"}


def test_a_group_starts_together_or_not_at_all() -> None:
    snapshot = world(A, B)
    moves = (move(snapshot, "a", 0, group="g"), move(snapshot, "b", 1, group="g"))
    decision = go(run_of(*moves), snapshot)
    assert [(p.spec.group, p.spec.group_size) for p in decision.create] == [("nightly-1-g", 2)] * 2
    tight = replace(RULES, budgets=replace(RULES.budgets, concurrent=1))
    refused = go(run_of(*moves), snapshot, rules=tight)
    assert states(refused) == {"a0": "Waiting", "b0": "Waiting"}
    assert "concurrent" in refused.waiting
    gone = snapshot.with_pods({moves[0].pod: None})
    assert states(go(run_of(*moves), gone)) == {"a0": "Dropped", "b0": "Dropped"}


@pytest.mark.parametrize(
    ("budgets", "started"),
    [
        (Budgets(concurrent=2, per_target_node=Cap(), per_source_node=Cap()), 2),
        (Budgets(concurrent=None, per_source_node=Cap(in_flight=1), per_target_node=Cap()), 1),
        (Budgets(concurrent=None, per_target_node=Cap(in_flight=1), per_source_node=Cap()), 1),
        (Budgets(concurrent=None, per_target_node=Cap(), per_source_node=Cap(), rate=(1, timedelta(minutes=1))), 1),
        (Budgets(total=2, per_target_node=Cap(), per_source_node=Cap()), 2),
    ],
)
def test_no_more_than_the_budgets(budgets: Budgets, started: int) -> None:
    snapshot = world(A, B, C)
    run = run_of(*(move(snapshot, name, i) for i, name in enumerate("abc")))
    assert len(go(run, snapshot, rules=replace(RULES, budgets=budgets)).create) == min(started, 3)


def test_no_faster_than_placements_are_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """However open the budgets: each placement has a time for its proof, and a crowd would use it up waiting."""
    monkeypatch.setattr(run_starts, "MOST_UNHELD", 2)
    snapshot = world(A, B, C)
    first = go(run_of(*(move(snapshot, name, i) for i, name in enumerate("abc"))), snapshot)
    assert len(first.create) == 2
    assert not go(first.update, snapshot, first.create).create, "none is proven yet"
    proven = flying(first.create[0], Phase.HELD, Step.HELD)
    assert len(go(first.update, snapshot, [proven, first.create[1]]).create) == 1


def test_own_word_counts_before_the_cache_shows_it() -> None:
    """Two starts allowed per source node; the cache shows none of the placements just created."""
    snapshot = world(A, B, C)
    rules = replace(RULES, budgets=replace(RULES.budgets, per_source_node=Cap(in_flight=2)))
    first = go(run_of(*(move(snapshot, name, i) for i, name in enumerate("abc"))), snapshot, rules=rules)
    assert len(first.create) == 2
    second = go(first.update, snapshot, (), rules, later=5)
    assert not second.create
    assert states(second) == {"a0": "InFlight", "b0": "InFlight", "c0": "Waiting"}


def test_after_a_restart_placements_are_found_by_label() -> None:
    snapshot = world(A, B)
    run = run_of(move(snapshot, "a", 0), move(snapshot, "b", 1))
    placement = flying(go(run, snapshot).create[0])
    rules = replace(RULES, budgets=replace(RULES.budgets, concurrent=1))
    decision = go(run, snapshot, [placement], rules)
    assert states(decision) == {"a0": "InFlight", "b0": "Waiting"}
    assert not decision.create


def test_one_replica_at_a_time_even_without_any_limit() -> None:
    """No PodDisruptionBudget: the last Ready replica stays until the first is back."""
    snapshot = world(A)
    rules = replace(RULES, budgets=replace(RULES.budgets, per_workload=Cap()))
    run = run_of(move(snapshot, "a", 0), move(snapshot, "a", 1, number=1))
    decision = go(run, snapshot, rules=rules)
    assert states(decision) == {"a0": "InFlight", "a1": "Waiting"}
    assert "last Ready pod" in decision.waiting


def test_next_move_of_a_workload_waits_for_the_end_and_the_spacing() -> None:
    snapshot = world(app("a", ("n1", 0), ("n2", 0), ("n1", 3)))
    rules = replace(RULES, budgets=replace(RULES.budgets, spacing=timedelta(seconds=30)))
    run = run_of(move(snapshot, "a", 0), move(snapshot, "a", 1, number=1))
    first = go(run, snapshot, rules=rules)
    settling = flying(first.create[0], Phase.SETTLING, Step.PINNED)
    assert not go(first.update, snapshot, [settling], rules, later=60).create
    done = ended(first.create[0], Phase.COMPLETED)
    soon = go(first.update, snapshot, [done], rules, later=29)
    assert not soon.create
    assert "may start at 01:10:30 UTC" in soon.waiting
    assert len(go(first.update, snapshot, [done], rules, later=30).create) == 1


def test_disruption_budget_counts_moves_that_are_about_to_evict() -> None:
    """The status still allows two, but two evictions are on their way: nothing more starts."""
    w = app("w", ("n1", 0), ("n1", 1), ("n2", 0), ("n2", 1), min_available=2)
    snapshot = world(w)
    rules = replace(RULES, budgets=replace(RULES.budgets, per_workload=Cap()))
    run = run_of(*(move(snapshot, "w", i, number=i) for i in range(4)))
    first = go(run, snapshot, rules=rules)
    assert len(first.create) == 2
    held = [flying(p, Phase.HELD, Step.HELD) for p in first.create]
    again = go(first.update, snapshot, held, rules)
    assert not again.create
    assert "default/w" in again.waiting


# -- fresh checks ---------------------------------------------------------------------------------------------------


def opted_out(snapshot: Snapshot, key: str) -> Snapshot:
    pod = snapshot.pods[key]
    return snapshot.with_pods({key: replace(pod, annotations={"defragd.io/do-not-move": "true"})})


def cordoned(snapshot: Snapshot) -> Snapshot:
    nodes = {**snapshot.nodes, "t": replace(snapshot.nodes["t"], schedulable=False)}
    return replace(snapshot, nodes=nodes)


def sick(snapshot: Snapshot) -> Snapshot:
    t = snapshot.nodes["t"]
    devices = tuple(replace(d, healthy=d.index != 0) for d in t.devices)
    return replace(snapshot, nodes={**snapshot.nodes, "t": replace(t, devices=devices)})


def taken(snapshot: Snapshot) -> Snapshot:
    thief = replace(pod_of(snapshot, "b"), name="thief", uid="uid-thief", node="t", booked_node="t", owner=None)
    allocation = replace(thief.allocations[0], uuid="GPU-t-0", memory_mib=20_000)
    return snapshot.with_pods({"default/thief": replace(thief, allocations=(allocation,))})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(lambda s, k: s.with_pods({k: None}), Reason.POD_UNKNOWN, id="gone"),
        pytest.param(lambda s, k: s.with_pods({k: replace(s.pods[k], uid="new")}), Reason.POD_CHANGED, id="namesake"),
        pytest.param(lambda s, k: s.with_pods({k: replace(s.pods[k], deleting=True)}), Reason.TERMINATING, id="ending"),
        pytest.param(lambda s, k: s.with_pods({k: replace(s.pods[k], node="n2")}), Reason.POD_CHANGED, id="elsewhere"),
        pytest.param(opted_out, Reason.OPTED_OUT, id="opted out meanwhile"),
        pytest.param(lambda s, k: cordoned(s), Reason.NODE_UNSCHEDULABLE, id="target cordoned"),
        pytest.param(lambda s, k: sick(s), Reason.DEVICE_UNHEALTHY, id="device unhealthy"),
        pytest.param(lambda s, k: taken(s), Reason.DEVICE_FULL, id="place taken"),
        pytest.param(
            lambda s, k: replace(s, nodes={n: v for n, v in s.nodes.items() if n != "t"}),
            Reason.NODE_UNKNOWN,
            id="lost",
        ),
    ],
)
def test_what_changed_since_the_plan_drops_the_move(change: object, reason: Reason) -> None:
    snapshot = world(A, B)
    planned = move(snapshot, "a", 0)
    decision = go(run_of(planned), change(snapshot, planned.pod))  # type: ignore[operator]
    assert not decision.create
    (state,) = decision.update.moves
    assert (state.state, state.reason) == (MoveState.DROPPED, reason)
    assert state.message
    assert decision.update.phase is RunPhase.COMPLETED


def test_a_taken_place_is_waited_for_while_others_fly() -> None:
    snapshot = world(A, B)
    run = run_of(move(snapshot, "b", 1), move(snapshot, "a", 0))
    one = replace(RULES, budgets=replace(RULES.budgets, concurrent=1))
    first = go(run, snapshot, rules=one)
    decision = go(first.update, taken(snapshot), [flying(first.create[0])])
    assert states(decision) == {"b0": "InFlight", "a0": "Waiting"}
    assert "does not fit" in decision.waiting


def test_the_rest_is_dropped_when_it_gains_nothing_alone() -> None:
    """a and b together would have emptied a device pair; without a, moving b from one idle-shared device to an empty
    one changes nothing."""
    snapshot = world(A, B)
    run = run_of(move(snapshot, "a", 0), move(snapshot, "b", 1))
    decision = go(run, opted_out(snapshot, move(snapshot, "a", 0).pod))
    assert states(decision) == {"a0": "Dropped", "b0": "Dropped"}
    assert decision.update.moves[1].reason == Reason.NO_GAIN
    drain = go(run, opted_out(snapshot, move(snapshot, "a", 0).pod), drain=True)
    assert states(drain) == {"a0": "Dropped", "b0": "InFlight"}


# -- ends -----------------------------------------------------------------------------------------------------------


def test_a_run_ends_when_its_moves_have() -> None:
    snapshot = world(A, B)
    first = go(run_of(move(snapshot, "a", 0), move(snapshot, "b", 1)), snapshot)
    placements = [
        ended(first.create[0], Phase.COMPLETED),
        ended(first.create[1], Phase.FAILED, evicted=False, reason="PDBBlocks"),
    ]
    update = go(first.update, snapshot, placements).update
    assert update.phase is RunPhase.COMPLETED
    assert [m.state for m in update.moves] == [MoveState.DONE, MoveState.REFUSED]
    assert update.moves[1].reason == "PDBBlocks"
    assert update.finished is not None
    assert "1 done, 1 refused" in update.message
    assert "a0" in update.message, "the world does not show the pod where it was put, and that is said"
    assert go(update, snapshot, placements).update == update


@pytest.mark.parametrize(
    ("planned", "failed", "done", "stops"),
    [
        pytest.param(3, 1, 1, True, id="one of three is more than a third"),
        pytest.param(10, 1, 0, False, id="one failure is no pattern"),
        pytest.param(10, 2, 1, True, id="two of three that ended"),
        pytest.param(10, 2, 5, False, id="two of seven"),
        pytest.param(10, 4, 6, True, id="four of ten"),
    ],
)
def test_failure_ratio(planned: int, failed: int, done: int, stops: bool) -> None:
    names = [chr(ord("a") + i) for i in range(planned)]
    apps = [app(n, (("n1", "n2")[i % 2], i % 4), ("n2", 3), memory_mib=1024) for i, n in enumerate(names)]
    snapshot = world(*apps)
    moves = [move(snapshot, n, i % 4) for i, n in enumerate(names)]
    done_states = [RunMove(m.id, MoveState.DONE, started=NOW, finished=NOW) for m in moves[:done]]
    failed_states = [RunMove(m.id, MoveState.FAILED, started=NOW, finished=NOW) for m in moves[done : done + failed]]
    rest = [RunMove(m.id) for m in moves[done + failed :]]
    update = go(run_of(*moves, moves=(*done_states, *failed_states, *rest)), snapshot).update
    assert (update.phase is RunPhase.ABORTED) is stops
    assert not stops or update.reason == Reason.FAILURE_RATIO
    assert not stops or all(m.state is not MoveState.WAITING for m in update.moves)


def test_stopping_brings_what_flies_to_its_end() -> None:
    snapshot = world(A, B)
    rules = replace(RULES, budgets=replace(RULES.budgets, concurrent=1))
    first = go(run_of(move(snapshot, "a", 0), move(snapshot, "b", 1)), snapshot, rules=rules)
    cancelled = replace(first.update, desired="Cancelled", desired_by="kim")
    stopping = go(cancelled, snapshot, [flying(first.create[0])], rules)
    assert stopping.update.phase is RunPhase.RUNNING
    assert states(stopping) == {"a0": "InFlight", "b0": "Dropped"}
    final = go(stopping.update, snapshot, [ended(first.create[0], Phase.COMPLETED)], rules).update
    assert final.phase is RunPhase.CANCELLED
    assert "kim" in final.message
    assert "1 done, 1 dropped" in final.message


def test_pause_and_resume() -> None:
    snapshot = world(A, B)
    run = run_of(move(snapshot, "a", 0), desired="Paused", desired_by="kim")
    paused = go(run, snapshot)
    assert (paused.update.phase, paused.create) == (RunPhase.PAUSED, ())
    assert len(go(replace(paused.update, desired=""), snapshot).create) == 1


def test_a_global_hold_keeps_everything_still() -> None:
    snapshot = world(A, B)
    held = go(run_of(move(snapshot, "a", 0)), snapshot, hold=Permit(False, Reason.OUTSIDE_WINDOW, "denied until 17:00"))
    assert (held.update.phase, held.create) == (RunPhase.RUNNING, ())
    assert held.update.message == "denied until 17:00"


def test_deadline_starts_nothing_that_could_not_end_in_time() -> None:
    snapshot = world(A, B)
    rules = replace(RULES, budgets=replace(RULES.budgets, concurrent=1))
    run = run_of(move(snapshot, "a", 0), move(snapshot, "b", 1))
    first = go(run, snapshot, rules=rules, deadline=NOW + timedelta(minutes=10))
    took = replace(ended(first.create[0], Phase.COMPLETED), created=NOW)
    took = replace(took, status=replace(took.status, ended_at=NOW + timedelta(minutes=4)))
    for later, phase in ((5, RunPhase.RUNNING), (7, RunPhase.ABORTED)):
        update = go(
            first.update, snapshot, [took], rules, later=later * 60, deadline=NOW + timedelta(minutes=10)
        ).update
        assert update.phase is phase
    assert update.reason == Reason.RUN_DEADLINE
    assert "1 done, 1 dropped" in update.message


@pytest.mark.parametrize(
    ("desired", "age_hours", "phase"),
    [
        ("", 1, RunPhase.AWAITING_APPROVAL),
        ("Approved", 1, RunPhase.RUNNING),
        ("Cancelled", 1, RunPhase.CANCELLED),
        ("", 25, RunPhase.EXPIRED),
    ],
)
def test_approval(desired: str, age_hours: int, phase: RunPhase) -> None:
    snapshot = world(A, B)
    run = run_of(
        move(snapshot, "a", 0),
        phase=RunPhase.AWAITING_APPROVAL,
        desired=desired,
        desired_by="kim",
        created=NOW - timedelta(hours=age_hours),
        started=None,
    )
    decision = go(run, snapshot)
    assert decision.update.phase is phase
    assert bool(decision.create) is (phase is RunPhase.RUNNING)


def test_a_placement_that_was_never_created_is_created_again() -> None:
    snapshot = world(A, B)
    first = go(run_of(move(snapshot, "a", 0)), snapshot)
    assert not go(first.update, snapshot, later=10).create
    again = go(first.update, snapshot, later=25)
    assert [p.name for p in again.create] == [first.create[0].name]


def test_a_placement_deleted_by_somebody_is_a_failed_move() -> None:
    snapshot = world(A, B)
    first = go(run_of(move(snapshot, "a", 0)), snapshot)
    seen = go(first.update, snapshot, [flying(first.create[0])]).update
    (state,) = go(seen, snapshot, later=25).update.moves
    assert (state.state, state.reason) == (MoveState.FAILED, Reason.PLACEMENT_DELETED)


def test_a_run_record_that_was_edited_does_not_break_the_loop() -> None:
    snapshot = world(A, B)
    run = run_of(move(snapshot, "a", 0))
    broken = replace(run, plan={"moves": [{"id": "a0"}]})
    update = go(broken, snapshot).update
    assert update.phase is RunPhase.COMPLETED
    assert update.moves[0].state is MoveState.DROPPED


def test_not_ready_pods_stay_unless_draining() -> None:
    snapshot = world(A, B)
    planned = move(snapshot, "a", 0)
    broken = snapshot.with_pods({planned.pod: replace(snapshot.pods[planned.pod], ready=False)})
    assert states(go(run_of(planned), broken)) == {"a0": "Dropped"}
    assert states(go(run_of(planned), broken, drain=True)) == {"a0": "InFlight"}
    allowed = replace(RULES, protect=replace(Protection(), not_ready=True))
    assert states(go(run_of(planned), broken, rules=allowed)) == {"a0": "InFlight"}
