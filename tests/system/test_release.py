"""What is released: a wheel and an sdist that build, hold what they should, and install clean."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from defragd import __version__

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]
CLEAN = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}


def call(*words: str | Path, cwd: Path = ROOT) -> str:
    run = subprocess.run([str(word) for word in words], cwd=cwd, env=CLEAN, capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, f"{words}: {run.stdout[-800:]} {run.stderr[-1500:]}"
    return run.stdout


def environment(folder: Path) -> Path:
    venv.create(folder, with_pip=True, symlinks=True)
    return folder / "bin"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("release")
    tools = environment(folder / "tools")
    call(tools / "pip", "install", "-q", "--disable-pip-version-check", "hatchling")
    call(tools / "python", "-m", "hatchling", "build", "-d", folder / "dist")
    return folder / "dist"


def test_the_wheel_holds_what_runs_and_nothing_else(built: Path) -> None:
    names = zipfile.ZipFile(built / f"defragd-{__version__}-py3-none-any.whl").namelist()
    for wanted in (
        "defragd/data/policies/best-fit.yaml", "defragd/data/crds/hamipodplacements.yaml",
        "defragd/web/templates/base.html", "defragd/web/static/app.css", "defragd/policy/defragpolicy.schema.json",
        f"defragd-{__version__}.dist-info/licenses/LICENSE",
    ):  # fmt: skip
        assert wanted in names, wanted
    assert not [n for n in names if n.startswith(("tests", "chart", ".")) or "__pycache__" in n]
    assert {n.split("/")[0] for n in names} == {"defragd", f"defragd-{__version__}.dist-info"}
    scripts = zipfile.ZipFile(built / f"defragd-{__version__}-py3-none-any.whl").read(
        f"defragd-{__version__}.dist-info/entry_points.txt"
    ).decode()  # fmt: skip
    for script in ("defragd =", "kubectl-defrag =", "kubectl_complete-defrag ="):
        assert script in scripts


def test_the_sdist_has_source_chart_and_tests_and_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    base = f"defragd-{__version__}"
    with tarfile.open(built / f"{base}.tar.gz") as archive:
        names = archive.getnames()
        archive.extractall(tmp_path, filter="data")
    for wanted in (
        "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "chart/Chart.yaml", "chart/docs/README.md",
        "chart/files/dashboard.json", "crds/defragruns.yaml", "policies/best-fit.yaml", "Dockerfile",
    ):  # fmt: skip
        assert f"{base}/{wanted}" in names, wanted
    assert not [n for n in names if "__pycache__" in n or "/.git/" in n or "/.venv" in n]
    tools = built.parent / "tools" / "bin"
    call(tools / "python", "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "again", cwd=tmp_path / base)
    wheel = f"{base}-py3-none-any.whl"
    first, second = (zipfile.ZipFile(folder / wheel).namelist() for folder in (built, tmp_path / "again"))
    assert sorted(first) == sorted(second)


def test_a_clean_environment_runs_it(built: Path, tmp_path: Path) -> None:
    bin_ = environment(tmp_path / "clean")
    call(bin_ / "pip", "install", "-q", "--disable-pip-version-check", next(built.glob("*.whl")))
    assert "No broken requirements" in call(bin_ / "pip", "check")
    assert call(bin_ / "defragd", "version", cwd=tmp_path) == f"defragd {__version__}\n"
    assert "Usage: kubectl defrag" in call(bin_ / "kubectl-defrag", "--help", cwd=tmp_path)
    assert call(bin_ / "kubectl_complete-defrag", "doct", cwd=tmp_path).splitlines()[-1] == ":4"
    for policy in ("best-fit", "gpu-drain", "make-room", "node-drain"):
        assert policy in call(bin_ / "defragd", "policy", "list", cwd=tmp_path)
    state = ROOT / "chart" / "docs" / "example" / "cluster.json"
    assert "0.333" in call(bin_ / "defragd", "score", "--snapshot", state, cwd=tmp_path)
    where = call(bin_ / "python", "-c", "import defragd; print(defragd.__file__)", cwd=tmp_path)
    assert str(tmp_path) in where, "not the source tree"
    assert f"{sys.version_info.major}." in call(bin_ / "python", "--version")
