"""The webhook's answer as a table: who is gated, who is steered, and what is left alone."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from defragd.core.admission import admit
from defragd.core.model import Allocation
from defragd.core.placement import DEADLINE, GATE, PLACEMENT, STEERED, Placement, PlacementSpec, PlacementStatus, Step
from defragd.core.rules import equals
from defragd.hami.vendors import VENDORS

NOW = datetime(2026, 1, 5, 2, 0, tzinfo=UTC)
HELD = (Allocation(0, "GPU-t", 100, 0),)
EVICTS = Placement(
    "default",
    "p",
    PlacementSpec("r", equals({"app": "web"}), "n2", ("gpu-0",), evict_pod="web-1"),
    PlacementStatus(step=Step.EVICTING, owner_uid="rs-1", evicted_uid="old", grace_seconds=45, hold=HELD),
)
SELECTS = Placement(
    "default", "s", PlacementSpec("r2", equals({"app": "job"}), "n2", ("gpu-0",)), PlacementStatus(step=Step.HELD)
)


def request(**changes: Any) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "generateName": "web-",
        "labels": {"app": changes.pop("app", "web")},
        "ownerReferences": [
            {"kind": changes.pop("kind", "ReplicaSet"), "uid": changes.pop("owner", "rs-1"), "controller": True}
        ],
    }
    meta |= changes.pop("meta", {})
    spec = {"schedulerName": "hami-scheduler", "containers": []} | changes.pop("spec", {})
    return {"operation": "CREATE", "namespace": "default", "object": {"metadata": meta, "spec": spec}} | changes


def apply(document: dict[str, Any], ops: list[dict[str, Any]]) -> dict[str, Any]:
    out = copy.deepcopy(document)
    for op in ops:
        *path, last = [part.replace("~1", "/").replace("~0", "~") for part in op["path"].split("/")[1:]]
        place = out
        for part in path:
            place = place[part]
        place[last] = op["value"]
    return out


def decide(req: dict[str, Any], *placements: Placement, **more: Any) -> dict[str, Any]:
    """The pod as admitted; checks that a second pass changes nothing."""
    ops = admit(req, placements, now=NOW, vendors=VENDORS, **more)
    pod = apply(req["object"], ops)
    assert admit({**req, "object": pod}, placements, now=NOW, vendors=VENDORS, **more) == []
    return pod


def gates(pod: dict[str, Any]) -> list[str]:
    return [gate["name"] for gate in pod["spec"].get("schedulingGates") or []]


def test_replacement_gets_gate_deadline_and_label_and_nothing_else() -> None:
    req = request()
    pod = decide(req, EVICTS)
    assert gates(pod) == [GATE]
    assert pod["metadata"]["annotations"] == {DEADLINE: "2026-01-05T02:01:45.000Z"}  # 45 s grace + 60 s
    assert pod["metadata"]["labels"] == {"app": "web", PLACEMENT: "p"}
    assert pod["spec"] == req["object"]["spec"] | {"schedulingGates": [{"name": GATE}]}


def test_selected_pod_is_let_go_after_half_a_minute() -> None:
    pod = decide(request(app="job", owner="else"), SELECTS)
    assert gates(pod) == [GATE]
    assert pod["metadata"]["annotations"][DEADLINE] == "2026-01-05T02:00:30.000Z"


@pytest.mark.parametrize(
    "spec", [{"schedulingGates": None}, {"schedulingGates": []}, {"schedulingGates": [{"name": "kueue"}]}]
)
@pytest.mark.parametrize(
    "meta", [{"annotations": None}, {"annotations": {}}, {"annotations": {"a/b~c": "x"}}, {"labels": None}]
)
def test_merges_with_what_is_there(spec: dict[str, Any], meta: dict[str, Any]) -> None:
    pod = decide(request(spec=spec, meta=meta), EVICTS)
    assert gates(pod) == [*(g["name"] for g in spec["schedulingGates"] or []), GATE]
    assert pod["metadata"]["annotations"].items() >= (meta.get("annotations") or {}).items()


STATEFUL = replace(EVICTS, spec=replace(EVICTS.spec, evict_pod="db-1"))


@pytest.mark.parametrize(
    ("req", "placement"),
    [
        pytest.param(request(owner="rs-2"), EVICTS, id="other owner"),
        pytest.param(request(namespace="other"), EVICTS, id="other namespace"),
        pytest.param(request(operation="UPDATE"), EVICTS, id="update"),
        pytest.param(request(subResource="ephemeralcontainers"), EVICTS, id="sub-resource"),
        pytest.param(request(spec={"nodeName": "n1"}), EVICTS, id="placed already"),
        pytest.param(request(kind="StatefulSet", meta={"name": "db-0"}), STATEFUL, id="other ordinal"),
        pytest.param(request(), replace(EVICTS, status=replace(EVICTS.status, step=Step.HELD)), id="not evicting yet"),
        pytest.param(request(), replace(EVICTS, status=replace(EVICTS.status, step=Step.PINNED)), id="has its pod"),
        pytest.param(request(), replace(EVICTS, status=replace(EVICTS.status, step=Step.ENDED)), id="ended"),
        pytest.param(request(), replace(EVICTS, deleting=True), id="being deleted"),
        pytest.param(request(app="job", spec={"schedulerName": "default-scheduler"}), SELECTS, id="not HAMi's"),
        pytest.param(request(app="x", owner="y"), SELECTS, id="not selected"),
        pytest.param({"operation": "CREATE"}, EVICTS, id="no object"),
        pytest.param({"operation": "CREATE", "object": {"metadata": None, "spec": None}}, EVICTS, id="empty object"),
        pytest.param(request(meta={"ownerReferences": None}), EVICTS, id="no owner"),
    ],
)
def test_is_not_gated(req: dict[str, Any], placement: Placement) -> None:
    pod = apply(req.get("object") or {}, admit(req, [placement], now=NOW, vendors=VENDORS))
    assert not gates(pod) if pod.get("spec") else pod.get("spec") is None


def test_stateful_pod_is_gated_under_its_name() -> None:
    assert gates(decide(request(kind="StatefulSet", meta={"name": "db-1"}), STATEFUL)) == [GATE]


def test_replacement_is_gated_while_hamis_webhook_is_down() -> None:
    assert gates(decide(request(spec={"schedulerName": "default-scheduler"}), EVICTS)) == [GATE]


def test_pin_mode_gates_nothing() -> None:
    assert gates(decide(request(), EVICTS, mode="pin")) == []


def test_other_pods_are_steered_off_held_devices() -> None:
    pod = decide(request(owner="else", meta={"annotations": {"nvidia.com/nouse-gpuuuid": "GPU-mine"}}), EVICTS)
    assert pod["metadata"]["annotations"] == {"nvidia.com/nouse-gpuuuid": "GPU-mine,GPU-t", STEERED: "GPU-t"}


def test_a_users_own_exclusion_is_not_recorded_as_ours() -> None:
    pod = decide(request(owner="else", meta={"annotations": {"nvidia.com/nouse-gpuuuid": "GPU-t"}}), EVICTS)
    assert pod["metadata"]["annotations"] == {"nvidia.com/nouse-gpuuuid": "GPU-t"}


def test_pods_without_devices_are_left_alone() -> None:
    req = request(owner="else", spec={"schedulerName": "default-scheduler"})
    assert admit(req, [EVICTS], now=NOW, vendors=VENDORS) == []
