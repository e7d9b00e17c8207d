"""A third-party strategy, installed as a wheel, plans for real; broken neighbours do not stop it."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from cli_states import make_node, splinters, write_list

pytestmark = pytest.mark.slow
PLUGIN = Path(__file__).parents[2] / "plugins" / "defragd_lucky_dip"
POLICY = """\
apiVersion: defragd/v1
kind: DefragPolicy
metadata: {name: quiet}
spec:
  strategy: {name: quiet-node, args: {node: n1, keep: 1}}
  trigger: {minFragmentation: null}
"""
ENTRIES = """\
[defragd.strategies]
quiet-node = defragd_lucky_dip:STRATEGY
broken = defragd_lucky_dip:NOT_THERE
best-fit = defragd_lucky_dip:STRATEGY
"""


def build_wheel(where):
    """A wheel is a zip with a RECORD; building one by hand needs no build tool."""
    info = "defragd_lucky_dip-1.0.dist-info"
    files = {f"defragd_lucky_dip/{p.name}": p.read_bytes() for p in PLUGIN.glob("*.py")}
    files |= {
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: defragd-lucky-dip\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: by-hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": ENTRIES.encode(),
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b'=').decode()},{len(body)}\n"
        for name, body in files.items()
    )
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    path = where / "defragd_lucky_dip-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, body in files.items():
            wheel.writestr(name, body)
    return path


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    where = tmp_path_factory.mktemp("wheel")
    wheel = build_wheel(where)
    target = where / "site"
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--target",
        str(target),
        str(wheel),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def world(tmp_path):
    items = [*splinters(), make_node("n3", "GPU-d", memory=10240)]
    return write_list(tmp_path / "state.json.gz", items)


def defragd(site, *args):
    code = "from defragd.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=100, env={"PYTHONPATH": str(site)}
    )


def test_the_plugin_plans_and_its_neighbours_are_refused_by_name(site, world, tmp_path):
    policy = tmp_path / "quiet.yaml"
    policy.write_text(POLICY)
    done = defragd(
        site, "plan", "--policy", str(policy), "--snapshot", world, "-o", "json", "--now", "2026-12-01T02:00:00Z"
    )
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert (plan["strategy"], plan["stopped"]) == ("quiet-node", "complete")
    (move,) = plan["moves"]
    assert (move["pod"], move["from"]["node"], move["to"]) == ("team/b", "n1", {"node": "n3", "devices": ["GPU-d"]})
    assert move["why"] == "keeps the node quiet"
    checked = defragd(site, "policy", "validate", str(policy))
    assert checked.returncode == 0
    assert '"broken" of defragd-lucky-dip is not used' in checked.stderr
    assert '"best-fit" of defragd-lucky-dip is not used: the name belongs to a shipped strategy' in checked.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ("{keep: 1}", 'spec.strategy.args: field "node" is required'),
        ("{node: n1, keep: -1}", "spec.strategy.args: keep must not be negative"),
        ("{node: n1, kepe: 1}", 'unknown field "kepe", did you mean "keep"?'),
    ],
)
def test_its_arguments_are_checked(site, tmp_path, args, says):
    policy = tmp_path / "quiet.yaml"
    policy.write_text(POLICY.replace("{node: n1, keep: 1}", args))
    done = defragd(site, "policy", "validate", str(policy))
    assert done.returncode == 2 and says in done.stderr


def test_without_the_wheel_the_strategy_is_unknown(tmp_path):
    policy = tmp_path / "quiet.yaml"
    policy.write_text(POLICY)
    done = defragd(tmp_path, "policy", "validate", str(policy))
    assert done.returncode == 2 and 'unknown strategy "quiet-node"' in done.stderr
