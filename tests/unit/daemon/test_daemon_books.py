"""The loop of the cross-check: what it doubts, what it says, and that troubles harm nothing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from defragd.core.model import Allocation, Device, Node, Pod
from defragd.core.snapshot import Snapshot
from defragd.daemon.books import BookLoop
from defragd.errors import ClusterError
from defragd.hami.scheduler_books import Entry, Page, Place

POD = Pod(
    "a", "x", "x", node="n1", booked_node="n1", phase="Running", allocations=(Allocation(0, "g0", 1000, 10, "NVIDIA"),)
)
GOOD, LEAK, EMPTY = (
    Page({("n1", "g0"): Entry(24576, 100, 1, 1000, 10)}),
    Page({("n1", "g0"): Entry(24576, 100, 2, 5000, 20)}),
    Page({}),
)
DOWN = ClusterError("http://hami:9395/metrics: refused")


class Stage:
    """A daemon's outside: `page` is what HAMi shows; every look is 15 s after the last."""

    def __init__(self) -> None:
        self.time = datetime(2026, 12, 1, tzinfo=UTC)
        self.page: Page | ClusterError = GOOD
        self.doubts: Mapping[Place, str] = {}
        self.said: list[str] = []
        self.is_synced = True
        self.loop = BookLoop(
            read=self.read, reader=self, doubt=self.doubt, clock=self, hook=self.hook,  # type: ignore[arg-type]
            every=timedelta(seconds=15), grace=timedelta(seconds=60),
        )  # fmt: skip

    def read(self) -> Page:
        if isinstance(self.page, ClusterError):
            raise self.page
        return self.page

    def synced(self) -> bool:
        return self.is_synced

    def snapshot(self) -> Snapshot:
        device = Device("g0", "n1", "NVIDIA", "NVIDIA A10", slots=10, memory_mib=24576, cores=100)
        return Snapshot(nodes={"n1": Node("n1", devices=(device,))}, pods={POD.key: POD})

    def doubt(self, doubts: Mapping[Place, str]) -> None:
        self.doubts = doubts

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return self.time.timestamp()

    def hook(self, event: str, fields: Mapping[str, Any]) -> None:
        self.said.append(event)

    def look(self, times: int = 1) -> Stage:
        for _ in range(times):
            self.loop.cycle()
            self.time += timedelta(seconds=15)
        return self


def test_doubts_and_trusts_again() -> None:
    stage = Stage().look(2)
    assert (stage.doubts, stage.said, stage.loop.up) == ({}, ["hami_metrics.read"], True)
    stage.page = LEAK
    stage.look(10)
    assert set(stage.doubts) == {("n1", "g0")}
    stage.page = GOOD
    stage.look(3)
    assert not stage.doubts
    assert stage.said == ["hami_metrics.read", "books.differ", "books.agree"]


def test_trouble_is_said_once_and_doubts_outlive_it_for_a_while() -> None:
    stage = Stage()
    stage.page = LEAK
    stage.look(6)
    stage.page = DOWN
    stage.look(10)
    assert stage.doubts
    assert stage.loop.up is False
    assert stage.said == ["hami_metrics.read", "books.differ", "hami_metrics.trouble"]
    stage.look(40)
    assert not stage.doubts
    stage.page = GOOD
    stage.look(2)
    assert stage.loop.up is True
    assert stage.said[3:] == ["books.agree", "hami_metrics.read"]


def test_an_empty_page_is_trouble_too() -> None:
    stage = Stage()
    stage.page = EMPTY
    stage.look(3)
    assert (stage.doubts, stage.said, stage.loop.up) == ({}, ["hami_metrics.trouble"], False)


def test_nothing_before_the_caches_are_filled() -> None:
    stage = Stage()
    stage.is_synced = False
    stage.page = LEAK
    stage.look(10)
    assert (stage.doubts, stage.said, stage.loop.up) == ({}, [], None)
