"""`defragd plan --diff`: what the nodes look like now and after the plan."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner

from defragd.cli.diff import paint_diff
from defragd.cli.main import run

POLICY = """\
apiVersion: defragd/v1
kind: DefragPolicy
metadata: {name: p}
spec: {strategy: {name: best-fit}, trigger: {minFragmentation: null}, protect: {minPodAge: 0s, minReplicas: 1}}
"""


@pytest.fixture
def policy(tmp_path) -> str:
    path = tmp_path / "p.yaml"
    path.write_text(POLICY)
    return str(path)


def call(*args: str) -> tuple[int, str, str]:
    runner = CliRunner()
    with runner.isolation() as (out, err, _both):
        code = run(list(args))
        return code, out.getvalue().decode(), err.getvalue().decode()


def sums(text: str, sign: str) -> int:
    """MiB in use in all lines that are in this version of the text."""
    lines = [line[1:] for line in text.splitlines() if line.startswith((f"{sign} gpu-", "  gpu-"))]
    return sum(int(line.split()[1].split("/")[0]) for line in lines)


def test_the_difference_keeps_every_byte_and_empties_a_device(world, policy) -> None:
    code, out, err = call(
        "plan", "--policy", policy, "--snapshot", world, "--max-steps", "200", "--diff", "--exit-code"
    )
    assert code == 4, err
    lines = out.splitlines()
    assert any(line.startswith("--- ") and line.endswith(" now") for line in lines)
    assert any(line.startswith("+++ ") and line.endswith(" after the plan") for line in lines)
    assert any(line.startswith("+ ") and line.endswith("idle") for line in lines)
    assert sums(out, "-") == sums(out, "+") > 0


def test_it_is_for_people(world, policy) -> None:
    code, _, err = call("plan", "--policy", policy, "--snapshot", world, "--max-steps", "50", "--diff", "-o", "json")
    assert code == 2 and "leave out -o" in err


def test_colours_on_terminals_only(monkeypatch) -> None:
    assert paint_diff("+ a\n- b\n c") == "+ a\n- b\n c"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert paint_diff("+ a\n- b\n c") == "\x1b[32m+ a\x1b[0m\n\x1b[31m- b\x1b[0m\n c"
