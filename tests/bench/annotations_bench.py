"""Decodes what HAMi wrote on 20,000 pods, and translates the whole pods.

    python -m tests.bench.annotations_bench [PODS]      goal: annotations of 20,000 pods <= 0.3 s of CPU

One pod in ten has several containers with an init container, one in fifty holds a MIG instance.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from defragd.hami.config import HamiConfig
from defragd.hami.translate_pod import read_annotations, translate_pod
from defragd.kube import wire
from tests.bench import reader_bench

GOAL_SECONDS = 0.3
CONFIG = HamiConfig()


def pod(number: int) -> wire.Pod:
    raw = reader_bench.pod(number)
    notes, node = raw["metadata"]["annotations"], number % 4000
    one = f"GPU-{node:08d}-9a1b,NVIDIA,4096,25:"
    if number % 10 == 0:
        notes["hami.io/vgpu-devices-allocated"] = f"{one};{one}GPU-{node + 1:08d}-9a1b,NVIDIA,4096,25:;{one};"
        first = raw["spec"]["containers"][0]
        raw["spec"]["containers"].append({**first, "name": "second"})
        raw["spec"]["initContainers"] = [{**first, "name": "first"}]
    if number % 50 == 1:
        place = {"start": number % 7, "size": 1}
        notes["hami.io/vgpu-mig-allocations"] = json.dumps(
            [{"containerIndex": 0, "deviceIndex": 0, "gpuUUID": f"GPU-{node:08d}-9a1b", "profile": "1g.10gb",
              "placement": place}]
        )  # fmt: skip
    return msgspec.convert(raw, wire.Pod)


def seconds(pods: Sequence[wire.Pod], read: Callable[[wire.Pod], Any]) -> float:
    """Best of three, in CPU seconds."""
    found = []
    for _ in range(3):
        began = time.process_time()
        for item in pods:
            read(item)
        found.append(time.process_time() - began)
    return min(found)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pods", nargs="?", type=int, default=20_000)
    options = parser.parse_args(arguments)
    pods = [pod(number) for number in range(options.pods)]
    spent = seconds(pods, lambda item: read_annotations(item, CONFIG))
    ok = spent <= GOAL_SECONDS * options.pods / 20_000
    print(f"annotations of {options.pods} pods: {spent:.3f} s CPU (goal {GOAL_SECONDS} s for 20,000): {ok}")
    print(f"whole pods translated: {seconds(pods, lambda item: translate_pod(item, CONFIG, claims={})):.3f} s CPU")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
