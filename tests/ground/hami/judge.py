"""Compares the stand-in with recorded decisions of HAMi's real scheduler.

python -m tests.ground.hami.judge FILE...       # right and wrong per kind, the first differences in words
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.ground.hami import books
from tests.ground.hami.admission import Denied, admit
from tests.ground.hami.config import NVIDIA_DEFAULTS
from tests.ground.hami.decide import Answer, World, decide


@dataclass
class Tally:
    """Verdicts of one kind."""

    right: int = 0
    wrong: int = 0
    differences: list[str] = field(default_factory=list)

    def check(self, good: bool, text: str) -> None:
        if good:
            self.right += 1
        else:
            self.wrong += 1
            self.differences.append(text)


def worlds(path: Path) -> Iterator[dict[str, Any]]:
    """The records of one file."""
    with gzip.open(path, "rt") as lines:
        for line in lines:
            yield json.loads(line)


def build(record: Mapping[str, Any]) -> World:
    """The recorded world as HAMi's caches hold it."""
    config = record["config"]
    world = World(
        nvidia={**NVIDIA_DEFAULTS, **config["nvidia"]},
        node_policy=config["nodeSchedulerPolicy"],
        gpu_policy=config["gpuSchedulerPolicy"],
    )
    for node in record["nodes"]:
        try:
            known = books.inventory(node)
        except (ValueError, KeyError):
            continue  # HAMi never learns of a node whose annotation it cannot decode
        world.nodes[known.name] = known
    for number, pod in enumerate(record["pods"]):
        booked = books.booking(pod)
        if booked:
            world.bookings[f"existing-{number}"] = booked
    for quota in record.get("quotas") or []:
        world.quotas.put(quota, world.nvidia)
    return world


def judge(record: Mapping[str, Any], tally: Tally) -> None:
    """Asks the stand-in every question of one record."""
    world = build(record)
    for number, query in enumerate(record["queries"]):
        name = f"{record['id']}#{number}"
        if query["op"] == "delete":
            world.bookings.pop(query["name"], None)
            continue
        namespace = query["submitted"]["metadata"]["namespace"]
        if query.get("webhook") and not _judge_admission(world, query, namespace, name, tally):
            continue
        pod = _admitted(query, namespace)
        for node, expected in (query.get("per_node") or {}).items():
            answer = decide(world, pod, [node])
            tally.check(_same(answer, expected), f"{name} {node}: recorded {expected}, stand-in {_words(answer)}")
        together = query.get("together") or query.get("answer")
        if together is None:
            continue
        answer = decide(world, pod, [n["metadata"]["name"] for n in record["nodes"]])
        for expected in [together, *(query.get("also_seen") or [])]:
            tally.check(_same(answer, expected), f"{name} all: recorded {expected}, stand-in {_words(answer)}")
        if query["op"] == "keep" and together["fits"] and "written" in together:
            kept = json.loads(json.dumps(pod))
            kept["metadata"]["annotations"] |= {books.NODE: together["nodes"][0], **together["written"]}
            booked = books.booking(kept)
            assert booked is not None
            world.bookings[query["submitted"]["metadata"]["name"]] = booked


def _judge_admission(world: World, query: Mapping[str, Any], namespace: str, name: str, tally: Tally) -> bool:
    """False when the recorded pod was refused (nothing else follows)."""
    denied = query.get("denied")
    submitted = query["submitted"]
    try:
        made = admit(world, submitted, namespace)
    except Denied as refusal:
        text = f'admission webhook "vgpu.hami.io" denied the request: {refusal}'
        good = denied is not None and (denied["code"], denied["message"]) == (refusal.code, text)
        tally.check(good, f"{name} admission: recorded {denied or 'admitted'}, stand-in {refusal.code} {text}")
        return not denied
    if denied:
        # Anything but HAMi's refusal comes from the API server's own checks.
        if "vgpu.hami.io" in denied["message"]:
            tally.check(False, f"{name} admission: recorded {denied}, stand-in admits")
        return False
    admitted = query["admitted"]
    got = {
        "schedulerName": made["spec"].get("schedulerName") or "default-scheduler",
        **{part: _limits(made["spec"].get(part)) for part in ("containers", "initContainers")},
    }
    want = {
        "schedulerName": admitted["schedulerName"],
        **{part: _limits(admitted.get(part)) for part in ("containers", "initContainers")},
    }
    tally.check(got == want, f"{name} admission: recorded {want}, stand-in {got}")
    return True


def _limits(containers: Any) -> list[dict[str, Any]]:
    from tests.ground.hami.request import integer

    return [
        {
            k: integer(v) if integer(v) is not None else v
            for k, v in ((c.get("resources") or {}).get("limits") or {}).items()
        }
        for c in containers or []
    ]


def _admitted(query: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    admitted = query["admitted"]
    spec = {"schedulerName": admitted["schedulerName"], "containers": admitted["containers"]}
    if admitted.get("initContainers"):
        spec["initContainers"] = admitted["initContainers"]
    return {
        "metadata": {
            "name": query["submitted"]["metadata"]["name"], "namespace": namespace, "uid": "incoming",
            "annotations": dict(admitted.get("annotations") or {}),
        },
        "spec": spec,
        "status": {"phase": "Pending"},
    }  # fmt: skip


def _same(answer: Answer, expected: Mapping[str, Any]) -> bool:
    if expected.get("passed_through"):
        return answer.passed
    if not expected["fits"]:
        if "error" in expected:
            return bool(answer.error)
        return not answer.fitting and not answer.passed and dict(answer.reasons) == expected["reasons"]
    node = expected["nodes"][0]
    if node not in answer.winners:
        return False
    written = {key: json.loads(value) if key == books.MIG else value for key, value in expected["written"].items()}
    got = {key: json.loads(value) if key == books.MIG else value for key, value in answer.fitting[node].written.items()}
    return got == written


def _words(answer: Answer) -> str:
    if answer.passed:
        return "passes it through"
    if answer.error:
        return f"error {answer.error}"
    if answer.fitting:
        return " or ".join(f"{n}: {answer.fitting[n].written}" for n in answer.winners)
    return f"refuses: {dict(answer.reasons)}"


def judge_files(paths: list[Path]) -> dict[str, Tally]:
    """kind -> tally."""
    found: dict[str, Tally] = {}
    for path in paths:
        for record in worlds(path):
            judge(record, found.setdefault(record["kind"], Tally()))
    return found


def main(arguments: list[str]) -> int:
    tallies = judge_files([Path(a) for a in arguments])
    for kind, tally in sorted(tallies.items()):
        print(f"{kind:20} {tally.right:5} right {tally.wrong:4} wrong")
        for text in tally.differences[:5]:
            print(f"    {text}")
    return 1 if any(t.wrong for t in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
