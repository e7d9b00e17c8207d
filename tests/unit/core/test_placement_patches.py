"""The patches of the engine: pin, release, steering, relief. What the user set stays."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from defragd.core.gating import deadline_of, overdue, release_patch
from defragd.core.placement import DEADLINE, GATE, PINNED, PLACEMENT, STEERED, Placement, PlacementSpec
from defragd.core.placement_pin import USER_UUIDS, label_value, pin_patch, unpinned
from defragd.core.placement_steering import steer_patches
from defragd.core.rules import equals
from defragd.hami.vendors import VENDORS
from tests.support.engine_world import EngineWorld, device, merge, template

NOW = datetime(2026, 1, 5, 2, 0, tzinfo=UTC)
TARGET = (device("GPU-n2-0", "n2", 0), device("GPU-n2-1", "n2", 1))
PLACE = Placement("default", "p", PlacementSpec("r", equals({"app": "a"}), "n2", ("gpu-0", "gpu-1")))


def raw(annotations: dict[str, str] | None = None, gates: tuple[str, ...] = (GATE,), **spec: Any) -> dict[str, Any]:
    made = template({"app": "a", PLACEMENT: "p"}, **spec)
    made["metadata"] |= {"name": "a-2", "namespace": "default", "uid": "u2", "resourceVersion": "7"}
    made["metadata"] |= {"creationTimestamp": "2026-01-05T01:59:30Z", "annotations": annotations or {}}
    made["spec"]["schedulingGates"] = [{"name": gate} for gate in gates]
    made["status"] = {"phase": "Pending"}
    return made


def terms_of(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]


NAME = {"key": "metadata.name", "operator": "In", "values": ["n2"]}
ZONE = {"key": "zone", "operator": "In", "values": ["a", "b"]}
ARM = {"key": "arch", "operator": "DoesNotExist"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, [{"matchFields": [NAME]}]),
        ([{"matchExpressions": [ZONE]}], [{"matchExpressions": [ZONE], "matchFields": [NAME]}]),
        (
            [{"matchExpressions": [ZONE, ARM]}, {"matchExpressions": [ARM]}],
            [
                {"matchExpressions": [ZONE, ARM], "matchFields": [NAME]},
                {"matchExpressions": [ARM], "matchFields": [NAME]},
            ],
        ),
        ([{}, {"matchExpressions": [ZONE]}], [{}, {"matchExpressions": [ZONE], "matchFields": [NAME]}]),
        ([{"matchFields": [NAME]}], [{"matchFields": [NAME]}]),
    ],
)
def test_pin_tightens_every_term(before: Any, after: Any) -> None:
    preferred = [{"weight": 1, "preference": {"matchExpressions": [ZONE]}}]
    affinity: dict[str, Any] = {"preferredDuringSchedulingIgnoredDuringExecution": preferred}
    if before:
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": before}
    pod = raw(affinity={"nodeAffinity": affinity, "podAntiAffinity": {}})
    pinned = merge(pod, pin_patch(EngineWorld.read(pod), PLACE, TARGET, VENDORS))
    assert terms_of(pinned) == after
    assert pinned["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] == preferred
    assert pinned["spec"]["affinity"]["podAntiAffinity"] == {}


def test_pin_names_the_devices_drops_the_gate_and_keeps_the_rest() -> None:
    annotations = {DEADLINE: "x", STEERED: "GPU-n2-0", "nvidia.com/nouse-gpuuuid": "GPU-bad,GPU-n2-0", "mine": "1"}
    pod = raw(annotations, gates=("kueue", GATE))
    pinned = merge(pod, pin_patch(EngineWorld.read(pod), PLACE, TARGET, VENDORS))
    assert pinned["metadata"]["annotations"] == {
        "nvidia.com/use-gpuuuid": "GPU-n2-0,GPU-n2-1",
        "nvidia.com/nouse-gpuuuid": "GPU-bad",
        PINNED: "p",
        "mine": "1",
    }
    assert pinned["spec"]["schedulingGates"] == [{"name": "kueue"}]
    assert pinned["metadata"]["labels"][PLACEMENT] == "p"


def test_a_users_device_list_is_kept_in_mind() -> None:
    pod = raw({"nvidia.com/use-gpuuuid": "GPU-n2-1,GPU-n2-0,GPU-x"})
    pinned = merge(pod, pin_patch(EngineWorld.read(pod), PLACE, TARGET, VENDORS))
    assert pinned["metadata"]["annotations"]["nvidia.com/use-gpuuuid"] == "GPU-n2-0,GPU-n2-1"
    assert pinned["metadata"]["annotations"][USER_UUIDS] == "nvidia.com/use-gpuuuid=GPU-n2-0,GPU-n2-1,GPU-x"
    plain = unpinned(EngineWorld.read(pinned))
    assert plain.selection.use_uuids == {"GPU-n2-0", "GPU-n2-1", "GPU-x"}
    assert plain.scheduling.node_terms is None


def test_release_takes_off_what_is_ours_only() -> None:
    pod = raw({DEADLINE: "x", "mine": "1"}, gates=("kueue", GATE))
    free = merge(pod, release_patch(EngineWorld.read(pod)))
    assert free["spec"]["schedulingGates"] == [{"name": "kueue"}]
    assert free["metadata"]["annotations"] == {"mine": "1"}
    assert free["metadata"]["labels"] == {"app": "a"}
    assert release_patch(EngineWorld.read(pod))["metadata"]["resourceVersion"] == "7"
    assert "resourceVersion" not in release_patch(EngineWorld.read(pod), optimistic=False)["metadata"]


@pytest.mark.parametrize(
    ("deadline", "late"),
    [
        ("2026-01-05T02:00:01Z", False),
        ("2026-01-05T02:00:00Z", True),
        ("2026-01-05T04:00:01+02:00", False),
        ("2026-01-05T02:00:01", False),  # no zone: unreadable, so the pod's age decides (30 s of 60)
        ("tomorrow", False),
        ("", False),
    ],
)
def test_deadlines(deadline: str, late: bool) -> None:
    pod = EngineWorld.read(raw({DEADLINE: deadline} if deadline else {}))
    assert overdue(pod, NOW) is late
    assert overdue(pod, NOW + timedelta(minutes=3))
    assert deadline_of(pod) is not None


def test_waiting_competitors_are_steered_and_relieved() -> None:
    held = {"GPU-n2-0": "NVIDIA"}
    waiting = raw({"nvidia.com/nouse-gpuuuid": "GPU-bad"}, gates=())
    ((_, patch),) = steer_patches([EngineWorld.read(waiting)], held, VENDORS)
    steered = merge(waiting, patch)
    assert steered["metadata"]["annotations"] == {"nvidia.com/nouse-gpuuuid": "GPU-bad,GPU-n2-0", STEERED: "GPU-n2-0"}
    assert steer_patches([EngineWorld.read(steered)], held, VENDORS) == []
    ((_, patch),) = steer_patches([EngineWorld.read(steered)], {}, VENDORS)
    assert merge(steered, patch)["metadata"]["annotations"] == {"nvidia.com/nouse-gpuuuid": "GPU-bad"}


@pytest.mark.parametrize("gates", [(GATE,), ("kueue",)])
def test_gated_pods_are_not_steered(gates: tuple[str, ...]) -> None:
    assert steer_patches([EngineWorld.read(raw(gates=gates))], {"GPU-n2-0": "NVIDIA"}, VENDORS) == []


def test_a_bound_pod_is_relieved_although_the_hold_goes_on() -> None:
    pod = raw({"nvidia.com/nouse-gpuuuid": "GPU-n2-0", STEERED: "GPU-n2-0"}, gates=())
    pod["spec"]["nodeName"] = "n1"
    ((_, patch),) = steer_patches([EngineWorld.read(pod)], {"GPU-n2-0": "NVIDIA"}, VENDORS)
    assert merge(pod, patch)["metadata"]["annotations"] == {}


def test_label_of_a_long_name_is_valid_and_unique() -> None:
    one, two = label_value("x" * 200 + "a"), label_value("x" * 200 + "b")
    assert len(one) <= 63
    assert one != two
    assert label_value("short") == "short"
