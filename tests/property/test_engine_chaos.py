"""Seeded random runs of the same world as the stateful test, weighted towards moves that are under way: kills and lost
answers at every moment, and every fault of the cluster. A failing seed is a reproducible report.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.property.test_engine_stateful import NODES, Engine

FAULTS = ["lost-before", "lost-after", "conflict", "busy", "kill-before", "kill-after"]


def chaos(seed: int, steps: int = 40) -> Engine:
    """One run. Raises AssertionError with what broke."""
    rng = random.Random(seed)
    engine = Engine()
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
    roll = rng.random()
    if roll < 0.25:
        engine.place(rng.randrange(6), rng.choice(NODES), rng.randrange(2))
    elif roll < 0.3:
        engine.place_by_selector(rng.choice(NODES), rng.randrange(2), rng.randrange(4))
    elif roll < 0.45:
        mix = [*FAULTS, *["ok"] * 8]
        engine.faults(rng.randrange(2), [rng.choice(mix) for _ in range(rng.randrange(6))])
    elif roll < 0.55:
        engine.kill(rng.randrange(2))
    elif roll < 0.6:
        engine.change_of_leader()
    elif roll < 0.66:
        engine.lag(rng.randrange(2), rng.random() < 0.4)
    elif roll < 0.69:
        engine.webhook(rng.random() < 0.6)
    elif roll < 0.73:
        engine.weather(rng.choice([0.0, 0.5, 0.5, 3.0, 12.0]), rng.random() < 0.2)
    elif roll < 0.77:
        engine.workload_breaks(rng.random() < 0.2, rng.random() < 0.2)
    elif roll < 0.81:
        engine.scale(rng.randrange(3), rng.randrange(1, 4))
    elif roll < 0.84:
        engine.somebody_deletes_a_pod(rng.randrange(20))
    elif roll < 0.88:
        engine.set_budget(rng.randrange(3), rng.choice([0, 1, 1, 2]))
    elif roll < 0.91:
        engine.delete_placement(rng.randrange(5))
    elif roll < 0.94:
        engine.node_changes(rng.choice(NODES), rng.random() < 0.8, rng.random() < 0.2)
    elif roll < 0.98:
        engine.foreign_pod(rng.choice([500, 9000]))
    else:
        engine.long_time()


def outcomes(engines: list[Engine]) -> Counter[str]:
    return Counter(p.status.reason for engine in engines for p in engine.world.placements.values())


def test_chaos_sample() -> None:
    found = outcomes([chaos(seed) for seed in range(25)])
    assert found["Completed"] > 10, found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_chaos_500() -> None:
    """The runs must reach the interesting ends, or they prove nothing."""
    found = outcomes([chaos(seed) for seed in range(1000, 1500)])
    for reason in ("Completed", "Unpinned", "PodDeleted", "AllocateFailed", "PlaceStolen", "HoldTimeout"):
        assert found[reason], (reason, found)
