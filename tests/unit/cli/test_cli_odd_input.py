"""A cluster full of things nobody has heard of: each is named once, and the plan is made for the rest."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from defragd.cli.main import run
from tests.support.effort import amount
from tests.unit.cli.cli_states import make_node, make_pod

POLICY = Path(__file__).resolve().parents[3] / "policies" / "best-fit.yaml"
REGISTER = "hami.io/node-nvidia-register"
SPOILT = amount(60, 12)


def registered(name: str, *uuids: str, **changes: Any) -> dict[str, Any]:
    node = make_node(name, *uuids)
    notes = node["metadata"]["annotations"]
    notes[REGISTER] = json.dumps([{**entry, **changes} for entry in json.loads(notes[REGISTER])])
    return node


def noted(obj: dict[str, Any], key: str, text: str) -> dict[str, Any]:
    obj["metadata"]["annotations"][key] = text
    return obj


def plan(tmp_path: Path, items: list[Any]) -> tuple[int, list[str], dict[str, Any]]:
    """(exit code, warnings, the plan)."""
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    arguments = ["plan", "--policy", str(POLICY), "--snapshot", str(file), "--now", "2026-12-01T02:00:00Z"]
    with CliRunner().isolation() as (out, err, _):
        code = run([*arguments, "--max-steps", "100", "-o", "json"])
        stdout, stderr = out.getvalue().decode(), err.getvalue().decode()
    assert "Traceback" not in stderr
    assert code == 0 or "error:" in stderr
    assert "internal error" not in stderr, stderr
    warnings = [line for line in stderr.splitlines() if line.startswith("warning:")]
    return code, warnings, json.loads(stdout) if code == 0 else {}


GOOD = [
    make_node("good-1", "GPU-a", "GPU-b"),
    make_node("good-2", "GPU-c", "GPU-d"),
    make_pod("p1", "good-1", "GPU-a", 8000, of="app"),
    make_pod("p2", "good-2", "GPU-c", 8000, of="app"),
]

ODD: dict[str, tuple[list[Any], str]] = {
    "a UUID on two nodes": (
        [make_node("t1", "GPU-twin"), make_node("t2", "GPU-twin"), make_pod("p3", "t1", "GPU-twin", 1000)],
        "DuplicateDevice",
    ),
    "a UUID that moved with a replaced node": (
        [make_node("new", "GPU-moved"), make_pod("p3", "good-1", "GPU-moved", 1000)], "DeviceUnknown",
    ),
    "a model without the vendor's word": ([registered("t4", "GPU-t4", type="Tesla T4")], "ModelWithoutVendorWord"),
    "an unknown kind of device": ([noted(make_node("q"), "hami.io/node-quantum-register", "[]")], "UnknownDeviceType"),
    "a register that is no JSON": ([noted(make_node("bad"), REGISTER, '[{"id": 3')], "UnreadableRegister"),
    "an allocation that cannot be decoded": (
        [noted(make_pod("p3", "good-1", "GPU-b", 1000), "hami.io/vgpu-devices-allocated", "GPU-b,NVIDIA,x,0:;")],
        "UnreadableAllocation",
    ),
    "devices of an unknown backend on a pod": (
        [noted(make_pod("p3", "good-1", "GPU-b", 1000), "hami.io/quantum-devices-allocated", "Q,Q,1,1:;")],
        "UnreadableAllocation",
    ),
    "a pod whose spec is a number": (
        [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "half", "namespace": "team"}, "spec": 7}],
        "UnreadableObject",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ODD)
def test_odd_input_is_named_and_the_rest_goes_on(kind: str, tmp_path: Path) -> None:
    things, reason = ODD[kind]
    code, warnings, found = plan(tmp_path, [*copy.deepcopy(GOOD), *copy.deepcopy(things)])
    assert code == 0
    assert any(reason in line for line in warnings), warnings
    assert found["moves"], "as the good nodes alone have"


def test_what_is_new_and_harmless_changes_nothing(tmp_path: Path) -> None:
    _, _, plain = plan(tmp_path, GOOD)
    items = copy.deepcopy(GOOD)
    for item in items:
        item["futureField"] = {"a": [1, None]}
        item["metadata"]["futureList"] = ["x"]
        item["metadata"]["annotations"] |= {"hami.io/brand-new": "?", "nvidia.com/future-wish": "{"}
    items[0] = registered("good-1", "GPU-a", "GPU-b", newField={"deep": [1]}, futureFlag=True)
    items.append({"apiVersion": "example.com/v9", "kind": "Widget", "metadata": {"name": "w"}})
    code, _, found = plan(tmp_path, items)
    assert code == 0
    assert [m["pod"] for m in found["moves"]] == [m["pod"] for m in plain["moves"]]


def _spoil(random: Random, value: Any, depth: int = 0) -> Any:
    """Replaces something deep inside by something else."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        key = random.choice(list(value))
        if depth > 1 and random.random() < 0.3:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: _spoil(random, value[key], depth + 1)}
    if isinstance(value, list) and value and random.random() < 0.9:
        at = random.randrange(len(value))
        return [*value[:at], _spoil(random, value[at], depth + 1), *value[at + 1 :]]
    if isinstance(value, str) and random.random() < 0.5:
        return value[: random.randint(0, len(value))] + random.choice(("", ",", ";", "\x00", "é", "9" * 40, '"}'))
    return random.choice((None, 7, -1, "", "x", [], {}, True, 10**30, "1e999", ["a"], {"a": 1}))


def test_spoilt_clusters_never_crash_the_plan(tmp_path: Path) -> None:
    """Three pieces of every cluster are spoilt, and there is a plan all the same."""
    random = Random(20260)
    good = 0
    for _ in range(SPOILT):
        items = copy.deepcopy(GOOD) + [things for kind in ODD for things in copy.deepcopy(ODD[kind][0])]
        for _ in range(3):
            at = random.randrange(len(items))
            part = random.choice([p for p in ("metadata", "spec", "status") if p in items[at]])
            items[at][part] = _spoil(random, items[at][part], 1)
        code, _, _ = plan(tmp_path, items)
        good += code == 0
    assert good == SPOILT
