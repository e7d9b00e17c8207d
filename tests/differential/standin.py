"""The stand-in of the test ground as the answering side, in this process: ten thousand verdicts in some seconds."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from tests.differential import mixed
from tests.ground.hami import books, generate

Raw = dict[str, Any]


class StandIn:
    """Answers the questions of a record; knows NVIDIA devices only."""

    def __init__(self) -> None:
        self.config: Raw = {}

    def world(self, random: Random) -> Raw:
        """A world that it can answer, with the flags and device configuration of HAMi drawn as well."""
        if random.random() < 0.5:
            return unanswered(generate.world(random))
        record = mixed.world(random, others=False)
        nvidia: Raw = random.choice(({}, {}, {"defaultMemory": 3000, "defaultCores": 20}, {"memoryFactor": 10}))
        record["config"] = {
            "gpuSchedulerPolicy": random.choice(("binpack", "spread", "mutex,binpack", "topology-aware")),
            "nodeSchedulerPolicy": random.choice(("binpack", "spread")), "nvidia": nvidia,
        }  # fmt: skip
        return record

    def answer(self, record: Raw) -> Raw:
        """The record with every question answered."""
        full: Raw = {**record, "queries": []}
        view = json.loads(json.dumps({**record, "queries": []}))
        for query in record["queries"]:
            if query["op"] == "delete":
                view["pods"] = [p for p in view["pods"] if p["metadata"]["name"] != query["name"]]
                full["queries"].append(query)
                continue
            found = generate.answer(view, query["submitted"], query["webhook"])
            found["op"] = query["op"]
            full["queries"].append(found)
            if query["op"] == "keep" and "admitted" in found:
                view["pods"].append(_kept(found))
        return full


def _kept(query: Raw) -> Raw:
    meta, together = query["submitted"]["metadata"], query["together"]
    notes = dict(query["admitted"]["annotations"])
    if together.get("written"):
        notes |= {**together["written"], books.NODE: together["nodes"][0]}
    spec = {k: query["admitted"][k] for k in ("containers", "initContainers") if k in query["admitted"]}
    return {"metadata": {**meta, "annotations": notes}, "spec": spec, "status": {"phase": "Pending"}}


def unanswered(record: Raw) -> Raw:
    """The record with its questions only."""
    kept = ("op", "name", "webhook", "submitted")
    return {**record, "queries": [{k: v for k, v in q.items() if k in kept} for q in record["queries"]]}
