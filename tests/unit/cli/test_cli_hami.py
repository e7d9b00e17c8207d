"""What the command line knows of HAMi itself: its configuration in snapshot files, its own metrics."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_states import make_node, make_pod, write_list
from click.testing import CliRunner

from defragd.cli.main import run
from defragd.errors import SnapshotError
from defragd.kube.snapshot_file import load
from defragd.kube.snapshot_hami import HAMI

CONFIG = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "hami-scheduler-device", "namespace": "hami"},
    "data": {"device-config.yaml": "nvidia: {resourceCountName: acme/gpu, resourceMemoryName: acme/gpumem}"},
}
CONTAINER = {
    "name": "vgpu-scheduler-extender",
    "image": "registry.example/hami:v2.10.0",
    "command": ["scheduler", "--device-config-file=/x", "--node-scheduler-policy=spread"],
    "args": ["--gpu-scheduler-policy", "binpack"],
}
SCHEDULER = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "hami-scheduler", "namespace": "hami", "uid": "d"},
    "spec": {"replicas": 1, "template": {"spec": {"containers": [CONTAINER]}}},
}


def call(*args: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr)."""
    with CliRunner().isolation() as (out, err, _both):
        code = run(list(args))
        sys.stdout.flush()
        return code, out.getvalue().decode(), err.getvalue().decode()


def pod(name: str, where: str, uuid: str, mib: int) -> dict[str, Any]:
    made: dict[str, Any] = make_pod(name, where, uuid, mib)
    made["spec"]["containers"][0]["resources"]["limits"] = {"acme/gpu": "1", "acme/gpumem": str(mib)}
    return made


@pytest.fixture
def items() -> list[dict[str, Any]]:
    return [make_node("n1", "GPU-1", "GPU-2"), pod("a", "n1", "GPU-1", 4000), pod("b", "n1", "GPU-2", 4000)]


def test_files_of_kubectl(tmp_path: Path, items: list[dict[str, Any]]) -> None:
    plain = load(write_list(tmp_path / "plain.json", items))
    assert (plain.node_policy, plain.device_policy) == ("binpack", "spread")
    assert not plain.pods["team/a"].requests, "these resources are not HAMi's by default"
    told = load(write_list(tmp_path / "told.json", [*items, CONFIG, SCHEDULER]))
    assert (told.node_policy, told.device_policy) == ("spread", "binpack")
    assert told.pods["team/a"].requests


def test_our_own_files_keep_it(tmp_path: Path, items: list[dict[str, Any]]) -> None:
    marks = {HAMI: json.dumps({"nodePolicy": "spread", "devicePolicy": 7, "else": 1})}
    body = {"apiVersion": "v1", "kind": "List", "metadata": {"annotations": marks}, "items": [*items, CONFIG]}
    (tmp_path / "in.json").write_text(json.dumps(body))
    out = str(tmp_path / "out.json.gz")
    code, _, said = call("snapshot", "--snapshot", str(tmp_path / "in.json"), "--anonymize", "-o", out)
    assert code == 0, said
    found = load(out)
    assert (found.node_policy, found.device_policy) == ("spread", "spread")
    assert all(p.requests for p in found.pods.values())


def test_a_broken_configuration_is_said(tmp_path: Path, items: list[dict[str, Any]]) -> None:
    broken = {**CONFIG, "data": {"device-config.yaml": "nvidia: ["}}
    with pytest.raises(SnapshotError, match="device-config"):
        load(write_list(tmp_path / "broken.json", [*items, broken]))


@pytest.mark.parametrize(("more", "version"), [([], ">=2.8"), ([SCHEDULER], "2.10")])
def test_the_version_is_told(
    tmp_path: Path, items: list[dict[str, Any]], more: list[dict[str, Any]], version: str
) -> None:
    assert load(write_list(tmp_path / "state.json", [*items, *more])).hami_version == version


# -- HAMi's own metrics ---------------------------------------------------------------------------------------------


def metrics(*rows: tuple[str, int, int]) -> str:
    """Exposition text: (device, slots, MiB) of n1."""
    lines = []
    for uuid, slots, mib in rows:
        label = f'{{node="n1",device_uuid="{uuid}"}}'
        lines += [
            f"hami_gpu_shared_count{label} {slots}",
            f"hami_gpu_memory_allocated_bytes{label} {mib * 1024 * 1024}",
        ]
    return "\n".join(lines) + "\n"


@pytest.fixture
def uc21(tmp_path: Path) -> str:
    """n1 is idle but for one pod, and HAMi's scheduler still counts pods that are long gone."""
    return str(
        write_list(tmp_path / "state.json", [make_node("n1", "GPU-1", "GPU-2"), make_pod("a", "n1", "GPU-1", 4000)])
    )


@pytest.mark.parametrize(
    "command", [["score"], ["plan", "--policy", "best-fit", "--max-steps", "50"], ["explain", "device", "GPU-2"]]
)
def test_uc21_devices_that_hami_counts_otherwise_are_named(uc21: str, tmp_path: Path, command: list[str]) -> None:
    page = tmp_path / "metrics.txt"
    page.write_text(metrics(("GPU-1", 1, 4000), ("GPU-2", 2, 20000)))
    code, out, err = call(*command, "--snapshot", uc21, "--hami-metrics", str(page), "-o", "json")
    assert code == 0, err
    assert "20000 MiB" in out + err and "missed a deletion" in out + err
    assert "Device/GPU-1" not in err
    page.write_text(metrics(("GPU-1", 1, 4000), ("GPU-2", 0, 0)))
    _, out, err = call(*command, "--snapshot", uc21, "--hami-metrics", str(page), "-o", "json")
    assert "HAMi's scheduler counts" not in out + err


@pytest.mark.parametrize(
    ("source", "code", "words"),
    [("http://127.0.0.1:9/metrics", 0, "not cross-checked"), ("/nonexistent/file", 2, "cannot be read")],
)
def test_metrics_that_cannot_be_read(uc21: str, source: str, code: int, words: str) -> None:
    done, _, said = call("score", "--snapshot", uc21, "--hami-metrics", source)
    assert done == code
    assert words in said
