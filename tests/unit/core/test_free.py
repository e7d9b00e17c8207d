"""What costs nothing: which replica should go first, and which setting scatters whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from defragd.controllers.free import hint_patch
from defragd.core.free import DELETION_COST, OURS, deletion_costs, scatter_hints
from defragd.core.model import Selection
from defragd.core.snapshot import Snapshot
from tests.support.plan_world import make_plan, world


@pytest.mark.parametrize(
    ("text", "costs"),
    [
        pytest.param("n1 { g0 24G: w1@W 8G; g1 24G: w2@W 8G, x 8G }", {"w1": -100}, id="frees a device"),
        pytest.param(
            "n1 { g0 24G: w1@W 8G } n2 { g0 24G: w2@W 8G; g1 24G: x 8G }", {"w1": -300, "w2": -100}, id="frees a node"
        ),
        pytest.param("n1 { g0 24G: w1@W 8G, y 4G; g1 24G: w2@W 8G, x 8G }", {}, id="parts only"),
        pytest.param("n1 { g0 24G: w1@W 8G; g1 24G: w2@W 8G }", {}, id="all alike"),
        pytest.param("n1 { g0 24G: w1 8G; g1 24G: x 8G, y 4G }", {}, id="one replica each"),
    ],
)
def test_deletion_costs(text: str, costs: dict[str, int]) -> None:
    assert deletion_costs(world(text)) == {f"ns/{pod}": cost for pod, cost in costs.items()}


def test_other_controllers_do_not_read_the_annotation() -> None:
    snapshot = world("n1 { g0 24G: w1@W 8G; g1 24G: w2@W 8G, x 8G }")
    pods = {
        key: replace(pod, owner=replace(pod.owner, kind="StatefulSet"))
        for key, pod in snapshot.pods.items()
        if pod.owner is not None
    }
    assert deletion_costs(replace(snapshot, pods=pods)) == {}


POD = world("n1 { g0 24G: a 8G }").pods["ns/a"]


@pytest.mark.parametrize(
    ("annotations", "cost", "written"),
    [
        pytest.param({}, None, None, id="nothing to say"),
        pytest.param({}, -100, "-100", id="new"),
        pytest.param({DELETION_COST: "-100", OURS: "-100"}, -100, None, id="up to date"),
        pytest.param({DELETION_COST: "-100", OURS: "-100"}, -300, "-300", id="changed"),
        pytest.param({DELETION_COST: "-100", OURS: "-100"}, None, "gone", id="taken off"),
        pytest.param({DELETION_COST: "7"}, -100, None, id="somebody else's"),
        pytest.param({DELETION_COST: "7", OURS: "-100"}, -100, None, id="changed by somebody else"),
        pytest.param({DELETION_COST: "7", OURS: "-100"}, None, None, id="never taken off theirs"),
    ],
)
def test_costs_of_others_are_left_alone(annotations: dict[str, str], cost: int | None, written: str | None) -> None:
    patch = hint_patch(replace(POD, annotations=annotations), cost)
    if written is None:
        assert patch is None
    else:
        value = None if written == "gone" else written
        assert patch == {"metadata": {"uid": "uid-a", "annotations": {DELETION_COST: value, OURS: value}}}


def spreading(snapshot: Snapshot, *names: str) -> Snapshot:
    wish = Selection(device_policy="spread")
    return snapshot.with_pods({f"ns/{n}": replace(snapshot.pods[f"ns/{n}"], selection=wish) for n in names})


def test_owners_are_told_which_setting_scatters() -> None:
    snapshot = world("n1 { g0 24G: w1@W 8G; g1 24G: w2@W 8G; g2 24G: w3@W 8G; g3 24G: x 8G }")
    (hint,) = scatter_hints(spreading(snapshot, "w1", "w2", "w3", "x"))
    assert hint == ("ReplicaSet/ns/W: hami.io/gpu-scheduler-policy: spread scatters 3 pods over 3 devices, 1 would do")
    assert scatter_hints(snapshot) == ()
    assert hint in make_plan(spreading(snapshot, "w1", "w2", "w3")).notes
