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
from defragd.hami.keys import MIG_ALLOCATIONS
from defragd.hami.vendors import backends


def _slots(allocations: Sequence[Allocation], devices: Mapping[str, Device], model: bool) -> list[list[Entry]]:
    slots: dict[int, list[Entry]] = {}
    for a in allocations:
        kind = devices[a.uuid].model if model else a.vendor
        slots.setdefault(a.slot, []).append(Entry(a.uuid, kind, a.memory_mib, a.cores))
    return [slots[k] for k in sorted(slots)]


def _ascend(allocations: Sequence[Allocation], word: str, config: HamiConfig) -> dict[str, str]:
    chip = next((c for c in config.ascend if c.word == word), None)
    if chip is None:
        return {}
    entries = []
    for a in allocations:
        entry: dict[str, object] = {"UUID": a.uuid}
        slice_ = next((t for t in chip.templates if t.memory_mib >= a.memory_mib), None)
        if slice_ is not None:
            entry["temp"] = slice_.name
        entry["memory"] = a.memory_mib
        if a.cores:
            entry["core"] = a.cores
        entries.append(entry)
    return {chip.names.count: json.dumps(entries, separators=(",", ":"))}


def predict_annotations(pod: Pod, node: Node, fit: Fit, config: HamiConfig) -> dict[str, str]:
    """What HAMi writes for ``fit`` of ``pod`` on ``node``; times, node and bind phase are left out."""
    del pod
    devices = {d.uuid: d for d in node.devices}
    written: dict[str, str] = {}
    table = backends(config)
    for word in dict.fromkeys(a.vendor for a in fit.allocations):
        backend = table[word]
        mine = [a for a in fit.allocations if a.vendor == word]
        text = write_slots(_slots(mine, devices, backend.entry_is_model))
        written[backend.allocated] = text
        if backend.to_allocate:
            written[backend.to_allocate] = text
        if word == "MLU":
            first = mine[0]
            written["CAMBRICON_DSMLU_ASSIGNED"] = "false"
            written["CAMBRICON_DSMLU_PROFILE"] = f"{devices[first.uuid].index}_{first.cores}_{first.memory_mib // 256}"
        elif word == "Mthreads":
            written["mthreads.com/gpu-index"] = ",".join(str(devices[a.uuid].index) for a in mine)
            written["mthreads.com/predicate-node"] = node.name
        elif backend.facts.family == "ascend":
            written |= _ascend(mine, word, config)
    if fit.mig:
        written[MIG_ALLOCATIONS] = write_mig([_reservation(entry) for entry in fit.mig])
    return written


def _reservation(entry: MigPick) -> MigReservation:
    return MigReservation(entry.uuid, entry.profile, entry.start, entry.size, entry.container, entry.device)
