"""Scores of small worlds, by the definitions (the table of prepared states is in test_score_table.py)."""

from __future__ import annotations

import pytest

from defragd.core.mix import class_of, given_mix, running_mix
from defragd.core.rules import MixClass
from defragd.core.score import score
from tests.support.plan_world import world

GIB = 1024


def test_example_of_the_definition_one_pod():
    snapshot = world("n1 { g0 16G: a 9G/60c; g1 16G: - }")
    mix = given_mix([MixClass(0, 0, 1, 60, 60, 0, weight=1.0)])
    found = score(snapshot, mix=mix)
    assert found.loss == pytest.approx(0.0)
    assert found.classes[0].fits == 1
    assert found.classes[0].pooled == 1
    assert found.phi == pytest.approx(1 - 1.0 / 1.4, abs=0.005)


def test_example_of_the_definition_second_pod_on_the_other_device():
    snapshot = world("n1 { g0 16G: a 9G/60c; g1 16G: b 9G/60c }")
    found = score(snapshot, mix=given_mix([MixClass(0, 0, 1, 60, 56, 0, weight=1.0)]))
    assert (found.loss, found.phi) == (1.0, 1.0)


def test_causes_add_up_to_phi():
    snapshot = world("n1 { g0 24G: a 10G/30c; g1 24G: b 20G/10c } n2 { g0 24G: c whole; g1 24G: - }")
    found = score(snapshot)
    assert sum(found.causes.values()) == pytest.approx(found.phi)


def test_unhealthy_devices_are_neither_free_nor_fragments():
    healthy = score(world("n1 { g0 24G: a 10G; g1 24G: - }"))
    sick = score(world("n1 { g0 24G: a 10G; g1 24G unhealthy: - }"))
    assert healthy.idle_devices == 1
    assert sick.idle_devices == 0
    assert sick.idle_gpus < healthy.idle_gpus


def test_a_class_that_never_fits_adds_nothing():
    snapshot = world("n1 { g0 24G: a 10G }")
    mix = given_mix([MixClass(0, 0, 4, 100, 100, 0, weight=0.5), MixClass(0, 0, 1, 0, 0, 10 * GIB, weight=0.5)])
    found = score(snapshot, mix=mix)
    assert found.classes[0].pooled == 0
    assert found.loss == 0.0


def test_running_mix_weighs_by_demand_and_cuts_at_95_percent():
    snapshot = world("n1 { g0 24G: a whole; g1 24G: b whole; g2 24G: c 1G/1c }")
    mix = running_mix(snapshot)
    assert [key.cores for key, _ in mix.classes] == [100]
    assert mix.classes[0][1] == 1.0


def test_class_of_several_containers_adds_devices():
    pod = next(iter(world("n1 { g0 24G: a 10G/30c }").pods.values()))
    key = class_of(pod)
    assert key is not None
    assert (key.gpus, key.cores, key.memory_mib) == (1, 30, 10 * GIB)
