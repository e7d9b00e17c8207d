"""Plug-ins: broken ones and clashing names are refused by name, the others go on."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest

from defragd.policy import registry


@dataclass(frozen=True)
class Args:
    x: int = 0


class Good:
    name = "good"
    args_type = Args

    def propose(self, scene):
        return None


@pytest.fixture
def plugins(monkeypatch):
    module = types.ModuleType("fake_plugins")
    module.good = Good()
    module.other = type("O", (Good,), {"name": "other"})()
    module.nameless = type("N", (Good,), {"name": "wrong"})()
    module.argless = type("N", (Good,), {"name": "argless", "args_type": dict})()
    module.mute = type("N", (Good,), {"name": "mute", "propose": None})()
    monkeypatch.setitem(sys.modules, "fake_plugins", module)
    boom = types.ModuleType("fake_boom")

    def missing(name):
        raise SystemExit("gone")

    boom.__getattr__ = missing
    monkeypatch.setitem(sys.modules, "fake_boom", boom)


def point(name, value):
    return EntryPoint(name, value, registry.GROUP)


def test_good_ones_are_used_and_each_bad_one_is_named(plugins):
    found, bad = registry.collect(
        [
            point("good", "fake_plugins:good"),
            point("nameless", "fake_plugins:nameless"),
            point("argless", "fake_plugins:argless"),
            point("mute", "fake_plugins:mute"),
            point("absent", "fake_plugins:absent"),
            point("no-module", "no_such_module:x"),
            point("exits", "fake_boom:x"),
        ]
    )
    assert set(found) == {"good"}
    assert [b.name for b in bad] == ["absent", "argless", "exits", "mute", "nameless", "no-module"]
    assert all(b.name in str(b) and b.detail for b in bad)


def test_a_shipped_name_cannot_be_taken(plugins):
    shipped = types.ModuleType("defragd.strategies.fake")
    shipped.STRATEGY = Good()
    sys.modules["defragd.strategies.fake"] = shipped
    try:
        found, bad = registry.collect(
            [point("good", "fake_plugins:good"), point("good", "defragd.strategies.fake:STRATEGY")]
        )
    finally:
        del sys.modules["defragd.strategies.fake"]
    assert found["good"] is shipped.STRATEGY
    assert [b.detail for b in bad] == ["the name belongs to a shipped strategy"]


def test_of_two_plugins_with_one_name_neither_is_used(plugins):
    found, bad = registry.collect(
        [point("other", "fake_plugins:other"), point("other", "fake_plugins:good"), point("good", "fake_plugins:good")]
    )
    assert set(found) == {"good"}
    assert [b.name for b in bad] == ["other", "other"]


def test_the_same_entry_point_seen_twice_is_no_clash(plugins):
    found, bad = registry.collect([point("good", "fake_plugins:good")] * 2)
    assert set(found) == {"good"} and not bad
