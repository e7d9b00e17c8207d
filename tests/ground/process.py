"""Child processes of a test cluster: start, kill, restart, freeze; their logs in files, shown when something fails."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Process:
    """One program with fixed arguments; it can be started again after it was killed, on the same ports."""

    def __init__(
        self, name: str, command: Sequence[object], folder: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name, self.command, self.log = name, [str(part) for part in command], folder / f"{name}.log"
        self.env = {k: v for k, v in os.environ.items() if k != "KUBECONFIG"} | dict(env or {})
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None, f"{self.name} was never started"
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        return None if self._child is None else self._child.poll()

    def start(self) -> Process:
        assert not self.running, f"{self.name} runs already"
        with open(self.log, "ab") as log:
            # A session of its own: a Ctrl-C for pytest does not hit it before the fixture stops it in order.
            self._child = subprocess.Popen(
                self.command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=self.env,
                start_new_session=True,
            )  # fmt: skip
        return self

    def kill(self, sig: int = signal.SIGKILL, *, wait: float = 20) -> None:
        """Sends the signal and waits for the end; the whole process group is gone afterwards."""
        child = self._child
        if child is None:
            return
        if child.poll() is None:
            child.send_signal(sig)
            try:
                child.wait(wait)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait(5)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)

    def send(self, sig: int) -> None:
        """Sends a signal and does not wait."""
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(sig)

    def terminate(self, *, wait: float = 20) -> int | None:
        """SIGTERM; returns the exit code (None: it had to be killed, or never ran)."""
        child = self._child
        if child is None:
            return None
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(wait)
            except subprocess.TimeoutExpired:
                self.kill()
                return None
        return child.returncode

    def restart(self, sig: int = signal.SIGKILL) -> Process:
        self.kill(sig)
        return self.start()

    def freeze(self) -> None:
        """SIGSTOP: the process holds its connections and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def tail(self, lines: int = 20) -> str:
        return "\n".join(self.output().splitlines()[-lines:])

    def log_size(self) -> int:
        """A position for ``wait_for_log``."""
        return self.log.stat().st_size if self.log.exists() else 0

    def wait_for_log(self, pattern: str, seconds: float = 30, *, since: int = 0) -> str:
        """The first line after ``since`` that matches; AssertionError with the log's end otherwise."""
        expression = re.compile(pattern)
        end = time.monotonic() + seconds
        while True:
            with open(self.log, "rb") as log:
                log.seek(since)
                text = log.read().decode(errors="replace")
            for line in text.splitlines():
                if expression.search(line):
                    return line
            if time.monotonic() > end or not self.running:
                state = "running" if self.running else f"ended with {self.exit_code}"
                raise AssertionError(f"{self.name} ({state}) did not log {pattern!r}:\n{self.tail()}")
            time.sleep(0.02)
