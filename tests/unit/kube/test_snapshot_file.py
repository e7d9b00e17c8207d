"""Snapshot files: JSON, YAML and gzip read alike, bad ones end in one line, written ones hold no secrets."""

from __future__ import annotations

import gzip
import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from defragd.errors import SnapshotError
from defragd.kube import snapshot_file
from defragd.kube.decode import UNREADABLE

NOW = datetime(2026, 9, 1, 2, tzinfo=UTC)
CANARY = "s3cr3t-canary"


def node(name: str, devices: int = 2) -> dict[str, Any]:
    register = [
        {"id": f"GPU-{name}-{i}", "index": i, "count": 10, "devmem": 24576, "devcore": 100, "type": "NVIDIA A10"}
        | {"mode": "hami-core", "health": True}
        for i in range(devices)
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "labels": {"kubernetes.io/hostname": name, "acme.example/rack": "rack-7", "nvidia.com/gpu.product": "A10"},
            "annotations": {
                "hami.io/node-nvidia-register": json.dumps(register),
                "hami.io/mutex.lock": "2026-09-01T02:00:00Z,acme,web-5f-abc12",
                "acme.example/note": CANARY,
            },
        },
        "spec": {"taints": [{"key": "acme.example/team", "value": "blue", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(name: str, host: str, device: int, **extra: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": "acme",
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": "7",
            "creationTimestamp": "2026-09-01T01:00:00Z",
            "labels": {"app": "web", "tier": "front"},
            "annotations": {
                "hami.io/vgpu-node": host,
                "hami.io/vgpu-devices-allocated": f"GPU-{host}-{device},NVIDIA,4096,25:;",
                "kubectl.kubernetes.io/last-applied-configuration": CANARY,
            },
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5f", "uid": "uid-rs", "controller": True}
            ],
        },
        "spec": {
            "schedulerName": "hami-scheduler",
            "nodeName": host,
            "containers": [
                {
                    "name": "web",
                    "env": [{"name": "PASSWORD", "value": CANARY}],
                    "args": [CANARY],
                    "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4k"}},
                }
            ],
            "volumes": [{"name": "s", "secret": {"secretName": CANARY}}, {"name": "h", "hostPath": {"path": CANARY}}],
            "affinity": {
                "podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {"topologyKey": "acme.example/rack", "labelSelector": {"matchLabels": {"tier": "front"}}}
                    ]
                }
            },
            "tolerations": [{"key": "acme.example/team", "operator": "Equal", "value": "blue", "effect": "NoSchedule"}],
        },
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "message": CANARY},
        **extra,
    }


RS = {
    "apiVersion": "apps/v1",
    "kind": "ReplicaSet",
    "metadata": {"namespace": "acme", "name": "web-5f", "uid": "uid-rs"},
    "spec": {"replicas": 2},
}
PDB = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"namespace": "acme", "name": "web"},
    "spec": {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1},
    "status": {"disruptionsAllowed": 1, "observedGeneration": 1},
}


def listing(*items: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": list(items)}


WORLD = listing(
    node("n1"),
    node("n2"),
    pod("web-5f-abc12", "n1", 0),
    pod("web-5f-def34", "n2", 1),
    RS,
    {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}, "data": {"k": CANARY}},
)


def write(tmp_path, content: Any, name: str = "s.json") -> str:
    path = tmp_path / name
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return str(path)


def test_all_forms_read_alike(tmp_path):
    plain = snapshot_file.load(write(tmp_path, WORLD))
    zipped = snapshot_file.load(write(tmp_path, WORLD, "s.json.gz"))
    text = yaml.safe_dump(WORLD).replace("'2026-09-01T01:00:00Z'", "2026-09-01T01:00:00Z")
    assert "creationTimestamp: 2026-09-01T01:00:00Z" in text, "an unquoted time, as people write it"
    loaded = snapshot_file.load(write(tmp_path, text.encode(), "s.yaml"))
    assert plain == zipped == loaded
    assert set(plain.pods) == {"acme/web-5f-abc12", "acme/web-5f-def34"}
    assert plain.usage("n1")["GPU-n1-0"].memory_mib == 4096
    assert plain.pods["acme/web-5f-abc12"].created == datetime(2026, 9, 1, 1, tzinfo=UTC)
    assert plain.taken_at is None, "a file of kubectl does not say"


def test_what_is_not_in_the_file_is_unknown(tmp_path):
    assert snapshot_file.load(write(tmp_path, WORLD)).known == {"workloads"}
    assert snapshot_file.load(write(tmp_path, listing(node("n1"), PDB))).known == {"pdbs"}


def test_standard_input(tmp_path, monkeypatch):
    import io
    import sys

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(json.dumps(WORLD).encode()))))
    assert len(snapshot_file.load("-").nodes) == 2


BAD = {
    "missing": (None, "cannot be read"),
    "empty": (b"", "is empty"),
    "blank": (b" \n\n", "is empty"),
    "text": (b"hello", "no Kubernetes List"),
    "a yaml list": (b"- a\n- b\n", "no Kubernetes List"),
    "broken json": (b'{"kind": "List", "items": [', "neither JSON nor YAML"),
    "broken yaml": (b"kind: [List\nitems: x: y", "neither JSON nor YAML"),
    "two documents": (b"kind: List\n---\nkind: List\n", "neither JSON nor YAML"),
    "binary": (bytes(range(256)), "s.json"),
    "no list": ({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}, "is a Pod, want a v1 List"),
    "no kind": ({"items": []}, "no Kubernetes object"),
    "no items": ({"kind": "List"}, "is a List without items"),
    "no name": (
        listing(node("n1"), {"kind": "Pod", "metadata": {}, "spec": {}}),
        "item 2, a Pod, has no metadata.name",
    ),
    "items is no list": ({"kind": "List", "items": {"a": 1}}, "no Kubernetes List"),
    "wrong kinds": (listing(RS, PDB), "holds PodDisruptionBudget, ReplicaSet but no Node"),
    "nothing in it": (listing(), "holds nothing but no Node"),
    "item is text": (listing("x"), "item 1 is no Kubernetes object"),
    "item without kind": (listing(node("n1"), {"metadata": {"name": "x"}}), "item 2 has no kind"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_end_in_one_line(tmp_path, case):
    content, words = BAD[case]
    path = str(tmp_path / "s.json") if content is None else write(tmp_path, content)
    with pytest.raises(SnapshotError) as caught:
        snapshot_file.load(path)
    text = str(caught.value)
    assert path in text and words in text and "\n" not in text and len(text) < 500
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.95])
def test_a_cut_off_gzip_file(tmp_path, keep):
    data = gzip.compress(json.dumps(WORLD).encode())
    path = tmp_path / "s.json.gz"
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(SnapshotError, match="cut off or damaged"):
        snapshot_file.load(str(path))


def test_a_raw_list_of_one_kind_is_a_list_too(tmp_path):
    bare = {key: value for key, value in node("n1").items() if key not in ("kind", "apiVersion")}
    path = write(tmp_path, {"kind": "NodeList", "apiVersion": "v1", "items": [bare]})
    assert list(snapshot_file.load(path).nodes) == ["n1"]


def test_one_broken_object_is_named_and_the_rest_is_read(tmp_path):
    odd = pod("odd", "n1", 0, spec={"containers": "many"})
    snapshot = snapshot_file.load(write(tmp_path, listing(*WORLD["items"], odd)))
    assert len(snapshot.pods) == 2
    assert [(p.object, p.reason) for p in snapshot.problems if p.reason == UNREADABLE] == [("acme/odd", UNREADABLE)]


def saved(tmp_path, *, anonymize: bool, name: str = "out.json") -> tuple[str, str]:
    stores, _ = snapshot_file.load_stores(write(tmp_path, listing(*WORLD["items"], PDB)))
    path = str(tmp_path / name)
    assert snapshot_file.save(stores, path, anonymize=anonymize, now=NOW) == 6
    data = (tmp_path / name).read_bytes()
    return path, (gzip.decompress(data) if name.endswith(".gz") else data).decode()


@pytest.mark.parametrize("name", ["out.json", "out.json.gz"])
def test_a_saved_file_reads_back_as_the_same_cluster_without_secrets(tmp_path, name):
    path, text = saved(tmp_path, anonymize=False, name=name)
    before = snapshot_file.load(write(tmp_path, listing(*WORLD["items"], PDB)))
    after = snapshot_file.load(path)
    assert CANARY not in text and "last-applied" not in text
    assert (after.nodes, after.pods, after.budgets, after.workloads) == (
        before.nodes,
        before.pods,
        before.budgets,
        before.workloads,
    )
    assert after.known == before.known and after.taken_at == NOW


def test_saving_twice_gives_the_same_bytes(tmp_path):
    assert saved(tmp_path, anonymize=True)[1] == saved(tmp_path, anonymize=True)[1]


def test_anonymised_nothing_recognisable_is_left(tmp_path):
    _, text = saved(tmp_path, anonymize=True)
    for word in ("acme", "web", "rack", "blue", "front", "tier", "team", "n1", "n2", "uid-", "abc12", CANARY):
        found = re.findall(rf"\b{re.escape(word)}", text)
        assert not found, f"{word}: {text[text.index(word) - 60 : text.index(word) + 40]}"
    assert "NVIDIA A10" in text and "hami-scheduler" in text and "nvidia.com/gpumem" in text


def test_anonymised_the_structure_is_the_same(tmp_path):
    before = snapshot_file.load(write(tmp_path, listing(*WORLD["items"], PDB)))
    after = snapshot_file.load(saved(tmp_path, anonymize=True)[0])
    assert [u.memory_mib for n in sorted(after.nodes) for u in after.usage(n).values()].count(4096) == 2
    assert sorted(len(n.devices) for n in after.nodes.values()) == sorted(len(n.devices) for n in before.nodes.values())
    budget = after.budgets[0]
    for pod_ in after.pods.values():
        host = after.nodes[pod_.node]
        assert pod_.devices[0] in {d.uuid for d in host.devices}
        assert host.labels["kubernetes.io/hostname"] == host.name
        assert after.workload_of(pod_) is not None and pod_.owner.name == after.workload_of(pod_).name
        (expression,) = budget.selector.expressions
        assert pod_.labels[expression.key] in expression.values
        term = pod_.scheduling.anti_affinity[0]
        assert term.topology_key in host.labels
        assert pod_.labels[term.selector.expressions[0].key] in term.selector.expressions[0].values
        toleration, taint = pod_.scheduling.tolerations[0], host.taints[0]
        assert (toleration.key, toleration.value) == (taint.key, taint.value)
        assert host.lock is not None and host.lock.holder in after.pods


def test_a_folder_as_target_is_one_line(tmp_path):
    stores, _ = snapshot_file.load_stores(write(tmp_path, WORLD))
    with pytest.raises(SnapshotError, match="cannot be written"):
        snapshot_file.save(stores, str(tmp_path), now=NOW)


def test_without_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(SnapshotError, match="no standard input"):
        snapshot_file.load("-")
