"""The annotations that HAMi's filter writes on a pod it has placed, byte for byte except times.

Used to judge our fit by HAMi's recorded decisions, and by the simulated cluster.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from defragd.core.fit import Fit, MigPick
from defragd.core.model import Allocation, Device, MigReservation, Node, Pod
from defragd.hami.codec import Entry, write_mig, write_slots
from defragd.hami.config import HamiConfig
from defragd.hami.keys import MIG_ALLOCATIONS, VNPU_MODE
from defragd.hami.vendors import backends


def _slots(
    allocations: Sequence[Allocation], row: Sequence[int], devices: Mapping[str, Device], model: bool
) -> list[list[Entry]]:
    entries = iter(allocations)
    return [
        [
            Entry(a.uuid, devices[a.uuid].model if model else a.vendor, a.memory_mib, a.cores)
            for a in (next(entries) for _ in range(count))
        ]
        for count in row
    ]


def _ascend(allocations: Sequence[Allocation], word: str, config: HamiConfig, soft: bool) -> dict[str, str]:
    chip = next((c for c in config.ascend if c.word == word), None)
    if chip is None:
        return {}
    entries = []
    for a in allocations:
        entry: dict[str, object] = {"UUID": a.uuid}
        slice_ = None if soft else next((t for t in chip.templates if t.memory_mib >= a.memory_mib), None)
        if slice_ is not None:
            entry["temp"] = slice_.name
        entry["memory"] = a.memory_mib
        if a.cores:
            entry["core"] = a.cores
        entries.append(entry)
    return {f"huawei.com/{word}": json.dumps(entries or None, separators=(",", ":"))}


def predict_annotations(pod: Pod, node: Node, fit: Fit, config: HamiConfig) -> dict[str, str]:
    """What HAMi writes for ``fit`` of ``pod`` on ``node``; times, node and bind phase are left out."""
    devices = {d.uuid: d for d in node.devices}
    written: dict[str, str] = {}
    table = backends(config)
    for word, row in fit.layout:
        backend = table[word]
        mine = [a for a in fit.allocations if a.vendor == word]
        text = write_slots(_slots(mine, row, devices, backend.entry_is_model), packed=False)
        written[backend.allocated] = text
        if backend.to_allocate:
            written[backend.to_allocate] = text
        if word == "MLU":
            written["CAMBRICON_DSMLU_ASSIGNED"] = "false"
        if word == "MLU" and mine:
            first = mine[0]
            written["CAMBRICON_DSMLU_PROFILE"] = f"{devices[first.uuid].index}_{first.cores}_{first.memory_mib // 256}"
        elif word == "Mthreads" and mine:
            last = [a for a in mine if a.slot == mine[-1].slot]
            written["mthreads.com/gpu-index"] = ",".join(str(devices[a.uuid].index) for a in last)
            written["mthreads.com/predicate-node"] = node.name
        elif backend.facts.family == "network-groups":
            written |= _ascend(mine, word, config, pod.annotations.get(VNPU_MODE) == "hami-core")
    if fit.mig:
        written[MIG_ALLOCATIONS] = write_mig([_reservation(entry) for entry in fit.mig])
    return written


def _reservation(entry: MigPick) -> MigReservation:
    return MigReservation(entry.uuid, entry.profile, entry.start, entry.size, entry.container, entry.device)
