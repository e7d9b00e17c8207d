"""HAMi's device cordon while a device is drained: which devices, and changing the node's list without losing a member.

The list belongs to everybody: what others wrote stays as it is, to the letter, and only what we added is taken off
again. What that is stands in an annotation of our own beside the list, written in the same patch, so that any later
process can put things right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from defragd.core.model import EMPTY
from defragd.core.placement import GROUP
from defragd.core.run import Run, RunPhase
from defragd.core.run_moves import moves_of
from defragd.core.snapshot import Snapshot
from defragd.core.vendor import Vendor
from defragd.hami.keys import DEVICE_CORDON

MARK = f"{GROUP}/cordoned"
"""On a node: ``UUID=RUN`` pairs, comma-separated; the members of the list that we added, and for which run."""
STRATEGY = "gpu-drain"
ACTIVE = frozenset({RunPhase.RUNNING, RunPhase.PAUSED})


def marked(annotations: Mapping[str, str]) -> dict[str, str]:
    """UUID -> run, of our own mark. Odd parts are left out."""
    pairs = (part.strip().partition("=") for part in annotations.get(MARK, "").split(","))
    return {uuid: run for uuid, _, run in pairs if uuid}


def listed(text: str | None) -> list[str]:
    """Members of HAMi's list, as HAMi reads them."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def wanted(runs: Iterable[Run], snapshot: Snapshot) -> dict[str, dict[str, str]]:
    """Node -> {UUID: run} of the devices that runs of gpu-drain are emptying: pods leave them, and none comes."""
    found: dict[str, dict[str, str]] = {}
    for run in runs:
        if run.phase not in ACTIVE or run.mode == "DryRun" or run.strategy != STRATEGY:
            continue
        moves = moves_of(run).values()
        arrivals = {uuid for move in moves for uuid in move.target.devices}
        leaving = {move.pod for move in moves}
        for move in moves:
            for uuid in move.source.devices:
                device = snapshot.devices.get(uuid)
                if uuid not in arrivals and device is not None and _holders(snapshot, device.node, uuid) <= leaving:
                    found.setdefault(device.node, {})[uuid] = run.name
    return found


def _holders(snapshot: Snapshot, node: str, uuid: str) -> set[str]:
    return {pod.key for pod in snapshot.booked_on.get(node, ()) if uuid in pod.devices}


def obeys(snapshot: Snapshot, uuid: str, vendors: Mapping[str, Vendor]) -> bool:
    """HAMi's backend for the device reads the list."""
    device = snapshot.devices.get(uuid)
    facts = vendors.get(device.vendor) if device is not None else None
    return facts is not None and facts.cordon


def change(
    annotations: Mapping[str, str] | None, add: Mapping[str, str], drop: Iterable[str]
) -> dict[str, str | None] | None:
    """The annotations to patch so that the devices of ``add`` (UUID -> run) are cordoned by us and those of ``drop``
    are not any more; None when there is nothing to do. A device in the list without our mark is somebody else's:
    it is neither marked nor taken off."""
    present = annotations or EMPTY
    text, ours = present.get(DEVICE_CORDON, ""), marked(present)
    mine = dict(ours)
    for uuid in drop:
        if uuid in mine:
            del mine[uuid]
            text = _without(text, uuid)
    for uuid, run in add.items():
        if uuid in mine:
            mine[uuid] = run
        elif uuid not in listed(text):
            mine[uuid] = run
            text = f"{text},{uuid}" if text else uuid
    if mine == ours and text == present.get(DEVICE_CORDON, ""):
        return None
    mark = ",".join(f"{uuid}={run}" for uuid, run in mine.items())
    return {DEVICE_CORDON: text or None, MARK: mark or None}


def _without(text: str, uuid: str) -> str:
    """The list without that member; the others' text as it was."""
    return ",".join(part for part in text.split(",") if part.strip() != uuid)
