"""Seeded random runs of the same world as the stateful test, weighted towards moves that are under way: kills and lost
answers at every moment, and every fault of the cluster. A failing seed is a reproducible report.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from tests.property.test_engine_stateful import NODES, Engine, PinEngine
from tests.support.effort import amount

MIX = ["lost-before", "lost-after", "conflict", "busy", "kill-before", "kill-after", *["ok"] * 6]
"""Answers to the daemon's next writes."""
SLOW = [0.0, 0.0, 0.1, 0.3, 1.0, 3.0, 15.0]
"""Seconds for which they hang."""


def chaos(seed: int, steps: int = 40, kind: type[Engine] = Engine) -> Engine:
    """One run. Raises AssertionError with what broke."""
    rng = random.Random(seed)
    engine = kind()
    engine.begin([rng.choice(["ReplicaSet", "ReplicaSet", "StatefulSet"]) for _ in range(3)])
    for _ in range(steps):
        _act(engine, rng)
        engine.time(rng.choice([1, 1, 2, 3, 6, 10]))
        engine.one_placement_pins_one_pod()
        engine.nothing_is_broken()
        engine.overdue_gates_go()
    engine.teardown()
    return engine


def _act(engine: Engine, rng: random.Random) -> None:
    actions: list[tuple[float, Callable[[], object]]] = [
        (16, lambda: engine.place(rng.randrange(6), rng.choice(NODES), rng.randrange(2))),
        (8, lambda: engine.place(rng.randrange(6), rng.choice(NODES), rng.randrange(2), surge=True)),
        (5, lambda: engine.place_by_selector(rng.choice(NODES), rng.randrange(2), rng.randrange(4))),
        (16, lambda: engine.faults(rng.randrange(2), [rng.choice(MIX) for _ in range(rng.randrange(8))])),
        (12, lambda: engine.slow_calls(rng.randrange(2), [rng.choice(SLOW) for _ in range(rng.randrange(8))])),
        (9, lambda: engine.kill(rng.randrange(2))),
        (5, engine.change_of_leader),
        (3, lambda: engine.no_leader(rng.random() < 0.5)),
        (10, lambda: engine.lag(rng.randrange(2), rng.random() < 0.5)),
        (3, lambda: engine.webhook(rng.random() < 0.6)),
        (4, lambda: engine.weather(rng.choice([0.0, 0.5, 0.5, 3.0, 12.0]), rng.random() < 0.2)),
        (2, lambda: engine.scheduler(rng.random() < 0.5)),
        (2, lambda: engine.workload_breaks(rng.random() < 0.2, rng.random() < 0.2)),
        (4, lambda: engine.scale(rng.randrange(3), rng.randrange(1, 4))),
        (3, lambda: engine.somebody_deletes_a_pod(rng.randrange(20))),
        (4, lambda: engine.set_budget(rng.randrange(3), rng.choice([0, 1, 1, 2]))),
        (3, lambda: engine.delete_placement(rng.randrange(5))),
        (3, lambda: engine.node_changes(rng.choice(NODES), rng.random() < 0.8, rng.random() < 0.2)),
        (2, lambda: engine.foreign_pod(rng.choice([500, 9000]))),
        (3, lambda: engine.thief(rng.randrange(4))),
        (3, lambda: engine.creations_are_refused(rng.randrange(6))),
        (2, engine.long_time),
    ]
    rng.choices([act for _, act in actions], [weight for weight, _ in actions])[0]()


def outcomes(engines: list[Engine]) -> Counter[str]:
    return Counter(p.status.reason for engine in engines for p in engine.world.placements.values())


def test_chaos_sample() -> None:
    found = outcomes([chaos(seed) for seed in range(12)])
    assert found["Completed"] > 5, found


def test_chaos_sample_without_gates() -> None:
    found = outcomes([chaos(seed, kind=PinEngine) for seed in range(4)])
    assert found["Completed"] > 2, found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_chaos_of_many_seeds() -> None:
    """The runs must reach the interesting ends, or they prove nothing."""
    found = outcomes([chaos(seed) for seed in range(1000, 1000 + amount(500, 120))])
    for reason in ("Completed", "Unpinned", "PodDeleted", "AllocateFailed", "PlaceStolen", "HoldTimeout"):
        assert found[reason], (reason, found)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_chaos_without_gates() -> None:
    found = outcomes([chaos(seed, kind=PinEngine) for seed in range(5000, 5000 + amount(450, 30))])
    for reason in ("Completed", "Unpinned", "PodDeleted", "HoldTimeout"):
        assert found[reason], (reason, found)
