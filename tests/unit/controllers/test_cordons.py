"""HAMi's device cordon during gpu-drain (UC-57): merged, kept, restored to the letter, foreign members untouched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from defragd.controllers.cordons import Cordons
from defragd.core.plan_json import plan_to_json
from defragd.core.run import Run, RunPhase
from defragd.core.snapshot import Snapshot
from defragd.hami.cordon import MARK, change, wanted
from defragd.hami.keys import DEVICE_CORDON
from defragd.hami.vendors import VENDORS
from defragd.ports import Outcome, Written
from tests.support.plan_world import make_plan, world

U1, U2, U3 = "GPU-n1-g0", "GPU-n1-g1", "GPU-n1-g2"
DRAINED = "n1 { g0 24G: a 4G, b 4G; g1 24G: c 4G; g2 24G: - } n2 { g0 24G: d 4G }"


def drain(snapshot: Snapshot, name: str = "r1", **args: object) -> Run:
    reply = make_plan(snapshot, "gpu-drain", args or {"device": U1})
    assert reply.moves
    plan = plan_to_json(reply)
    return Run("kube-system", name, "drain", "Auto", "gpu-drain", plan=plan, phase=RunPhase.RUNNING, uid=name)


@pytest.mark.parametrize("foreign", [None, U3, f"{U3},{U2}", f" {U3} , {U2}", f"{U3},,", "GPU-elsewhere"])
def test_there_and_back_to_the_letter(foreign: str | None) -> None:
    before = {} if foreign is None else {DEVICE_CORDON: foreign}
    there = change(before, {U1: "r1"}, [])
    assert there is not None
    assert (there[DEVICE_CORDON] or "").split(",")[-1] == U1
    assert there[MARK] == f"{U1}=r1"
    now = {**before, **{key: value for key, value in there.items() if value is not None}}
    assert change(now, {U1: "r1"}, []) is None
    assert change(now, {}, [U1]) == {DEVICE_CORDON: foreign, MARK: None}


@pytest.mark.parametrize(
    ("present", "add", "drop", "after"),
    [
        pytest.param({DEVICE_CORDON: U1}, {U1: "r1"}, [], None, id="a person's own is neither marked"),
        pytest.param({DEVICE_CORDON: U1}, {}, [U1], None, id="nor taken off"),
        pytest.param(
            {DEVICE_CORDON: f"{U3},{U1},{U2}", MARK: f"{U1}=r1"}, {}, [U1],
            {DEVICE_CORDON: f"{U3},{U2}", MARK: None}, id="a person added one meanwhile",
        ),
        pytest.param(
            {DEVICE_CORDON: U3, MARK: f"{U1}=r1"}, {}, [U1], {DEVICE_CORDON: U3, MARK: None}, id="a person took it off"
        ),
        pytest.param(
            {DEVICE_CORDON: f"{U1},{U2}", MARK: f"{U1}=r1,{U2}=r2"}, {}, [U1],
            {DEVICE_CORDON: U2, MARK: f"{U2}=r2"}, id="one of two runs",
        ),
        pytest.param({MARK: "odd,,=x"}, {}, [], None, id="an odd mark"),
    ],
)  # fmt: skip
def test_changes(
    present: dict[str, str], add: dict[str, str], drop: list[str], after: dict[str, str | None] | None
) -> None:
    assert change(present, add, drop) == after


def test_only_devices_that_the_plan_empties() -> None:
    snapshot = world(DRAINED)
    run = drain(snapshot)
    assert wanted([run], snapshot) == {"n1": {U1: "r1"}}
    for other in (
        replace(run, phase=RunPhase.COMPLETED),
        replace(run, phase=RunPhase.AWAITING_APPROVAL),
        replace(run, mode="DryRun"),
        replace(run, strategy="best-fit"),
    ):
        assert wanted([other], snapshot) == {}
    stays = {**snapshot.pods, "ns/new": replace(snapshot.pods["ns/a"], name="new", uid="new")}
    assert wanted([run], replace(snapshot, pods=stays)) == {}, "somebody stays there all the same"


class Stage:
    """One leader and a cluster whose nodes keep annotations."""

    def __init__(self, snapshot: Snapshot, *runs: Run) -> None:
        self.runs, self.base = list(runs), snapshot
        self.annotations: dict[str, dict[str, str]] = {name: {} for name in snapshot.nodes}
        self.leading, self.answer = True, Outcome.OK
        self.said: list[tuple[str, Mapping[str, Any]]] = []
        self.writes, self.tick = 0, 0.0
        self.process()

    def process(self) -> None:
        """A new process: nothing is remembered."""
        self.cordons = Cordons(
            reader=self, runs=self, nodes=self, leadership=self, clock=self, vendors=VENDORS,  # type: ignore[arg-type]
            hook=lambda event, fields: self.said.append((event, fields)),
        )  # fmt: skip

    def look(self) -> Stage:
        self.tick += 5.0
        self.cordons.cycle()
        return self

    def list_of(self, node: str = "n1") -> str | None:
        return self.annotations[node].get(DEVICE_CORDON)

    # the outside
    identity = "me"

    def is_leader(self) -> bool:
        return self.leading

    def synced(self) -> bool:
        return True

    def age_seconds(self) -> float:
        return 0.0

    def now(self) -> datetime:
        return datetime(2026, 12, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return self.tick

    def list(self) -> list[Run]:
        return self.runs

    def snapshot(self) -> Snapshot:
        nodes = {}
        for name, node in self.base.nodes.items():
            closed = (self.list_of(name) or "").split(",")
            devices = tuple(replace(d, cordoned=d.uuid in closed) for d in node.devices)
            nodes[name] = replace(node, devices=devices, annotations=self.annotations[name])
        return replace(self.base, nodes=nodes)

    def annotate(self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str | None] | None]) -> Written:
        self.writes += 1
        found = change(self.annotations[name])
        if self.answer is Outcome.OK and found is not None:
            merged = {**self.annotations[name], **found}
            self.annotations[name] = {key: value for key, value in merged.items() if value is not None}
        return Written(self.answer)


def test_uc57_merged_while_it_lasts_and_exactly_as_before_afterwards() -> None:
    snapshot = world(DRAINED)
    stage = Stage(snapshot, drain(snapshot))
    stage.annotations["n1"][DEVICE_CORDON] = U3
    assert stage.look().list_of() == f"{U3},{U1}"
    stage.look()
    assert stage.writes == 1
    stage.runs = [replace(stage.runs[0], phase=RunPhase.PAUSED)]
    assert stage.look().list_of() == f"{U3},{U1}"
    stage.runs = [replace(stage.runs[0], phase=RunPhase.COMPLETED)]
    assert stage.look().look().annotations["n1"] == {DEVICE_CORDON: U3}
    assert stage.writes == 2


@pytest.mark.parametrize("ending", ["killed, the run ended", "killed, the record is gone", "aborted"])
def test_uc57_whoever_leads_next_heals(ending: str) -> None:
    snapshot = world(DRAINED)
    stage = Stage(snapshot, drain(snapshot))
    stage.annotations["n1"][DEVICE_CORDON] = U3
    stage.look()
    stage.process()
    assert stage.look().list_of() == f"{U3},{U1}", "the next process goes on"
    stage.process()
    stage.runs = [] if "gone" in ending else [replace(stage.runs[0], phase=RunPhase.ABORTED)]
    assert stage.look().annotations["n1"] == {DEVICE_CORDON: U3}


def test_conflicts_are_tried_again_and_refusals_do_not_spin() -> None:
    snapshot = world(DRAINED)
    stage = Stage(snapshot, drain(snapshot))
    stage.answer = Outcome.CONFLICT
    stage.look()
    stage.answer = Outcome.OK
    assert stage.look().list_of() == U1
    other = Stage(snapshot, drain(snapshot))
    other.answer = Outcome.REFUSED
    for _ in range(10):
        other.look()
    assert other.writes == 1


def test_followers_write_nothing() -> None:
    snapshot = world(DRAINED)
    stage = Stage(snapshot, drain(snapshot))
    stage.leading = False
    assert stage.look().writes == 0


def test_a_backend_that_ignores_the_cordon_is_said_once() -> None:
    snapshot = world(DRAINED)
    run = drain(snapshot)
    devices = tuple(replace(d, vendor="DCU") for d in snapshot.nodes["n1"].devices)
    nodes = {**snapshot.nodes, "n1": replace(snapshot.nodes["n1"], devices=devices)}
    stage = Stage(replace(snapshot, nodes=nodes), run)
    stage.look().look()
    assert stage.writes == 0
    assert [event for event, _ in stage.said] == ["cordon.ignored"]
