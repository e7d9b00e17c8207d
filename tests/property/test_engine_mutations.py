"""The tests of the engine, tested: each safety rule is broken on purpose, and something must notice.

A breakage is caught when one of the end-to-end tests of the engine fails under it, or one of a few seeded random runs.
A rule whose breakage nobody notices is either no rule or has no test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from defragd.controllers import claims, gates, janitor, placements, sending
from defragd.core import (
    gating,
    placement_arrival,
    placement_claims,
    placement_evicting,
    placement_landing,
    placement_surge,
    placement_world,
    progress,
)
from defragd.core.placement_world import World
from defragd.ports import Outcome
from tests.property.test_engine_chaos import chaos
from tests.support.effort import amount
from tests.support.engine_world import EngineWorld, node
from tests.unit.controllers import (
    test_pin_at_admission,
    test_placement_engine,
    test_placement_safety,
    test_retarget,
    test_surge,
)

SEEDS = amount(40, 10)
MODES = ("gate", "pin")
Break = Callable[[pytest.MonkeyPatch], None]


def _cases() -> Iterator[Callable[[], object]]:
    for name, case in (*vars(test_placement_safety).items(), *vars(test_placement_engine).items()):
        if name.startswith("test_") and callable(case):
            parameters = case.__code__.co_varnames[: case.__code__.co_argcount]
            if parameters == ("world",):
                yield lambda case=case: case(EngineWorld([node("n1"), node("n2")]))
            elif parameters == ("nth", "when"):
                for nth in range(7):
                    for when in ("kill-after", "lost-before", "lost-after", "busy"):
                        yield lambda case=case, nth=nth, when=when: case(nth, when)
            elif not parameters:
                yield case
    for module, modes in ((test_pin_at_admission, ("pin",)), (test_surge, MODES), (test_retarget, MODES)):
        for name, case in vars(module).items():
            if not name.startswith("test_"):
                continue
            parameters = case.__code__.co_varnames[: case.__code__.co_argcount]
            more = {"replicas": 3} if parameters == ("world", "replicas") else {}
            for mode in modes if parameters == ("world", *more) else ():
                yield lambda case=case, mode=mode, more=more: case(_world(mode), **more)


def _world(mode: str) -> EngineWorld:
    world = EngineWorld([node("n1"), node("n2", devices=3)])
    world.admission = mode
    return world


def _set(owner: Any, name: str, value: Any) -> Break:
    return lambda patch: patch.setattr(owner, name, value)


def _no_precondition(patch: pytest.MonkeyPatch) -> None:
    send = sending.Sender._send

    def careless(self: Any, action: Any) -> Any:
        if isinstance(action, placement_world.Evict):
            pod = self._pods.world.pods.get(action.pod.key)
            uid = pod["metadata"]["uid"] if pod else action.pod.uid
            return self._pods.evict(replace(action.pod, uid=uid), dry_run=action.dry_run, check_revision=False)
        return send(self, action)

    patch.setattr(sending.Sender, "_send", careless)


def _acts_on_unstored(patch: pytest.MonkeyPatch) -> None:
    carry_out = sending.Sender.carry_out

    def careless(self: Any, task: Any) -> Any:
        report = carry_out(self, task)
        if report.stored is not None and not report.stored.ok:
            return replace(report, stored=replace(report.stored, outcome=Outcome.OK))
        return report

    patch.setattr(sending.Sender, "carry_out", careless)


def _uses(name: str, value: Any) -> Break:
    """A cached property of the world gives something else."""
    return lambda patch: patch.setattr(World, name, property(value), raising=True)


def _uses_method(name: str, value: Any) -> Break:
    return lambda patch: patch.setattr(World, name, value)


def _any_owner(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gating, "may_take", lambda placement, pod: pod.namespace == placement.namespace)
    seat = gating.seat

    def careless(pods: Any, found: Any, **more: Any) -> Any:
        owner = {p.status.owner_uid: p for p in found}
        return seat(
            [
                replace(pod, owner=replace(pod.owner, uid=next(iter(owner)))) if pod.owner and owner else pod
                for pod in pods
            ],
            found,
            **more,
        )

    patch.setattr(placement_world, "seat", careless)


def _no_sticky(patch: pytest.MonkeyPatch) -> None:
    seat = gating.seat
    patch.setattr(placement_world, "seat", lambda pods, found, *, sticky=None, **more: seat(pods, found, **more))


def _forgets_unknown(patch: pytest.MonkeyPatch) -> None:
    learn = placements.learn

    def careless(memory: Any, action: Any, outcome: str, *rest: Any) -> Any:
        pin = isinstance(action, placement_world.PatchPod) and outcome == "Unknown"
        return learn(memory, action, "Conflict" if pin else outcome, *rest)

    patch.setattr(placements, "learn", careless)


def _no_arrivals(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(placements, "arrivals", lambda *_: _Empty())
    patch.setattr(placement_arrival, "lock_in_the_way", lambda *_, **__: None)


def _no_ledger_in_flight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(World, "ledger", property(lambda self: placement_world.Ledger.of(self.snapshot)))


def _no_deadlines(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gates, "overdue", lambda pod, now: False)
    patch.setattr(gating, "overdue", lambda pod, now: False)


def _settled_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(placement_landing, "_settling", placement_landing._completed)


def _no_promise_in_flight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(World, "latest", property(lambda self: self.placements))


def _old_pod_ignored(patch: pytest.MonkeyPatch) -> None:
    arriving = placement_arrival.arriving

    def careless(placement: Any, world: Any, memory: Any, now: Any) -> Any:
        blind = replace(world.snapshot, pods={k: p for k, p in world.snapshot.pods.items() if not p.deleting})
        return arriving(placement, replace(world, snapshot=blind), memory, now)

    patch.setattr(progress, "arriving", careless)


class _Empty(dict[str, str]):
    """Keeps nothing."""

    def __setitem__(self, key: str, value: str) -> None:
        pass


def _no_age(patch: pytest.MonkeyPatch) -> None:
    begin = placements.PlacementController.__init__

    def careless(self: Any, **more: Any) -> None:
        begin(self, **{**more, "max_age_seconds": 1e9})

    patch.setattr(placements.PlacementController, "__init__", careless)


def _no_suspend(patch: pytest.MonkeyPatch) -> None:
    step = progress.step

    def careless(placement: Any, world: Any, now: Any) -> Any:
        return step(replace(placement, spec=replace(placement.spec, suspend=False)), world, now)

    patch.setattr(placements, "step", careless)


def _asks(change: Callable[[Any, Any], tuple[Any, Any]]) -> Break:
    """The webhook judges another request, or other placements, than there are."""
    ask = placement_claims.ask

    def careless(request: Any, found: Any, *rest: Any, **more: Any) -> Any:
        return ask(*change(request, found), *rest, **more)

    return lambda patch: patch.setattr(claims, "ask", careless)


def _forgets_claims(request: Any, found: Any) -> tuple[Any, Any]:
    return request, [replace(p, status=replace(p.status, claim="")) for p in found]


OK = placement_evicting.Validation(True)

BREAKAGES: dict[str, Break] = {
    "evictions without UID and revision": _no_precondition,
    "acting on a status that is not stored": _acts_on_unstored,
    "a lost answer of a pin taken for a refusal": _forgets_unknown,
    "evictions under way use up no budget": _no_ledger_in_flight,
    "a pin whose answer is lost does not stick": _no_sticky,
    "surplus pods are not let go by the leader": _set(
        placements.PlacementController, "_let_surplus_go", lambda *_: None
    ),
    "no gate keeper": _set(gates.GateKeeper, "release_overdue", lambda self: 0),
    "deadlines are not kept": _no_deadlines,
    "replicas that have not seen it are ignored": _set(placement_evicting, "_unseen", lambda *_: None),
    "groups leave one by one": _set(placement_evicting, "group_in_the_way", lambda *_: None),
    "budgets are left to the API server": _set(placement_world.Ledger, "may_evict", lambda self, pod: OK),
    "holds do not count": _uses("view", lambda self: replace(self.snapshot, holds=())),
    "a hold in flight does not count": _no_promise_in_flight,
    "the old pod may still be there": _old_pod_ignored,
    "any number of arrivals at once": _no_arrivals,
    "HAMi's lock is not looked at": _set(placement_arrival, "lock_in_the_way", lambda *_, **__: None),
    "any owner's pod is taken": _any_owner,
    "any device will do": _set(placement_landing, "_wrong_place", lambda *_: None),
    "settled as soon as it is Ready": _settled_at_once,
    "nothing is proven again before the eviction": _set(
        placement_evicting, "proven", lambda placement, world, now: replace(OK, pod=world.old_pod(placement))
    ),
    "the place is not looked at before the pin": _set(placement_arrival, "room", lambda *_, **__: OK),
    "a stranded pod is not recycled by the janitor": _set(janitor.Janitor, "_recycle_orphans", lambda *_: 0),
    "steering stays": _set(janitor, "steer_patches", lambda *_: []),
    "a lost place is not noticed after the pin": _set(placement_landing, "_still_free", lambda *_: OK),
    "old data is good enough": _no_age,
    "suspended placements go on": _no_suspend,
    "a claim may be taken while its pod lives": _asks(_forgets_claims),
    "dry runs claim": _asks(lambda request, found: ({**request, "dryRun": False}, found)),
    "a pin is good whatever its claim": _set(placement_world, "holds_claim", lambda *_: True),
    "the old pod of a surge costs as before": _set(placement_surge, "cost_patch", lambda pod: {"metadata": {}}),
    "a surge does not wait for the other replicas": _set(World, "of_owner", lambda *_: []),
    "surges are not taken back": _set(janitor, "left_behind", lambda *_: ([], [])),
    "a count that others have set counts as ours": _uses_method("surging", lambda self, placement: True),
    "a surge evicts too": _set(placement_world.Placement, "surges", property(lambda self: False)),
    "a pod that was given other devices keeps its list": _set(placement_landing, "moved_on", lambda *_: False),
}


def noticed(seeds: int) -> str:
    """What fails; "" = nothing."""
    for case in _cases():
        try:
            case()
        except (AssertionError, KeyError, ValueError, IndexError) as error:
            return f"a case: {str(error)[:80]}"
    for seed in range(seeds):
        try:
            chaos(seed)
        except AssertionError as error:
            return f"seed {seed}: {str(error)[:80]}"
    return ""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(BREAKAGES))
def test_a_broken_rule_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BREAKAGES[name](monkeypatch)
    found = noticed(SEEDS)
    print(f"{name}: {found}")
    assert found
