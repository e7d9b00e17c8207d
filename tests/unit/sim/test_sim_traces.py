"""The simulated cluster is judged by what HAMi's own scheduler decided, pod after pod."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from defragd.core.fit import choose_node
from defragd.core.fit_families import UNPREDICTABLE
from defragd.core.model import Pod
from defragd.hami.keys import BOOKED_NODE
from defragd.hami.translate import translate_pod
from defragd.kube import wire
from defragd.sim.cluster import SimCluster
from defragd.sim.faults import Faults
from defragd.sim.scheduler import AS_HAMI
from tests.replay_traces import DATA, Tally, World, records

WORLDS = Path(__file__).resolve().parents[2] / "data" / "hami-worlds" / "mixed-and-vendors.jsonl.gz"


def decided(record: dict[str, Any]) -> Iterator[str]:
    """Plays a record in the simulated cluster: "" for each decision that is HAMi's, else the difference. Afterwards the
    pod stands as HAMi left it, so that one tie decided otherwise does not change the rest."""
    world = World(record, Tally())
    node, device = record["config"]["nodeSchedulerPolicy"], record["config"]["gpuSchedulerPolicy"]
    seen = world.snapshot()
    held = {key: pod if pod.node else replace(pod, gates=("kept",)) for key, pod in seen.pods.items()}
    start = replace(seen, pods=held, node_policy=node, device_policy=device)
    cluster = SimCluster(start, faults=Faults(webhook_down=True), vendors=world.vendors)
    for query in record["queries"]:
        if query["op"] == "delete":
            for pod in [p for p in cluster.pods.values() if p.name == query["name"]]:
                cluster.remove_pod(pod.key, pod.uid)
            continue
        answer = query.get("answer") or query.get("together")
        if answer is None or "admitted" not in query or "error" in answer or answer.get("passed_through"):
            continue
        stored = World.as_stored(query["submitted"], query["admitted"])
        pod = translate_pod(msgspec.convert(stored, wire.Pod), world.config)
        tied = choose_node(cluster.snapshot(), pod, cluster.nodes, vendors=world.vendors, config=AS_HAMI).tied
        cluster.create_pod(pod)
        cluster.advance(0.06)
        mine = cluster.pods[pod.key]
        if UNPREDICTABLE not in mine.unschedulable:
            yield difference(mine, answer, tied)
        if query["op"] != "keep":
            cluster.remove_pod(mine.key, mine.uid)
            cluster.advance(0.06)
            continue
        notes = dict(query["admitted"]["annotations"])
        if answer["fits"]:
            notes |= {**answer["written"], BOOKED_NODE: answer["nodes"][0]}
        stored["metadata"]["annotations"] = notes
        kept = translate_pod(msgspec.convert(stored, wire.Pod), world.config)
        cluster.nodes = {name: replace(n, lock=None) for name, n in cluster.nodes.items()}
        cluster.pods[pod.key] = replace(kept, gates=("kept",), created=mine.created)
        cluster.touch()


def difference(mine: Pod, answer: dict[str, Any], tied: tuple[str, ...]) -> str:
    if not answer["fits"]:
        return f"we bind to {mine.node}, HAMi {answer['reasons']}" if mine.node else ""
    theirs = answer["nodes"][0]
    if mine.node != theirs:
        return "" if {mine.node, theirs} <= set(tied) else f"we {mine.node or mine.unschedulable}, HAMi {theirs}"
    text = "".join(v for k, v in answer["written"].items() if k.endswith("-allocated"))
    uuids = [item.split(",")[0] for slot in text.split(";") for item in slot.split(":") if "," in item]
    return "" if sorted(a.uuid for a in mine.allocations) == sorted(uuids) else f"we {mine.devices}, HAMi {uuids}"


def test_sequences_go_as_recorded() -> None:
    found = [text for record in records(DATA / "sequence.jsonl.gz") for text in decided(record)]
    assert len(found) > 100
    assert not [text for text in found if text]


def test_random_worlds_go_as_recorded() -> None:
    found = [text for record in records(WORLDS) if record["kind"] in ("mixed", "nvidia") for text in decided(record)]
    assert len(found) > 100
    assert not [text for text in found if text]
