"""A place that was lost after the old pod had left: another device of the same node that will do as well.

Which ones will do says the placement (``alternatives``): a plan names devices with which its gain stays the same, a
person whatever he likes. Only the node's own: a pinned pod's node affinity cannot be changed, its device list can.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import combinations, islice

from defragd.core.model import Device, Pod
from defragd.core.placement import Placement
from defragd.core.placement_answers import shown
from defragd.core.placement_holds import tag
from defragd.core.placement_world import Decision, Emit, Memory, World
from defragd.core.plan import Move
from defragd.core.reasons import Reason
from defragd.core.snapshot import Snapshot
from defragd.core.validate import Validation, resolve, room

TRIES = 64
"""Sets of devices looked at for pods of several devices."""
MOST = 8
"""Alternatives that a plan names."""
LOST = frozenset(
    {
        Reason.DEVICE_FULL,
        Reason.TARGET_HELD,
        Reason.NO_PLACE,
        Reason.IN_USE_OUTSIDE_HAMI,
        Reason.DEVICE_UNHEALTHY,
        Reason.DEVICE_CORDONED,
        Reason.DEVICE_UNKNOWN,
        Reason.DEVICE_DISTRUSTED,
    }
)
"""Reasons that another device may mend."""


def retarget(placement: Placement, pod: Pod, world: World, memory: Memory, lost: Validation) -> Decision | None:
    """The status with other devices, held from then on; None when none of those named is proven to do."""
    if lost.reason not in LOST or not placement.spec.alternatives:
        return None
    found = _another(placement, pod, world)
    if found is None:
        return None
    uuids = tuple(device.uuid for device in found.devices)
    before = ", ".join(placement.status.devices)
    message = f"{before} was lost ({lost.detail}); {pod.name} gets {', '.join(uuids)} instead"
    status = shown(
        placement,
        placement.status.phase,
        Reason.RETARGETED,
        message,
        devices=uuids,
        hold=found.allocations,
    )
    event = Emit(str(Reason.RETARGETED), message, warning=True)
    return Decision(
        status, (event,), memory=Memory(gone_at=memory.gone_at, evicted=memory.evicted, scaled_at=memory.scaled_at)
    )


def _another(placement: Placement, pod: Pod, world: World) -> Validation | None:
    node = world.snapshot.nodes.get(placement.spec.node_name)
    if node is None:
        return None
    words = {request.vendor for request in pod.requests}
    pool: dict[str, Device] = {}
    for wanted in (*placement.status.devices, *placement.spec.gpu_devices, *placement.spec.alternatives):
        device = resolve(node, wanted, words)
        if device is not None and device.usable:
            pool.setdefault(device.uuid, device)
    now = set(placement.status.devices)
    without = frozenset({pod.key, tag(placement)})
    for chosen in islice(combinations(pool.values(), len(now)), TRIES):
        if {device.uuid for device in chosen} == now:
            continue
        found = room(world.view, placement, pod, chosen, vendors=world.vendors, without=without)
        if found.ok:
            return found
    return None


def moved_on(placement: Placement, pod: Pod) -> bool:
    """The pod's pin names other devices than the placement does: it has been given others since."""
    pins = pod.selection.pin_uuids
    return pins is not None and pins != frozenset(placement.status.devices)


def asked(placement: Placement, snapshot: Snapshot, pod: Pod) -> set[str]:
    """The devices of the first choice: a pod that got them after all is right, too."""
    node = snapshot.nodes.get(placement.spec.node_name)
    words = {request.vendor for request in pod.requests}
    found = [resolve(node, wanted, words) for wanted in placement.spec.gpu_devices] if node is not None else []
    return {device.uuid for device in found if device is not None}


def alternatives(snapshot: Snapshot, move: Move, moves: Iterable[Move]) -> tuple[str, ...]:
    """Devices of the target node with which the move gains the same: alike, no part of the plan, and not idle unless
    the target is."""
    node = snapshot.nodes.get(move.target.node)
    if node is None:
        return ()
    known = {device.uuid: device for device in node.devices}
    targets = [known[uuid] for uuid in move.target.devices if uuid in known]
    planned = {uuid for other in moves for uuid in (*other.source.devices, *other.target.devices)}
    usage = snapshot.usage(node.name)
    idle = all(not usage[device.uuid].holders for device in targets)
    kinds: Collection[tuple[str, str, int]] = {(d.vendor, d.model, d.memory_mib) for d in targets}
    found = [
        device.uuid
        for device in node.devices
        if device.usable
        and device.uuid not in planned
        and (device.vendor, device.model, device.memory_mib) in kinds
        and (idle or usage[device.uuid].holders)
    ]
    return tuple(found[:MOST])
