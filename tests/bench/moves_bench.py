"""How fast many moves are, on a real control plane with emulated kubelets: `python -m tests.bench.moves_bench [NAME]`.

- `many`: one run of a policy whose budgets are open: `--moves` moves on `--nodes` nodes, a budget for every workload
- `eight`: eight pods arrive at one node at once
- `lagging`: one move after the other onto a device that another pod has just left, while HAMi's view of deletions lags
  by a second; no pod may stay Pending
- `single`: one move after the other (`--moves`, at most 30), from the eviction until the replacement is Ready

Printed: seconds, where they went (per phase of a placement, and CPU seconds of every process), API calls per move. It
takes both cores of a small machine, and a busy one says little; nothing here is a test.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from tests.ground import objects
from tests.ground.api import wait_for
from tests.ground.cluster import Cluster
from tests.ground.controlplane import ControlPlane
from tests.ground.daemon import Daemon
from tests.ground.emulator import Behaviour, Emulator
from tests.system import worlds

OPEN = {
    "total": 1000, "concurrent": None, "perSourceNode": None, "perTargetNode": None, "perNamespace": None,
    "perWorkload": "50%", "spacing": "0s", "rate": None,
}  # fmt: skip
REPLICAS = 10
ENDED = {"Completed", "Aborted", "Cancelled", "Expired", "Failed", "Planned"}
MARKS = ("heldAt", "evictingAt", "evictedAt", "pinnedAt", "readyAt", "endedAt")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far; 0 once it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def spent(cluster: Cluster, daemon: Daemon) -> Iterator[dict[str, float]]:
    """CPU seconds by process between begin and end; the emulator runs in this one."""
    pids = {name: process.pid for name, process in cluster.plane.processes.items()}
    pids |= {replica.name: replica.process.pid for replica in daemon.replicas} | {"emulator+this": os.getpid()}
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    used: dict[str, float] = {}
    yield used
    used |= {name: round(cpu_seconds(pid) - before[name], 1) for name, pid in pids.items()}


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def phases(statuses: list[dict[str, Any]]) -> str:
    """Median and 95th percentile of the seconds between the marks that a placement's status keeps."""
    said = []
    for begin, end in itertools.pairwise(MARKS):
        took = sorted(
            (moment(s[end]) - moment(s[begin])).total_seconds() for s in statuses if s.get(begin) and s.get(end)
        )
        if took:
            said.append(f"{begin[:-2]}->{end[:-2]} {statistics.median(took):.2f}/{took[int(len(took) * 0.95)]:.2f}")
    return ", ".join(said)


def calls(daemon: Daemon, since: int, moves: int) -> str:
    """API calls of ours per move, Events and heartbeats apart."""
    mine = [
        r
        for r in daemon.plane.audit.requests(daemon.user.name, since)
        if r.resource not in ("events", "leases") and r.verb != "watch"
    ]
    found = Counter(f"{r.what}{' (dry)' if r.dry_run else ''}{'' if r.code < 400 else f' {r.code}'}" for r in mine)
    return f"{len(mine) / max(moves, 1):.2f} calls per move: {dict(found.most_common())}"


def latencies(daemon: Daemon) -> str:
    """Mean seconds of our API calls by verb, as the leader counts them."""
    _, text = daemon.leader().get("/metrics")
    pattern = r'^defragd_kube_request_duration_seconds_(sum|count){verb="(\w+)"} (\S+)$'
    found: dict[str, dict[str, float]] = {}
    for part, verb, value in re.findall(pattern, str(text), re.MULTILINE):
        found.setdefault(verb, {})[part] = float(value)
    return ", ".join(f"{verb} {v['sum'] / max(v['count'], 1):.3f}" for verb, v in sorted(found.items()))


def many(cluster: Cluster, moves: int, nodes: int) -> None:
    """Two devices a node, each pod half a device: every second pod is to join another."""
    emulator = cluster.emulator
    emulator.defaults = Behaviour(allocate=0.0, ready=0.05, delete=0.1)
    pods = 2 * moves // REPLICAS * REPLICAS
    began = time.monotonic()
    for number in range(nodes):
        cluster.create(objects.node(f"n{number:03}", 2))
    cluster.wait_known(*(f"n{number:03}" for number in range(nodes)), seconds=120)
    shape = {"mem": 12000, "cores": 20, "annotations": worlds.SPREAD}
    for number in range(pods // REPLICAS):
        cluster.create(objects.pdb(f"w{number}", {"app": f"w{number}"}, maxUnavailable="30%"))
        cluster.create(objects.deployment(f"w{number}", REPLICAS, **shape))
    cluster.wait_ready(pods, seconds=900)
    print(f"{nodes} nodes, {pods} pods with {pods // REPLICAS} budgets made in {time.monotonic() - began:.0f} s")
    emulator.defaults = Behaviour(allocate=0.3, ready=0.3, delete=0.5)
    execution = {"settle": "1s", "cooldown": "0s"}
    policy = worlds.policy("open", cron="* * * * *", budgets=OPEN, execution=execution)
    with Daemon(cluster.plane, [policy], replicas=2) as daemon:
        since = daemon.plane.audit.mark()
        wait_for(lambda: daemon.runs(), 90, "the run begins", 0.2)
        with spent(cluster, daemon) as used:
            wait_for(lambda: (daemon.runs()[0].get("status") or {}).get("phase") in ENDED, 900, "the run ends", 0.5)
        run = daemon.runs()[0]
        status = run["status"]
        took = (moment(status["finished"]) - moment(status["started"])).total_seconds()
        planned = run["spec"]["plan"]["elapsedSeconds"]
        print(f"{status['phase']}: {status.get('counts')} in {took:.1f} s; planned in {planned} s")
        path = objects.COLLECTIONS["HamiPodPlacement"].format(ns="default")
        every = [p.get("status") or {} for p in cluster.api.items(path)]
        print(f"seconds, median/p95: {phases(every)}")
        print(f"CPU seconds: {used}, of {os.cpu_count()} x {took:.0f}")
        print(f"seconds of our calls, mean: {latencies(daemon)}")
        print(calls(daemon, since, int((status.get("counts") or {}).get("done", 0))))
        unready = [s for s in every if s.get("phase") != "Completed"]
        print(f"not completed: {Counter((s.get('phase'), s.get('reason'), s.get('message')) for s in unready)}")


def eight(cluster: Cluster) -> None:
    cluster.emulator.defaults = Behaviour(allocate=0.3, ready=0.3, delete=0.5)
    cluster.add_node("src", 8)
    for number in range(8):
        cluster.create(objects.deployment(f"d{number}", 1, mem=20000))
        cluster.wait_ready(number + 1)
    cluster.add_node("dst", 8)
    with Daemon(cluster.plane, replicas=1) as daemon:
        since = daemon.plane.audit.mark()
        pods = {p["metadata"]["labels"]["app"]: p["metadata"]["name"] for p in cluster.pods()}
        with spent(cluster, daemon) as used:
            cluster.create(
                *(
                    objects.placement(f"p{i}", "dst", [f"gpu-{i}"], {"app": f"d{i}"}, evict=pods[f"d{i}"], settle="0s")
                    for i in range(8)
                )
            )
            path = objects.COLLECTIONS["HamiPodPlacement"].format(ns="default")
            wait_for(lambda: all((p.get("status") or {}).get("endedAt") for p in cluster.api.items(path)), 60, "ended")
        lines = [line for line in cluster.emulator.timelines.values() if "ready" in line.marks]
        evicted = min(line.at("deleting") for line in lines if "deleting" in line.marks)
        arrived = sorted(line.at("ready") - evicted for line in lines if "deleted" not in line.marks)
        print(f"ready after the first eviction: {' '.join(f'{seconds:.2f}' for seconds in arrived[-8:])}")
        print(f"seconds, median/p95: {phases([p['status'] for p in cluster.api.items(path)])}")
        print(f"CPU seconds: {used}")
        print(calls(daemon, since, 8))


def single(cluster: Cluster, moves: int) -> None:
    cluster.emulator.defaults = Behaviour(allocate=0.3, ready=0.3, delete=0.5)
    cluster.add_node("n0", 1)
    cluster.create(objects.deployment("web", 1, mem=20000))
    cluster.wait_ready(1)
    cluster.add_node("n1", 1)
    took, beyond = [], []
    with Daemon(cluster.plane, replicas=1) as daemon:
        since = daemon.plane.audit.mark()
        for number in range(min(moves, 30)):
            (pod,) = cluster.wait_ready(1)
            target = "n1" if pod["spec"]["nodeName"] == "n0" else "n0"
            evict = pod["metadata"]["name"]
            name = f"move-{number}"
            cluster.create(objects.placement(name, target, ["gpu-0"], {"app": "web"}, evict=evict, settle="0s"))
            wait_for(lambda name=name: (cluster.placement(name).get("status") or {}).get("endedAt"), 30, "ended", 0.05)
            old = cluster.emulator.timelines[pod["metadata"]["uid"]]
            (now,) = cluster.wait_ready(1)
            new = cluster.emulator.timelines[now["metadata"]["uid"]]
            took.append(new.at("ready") - old.at("deleting"))
            beyond.append(new.at("ready") - old.at("deleted"))
        print(f"{len(took)} moves, eviction to Ready: median {statistics.median(took):.2f} s, most {max(took):.2f} s")
        print(f"beyond the old pod's end: median {statistics.median(beyond):.2f} s, most {max(beyond):.2f} s")
        print(calls(daemon, since, len(took)))


def lagging(cluster: Cluster, moves: int) -> None:
    """To and fro between two devices. Before each move a stranger occupies the target; it goes as the move begins."""
    cluster.emulator.defaults = Behaviour(allocate=0.05, ready=0.1, delete=0.2)
    cluster.add_node("n0", 1)
    cluster.create(objects.deployment("web", 1, mem=20000))
    cluster.wait_ready(1)
    cluster.add_node("n1", 1)
    cluster.habits(deletion_lag=1.0)
    took, woken = [], 0
    with Daemon(cluster.plane, replicas=1) as daemon:
        since = daemon.plane.audit.mark()
        for number in range(moves):
            (pod,) = cluster.wait_ready(1)
            target = "n1" if pod["spec"]["nodeName"] == "n0" else "n0"
            time.sleep(1.2)  # HAMi must have seen the last move's end, or the stranger is the one that waits
            there = {"nodeSelector": {"kubernetes.io/hostname": target}}
            cluster.create(objects.pod("stranger", mem=20000, extra=there))
            cluster.wait_ready(1, app="stranger")
            name, evict = f"move-{number}", pod["metadata"]["name"]
            cluster.api.delete("/api/v1/namespaces/default/pods/stranger")
            cluster.create(objects.placement(name, target, ["gpu-0"], {"app": "web"}, evict=evict, settle="0s"))
            wait_for(lambda name=name: (cluster.placement(name).get("status") or {}).get("endedAt"), 60, "ended", 0.05)
            status = cluster.placement(name)["status"]
            assert status["phase"] == "Completed", status
            old = cluster.emulator.timelines[pod["metadata"]["uid"]]
            (now,) = cluster.wait_ready(1)
            took.append(cluster.emulator.timelines[now["metadata"]["uid"]].at("ready") - old.at("deleting"))
        patches = [r for r in daemon.plane.audit.requests(daemon.user.name, since) if r.what == "patch pods"]
        woken = len(patches) - len(took)
        print(f"{len(took)} moves, none left Pending; eviction to Ready: median {statistics.median(took):.2f} s, "
              f"most {max(took):.2f} s; {woken} patches beside the pins (waking, steering)")  # fmt: skip
        print(calls(daemon, since, len(took)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", choices=("many", "eight", "single", "lagging"), default="many")
    parser.add_argument("--moves", type=int, default=410)
    parser.add_argument("--nodes", type=int, default=500)
    given = parser.parse_args()
    with ControlPlane() as plane:
        plane.install_crds()
        with Emulator(plane.api.as_user("ground-emulator"), workers=8) as emulator:
            cluster = Cluster(plane, emulator)
            if given.name == "many":
                many(cluster, given.moves, given.nodes)
            elif given.name == "eight":
                eight(cluster)
            elif given.name == "lagging":
                lagging(cluster, given.moves)
            else:
                single(cluster, given.moves)
            if emulator.errors:
                print(f"emulator: {emulator.errors[:5]}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
