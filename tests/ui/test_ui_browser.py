"""The UI in a real browser: every page in light and dark without a complaint, a plan approved by clicking, an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from defragd.core.run import RunPhase
from defragd.web.app import create_app
from defragd.web.deps import User
from defragd.web.serve import Server
from tests.support.web_world import WebWorld, build_world
from tests.ui.browser import Browser, browser
from tests.ui.shoot import PAGES

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture
def site() -> Iterator[tuple[WebWorld, str]]:
    world = build_world(authorize=lambda request: User("alice"))
    server = Server(create_app(world.deps), "127.0.0.1:0", name="ui")
    server.start()
    yield world, server.url
    server.stop(drain=0.5)


def background(tab: Browser) -> int:
    """Brightness of the page's background, 0 to 255."""
    colour = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")) // 3


@pytest.mark.parametrize("name", sorted(PAGES))
def test_pages_in_light_and_dark(tab: Browser, site, tmp_path: Path, name: str) -> None:
    _, url = site
    shots = []
    for dark in (False, True):
        tab.look(dark=dark)
        tab.events.clear()
        tab.open(f"{url}/{PAGES[name]}")
        assert (background(tab) < 60) == dark
        wrong = [text for text in tab.complaints if not (name == "error" and "404" in text)]
        assert wrong == []
        assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (
            "it needs no sideways scrolling"
        )
        target = tmp_path / f"{name}-{dark}.png"
        tab.photograph(target)
        shots.append(target.read_bytes())
    assert all(len(shot) > 5000 for shot in shots) and shots[0] != shots[1]


@pytest.mark.parametrize("name", ["overview", "map", "plan", "run", "explain"])
def test_narrow_screens_need_no_sideways_scrolling(tab: Browser, site, name: str) -> None:
    tab.look(width=420)
    tab.open(f"{site[1]}/{PAGES[name]}")
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_plan_is_approved_by_clicking(tab: Browser, site) -> None:
    world, url = site
    tab.look()
    tab.open(f"{url}/runs/weekly-drain-1")
    assert "AwaitingApproval" in tab.text()
    tab.click("button.go")
    assert world.runs.writes == [("weekly-drain-1", "Approved", "alice")]
    assert tab.evaluate("location.pathname") == "/runs/weekly-drain-1"
    assert "Approved by alice" in tab.text() and tab.evaluate("document.querySelector('button.go')") is None


def test_a_run_is_cancelled_after_a_question(tab: Browser, site) -> None:
    world, url = site
    tab.open(f"{url}/runs/nightly-consolidation-3")
    tab.click("button.danger")
    assert world.runs.writes == [("nightly-consolidation-3", "Cancelled", "alice")]


def test_an_error_is_shown(tab: Browser, site) -> None:
    world, url = site
    tab.open(f"{url}/runs/weekly-drain-1")
    world.runs.items = [r for r in world.runs.items if r.phase is not RunPhase.AWAITING_APPROVAL]
    tab.click("button.go")
    assert "RunUnknown" in tab.text() and world.runs.writes == []


def test_the_map_is_searched_by_typing(tab: Browser, site) -> None:
    tab.open(f"{site[1]}/map")
    tab.evaluate("document.querySelector('input[name=q]').value = 'gpu-node-07'")
    tab.click("form button.go")
    assert "gpu-node-07" in tab.text() and "gpu-node-08" not in tab.text()


def test_complaints_are_heard(tab: Browser, site) -> None:
    """The other tests would be blind if the policy's refusals did not arrive here."""
    tab.open(f"{site[1]}/runs")
    tab.events.clear()
    tab.evaluate("document.head.appendChild(document.createElement('style')).textContent = 'p {color: red}'")
    tab.evaluate("new Promise(done => setTimeout(done, 50))")
    tab.text()
    assert any("Content Security Policy" in text for text in tab.complaints)


def test_it_reads_with_scripts_off(tab: Browser, site) -> None:
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.open(f"{site[1]}/plans/nightly-consolidation-3")
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)
    assert "Before and after" in tab.text()
