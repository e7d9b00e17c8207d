"""Fixtures for all suites: the control plane (one per worker) and a clean cluster per test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ground import build
from tests.ground.cluster import Cluster
from tests.ground.controlplane import ControlPlane
from tests.ground.emulator import Emulator
from tests.support import effort

_BUILD_ERROR = pytest.StashKey[str]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Random order is the explorer's; `-p no:randomly` has no such option."""
    if not effort.EXPLORE and getattr(config.option, "randomly_seed", None) == "default":
        config.option.randomly_seed = 1


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds the binaries before the first test that needs them: a cold build outlasts any test's time limit."""
    if session.config.option.collectonly or not any(i.get_closest_marker("controlplane") for i in session.items):
        return
    try:
        build.controlplane()
    except (build.BuildError, OSError) as error:
        session.config.stash[_BUILD_ERROR] = str(error)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests that share a fixture of their module stay on one worker; all others go wherever there is time."""
    if not item.config.pluginmanager.hasplugin("xdist"):
        return
    found = getattr(item, "_fixtureinfo", None)
    if found and any(defs[-1].scope == "module" for defs in found.name2fixturedefs.values() if defs):
        item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A start of the control plane and a cluster's reset count against the test that asks first: allow for both.

    The longest come first, so that no worker sits idle at the end.
    """
    for item in items:
        if item.get_closest_marker("controlplane") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(180))
    items.sort(key=_limit, reverse=True)


def _limit(item: pytest.Item) -> float:
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark else 0.0


@pytest.fixture(scope="session")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane with our CRDs and the stand-in of HAMi; fails (never skips) when it cannot be built."""
    if error := request.config.stash.get(_BUILD_ERROR, ""):
        pytest.fail(f"the control plane's binaries cannot be built: {error}", pytrace=False)
    with ControlPlane() as running:
        running.install_crds()
        yield running


@pytest.fixture(scope="session")
def _emulator(plane: ControlPlane) -> Iterator[Emulator]:
    with Emulator(plane.api.as_user("ground-emulator")) as emulator:
        yield emulator


@pytest.fixture
def cluster(request: pytest.FixtureRequest, plane: ControlPlane, _emulator: Emulator) -> Iterator[Cluster]:
    """An empty cluster: nothing in it but HAMi's webhook. The components' logs are shown when the test fails."""
    clean = Cluster(plane, _emulator)
    clean.reset()
    failed = request.session.testsfailed
    yield clean
    if request.session.testsfailed > failed:
        print(plane.logs())
