"""A campaign on a real control plane, steered by a person: approval, pauses, a broken reload, kill -9, the breaker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.ground import objects
from tests.ground.cluster import Cluster
from tests.ground.daemon import Daemon
from tests.ground.emulator import Behaviour
from tests.system import worlds

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(420)]
RUNS = "/apis/scheduling.hami.placement.com/v1/namespaces/kube-system/defragruns"
HOME = "/api/v1/namespaces/kube-system"
SLOW = {"total": 50, "concurrent": 1, "spacing": "0s", "rate": None}
"""One move at a time, so that a person can get in between."""


class Desk:
    """What a person does with kubectl, and what they see."""

    def __init__(self, cluster: Cluster, daemon: Daemon, policy: str) -> None:
        self.cluster, self.daemon, self.policy = cluster, daemon, policy

    def run(self, number: int = -1) -> dict[str, Any]:
        return self.daemon.runs(self.policy)[number]

    def wait(self, condition: Callable[[dict[str, Any]], Any], what: str, seconds: float = 60) -> dict[str, Any]:
        """The newest run once it meets the condition."""

        def look() -> dict[str, Any] | None:
            runs = self.daemon.runs(self.policy)
            return runs[-1] if runs and condition(runs[-1]) else None

        found: dict[str, Any] = self.cluster.wait(look, seconds, f"{what}; runs: {self.daemon.runs(self.policy)[-1:]}")
        return found

    def patch(self, name: str, desired: str) -> None:
        self.cluster.api.patch(f"{RUNS}/{name}", {"spec": {"desired": desired, "desiredBy": "kim"}})

    def annotate_run(self, name: str, value: str | None) -> None:
        self.cluster.api.patch(f"{RUNS}/{name}", {"metadata": {"annotations": {"defragd.io/desired": value}}})

    def pause_everything(self, why: str | None) -> None:
        self.cluster.api.patch(HOME, {"metadata": {"annotations": {"defragd.io/paused": why}}})

    def placements(self) -> list[dict[str, Any]]:
        return self.cluster.api.items(objects.COLLECTIONS["HamiPodPlacement"].format(ns="default"))

    def plan(self) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.cluster.api.token}"}
        return self.daemon.leader().call("POST", f"/api/v1/policies/{self.policy}:run", headers=headers, timeout=60)


def phase(run: dict[str, Any]) -> str:
    return str((run.get("status") or {}).get("phase") or "")


def reason(run: dict[str, Any]) -> str:
    return str((run.get("status") or {}).get("reason") or "")


def done(run: dict[str, Any]) -> int:
    return sum(1 for move in (run.get("status") or {}).get("moves") or [] if move["state"] == "Done")


def test_approval_pauses_reload_and_restart(cluster: Cluster, start_daemon: Callable[..., Daemon]) -> None:
    before = worlds.scattered(cluster, nodes=3, deployments=8)
    policy = worlds.policy("steered", cron=None, mode="Approve", budgets=SLOW)
    daemon = start_daemon([policy])
    desk = Desk(cluster, daemon, "steered")
    since = daemon.plane.audit.mark()

    # nothing moves before a person says so, not even after everybody was killed
    status, answer = desk.plan()
    assert status in (200, 201, 202), answer
    name = desk.wait(lambda r: phase(r) == "AwaitingApproval", "a plan that waits")["metadata"]["name"]
    for replica in daemon.replicas:
        replica.process.kill()
    for replica in daemon.replicas:
        replica.process.start()
    daemon.wait_ready(60)
    time.sleep(2)
    assert phase(desk.run()) == "AwaitingApproval"
    assert not desk.placements()

    # a broken edit of the policy keeps the last good one and says so; the run goes on by what was approved
    file = daemon.policies / "steered.yaml"
    file.write_text(yaml.safe_dump(policy).replace("concurrent", "concurent"))

    def broken() -> bool:
        items = daemon.leader().get("/api/v1/policies")[1]["items"]
        return any("did you mean" in str(item.get("lastError")) and item.get("strategy") for item in items)

    cluster.wait(broken, 30, "the broken edit is shown beside the policy in force")
    assert daemon.leader().metric("defragd_policy_reloads_total", result="failed") >= 1

    desk.patch(name, "Approved")
    desk.wait(lambda r: done(r) >= 1, "a first move done")

    # the switch for everything: nothing new starts within one loop
    desk.pause_everything("an incident")
    time.sleep(3)
    held = len(desk.placements())
    time.sleep(5)
    assert len(desk.placements()) == held, "nothing starts under the global pause"
    paused = desk.wait(lambda r: reason(r) == "Paused", "the run says why it stands still")
    assert "an incident" in paused["status"]["message"]
    desk.pause_everything(None)
    desk.wait(lambda r: done(r) >= held, "it goes on")

    # pause by an annotation on the run, a crash in between, and on again
    desk.annotate_run(name, "Paused")
    desk.wait(lambda r: phase(r) == "Paused", "paused between moves")
    daemon.leader().process.kill()
    time.sleep(3)
    held = len(desk.placements())
    desk.annotate_run(name, None)
    end = desk.wait(lambda r: phase(r) == "Completed", "the next leader carries it to its end", 150)
    counts = end["status"]["counts"]
    # the killed replica's webhook may have been the one asked in that moment: then that pod came unpinned, and is said
    assert counts["done"] + counts.get("failed", 0) == counts["planned"] >= held
    failed = [move for move in end["status"]["moves"] if move["state"] == "Failed"]
    assert [move["reason"] for move in failed] in ([], ["Unpinned"])
    cluster.wait_ready(len(before))
    accepted = [
        r.precondition_uid
        for r in daemon.plane.audit.requests(daemon.user.name, since)
        if r.subresource == "eviction" and r.code == 201 and not r.dry_run
    ]
    assert len(accepted) == len(set(accepted)) == counts["done"] + len(failed)


def test_breaker_opens_is_told_and_lifted(cluster: Cluster, start_daemon: Callable[..., Daemon]) -> None:
    """Somebody puts the pod back after each run; after the second return nothing is moved any more (UC-35)."""
    cluster.emulator.defaults = Behaviour(allocate=0.05, ready=0.1, delete=0.2)
    for node in ("n0", "n1"):
        cluster.add_node(node, 1)
    slice_of = {"mem": 6000, "cores": 20, "annotations": worlds.SPREAD}
    cluster.create(objects.deployment("a", 1, **slice_of))
    cluster.wait_ready(1)
    cluster.create(objects.deployment("b", 1, **slice_of))
    cluster.wait_ready(2)
    start = sorted(cluster.placed().values())
    daemon = start_daemon([worlds.policy("packer", cron=None)])
    desk = Desk(cluster, daemon, "packer")

    for number in (1, 2):
        assert desk.plan()[0] in (200, 201, 202)
        run = desk.wait(lambda r: phase(r) == "Completed" and done(r) == 1, f"run {number} done")
        place = cluster.placement(run["status"]["moves"][0]["placement"].split("/")[1])
        moved = place["status"]["assignmentDetails"][0]["podName"]
        cluster.api.delete(f"/api/v1/namespaces/default/pods/{moved}")
        cluster.wait(lambda: sorted(cluster.placed().values()) == start, 30, "it is back where it was")
        cluster.wait_ready(2)

    assert desk.plan()[0] in (200, 201, 202)
    opened = desk.wait(lambda r: reason(r) == "BreakerOpen", "the breaker")
    assert phase(opened) == "Aborted"
    assert "for the third time in state" in opened["status"]["message"]
    assert "default/" in opened["status"]["message"], "it names pods"
    assert daemon.leader().metric("defragd_breaker_open", policy="packer") == 1

    # a restart forgets nothing
    daemon.leader().process.kill()
    cluster.wait(lambda: daemon.leader(), 60, "another leader")
    cluster.wait(lambda: desk.plan()[0] in (200, 201, 202), 30, "it plans")
    again = desk.wait(lambda r: r["metadata"]["name"] != opened["metadata"]["name"], "another run")
    assert reason(again) == "BreakerOpen"
    assert len(desk.placements()) == 2

    # a person lifts it
    desk.patch(opened["metadata"]["name"], "Approved")
    time.sleep(1)
    assert desk.plan()[0] in (200, 201, 202)
    desk.wait(lambda r: phase(r) == "Completed" and done(r) == 1, "moves again")
