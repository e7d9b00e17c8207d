"""HAMi's own metrics against the pods' annotations: agreement, lag, and every known way in which they part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from defragd.core.model import Allocation, Device, Node, Pod
from defragd.core.snapshot import Snapshot
from defragd.hami.scheduler_books import BookCheck, Entry, Page, Place, doubted
from tests.support.plan_world import make_plan
from tests.support.plan_world import world as plan_world

NOW = datetime(2026, 12, 1, 3, tzinfo=UTC)


def device(uuid: str, node: str = "n1", **changes: object) -> Device:
    made = Device(uuid, node, "NVIDIA", "NVIDIA A10", index=int(uuid[-1]), slots=10, memory_mib=24576, cores=100)
    return replace(made, **changes)  # type: ignore[arg-type]


def pod(name: str, uuid: str, memory: int, cores: int = 10, **changes: object) -> Pod:
    made = Pod(
        "a", name, name, node="n1", booked_node="n1", phase="Running",
        allocations=(Allocation(0, uuid, memory, cores, "NVIDIA"),),
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def world(*pods: Pod, devices: tuple[Device, ...] = (device("g0"), device("g1"))) -> Snapshot:
    return Snapshot(nodes={"n1": Node("n1", devices=devices)}, pods={p.key: p for p in pods})


def entry(slots: int = 0, memory: int = 0, cores: int = 0, **changes: object) -> Entry:
    return replace(Entry(24576, 100, slots, memory, cores), **changes)  # type: ignore[arg-type]


def page(first: Entry | None, second: Entry | None = None, **pods: Mapping[str, int]) -> Page:
    """What HAMi says of n1's two devices; g1 is idle unless ``second`` is given. Keyword: device -> its pods."""
    entries: dict[Place, Entry] = {("n1", "g1"): second or entry()}
    if first is not None:
        entries["n1", "g0"] = first
    return Page(entries, lambda place: pods.get(place[1], {}))


def once(snapshot: Snapshot, said: Page) -> dict[Place, str]:
    return BookCheck(grace=timedelta(0)).look(snapshot, said, NOW)


A, B = pod("a", "g0", 10000), pod("b", "g0", 4000, 5)
SHARED = replace(
    A,
    allocations=(Allocation(0, "g0", 10000, 10, "NVIDIA", init=True), Allocation(1, "g0", 4000, 5, "NVIDIA")),
    init_done=True,
)


@pytest.mark.parametrize(
    ("pods", "said"),
    [
        pytest.param([A, B], entry(2, 14000, 15), id="the same"),
        pytest.param([], entry(), id="idle"),
        pytest.param([A], Entry(24576, None, 1, 10000, None), id="no cores shown"),
        pytest.param([A], entry(1, 10000, 77, core_limit=304), id="cores in another unit"),
        pytest.param([SHARED], entry(1, 4000, 5), id="init containers have ended"),
        pytest.param([SHARED], entry(1, 10000, 10), id="HAMi has not let go of the init containers yet"),
        pytest.param([replace(A, phase="Succeeded")], entry(), id="ended pods do not count"),
        pytest.param([replace(A, node="")], entry(1, 10000, 10), id="waiting pods with annotations count"),
        pytest.param([replace(A, deleting=True)], entry(1, 10000, 10), id="ending pods count"),
    ],
)
def test_agreement(pods: list[Pod], said: Entry) -> None:
    assert once(world(*pods), page(said)) == {}


@pytest.mark.parametrize(
    ("pods", "said", "words"),
    [
        pytest.param([], page(entry(1, 10000, 10)), ("missed a deletion", "restart"), id="UC-21: a deletion missed"),
        pytest.param(
            [B], page(entry(2, 14000, 15), g0={"a/b": 4000, "a/gone": 10000}),
            ("a/gone (10000 MiB)", "no longer exist", "14000 MiB", "4000 MiB"), id="UC-21: the pod is named",
        ),
        pytest.param([B], page(entry(2, 14000, 15)), ("still counts pods that are gone",), id="leak beside a pod"),
        pytest.param(
            [A, replace(B, deleting=True)], page(entry(1, 10000, 10)), ("a/b", "still ending", "only seems free"),
            id="forgot an ending pod at its restart",
        ),
        pytest.param(
            [A, replace(B, node="", phase="Pending")], page(entry(1, 10000, 10), g0={"a/a": 10000}),
            ("dropped the booking of a/b", "next event"), id="phantom",
        ),
        pytest.param([A, B], page(entry(1, 10000, 10)), ("does not count a/b",), id="a pod not counted"),
        pytest.param([A], page(entry(1, 9000, 10)), ("9000 MiB", "10000 MiB"), id="another amount"),
        pytest.param([], page(None), ("does not know it",), id="unknown to HAMi"),
        pytest.param([], page(entry(memory_limit_mib=12288)), ("12288", "24576"), id="another register"),
    ],
)  # fmt: skip
def test_disagreement(pods: list[Pod], said: Page, words: tuple[str, ...]) -> None:
    (place, why), = once(world(*pods), said).items()  # fmt: skip
    assert place == ("n1", "g0")
    assert all(word in why for word in words), why


def test_a_device_that_hami_has_on_another_node() -> None:
    said = Page({("n2", "g0"): entry(), ("n1", "g1"): entry()})
    assert "on node n2" in once(world(), said)["n1", "g0"]


@pytest.mark.parametrize(
    ("snapshot", "said"),
    [
        pytest.param(world(A), Page({}), id="an empty page"),
        pytest.param(world(devices=(device("g0", mode="mig"), device("g1"))), page(entry(3)), id="MIG"),
        pytest.param(world(devices=(device("g0", registered=False), device("g1"))), page(None), id="no plug-in"),
        pytest.param(world(devices=(device("g0", vendor="DCU"), device("g1"))), page(None), id="vendor not shown"),
    ],
)
def test_what_says_nothing(snapshot: Snapshot, said: Page) -> None:
    assert once(snapshot, said) == {}


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_a_lag_is_no_disagreement() -> None:
    check = BookCheck()
    for second, ours, theirs in (
        (0, [A, B], entry(2, 14000, 15)),
        (15, [A], entry(2, 14000, 15)),  # b has just gone; HAMi's figures are of before
        (30, [A], entry(2, 14000, 15)),
        (45, [A], entry(1, 10000, 10)),
        (60, [A, B], entry(1, 10000, 10)),
        (75, [A, B], entry(2, 14000, 15)),
        (300, [A, B], entry(2, 14000, 15)),
    ):
        assert check.look(world(*ours), page(theirs), at(second)) == {}, second


def test_doubted_after_the_grace_and_trusted_again_at_once() -> None:
    check = BookCheck()
    leak = page(entry(2, 14000, 15))
    looks = [(second, bool(check.look(world(A), leak, at(second)))) for second in range(0, 121, 15)]
    assert looks == [(second, second >= 60) for second in range(0, 121, 15)]
    assert not check.look(world(A), page(entry(1, 10000, 10)), at(135))
    assert not check.look(world(A), leak, at(150)), "the grace begins anew"


def test_a_busy_device_is_compared_too() -> None:
    """Our figures change at every look; HAMi's, always one more than any of them, is no lag."""
    check = BookCheck()
    found = {}
    for look in range(10):
        ours = [A, B] if look % 2 else [A]
        found = check.look(world(*ours), page(entry(3, 20000, 20)), at(15 * look))
    assert set(found) == {("n1", "g0")}


def test_doubted_devices_are_neither_source_nor_target_and_are_named() -> None:
    snapshot = world(A)
    doubts = once(snapshot, page(entry(2, 14000, 15)))
    seen = doubted(snapshot, doubts)
    assert [bool(d.distrusted) for d in seen.nodes["n1"].devices] == [True, False]
    assert [d.usable for d in seen.nodes["n1"].devices] == [False, True]
    assert [(p.object, p.reason) for p in seen.problems] == [("Device/g0", "BooksDiffer")]
    assert doubted(snapshot, {}) is snapshot
    assert doubted(snapshot, {("elsewhere", "g9"): "why"}).nodes == snapshot.nodes


@pytest.mark.parametrize(
    ("strategy", "args"),
    [
        ("best-fit", {}),
        ("gpu-drain", {"count": 1}),
        ("gpu-drain", {"device": "GPU-n1-g0"}),
        ("node-drain", {"node": "n1"}),
        ("make-room", {"shape": {"gpus": 1, "memMiB": 20000, "cores": 0, "count": 1}}),
    ],
)
def test_uc21_no_strategy_moves_anything_from_or_to_it(strategy: str, args: dict[str, object]) -> None:
    snapshot = plan_world("n1 { g0 24G: a 10G; g1 24G: b 10G } n2 { g0 24G: c 10G; g1 24G: d 4G }")
    said = Page({("n1", "GPU-n1-g0"): Entry(24576, 100, 2, 20480, 0)})
    doubts = once(snapshot, said)
    reply = make_plan(
        doubted(snapshot, {place: why for place, why in doubts.items() if "GPU-n1-g0" in place}), strategy, args
    )
    touched = {uuid for move in reply.moves for uuid in (*move.source.devices, *move.target.devices)}
    assert "GPU-n1-g0" not in touched
    assert ("ns/a", "DeviceDistrusted") in {(item.object, str(item.reason)) for item in reply.refused}
