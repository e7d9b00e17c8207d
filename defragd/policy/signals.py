"""What starts a run besides the schedule: lasting fragmentation, pods that moves could help, sick devices.

`look` is a pure step: policy, what is seen now, what was remembered, and what the run records say of earlier starts.
The memory only holds since when something lasts; lost with a restart, it makes a start later, never more frequent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from defragd.core.fit import fit_pod
from defragd.core.kube_fit import kube_fit
from defragd.core.model import EMPTY, Pod
from defragd.core.run import Run
from defragd.core.selectors import matches
from defragd.core.snapshot import Snapshot
from defragd.core.vendor import Vendor
from defragd.policy.loaded import LoadedPolicy
from defragd.policy.schema import FragmentedSpec, StartOnSpec

FRAGMENTATION = "fragmentation"
PENDING = "pending-pods"
HEALTH = "device-health"
KINDS = (FRAGMENTATION, PENDING, HEALTH)
REARM_AFTER = timedelta(hours=6)
"""After a start the next one needs a fall below rearmBelow, or this long: what runs cannot mend is tried again."""
JUDGED_PODS = 20
"""Pending pods looked at, the oldest first."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Since when things last, per policy. ``fell``: when L was last seen low enough to start anew."""

    high_since: datetime | None = None
    fell: datetime | None = None
    sick: Mapping[str, datetime] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True)
class Signal:
    """``kind`` is one of KINDS, "" = nothing starts. ``text`` says what was seen, or why not."""

    kind: str = ""
    text: str = ""


def wants(policy: LoadedPolicy) -> bool:
    """Whether anything but the schedule may start this policy."""
    on = policy.trigger.start_on
    return not (on.fragmentation is None and on.pending_pods is None and on.unhealthy_devices is None)


def look(
    policy: LoadedPolicy,
    snapshot: Snapshot,
    memory: Memory,
    runs: Iterable[Run],
    now: datetime,
    *,
    fragmentation: float | None,
    vendors: Mapping[str, Vendor],
) -> tuple[Memory, Signal]:
    """One look. ``fragmentation``: L now, None = not known yet."""
    on = policy.trigger.start_on
    started = [r.created for r in runs if r.policy == policy.name and r.trigger in KINDS and r.created is not None]
    memory = _remember(memory, on, snapshot, fragmentation, now)
    if policy.suspended or not policy.windows.check(now).allowed:
        return memory, Signal(text="suspended or outside its windows")
    if started and now - max(started) < on.interval:
        return memory, Signal(text="the last start of this kind is less than interval ago")
    high = [r.created for r in runs if r.policy == policy.name and r.trigger == FRAGMENTATION and r.created is not None]
    text = ""
    for signal in (
        _fragmented(on.fragmentation, memory, max(high, default=None), fragmentation, now),
        _sick(on, memory, now),
        _pending(on, policy, snapshot, now, vendors),
    ):
        if signal.kind:
            return memory, signal
        text = text or signal.text
    return memory, Signal(text=text)


def _remember(
    memory: Memory, on: StartOnSpec, snapshot: Snapshot, fragmentation: float | None, now: datetime
) -> Memory:
    spec = on.fragmentation
    if spec is not None and fragmentation is not None:
        low = spec.rearm_below if spec.rearm_below is not None else 0.8 * spec.above
        # between the two limits nothing changes: that is the hysteresis
        if fragmentation >= spec.above:
            memory = replace(memory, high_since=memory.high_since or now)
        elif fragmentation <= low:
            memory = replace(memory, high_since=None, fell=now)
        else:
            memory = replace(memory, high_since=None)
    if on.unhealthy_devices is not None:
        held = {a.uuid for pod in snapshot.pods.values() if pod.live and not pod.deleting for a in pod.allocations}
        sick = [d.uuid for d in snapshot.devices.values() if not d.healthy and d.registered and d.uuid in held]
        memory = replace(memory, sick={uuid: memory.sick.get(uuid, now) for uuid in sick})
    return memory


def _fragmented(
    spec: FragmentedSpec | None, memory: Memory, last: datetime | None, found: float | None, now: datetime
) -> Signal:
    if spec is None or found is None or memory.high_since is None or now - memory.high_since < spec.for_:
        return Signal()
    if last is not None and now - last < REARM_AFTER and (memory.fell is None or memory.fell <= last):
        return Signal(text=f"fragmentation {found:.3f} has not fallen since the last start")
    return Signal(FRAGMENTATION, f"fragmentation {found:.3f} at least {spec.above:g} since {memory.high_since:%H:%M}")


def _sick(on: StartOnSpec, memory: Memory, now: datetime) -> Signal:
    spec = on.unhealthy_devices
    due = sorted(uuid for uuid, since in memory.sick.items() if spec is not None and now - since >= spec.after)
    return Signal(HEALTH, f"unhealthy with pods on it: {', '.join(due[:3])}") if due else Signal()


def _pending(
    on: StartOnSpec, policy: LoadedPolicy, snapshot: Snapshot, now: datetime, vendors: Mapping[str, Vendor]
) -> Signal:
    if on.pending_pods is None:
        return Signal()
    after = on.pending_pods.after
    waiting = [pod for pod in snapshot.pods.values() if _waits(pod) and pod.created and now - pod.created >= after]
    waiting.sort(key=lambda pod: (-pod.priority, pod.created, pod.key))
    text = ""
    # replicas are alike: one speaks for its workload
    first: dict[str, Pod] = {}
    for pod in waiting:
        first.setdefault(pod.owner.uid if pod.owner else pod.key, pod)
    for pod in list(first.values())[:JUDGED_PODS]:
        no = why_no_move_helps(pod, policy, snapshot, vendors=vendors)
        if not no:
            return Signal(PENDING, f"{pod.key} waits and fits nowhere as it stands")
        text = text or f"{pod.key}: {no}"
    return Signal(text=text)


def _waits(pod: Pod) -> bool:
    return (
        pod.phase == "Pending" and bool(pod.requests) and not (pod.node or pod.booked_node or pod.gates or pod.deleting)
    )


def why_no_move_helps(pod: Pod, policy: LoadedPolicy, snapshot: Snapshot, *, vendors: Mapping[str, Vendor]) -> str:
    """ "" when moves might let the pending pod fit. A pod that fits already by what the pods' own annotations say, and
    is refused all the same, waits for something else; on devices whose books are distrusted nothing is certain."""
    selector = policy.rules.scope.node_selector
    nodes = [
        node for node in snapshot.nodes.values() if node.devices and node.usable and matches(selector, node.labels)
    ]
    trusting = _trusting(snapshot)
    idle: dict[int, int] = {}
    large_enough = False
    for node in nodes:
        if not kube_fit(snapshot, pod, node.name).ok:
            continue
        if fit_pod(trusting, pod, node.name, vendors=vendors).ok:
            known = trusting is snapshot or fit_pod(snapshot, pod, node.name, vendors=vendors).ok
            what = "it fits there by the pods' own records" if known else "devices there are distrusted"
            return f"node {node.name} should take it ({what}), so the scheduler's books are in doubt and no move helps"
        large_enough = large_enough or all(
            sum(1 for d in node.devices if d.vendor == r.vendor and d.usable and r.memory_on(d) <= d.memory_mib)
            >= r.count
            for r in pod.requests
        )
        usage = snapshot.usage(node.name)
        for index, request in enumerate(pod.requests):
            for device in node.devices:
                if device.usable and device.vendor == request.vendor:
                    idle[index] = idle.get(index, 0) + device.memory_mib - usage[device.uuid].memory_mib
    if not large_enough:
        return "no node could take it even when empty, so no move helps"
    for index, request in enumerate(pod.requests):
        smallest = min(
            (request.memory_on(d) for n in nodes for d in n.devices if d.vendor == request.vendor), default=None
        )
        if smallest is None or idle.get(index, 0) < smallest * request.count:
            return "the idle memory of all nodes that could take it is too little, so no move helps"
    return ""


def _trusting(snapshot: Snapshot) -> Snapshot:
    """The snapshot as it would be if every device's books were believed; the same object when they are."""
    nodes = {
        name: replace(node, devices=tuple(replace(d, distrusted="") for d in node.devices))
        for name, node in snapshot.nodes.items()
        if any(d.distrusted for d in node.devices)
    }
    return replace(snapshot, nodes={**snapshot.nodes, **nodes}) if nodes else snapshot
