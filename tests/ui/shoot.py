"""Photograph the pages in headless Chromium, light and dark: ``python -m tests.ui.shoot OUT [--nodes N] [PAGE...]``.

Fails (exit 1) without Chromium. The pages are served by the real server with the demo world of tests/support.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from defragd.web.app import create_app
from defragd.web.serve import Server
from tests.support.web_world import build_world

PAGES = {
    "overview": "",
    "map": "map",
    "plans": "plans",
    "plan": "plans/nightly-consolidation-3",
    "runs": "runs",
    "run": "runs/nightly-consolidation-3",
    "approve": "runs/weekly-drain-1",
    "placements": "placements",
    "policies": "policies",
    "explain": "explain/pod/ads/embed-004-x0020",
    "node": "explain/node/gpu-node-05",
    "error": "runs/no-such-run",
}
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find_chromium() -> str:
    """Path of the browser. Raises RuntimeError with how to get one."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    raise RuntimeError("no chromium found; apt-get install -y chromium")


def shoot(url: str, target: Path, *, dark: bool = False, width: int = 1280, height: int = 1500) -> None:
    """One picture of ``url``. Raises RuntimeError when the browser makes none."""
    with tempfile.TemporaryDirectory(prefix="shoot-") as profile:
        command = [
            find_chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
            "--disable-dev-shm-usage", f"--user-data-dir={profile}", f"--window-size={width},{height}",
            f"--screenshot={target}", *(["--blink-settings=preferredColorScheme=0"] if dark else []), url,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, timeout=90, check=False)
    if not target.exists():
        raise RuntimeError(f"no picture of {url}: {done.stderr.decode(errors='replace')[-400:]}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("pages", nargs="*", default=list(PAGES))
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--per-node", type=int, default=4)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=1500)
    parser.add_argument("--theme", choices=("light", "dark", "both"), default="both")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    server = Server(create_app(build_world(options.nodes, per_node=options.per_node).deps), "127.0.0.1:0", name="ui")
    server.start()
    try:
        for name in options.pages:
            for theme in ("light", "dark") if options.theme == "both" else (options.theme,):
                target = options.out / f"{name}-{theme}.png"
                shoot(
                    f"{server.url}/{PAGES[name]}", target, dark=theme == "dark", width=options.width,
                    height=options.height,
                )  # fmt: skip
                print(target)
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        server.stop(drain=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
