"""The main job on a real control plane: a scattered cluster is consolidated on a cron schedule, by two replicas."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.ground.cluster import Cluster, devices_of, is_ready
from tests.ground.daemon import Daemon
from tests.system import worlds
from tests.system.watchers import Sampler, gated

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(420)]
ENDED = {"Completed", "Aborted", "Cancelled", "Expired", "Failed", "Planned"}
STEADY = {"events", "leases"}
"""Not counted against a move: Events and heartbeats (design 2.2)."""


def ended_run(daemon: Daemon, number: int, cluster: Cluster, seconds: float = 200) -> dict[str, Any]:
    """The n-th run of the policy (from 0) once it has ended."""

    def ended() -> dict[str, Any] | None:
        runs = daemon.runs()
        run = runs[number] if len(runs) > number else None
        return run if run and (run.get("status") or {}).get("phase") in ENDED else None

    found: dict[str, Any] = cluster.wait(ended, seconds, f"run {number} ended")
    return found


def check_landed(cluster: Cluster, run: dict[str, Any]) -> None:
    """Every move that is done lies where the plan wanted it: node, devices, Ready; read from the pods, not from us."""
    pods = {pod["metadata"]["uid"]: pod for pod in cluster.pods()}
    moves = {move["id"]: move for move in run["spec"]["plan"]["moves"]}
    for state in run["status"]["moves"]:
        if state["state"] != "Done":
            continue
        wanted = moves[state["id"]]["to"]
        placement = cluster.placement(state["placement"].split("/")[1])
        assert placement["status"]["phase"] == "Completed", placement["status"]
        pod = pods.get(placement["status"]["assignmentDetails"][0]["podUID"])
        if pod is None:
            continue  # moved on by a later move
        assert is_ready(pod)
        assert pod["spec"]["nodeName"] == wanted["node"]
        assert sorted(devices_of(pod)) == sorted(wanted["devices"])


def evictions(daemon: Daemon, since: int) -> Counter[str]:
    """UID -> accepted evictions (dry runs apart)."""
    requests = daemon.plane.audit.requests(daemon.user.name, since)
    return Counter(
        r.precondition_uid for r in requests if r.subresource == "eviction" and r.code == 201 and not r.dry_run
    )


def test_consolidates_as_planned_and_then_rests(cluster: Cluster, start_daemon: Callable[..., Daemon]) -> None:
    before = worlds.scattered(cluster)
    used_before = worlds.devices_in_use(cluster)
    assert len(used_before) >= 12, "the world is scattered"
    daemon = start_daemon([worlds.policy()])
    audit = daemon.plane.audit
    since = audit.mark()

    with Sampler(cluster, {"guarded": 2}) as sampler:
        run = ended_run(daemon, 0, cluster)
    mark = audit.mark()

    counts = run["status"]["counts"]
    assert run["status"]["phase"] == "Completed", run["status"]
    assert counts["planned"] >= 4
    assert (counts["done"], counts.get("failed", 0)) == (counts["planned"], 0), run["status"]["moves"]
    check_landed(cluster, run)
    assert len(cluster.wait_ready(len(before))) == len(before)
    freed = len(used_before) - len(worlds.devices_in_use(cluster))
    assert freed == run["spec"]["plan"]["freed"]["devices"] > 0

    assert not sampler.overdrawn
    assert sampler.rate() >= 5
    assert set(evictions(daemon, since).values()) == {1}

    mine = [r for r in audit.requests(daemon.user.name, since) if r.resource not in STEADY]
    calls = Counter(r.what for r in mine if r.verb != "watch")
    print(f"{counts['done']} moves, {sum(calls.values())} calls: {dict(calls)}")
    assert sum(calls.values()) / counts["done"] <= 8, calls
    assert not [r for r in mine if r.verb == "delete" and r.resource == "pods"]
    assert not [r for r in mine if r.code == 403], "the chart's role lacks nothing"
    # Lists belong to the start of the watches; in steady state there are none.
    assert not [r.what for r in audit.requests(daemon.user.name, mark) if r.verb == "list"]

    second = ended_run(daemon, 1, cluster, 90)
    assert second["status"].get("counts", {}).get("planned", 0) == 0, second["status"]
    assert not evictions(daemon, mark)


def test_kill_of_the_leader_in_the_middle_loses_nothing(cluster: Cluster, start_daemon: Callable[..., Daemon]) -> None:
    before = worlds.scattered(cluster)
    daemon = start_daemon([worlds.policy()])
    since = daemon.plane.audit.mark()

    with Sampler(cluster, {"guarded": 2}) as sampler:
        cluster.wait(lambda: any(gated(pod) for pod in cluster.pods()), 100, "a replacement at the gate")
        daemon.leader().process.kill()
        killed = time.monotonic()
        run = ended_run(daemon, 0, cluster)

    took_over = time.monotonic() - killed
    assert run["status"]["phase"] == "Completed", run["status"]
    check_landed(cluster, run)
    cluster.wait_ready(len(before))
    assert set(evictions(daemon, since).values()) == {1}, "nothing is evicted twice"
    assert not [pod for pod in cluster.pods() if gated(pod)]
    assert not sampler.overdrawn
    assert max(sampler.longest_gate.values()) < 90, f"run ended {took_over:.0f} s after the kill"
