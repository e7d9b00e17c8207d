"""A plan as a difference: the devices of the nodes it touches, now and after it, in the form of `diff -u`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from defragd.core.plan import Move
    from defragd.core.snapshot import Snapshot

Held = dict[str, dict[str, tuple[int, int]]]
"""Device -> pod -> (memory MiB, cores)."""
CONTEXT = 100
"""Lines around a change: all devices of a node that is touched are shown."""


def plan_diff(world: Snapshot, moves: Sequence[Move]) -> str:
    """Unified difference of the nodes in ``moves``; "" when there are none."""
    nodes = sorted({place.node for move in moves for place in (move.source, move.target) if place.node in world.nodes})
    before = _held(world, nodes)
    after: Held = {uuid: dict(pods) for uuid, pods in before.items()}
    for move in moves:
        for old, new in zip(move.source.devices, move.target.devices, strict=False):
            share = after.get(old, {}).pop(move.pod, None)
            if share is not None:
                after.setdefault(new, {})[move.pod] = share
    lines: list[str] = []
    for node in nodes:
        found = difflib.unified_diff(
            _lines(world, node, before), _lines(world, node, after), f"{node} now", f"{node} after the plan",
            lineterm="", n=CONTEXT,
        )  # fmt: skip
        lines += [line for line in found if not line.startswith("@@")]
    return "\n".join(lines)


def paint_diff(text: str) -> str:
    """Green and red where `printers.colours` allows."""
    from defragd.cli.printers import colours

    if not colours():
        return text
    codes = {"+": 32, "-": 31}
    return "\n".join(
        f"\x1b[{codes[line[0]]}m{line}\x1b[0m" if line[:1] in codes else line for line in text.splitlines()
    )


def _held(world: Snapshot, nodes: Sequence[str]) -> Held:
    held: Held = {device.uuid: {} for name in nodes for device in world.nodes[name].devices}
    for name in nodes:
        for pod in world.booked_on.get(name, ()):
            for part in pod.allocations:
                memory, cores = held.setdefault(part.uuid, {}).get(pod.key, (0, 0))
                held[part.uuid][pod.key] = (memory + part.memory_mib, cores + part.cores)
    return held


def _lines(world: Snapshot, node: str, held: Held) -> list[str]:
    out = []
    for device in world.nodes[node].devices:
        pods = held.get(device.uuid, {})
        memory = sum(part[0] for part in pods.values())
        text = ", ".join(f"{key} {part[0]}MiB" for key, part in sorted(pods.items())) or "idle"
        out.append(f" gpu-{device.index} {memory}/{device.memory_mib}MiB  {text}")
    return out
