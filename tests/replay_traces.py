"""Replays decisions recorded from the real HAMi scheduler and compares them with ours.

    python -m tests.replay_traces [FILE...] [--verbose]

Every record's verdicts per node (fits, reason text, devices, annotations), the node chosen together, what admission
makes of the pod, and sequences. Prints right and wrong per kind; exit 1 when something deviates.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from defragd.core.fit import Fit, FitConfig, choose_node, fit_pod
from defragd.core.snapshot import Snapshot
from defragd.hami.admission import Denial, admit_pod
from defragd.hami.config import HamiConfig, parse_device_config
from defragd.hami.keys import BOOKED_NODE
from defragd.hami.translate import assemble, translate_node, translate_pod, translate_quota
from defragd.hami.vendors import vendors_for
from defragd.hami.written import predict_annotations
from defragd.kube import wire

DATA = Path(__file__).parent / "data" / "hami-traces"


@dataclass
class Tally:
    """Right and wrong by kind and question; the deviations in words."""

    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    deviations: list[str] = field(default_factory=list)

    def note(self, kind: str, question: str, right: bool, text: str = "") -> None:
        self.counts[kind][f"{question} {'right' if right else 'wrong'}"] += 1
        if not right:
            self.deviations.append(f"{kind} {question}: {text}")


def records(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            if line.strip():
                yield json.loads(line)


class World:
    """One recorded world: translated once, questions asked in order."""

    def __init__(self, record: Mapping[str, Any], tally: Tally) -> None:
        self.record, self.tally, self.kind = record, tally, record["kind"]
        self.config: HamiConfig = parse_device_config({"nvidia": record["config"]["nvidia"]})
        self.vendors = vendors_for(self.config)
        self.fit_config = FitConfig(
            node_policy=record["config"]["nodeSchedulerPolicy"],
            device_policy=record["config"]["gpuSchedulerPolicy"],
            as_hami=True,
        )
        nodes = [translate_node(msgspec.convert(n, wire.Node), self.config)[0] for n in record["nodes"]]
        self.nodes = {n.name: n for n in nodes}
        self.quotas = tuple(
            q
            for raw in record.get("quotas", ())
            for q in translate_quota(msgspec.convert(raw, wire.ResourceQuota), self.config)
        )
        self.raw_pods: dict[str, dict[str, Any]] = {}
        for raw in record["pods"]:
            self.add(raw)

    def add(self, raw: Mapping[str, Any]) -> None:
        copy = json.loads(json.dumps(raw))
        if copy.pop("deleting", False):
            copy["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        meta = copy["metadata"]
        meta.setdefault("uid", f"uid-{meta['namespace']}-{meta['name']}")
        self.raw_pods[f"{meta['namespace']}/{meta['name']}"] = copy

    def snapshot(self, incoming: Mapping[str, Any] | None = None) -> Snapshot:
        raws = dict(self.raw_pods)
        if incoming is not None:
            raws[f"{incoming['metadata']['namespace']}/{incoming['metadata']['name']}"] = dict(incoming)
        pods = {k: translate_pod(msgspec.convert(raw, wire.Pod), self.config) for k, raw in raws.items()}
        return assemble(nodes=self.nodes, pods=pods, quotas=self.quotas)

    def run(self) -> None:
        for number, query in enumerate(self.record["queries"]):
            where = f"{self.record['id']}#{number}"
            if query["op"] == "delete":
                for key in [k for k in self.raw_pods if k.endswith("/" + query["name"])]:
                    del self.raw_pods[key]
                continue
            stored = self.admission(query, where)
            if stored is not None:
                self.placement(query, stored, where)

    def admission(self, query: Mapping[str, Any], where: str) -> dict[str, Any] | None:
        """Compare what admission makes of the pod; the pod as stored (by the record) or None when it was denied."""
        submitted = query["submitted"]
        ours = admit_pod(submitted, self.config, self.snapshot(), webhook=query["webhook"])
        denied = query.get("denied")
        if isinstance(ours, Denial):
            same = denied is not None and (ours.code, ours.message) == (denied["code"], denied["message"])
            self.tally.note(self.kind, "admission", same, f"{where}: we deny {ours}, HAMi {denied or 'admits'}")
            return None if denied else self.as_stored(submitted, query["admitted"])
        if denied is not None:
            self.tally.note(self.kind, "admission", False, f"{where}: we admit, HAMi denies {denied}")
            return None
        mine = {
            "schedulerName": ours["spec"].get("schedulerName", "default-scheduler"),
            "annotations": ours["metadata"].get("annotations") or {},
            "containers": [self.shown(c) for c in ours["spec"]["containers"]],
        }
        if ours["spec"].get("initContainers"):
            mine["initContainers"] = [self.shown(c) for c in ours["spec"]["initContainers"]]
        theirs = query["admitted"]
        same = mine == theirs
        self.tally.note(self.kind, "admission", same, f"{where}: we {json.dumps(mine)}, HAMi {json.dumps(theirs)}")
        return self.as_stored(submitted, theirs)

    @staticmethod
    def shown(container: Mapping[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in container.items() if k != "image"}

    @staticmethod
    def as_stored(submitted: Mapping[str, Any], admitted: Mapping[str, Any]) -> dict[str, Any]:
        pod = json.loads(json.dumps(submitted))
        pod["metadata"]["annotations"] = admitted["annotations"]
        pod["metadata"].setdefault("uid", f"uid-{pod['metadata']['name']}")
        for part in ("containers", "initContainers"):
            if part in admitted:
                pod["spec"][part] = admitted[part]
        pod["spec"]["schedulerName"] = admitted["schedulerName"]
        pod.setdefault("status", {"phase": "Pending"})
        return dict(pod)

    def placement(self, query: Mapping[str, Any], stored: dict[str, Any], where: str) -> None:
        snapshot = self.snapshot(stored)
        pod = snapshot.pods[f"{stored['metadata']['namespace']}/{stored['metadata']['name']}"]
        for name, answer in query.get("per_node", {}).items():
            fit = fit_pod(snapshot, pod, name, vendors=self.vendors, config=self.fit_config)
            wrong = self.compare(fit, answer, snapshot, pod, name)
            self.tally.note(self.kind, "node", not wrong, f"{where} {name}: {wrong}")
        together = query.get("together") or query.get("answer")
        if together is None:
            return
        choice = choose_node(snapshot, pod, self.nodes, vendors=self.vendors, config=self.fit_config)
        wrong = ""
        for seen in (together, *query.get("also_seen", ())):
            wrong = wrong or self.compare_choice(choice, seen, snapshot, pod)
        self.tally.note(self.kind, "choice", not wrong, f"{where}: {wrong}")
        if query["op"] == "keep":
            annotations = dict(stored["metadata"].get("annotations") or {})
            if together.get("written"):
                annotations |= together["written"]
                annotations[BOOKED_NODE] = together["nodes"][0]
            stored["metadata"]["annotations"] = annotations
            self.add(stored)

    def compare_choice(self, choice: Any, seen: Mapping[str, Any], snapshot: Snapshot, pod: Any) -> str:
        if seen.get("passed_through") or "error" in seen:
            first = next(iter(choice.fits.values()))
            return self.compare(first, seen, snapshot, pod, next(iter(choice.fits)))
        if not seen["fits"]:
            mine = {n: f.text for n, f in choice.fits.items() if not f.ok}
            return "" if mine == seen["reasons"] else f"we {mine or choice.tied}, HAMi {seen['reasons']}"
        name = seen["nodes"][0]
        if name not in choice.tied:
            scores = {n: f.score for n, f in choice.fits.items()}
            return f"we choose {choice.tied} of {scores}, HAMi {name}"
        return self.compare(choice.fits[name], seen, snapshot, pod, name)

    def compare(self, fit: Fit, answer: Mapping[str, Any], snapshot: Snapshot, pod: Any, name: str) -> str:
        """ "" when our answer is HAMi's, else the difference."""
        if answer.get("passed_through"):
            return "" if fit.ok and not fit.allocations else f"HAMi passes the pod through, we {fit}"
        if "error" in answer:
            return (
                "" if not fit.ok and fit.reason == "MalformedAnnotation" else f"HAMi error {answer['error']}, we {fit}"
            )
        if fit.ok != answer["fits"]:
            return f"we {'fit' if fit.ok else 'refuse: ' + fit.text}, HAMi {answer.get('reasons') or answer}"
        if not fit.ok:
            theirs = answer["reasons"][name]
            return "" if fit.text == theirs else f"we {fit.text!r}, HAMi {theirs!r}"
        mine = predict_annotations(pod, snapshot.nodes[name], fit, self.config)
        return "" if mine == answer["written"] else f"we write {mine}, HAMi {answer['written']}"


def replay(paths: Iterable[Path]) -> Tally:
    """All records of all files."""
    tally = Tally()
    for path in paths:
        for record in records(path):
            World(record, tally).run()
    return tally


def main(arguments: list[str]) -> int:
    names = [a for a in arguments if not a.startswith("-")]
    paths = [Path(a) for a in names] if names else sorted(DATA.glob("*.jsonl.gz"))
    tally = replay(paths)
    questions = ("admission", "node", "choice")
    print(f"{'kind':28}" + "".join(f"{q + ' right/wrong':>24}" for q in questions))
    for kind, counts in tally.counts.items():
        cells = [f"{counts[q + ' right']}/{counts[q + ' wrong']}" for q in questions]
        print(f"{kind:28}" + "".join(f"{c:>24}" for c in cells))
    for text in tally.deviations if "--verbose" in arguments else tally.deviations[:20]:
        print("deviation:", text)
    print(f"{len(tally.deviations)} deviations")
    return 1 if tally.deviations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
