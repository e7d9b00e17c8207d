"""What the image installs and what it says about it: locked dependencies, bill of materials, Dockerfile."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from defragd import __version__
from defragd.cli import sbom
from defragd.cli.main import run

ROOT = Path(__file__).resolve().parents[3]
DIRECT = [Requirement(text) for text in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]]


def locked(name: str) -> dict[str, list[str]]:
    """Versions by package; every entry must have hashes, and nothing else may be in the file."""
    found: dict[str, list[str]] = {}
    text = (ROOT / ".ci" / name).read_text().replace("\\\n", " ")
    for line in text.splitlines():
        entry = re.fullmatch(r"([a-z0-9-]+)==(\S+)(?: ; [^#]*?)?((?:\s+--hash=sha256:[0-9a-f]{64})+)\s*", line)
        assert entry, line[:100]
        found.setdefault(entry[1], []).append(entry[2])
    return found


def test_every_dependency_is_locked_within_its_bounds() -> None:
    found = locked("requirements.lock")
    for wanted in DIRECT:
        versions = found[canonicalize_name(wanted.name)]
        assert all(wanted.specifier.contains(version) for version in versions), (wanted, versions, "run `make lock`")
    assert "hatchling" in locked("build.lock")


def test_what_is_needed_here_is_what_is_locked() -> None:
    needed = {item["name"] for item in sbom.document()["components"]}
    assert needed and needed <= set(locked("requirements.lock")), "run `make lock`"


def test_every_dependency_says_why() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    block = text[text.index("dependencies = [") : text.index("[project.optional-dependencies]")]
    for line in block.splitlines()[1:]:
        assert line.strip() in ("]", "") or re.search(r'",\s+# \w+', line), line


def test_the_bill_of_materials(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version", "--sbom"]) == 0
    bill = json.loads(capsys.readouterr().out)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/defragd@{__version__}"
    parts = {item["name"]: item for item in bill["components"]}
    assert {canonicalize_name(wanted.name) for wanted in DIRECT} <= set(parts)
    assert "pytest" not in parts and "ruff" not in parts, "what only tests need is not in the image"
    assert parts["flask"]["licenses"] and parts["werkzeug"]["version"]
    refs = {item["bom-ref"] for item in (*bill["components"], bill["metadata"]["component"])}
    assert all({link["ref"], *link["dependsOn"]} <= refs for link in bill["dependencies"])
    assert len(bill["dependencies"]) == len(refs)


def test_the_image_runs_as_nobody_and_takes_only_what_is_locked() -> None:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    last = steps[max(i for i, (word, _) in enumerate(steps) if word == "FROM") :]
    assert ["USER", "65532:65532"] in last and not [step for step in last if step[0] == "RUN"]
    installs = [part for word, rest in steps if word == "RUN" for part in rest.split("&&") if "pip install" in part]
    assert installs and all("--require-hashes" in part or "--no-deps /dist/" in part for part in installs)
    for word, rest in steps:
        if word == "COPY" and not rest.startswith("--from"):
            assert all((ROOT / source).exists() for source in rest.split()[:-1]), rest
