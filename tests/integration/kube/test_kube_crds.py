"""Our two kinds on a real API server: bad input is refused with a sentence that helps, good input is kept whole."""

from __future__ import annotations

import json
import ssl
import urllib.request
from typing import Any

import pytest

from tests.ground import objects
from tests.ground.api import MERGE
from tests.ground.cluster import Cluster

pytestmark = pytest.mark.controlplane

HPP = "/apis/scheduling.hami.placement.com/v1/namespaces/default/hamipodplacements"
DFR = "/apis/scheduling.hami.placement.com/v1/namespaces/default/defragruns"


def placement(name: str = "p", **spec: Any) -> dict[str, Any]:
    return objects.placement(name, "n1", ["gpu-0"], {"app": "x"}, **spec)


def without(field: str) -> dict[str, Any]:
    body = placement()
    del body["spec"][field]
    return body


SPAN = "not a time span; write it like"
REFUSED = {
    "no reqID": (without("reqID"), "spec.reqID: Required value"),
    "no selector": (without("podSelector"), "spec.podSelector: Required value"),
    "no node": (without("nodeName"), "spec.nodeName: Required value"),
    "no devices": (without("gpuDevices"), "spec.gpuDevices: Required value"),
    "empty reqID": (placement(reqID=""), "spec.reqID"),
    "odd reqID": (placement(reqID="a/b"), 'reqID may contain only letters, digits, ".", "_" and "-"'),
    "long reqID": (placement(reqID="x" * 129), "spec.reqID"),
    "empty selector": (placement(podSelector={}), "an empty podSelector would catch any pod"),
    "empty labels": (placement(podSelector={"matchLabels": {}}), "an empty podSelector would catch any pod"),
    "In without values": (
        placement(podSelector={"matchExpressions": [{"key": "a", "operator": "In"}]}),
        "In and NotIn need values",
    ),
    "Exists with values": (
        placement(podSelector={"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}),
        "Exists and DoesNotExist take none",
    ),
    "odd operator": (
        placement(podSelector={"matchExpressions": [{"key": "a", "operator": "Near"}]}),
        'supported values: "In", "NotIn", "Exists", "DoesNotExist"',
    ),
    "odd node": (placement(nodeName="Node_1"), "nodeName is not a node name"),
    "empty node": (placement(nodeName=""), "spec.nodeName"),
    "empty device list": (placement(gpuDevices=[]), "spec.gpuDevices"),
    "one device twice": (placement(gpuDevices=["gpu-0", "gpu-1", "gpu-0"]), "each device only once"),
    "device by number": (placement(gpuDevices=["gpu-x"]), "write gpu-<index on the node>, such as gpu-0"),
    "device with leading zero": (placement(gpuDevices=["gpu-01"]), "write gpu-<index on the node>"),
    "two devices in one": (placement(gpuDevices=["GPU-a,GPU-b"]), "write gpu-<index on the node>"),
    "blank device": (placement(gpuDevices=["GPU a"]), "write gpu-<index on the node>"),
    "65 devices": (placement(gpuDevices=[f"gpu-{n}" for n in range(65)]), "spec.gpuDevices"),
    "empty evictPod": (placement(evictPod=""), "leave the field out to pin the next pod"),
    "odd evictPod": (placement(evictPod="ns/pod"), "evictPod is not a pod name"),
    "uid alone": (placement(evictPodUID="abc"), "needs evictPod beside it"),
    "odd span": (placement(settle="soon"), SPAN),
    "span in days": (placement(ttl="1d"), SPAN),
    "negative span": (placement(ttl="-1m"), SPAN),
    "span as a number": (placement(settle=60), "must be of type string"),
    "no time to hold": (placement(timeouts={"hold": "0s"}), SPAN),
    "too long": (placement(timeouts={"pod": "9000h"}), SPAN),
    "group alone": (placement(group="g"), "group and groupSize belong together"),
    "size alone": (placement(groupSize=2), "group and groupSize belong together"),
    "empty group": (placement(group="", groupSize=2), "group may contain only"),
    "odd handover": (placement(handover="Teleport"), "spec.handover"),
    "long name": (placement("x" * 64), "at most 63 characters"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_placements_are_refused_with_a_sentence(cluster: Cluster, case: str) -> None:
    body, words = REFUSED[case]
    status, answer = cluster.api.request("POST", HPP + "?fieldValidation=Strict", body)
    assert status == 422, answer
    assert words in answer["message"]


def test_unknown_fields_are_refused_by_a_strict_client(cluster: Cluster) -> None:
    status, answer = cluster.api.request("POST", HPP + "?fieldValidation=Strict", placement(gpuDevice=["gpu-0"]))
    assert status == 400 and 'unknown field "spec.gpuDevice"' in answer["message"]


FULL = placement(
    "full",
    evict="x-6cd5964877-zdb5z",
    evictPodUID="1f9a7c4e-0000-4000-8000-000000000000",
    gpuDevices=["gpu-0", "GPU-6f3c1d5e-0a51-4d5c-9c3a-2f1e8f2b7a10", "Ascend910B4-0", "gpu-115"],
    podSelector={
        "matchLabels": {"app": "x"},
        "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["a", "b"]},
            {"key": "k", "operator": "Exists"},
        ],
    },
    timeouts={"hold": "90s", "evict": "1h30m", "start": "5m", "pod": "250ms"},
    settle="0s",
    ttl="24h",
    suspend=True,
    group="cycle-1",
    groupSize=2,
    handover="EvictFirst",
)


def test_good_placements_are_kept_whole(cluster: Cluster) -> None:
    for body in (placement("plain"), FULL):
        made = cluster.api.create(HPP, body)
        assert made["spec"] == body["spec"]


CHANGES: dict[str, dict[str, Any]] = {
    "reqID": {"reqID": "other"},
    "nodeName": {"nodeName": "n2"},
    "gpuDevices": {"gpuDevices": ["gpu-1"]},
    "podSelector": {"podSelector": {"matchLabels": {"app": "y"}}},
    "evictPod": {"evictPod": "other"},
    "evictPod away": {"evictPod": None, "evictPodUID": None},
    "evictPodUID": {"evictPodUID": "other"},
    "timeouts": {"timeouts": {"hold": "3m"}},
    "timeouts away": {"timeouts": None},
    "settle": {"settle": "1s"},
    "ttl away": {"ttl": None},
    "groupSize": {"groupSize": 3},
    "group away": {"group": None, "groupSize": None},
    "handover": {"handover": "SurgeFirst"},
    "alternatives": {"alternatives": ["gpu-3"]},
}


def test_spec_is_immutable_but_for_suspend(cluster: Cluster) -> None:
    cluster.api.create(HPP, FULL)
    cluster.api.create(HPP, placement("plain"))
    for case, change in CHANGES.items():
        status, answer = cluster.api.request("PATCH", f"{HPP}/full", {"spec": change}, MERGE)
        assert status == 422 and "cannot be changed" in answer["message"], (case, answer)
    for change in ({"evictPod": "x-1"}, {"settle": "1s"}, {"group": "g", "groupSize": 2}):
        status, answer = cluster.api.request("PATCH", f"{HPP}/plain", {"spec": change}, MERGE)
        assert status == 422 and "create another one with a new reqID" in answer["message"], (change, answer)
    for value in (False, True, None):
        cluster.api.patch(f"{HPP}/full", {"spec": {"suspend": value}})


def test_status_is_a_sub_resource_and_conditions_are_a_map(cluster: Cluster) -> None:
    cluster.api.create(HPP, {**placement(), "status": {"phase": "Completed"}})
    assert "status" not in cluster.api.get(f"{HPP}/p")
    condition = {
        "type": "Held",
        "status": "True",
        "reason": "Held",
        "message": "",
        "lastTransitionTime": "2026-09-01T02:00:00Z",
    }
    made = cluster.api.patch(f"{HPP}/p/status", {"status": {"phase": "Held", "conditions": [condition]}, "spec": {}})
    assert made["status"]["phase"] == "Held" and made["spec"]["nodeName"] == "n1"
    status, answer = cluster.api.request("PATCH", f"{HPP}/p/status", {"status": {"conditions": [condition] * 2}}, MERGE)
    assert status == 422 and "Duplicate value" in answer["message"]


def table(cluster: Cluster, path: str) -> tuple[list[str], list[str], list[Any]]:
    """(names of the columns, those of -o wide, cells of the first row), as kubectl gets them."""
    context = ssl.create_default_context(cafile=str(cluster.plane.ca.path))
    head = {"Authorization": "Bearer ground-admin", "Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    with urllib.request.urlopen(urllib.request.Request(cluster.plane.url + path, headers=head), context=context) as got:
        found = json.load(got)
    columns = [c for c in found["columnDefinitions"] if c["name"] != "Name"]
    narrow = [c["name"] for c in columns if not c["priority"]]
    return narrow, [c["name"] for c in columns if c["priority"]], found["rows"][0]["cells"][1:]


def test_what_kubectl_shows(cluster: Cluster) -> None:
    cluster.api.create(HPP, placement(gpuDevices=["gpu-0", "gpu-3"], evict="x-1"))
    status = {"phase": "Failed", "podName": "x-2", "reason": "WrongDevice", "message": "on gpu-1"}
    cluster.api.patch(f"{HPP}/p/status", {"status": status})
    narrow, wide, cells = table(cluster, HPP)
    assert narrow == ["Node", "Devices", "Phase", "Pod", "Age"] and wide == ["Evicts", "Reason", "Message"]
    assert cells[:4] == ["n1", '["gpu-0","gpu-3"]', "Failed", "x-2"]
    assert cells[5:] == ["x-1", "WrongDevice", "on gpu-1"]

    cluster.api.create(DFR, run())
    cluster.api.patch(
        f"{DFR}/r/status", {"status": {"phase": "Running", "counts": {"planned": 3, "done": 2, "failed": 1}}}
    )
    narrow, _, cells = table(cluster, DFR)
    assert narrow == ["Policy", "Mode", "Phase", "Moves", "Done", "Failed", "Age"]
    assert cells[:6] == ["nightly", "Auto", "Running", 3, 2, 1]
    cluster.api.delete(f"{DFR}/r")


def test_short_names_and_category(cluster: Cluster) -> None:
    served = cluster.api.get("/apis/scheduling.hami.placement.com/v1")["resources"]
    names = {
        item["name"]: (item.get("shortNames"), item.get("categories")) for item in served if "/" not in item["name"]
    }
    assert names == {"hamipodplacements": (["hpp"], ["hami"]), "defragruns": (["dfr"], ["hami"])}


def run(**spec: Any) -> dict[str, Any]:
    moves = [
        {"id": "m1", "pod": "a/b", "from": {"node": "n1", "devices": ["g1"]}, "to": {"node": "n2", "devices": ["g2"]}}
    ]
    return {
        "apiVersion": "scheduling.hami.placement.com/v1",
        "kind": "DefragRun",
        "metadata": {"name": "r"},
        "spec": {"policy": "nightly", "mode": "Auto", "strategy": "best-fit", "plan": {"moves": moves}, **spec},
    }


def test_runs_are_immutable_but_for_what_people_ask(cluster: Cluster) -> None:
    cluster.api.delete(f"{DFR}/r")
    for body, words in (
        (run(mode="Maybe"), 'supported values: "DryRun", "Approve", "Auto"'),
        (run(desired="Later"), "spec.desired"),
        (run(policy=""), "spec.policy"),
    ):
        status, answer = cluster.api.request("POST", DFR, body)
        assert status == 422 and words in answer["message"], answer
    cluster.api.create(DFR, run(settings={"spec": {"deep": [{"x": 1.5}]}}))
    assert cluster.api.get(f"{DFR}/r")["spec"]["settings"] == {"spec": {"deep": [{"x": 1.5}]}}
    other = run()["spec"]["plan"]["moves"][0]
    for change in (
        {"policy": "other"},
        {"mode": "DryRun"},
        {"plan": None},
        {"plan": {"moves": []}},
        {"plan": {"moves": [{**other, "pod": "a/c"}]}},
        {"plan": {"moves": [{**other, "to": {"node": "n3", "devices": ["g2"]}}]}},
    ):
        status, answer = cluster.api.request("PATCH", f"{DFR}/r", {"spec": change}, MERGE)
        assert status == 422 and "cannot be changed" in answer["message"], (change, answer)
    for desired in ("Approved", "Paused", "", "Cancelled"):
        cluster.api.patch(f"{DFR}/r", {"spec": {"desired": desired, "desiredBy": "ada"}})
    cluster.api.delete(f"{DFR}/r")
