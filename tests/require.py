"""Runs every suite that `make check` leaves out and fails when a test was skipped: a skip hides what was not shown.

python -m tests.require [pytest arguments]
"""

from __future__ import annotations

import sys

import pytest

MARKS = "controlplane or slow"


class NoSkips:
    """Counts skipped tests over all workers and turns them into a failure."""

    def __init__(self) -> None:
        self.skipped: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skipped.append(f"{report.nodeid}: {report.longrepr}")

    def pytest_terminal_summary(self, terminalreporter) -> None:
        for line in self.skipped:
            terminalreporter.write_line(f"SKIPPED, and that fails the run: {line}", red=True)


def main(arguments: list[str]) -> int:
    plugin = NoSkips()
    code = pytest.main(["-q", "-m", MARKS, "--durations=15", *(arguments or ["tests"])], plugins=[plugin])
    return int(code) or int(bool(plugin.skipped))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
