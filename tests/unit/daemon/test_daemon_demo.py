"""`defragd demo --once`: the whole daemon, its API while it works, and an orderly end."""

from __future__ import annotations

import io
import json
import re
import threading
import time
import urllib.request

import pytest

from defragd.daemon.demo import run_demo


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_demo_consolidates_and_ends() -> None:
    out = io.StringIO()
    codes: list[int] = []
    thread = threading.Thread(
        target=lambda: codes.append(run_demo(once=True, address="127.0.0.1:0", speed=10.0, out=out)), daemon=True
    )
    thread.start()
    end = time.monotonic() + 60
    while not (found := re.search(r"API (http://\S+)", out.getvalue())):
        assert time.monotonic() < end
        time.sleep(0.05)
    with urllib.request.urlopen(found[1], timeout=10) as answer:
        info = json.load(answer)
    thread.join(150)
    assert codes == [0], out.getvalue()
    assert info["summary"]["devices"] == 34
    text = out.getvalue()
    for words in ("BEFORE", "PLAN", "wave 1", "do-not-move", "Completed", "AFTER", "every disruption budget was kept"):
        assert words in text
    before, after = (int(n) for n in re.findall(r"(\d+) devices and", text))
    assert after > before + 5
