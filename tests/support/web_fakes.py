"""Fakes of the ports behind the web: in memory, to look at and to spoil."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from defragd.core.placement import Placement
from defragd.core.plan import ClassScore, Score
from defragd.core.run import Run
from defragd.core.snapshot import Snapshot
from defragd.ports import Beat, Outcome, Written
from defragd.web.deps import Denied, User, WriteRequest

NOW = datetime(2026, 11, 30, 23, 5, 0, tzinfo=UTC)


class Clock:
    def __init__(self, now: datetime = NOW) -> None:
        self.time, self.ticks = now, 100.0

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return self.ticks

    def advance(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)
        self.ticks += seconds


@dataclass
class Reader:
    world: Snapshot
    version_: int = 1
    synced_: bool = True
    reads: int = 0

    def synced(self) -> bool:
        return self.synced_

    def age_seconds(self) -> float:
        return 1.5

    def version(self) -> int:
        return self.version_

    def wait(self, after: int, timeout: float) -> int:
        return self.version_

    def snapshot(self) -> Snapshot:
        self.reads += 1
        return self.world


@dataclass
class Placements:
    items: list[Placement] = field(default_factory=list)

    def list(self) -> Sequence[Placement]:
        return tuple(self.items)

    def get(self, namespace: str, name: str) -> Placement | None:
        return next((p for p in self.items if p.key == f"{namespace}/{name}"), None)

    def create(self, placement: Placement) -> Written:
        raise AssertionError("the web never creates placements here")

    write_status = delete = create


@dataclass
class Runs:
    items: list[Run] = field(default_factory=list)
    answer: Written = Written(Outcome.OK)
    raises: Exception | None = None
    writes: list[tuple[str, str, str]] = field(default_factory=list)

    def list(self) -> Sequence[Run]:
        return tuple(self.items)

    def get(self, name: str) -> Run | None:
        return next((run for run in self.items if run.name == name), None)

    def create(self, run: Run) -> Written:
        raise AssertionError("the web never creates runs itself")

    write_status = delete = create

    def write_desired(self, name: str, desired: str, by: str) -> Written:
        if self.raises is not None:
            raise self.raises
        self.writes.append((name, desired, by))
        if self.answer.ok:
            self.items = [replace(r, desired=desired, desired_by=by) if r.name == name else r for r in self.items]
        return self.answer


@dataclass
class Leader:
    identity: str = "gpu-descheduler-7c9f-abcde"
    leading: bool = True

    def is_leader(self) -> bool:
        return self.leading

    def holder(self) -> str:
        return self.identity if self.leading else ""

    def others(self) -> Sequence[Beat]:
        return ()


def authorize(request: WriteRequest) -> User | Denied:
    """Bearer tokens "root" (may) and "guest" (may not)."""
    token = request.headers.get("authorization", "").removeprefix("Bearer ")
    if token == "root":
        return User("alice@example.com")
    if token == "guest":
        return Denied("Forbidden", "guest may not update defragruns", 403)
    return Denied("Unauthorized", "send a bearer token", 401)


def build_score(*, better: bool = False) -> Score:
    classes = (
        ClassScore("1 GPU", 0.31, 9 if better else 6, 15),
        ClassScore("8 GPU", 0.22, 0, 1),
        ClassScore("50% of 1 GPU", 0.18, 24 if better else 19, 30),
        ClassScore("4 GPU", 0.14, 2 if better else 1, 3),
        ClassScore("25% of 1 GPU", 0.1, 55 if better else 51, 60),
        ClassScore("8 GiB of 1 GPU", 0.05, 70, 81),
    )
    causes = {"deviceShape": 0.13, "host": 0.21, "both": 0.09, "type": 0.0}
    return Score(
        0.41 if better else 0.56,
        0.38 if better else 0.43,
        12 if better else 8,
        2 if better else 1,
        15.3,
        causes,
        classes,
    )
