"""Runs every suite that `make check` leaves out and fails when a test was skipped: a skip hides what was not shown.

Three workers share the tests, each with a control plane of its own: most of a system test is waiting. Tests that talk
to real processes depend on the machine's moods: what failed is run once more, alone, and the failure and the second
verdict stay in the output.

python -m tests.require [pytest arguments]
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

MARKS = "controlplane or slow"
WORKERS = os.environ.get("DEFRAGD_WORKERS", "3")


class Verdicts:
    """Over all workers: skipped tests turn into a failure, failed ones are kept for another try."""

    def __init__(self) -> None:
        self.skipped: list[str] = []
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skipped.append(f"{report.nodeid}: {report.longrepr}")
        if report.failed:
            self.failed.append(report.nodeid.partition("@tests/")[0])

    def pytest_terminal_summary(self, terminalreporter) -> None:
        for line in self.skipped:
            terminalreporter.write_line(f"SKIPPED, and that fails the run: {line}", red=True)


def main(arguments: list[str]) -> int:
    """At least one argument that is no option chooses the tests; without any it is all of them."""
    alone = "--alone" in arguments
    chosen = [argument for argument in arguments if argument != "--alone"] or ["tests"]
    how = [] if alone else ["-n", WORKERS, "--dist", "loadgroup"]
    plugin = Verdicts()
    code = pytest.main(["-q", "-m", MARKS, "--durations=25", *how, *chosen], plugins=[plugin])
    if plugin.skipped:
        return int(code) or 1
    if code == pytest.ExitCode.TESTS_FAILED and not alone:
        print("\nonce more, what failed, one after the other:", flush=True)
        again = [sys.executable, "-m", "tests.require", "--alone", *dict.fromkeys(plugin.failed)]
        return subprocess.run(again, check=False).returncode
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
