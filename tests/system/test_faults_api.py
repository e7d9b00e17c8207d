"""Answers that are late, lost or wrong between daemon and API server, and between API server and our webhook."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.ground import objects
from tests.ground.cluster import Cluster, devices_of
from tests.ground.daemon import Daemon
from tests.ground.pki import Authority
from tests.system.faults import behind_a_proxy, clean, ended, move, pair

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(240)]

EVICTION, PIN, STATUS = "/pods/[^/]+/eviction", "/namespaces/default/pods/[^/]+$", "/hamipodplacements/[^/]+/status"
WHAT: dict[str, dict[str, Any]] = {
    "409": {"status": 409, "times": 2},
    "429": {"status": 429, "times": 2},
    "429 with a time": {"status": 429, "headers": {"Retry-After": "1"}, "times": 2},
    "500": {"status": 500, "times": 2},
    "503": {"status": 503, "headers": {"Retry-After": "1"}, "times": 2},
    "closed": {"drop": True, "times": 2},
    "answer lost": {"lose_answer": True, "times": 1},
    "hanging": {"hang": True, "times": 1},
}
CASES = [(what, where) for what in WHAT for where in (EVICTION, PIN, STATUS)]
QUICK = {("429", EVICTION), ("answer lost", EVICTION), ("answer lost", PIN), ("503", STATUS)}
WATCHES = {
    "every watch is cut": {"path": "watch=true", "how": {"cut_after": 0.4}},
    "watches are too old": {
        "path": "watch=true",
        "how": {"status": 410, "times": 30, "body": {
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410,
            "message": "too old resource version",
        }},
    },
    "pods are seen a second late": {"path": "/api/v1/pods", "how": {"delay": 1.0}},
}  # fmt: skip


def _slow(case: Any, quick: bool) -> Any:
    return pytest.param(*case, marks=[] if quick else [pytest.mark.slow])


@pytest.mark.parametrize(("what", "where"), [_slow(case, case in QUICK) for case in CASES])
def test_a_write_that_goes_wrong_is_made_good(cluster: Cluster, what: str, where: str) -> None:
    pod = pair(cluster)
    with behind_a_proxy(cluster) as (daemon, proxy):
        since = daemon.plane.audit.mark()
        fault = proxy.fail("*", where, **WHAT[what])
        if what == "hanging":
            threading.Timer(17, proxy.heal).start()
        begin = time.monotonic()
        move(cluster, pod, timeouts={"start": "60s"})
        (status,) = ended(cluster, "move", seconds=90)
        print(f"{what} at {where}: {status['reason']} after {time.monotonic() - begin:.1f} s")
        assert fault.hits
        assert status["phase"] == "Completed", status
        assert devices_of(cluster.wait_ready(1)[0]) == ["GPU-n1-1"]
        clean(cluster, daemon, since)


@pytest.mark.parametrize("name", [_slow((name,), name.startswith("every")) for name in WATCHES])
def test_watches_that_break(cluster: Cluster, name: str) -> None:
    pod = pair(cluster)
    with behind_a_proxy(cluster) as (daemon, proxy):
        since = daemon.plane.audit.mark()
        proxy.cut()
        proxy.heal()
        fault = proxy.fail("GET", WATCHES[name]["path"], **WATCHES[name]["how"])
        cluster.wait(lambda: fault.hits, 10, "watches are opened again")
        move(cluster, pod)
        (status,) = ended(cluster, "move", seconds=60)
        print(f"{name}: {status['reason']}, {fault.hits} hits")
        proxy.heal()
        assert status["phase"] == "Completed", status
        assert devices_of(cluster.wait_ready(1)[0]) == ["GPU-n1-1"]
        clean(cluster, daemon, since)


def _untrusted(cluster: Cluster) -> int:
    """A server whose certificate has expired (and is not of our authority)."""
    folder = cluster.plane.folder / f"stranger-{time.monotonic_ns()}"
    folder.mkdir()
    crt, key = Authority(folder).issue("stranger", valid=datetime.timedelta(days=-1))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(crt, key)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
                context.wrap_socket(client, server_side=True).close()
            except OSError:
                continue

    threading.Thread(target=serve, daemon=True).start()
    return int(listener.getsockname()[1])


@pytest.mark.parametrize("how", [_slow((how,), how == "hang") for how in ("hang", "slow", "untrusted")])
def test_a_webhook_that_does_not_answer_in_time(
    cluster: Cluster, start_daemon: Callable[..., Daemon], how: str
) -> None:
    """Creations go on after at most the webhook's short time limit; the move ends with its reason."""
    pod = pair(cluster)
    daemon = start_daemon(replicas=1)
    since = daemon.plane.audit.mark()
    if how == "hang":
        daemon.balancer.break_with("hang")
    elif how == "slow":
        daemon.balancer.break_with("ok", delay=5.0)
    else:
        daemon.balancer.backends = [_untrusted(cluster)]
        daemon.balancer.drop()
    begin = time.monotonic()
    cluster.create(objects.pod("other", mem=100))
    took = time.monotonic() - begin
    print(f"{how}: a creation took {took:.2f} s")
    assert took < 3, "no creation is held up for longer than 3 s"
    move(cluster, pod)
    (status,) = ended(cluster, "move", seconds=60)
    assert (status["phase"], status["reason"]) == ("Failed", "Unpinned"), status
    clean(cluster, daemon, since)
    cluster.wait_ready(2)
