"""Commands in the documentation are run, and what the pages show is what they print.

    python -m tests.chart.docs [--check]

Fenced blocks marked `console` hold `$ command` lines, each followed by its output. They run in chart/docs/example with
the package's own scripts first in the path; times are shown as 0.1 s. Without `--check` the outputs are written anew.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "chart" / "docs" / "example"
PAGES = (*sorted((ROOT / "chart" / "docs").glob("*.md")), ROOT / "chart" / "README.md", ROOT / "README.md")
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run(command: str) -> str:
    """What a command prints on both streams, with run times made equal."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "NO_COLOR": "1", "KUBECONFIG": "/nonexistent", "COLUMNS": "120"}
    done = subprocess.run(["bash", "-c", command], cwd=EXAMPLE, env=env, capture_output=True, text=True, timeout=120)
    text = re.sub(r"\b\d+\.\d+ s\b", "0.1 s", done.stdout + done.stderr)
    return text if not text or text.endswith("\n") else text + "\n"


def fresh(block: str) -> str:
    """The block with the outputs that its commands have now."""
    commands = [line[2:] for line in block.splitlines() if line.startswith("$ ")]
    return "".join(f"$ {command}\n{run(command)}" for command in commands)


def page(path: Path) -> str:
    """The page with fresh outputs."""
    return BLOCK.sub(lambda match: f"```console\n{fresh(match[1])}```", path.read_text())


def main(arguments: list[str]) -> int:
    stale = 0
    for path in PAGES:
        new = page(path)
        if new != path.read_text():
            stale += 1
            print(f"{path.relative_to(ROOT)}: outputs are not what the commands print")
            if "--check" not in arguments:
                path.write_text(new)
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
