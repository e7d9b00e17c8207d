"""Live reload: the last good version stays in force, and what is wrong is said."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from defragd.core.breaker import BREAKER
from defragd.core.reasons import Reason
from defragd.core.run import Run
from defragd.daemon.live_settings import LiveSettings
from defragd.daemon.policies import Policies, window_of
from defragd.policy import load
from defragd.policy.caps import Caps
from defragd.policy.load import Context
from defragd.settings import load_settings
from defragd.sim.clock import SimClock

GOOD = """
apiVersion: defragd/v1
kind: DefragPolicy
metadata: {name: %s}
spec:
  strategy: {name: best-fit}
  mode: Auto
  schedule: {cron: "0 2 * * *", maxDuration: 90m}
  windows: [{deny: {cron: "0 9 * * *", duration: 8h}}]
  budgets: {total: %d}
"""
Event = tuple[str, Mapping[str, Any]]


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[Event] = []
        self.policies = Policies(
            [path], clock=SimClock(), hook=lambda event, fields: self.events.append((event, fields))
        )

    def write(self, file: str, text: str) -> None:
        (self.path / file).write_text(text)

    def totals(self) -> dict[str, int | None]:
        return {p.name: p.rules.budgets.total for p in self.policies.all()}

    def errors(self) -> dict[str, str]:
        return {view.name: view.error for view in self.policies.views([]) if view.error}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    found = Folder(tmp_path)
    found.write("a.yaml", GOOD % ("a", 10))
    found.policies.load()
    return found


def test_an_edit_takes_effect_and_nothing_is_read_twice(folder: Folder) -> None:
    assert folder.totals() == {"a": 10}
    assert not folder.policies.reload_if_changed()
    folder.write("a.yaml", GOOD % ("a", 20))
    folder.write("b.yaml", GOOD % ("b", 5))
    assert folder.policies.reload_if_changed()
    assert folder.totals() == {"a": 20, "b": 5}


def test_a_broken_edit_keeps_the_last_good_one_and_says_so(folder: Folder) -> None:
    folder.write("a.yaml", (GOOD % ("a", 20)).replace("budgets", "budgetz"))
    assert folder.policies.reload_if_changed()
    assert folder.totals() == {"a": 10}
    (error,) = folder.errors().values()
    assert "budgetz" in error
    assert "budgets" in error
    assert folder.policies.counts() == {"ok": 0, "broken": 1}
    assert any(event == "policy.broken" for event, _ in folder.events)
    folder.write("a.yaml", GOOD % ("a", 30))
    folder.policies.reload_if_changed()
    assert folder.totals() == {"a": 30}
    assert folder.errors() == {}


def test_a_file_that_never_was_good_is_shown_by_its_path(folder: Folder) -> None:
    folder.write("c.yaml", "kind: [")
    folder.policies.reload_if_changed()
    assert folder.totals() == {"a": 10}
    assert list(folder.errors()) == [str(folder.path / "c.yaml")]


def test_a_deleted_policy_is_gone(folder: Folder) -> None:
    (folder.path / "a.yaml").unlink()
    folder.policies.reload_if_changed()
    assert folder.totals() == {}


def test_a_mounted_config_map_changes_by_its_link(tmp_path: Path) -> None:
    """Kubernetes swaps ..data to another folder; names, sizes and times of the files may all stay the same."""
    for version, total in (("v1", 10), ("v2", 20)):
        (tmp_path / version).mkdir()
        file = tmp_path / version / "a.yaml"
        file.write_text(GOOD % ("a", total))
        os.utime(file, (0, 0))
    mount = tmp_path / "mount"
    mount.mkdir()
    (mount / "..data").symlink_to(tmp_path / "v1")
    (mount / "a.yaml").symlink_to(mount / "..data" / "a.yaml")
    folder = Folder(mount)
    folder.policies.load()
    (mount / "..new").symlink_to(tmp_path / "v2")
    os.replace(mount / "..new", mount / "..data")
    assert folder.policies.reload_if_changed()
    assert folder.totals() == {"a": 20}


def test_a_run_goes_on_by_what_was_approved(folder: Folder) -> None:
    (policy,) = folder.policies.all()
    job = folder.policies.job(policy)
    run = Run("ns", "a-1", "a", "Auto", "best-fit", settings=job.settings)
    folder.write("a.yaml", GOOD % ("a", 99))
    folder.policies.reload_if_changed()
    terms = folder.policies.terms(run)
    assert terms.rules.budgets.total == 10
    assert terms.max_duration == timedelta(minutes=90)
    (folder.path / "a.yaml").unlink()
    folder.policies.reload_if_changed()
    assert folder.policies.terms(run).rules.budgets.total == 10, "also when the policy is deleted meanwhile"


def test_an_unreadable_record_falls_back_to_the_live_policy_then_to_careful_rules(folder: Folder) -> None:
    live = Run("ns", "a-2", "a", "Auto", "best-fit", settings={"policy": {"kind": "nonsense"}})
    gone = Run("ns", "z-1", "z", "Auto", "best-fit")
    assert folder.policies.terms(live).rules.budgets.total == 10
    assert folder.policies.terms(gone).rules.budgets.total == 50


def test_no_move_starts_that_could_not_settle_in_the_window(folder: Folder) -> None:
    (policy,) = folder.policies.all()
    window = window_of(policy)
    nine = SimClock().now().replace(hour=9, minute=0)
    answers = {minutes: window(nine - timedelta(minutes=minutes)) for minutes in (2, 0.5, -60)}
    assert answers[2].ok
    assert not answers[0.5].ok
    assert "closes at 09:00" in answers[0.5].detail
    assert answers[-60].reason is Reason.OUTSIDE_WINDOW


def test_a_configuration_turned_to_dry_run_holds_runs_of_earlier_days(folder: Folder) -> None:
    (policy,) = folder.policies.all()
    run = Run("ns", "a-1", "a", "Auto", "best-fit", settings=folder.policies.job(policy).settings)
    strict = Policies(
        [folder.path], clock=SimClock(), hook=lambda *_: None, context=lambda: Context(caps=Caps(modes=("DryRun",)))
    )
    strict.load()
    held = strict.terms(run).window(SimClock().now())
    assert (held.ok, held.reason) == (False, Reason.PAUSED)
    assert "does not allow mode Auto" in held.detail


@pytest.mark.parametrize(("edit", "says"), [("mode: DryRun", "policy a is in mode DryRun now"), ("mode: Auto", "")])
def test_a_policy_turned_to_dry_run_holds_its_run_at_once(folder: Folder, edit: str, says: str) -> None:
    (policy,) = folder.policies.all()
    run = Run("ns", "a-1", "a", "Auto", "best-fit", settings=folder.policies.job(policy).settings)
    window, night = folder.policies.terms(run).window, SimClock().now().replace(hour=3)
    assert window(night).ok
    folder.write("a.yaml", (GOOD % ("a", 20)).replace("mode: Auto", edit))
    assert folder.policies.reload_if_changed()
    assert (window(night).ok, window(night).detail) == (not says, says)


def test_the_configuration_is_turned_to_dry_run_and_back_while_we_run(tmp_path: Path) -> None:
    file, folder = tmp_path / "config.yaml", tmp_path / "policies"
    folder.mkdir()
    (folder / "a.yaml").write_text(GOOD % ("a", 10))
    file.write_text("mode: Policy\n")
    events: list[Event] = []

    def hook(event: str, fields: Mapping[str, Any]) -> None:
        events.append((event, fields))

    live = LiveSettings(load_settings(str(file)), path=str(file), reread=lambda: load_settings(str(file)), hook=hook)
    policies = Policies([folder], clock=SimClock(), hook=hook, context=live.context)
    policies.load()
    (policy,) = policies.all()
    run = Run("ns", "a-1", "a", "Auto", "best-fit", settings=policies.job(policy).settings)
    night = SimClock().now().replace(hour=3)
    assert policies.terms(run).window(night).ok and not policies.reload_if_changed()

    file.write_text("mode: DryRun\ncaps: {total: 3}\n")
    assert policies.reload_if_changed()
    assert (policies.all()[0].mode, policies.all()[0].rules.budgets.total) == ("DryRun", 3)
    assert "does not allow mode Auto" in policies.terms(run).window(night).detail
    assert live.shown["mode"] == "DryRun"

    file.write_text("mode: Dryrun\n")
    assert not policies.reload_if_changed() and policies.all()[0].mode == "DryRun"
    assert [fields["reason"].split(": ")[1] for event, fields in events if event == "settings.broken"] == ["mode"]
    file.write_text("mode: Policy\n")
    assert policies.reload_if_changed() and policies.terms(run).window(night).ok


def test_an_edit_is_checked_and_the_rest_is_taken_as_it_was(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [GOOD % (f"p{n:02}", n + 1) for n in range(30)]
    folder.write("a.yaml", "---".join(many))
    assert folder.policies.reload_if_changed()
    checked = []
    real = load.load_document
    monkeypatch.setattr(load, "load_document", lambda *given: checked.append(given) or real(*given))
    many[7] = "\n# a line more, so that all that follows moves down" + GOOD % ("p07", 99)
    folder.write("a.yaml", "---".join(many))
    assert folder.policies.reload_if_changed()
    assert len(checked) == 1
    assert folder.totals() == {f"p{n:02}": 99 if n == 7 else n + 1 for n in range(30)}
    lines = {p.name: int(p.source.rpartition(":")[2]) for p in folder.policies.all()}
    text = (folder.path / "a.yaml").read_text().splitlines()
    assert all(f"name: {name}" in "".join(text[line - 1 : line + 2]) for name, line in lines.items()), lines


def test_arguments_are_shown_by_the_names_of_the_file(folder: Folder) -> None:
    assert folder.policies.views([])[0].args["useIdleNodes"] is False


def test_an_open_breaker_is_shown_with_the_policies_it_holds(folder: Folder) -> None:
    now = SimClock().now()
    opener = Run(
        "ns", "stop", "a", "Auto", "best-fit", message="b goes in circles", created=now, annotations={BREAKER: "A10"}
    )
    (view,) = folder.policies.views([opener])
    assert "goes in circles" in view.waiting
    assert "run stop" in view.waiting
    assert "circles" not in folder.policies.views([])[0].waiting
