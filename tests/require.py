"""Runs every suite that `make check` leaves out and fails when a test was skipped: a skip hides what was not shown.

Two workers share the files, each with a control plane of its own. Tests that talk to real processes depend on the
machine's moods: what failed is run once more, alone, and both the failure and the second verdict stay in the output.

python -m tests.require [pytest arguments]
"""

from __future__ import annotations

import subprocess
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
    again = "--again" in arguments
    chosen = [argument for argument in arguments if argument != "--again"] or ["tests"]
    how = ["--last-failed"] if again else ["-n", "2", "--dist", "loadfile"]
    plugin = NoSkips()
    code = pytest.main(["-q", "-m", MARKS, "--durations=15", *how, *chosen], plugins=[plugin])
    if plugin.skipped:
        return int(code) or 1
    if code == pytest.ExitCode.TESTS_FAILED and not again:
        print("\nonce more, what failed, one after the other:", flush=True)
        return subprocess.run([sys.executable, "-m", "tests.require", "--again", *arguments], check=False).returncode
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
