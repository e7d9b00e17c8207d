"""What one step of a placement sees (`World`), remembers (`Memory`) and answers (`Decision`). Values, no rules.

`Memory` is what this process knows and a restart may forget: attempts, pauses, answers. Everything that a restart must
not forget is in the placement's status or on the pods.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from defragd.core.gating import Seating, gated, seat, wants_owner, wants_selected
from defragd.core.model import Pod, Workload
from defragd.core.pdb import Ledger
from defragd.core.placement import GATE, PINNED, Placement, PlacementStatus, Step
from defragd.core.placement_claims import holds_claim, raised_for
from defragd.core.placement_holds import tag, with_holds
from defragd.core.placement_pin import is_pinned_by
from defragd.core.snapshot import Snapshot
from defragd.core.validate import SCHEDULERS, room, target
from defragd.core.vendor import Vendor


@dataclass(frozen=True, slots=True)
class Tuning:
    """Pauses and limits of the engine that are not the user's to set per placement."""

    after_gone: timedelta = timedelta(seconds=0.1)
    """From the old pod's object being gone until the pin, where the place is free only since then, so that HAMi's own
    watch has seen it too (measured lag: milliseconds; a pin that comes earlier may be forgotten)."""
    forgotten: timedelta = timedelta(seconds=0.4)
    """A pinned pod that is Pending on a free device for so long is woken."""
    stolen: timedelta = timedelta(seconds=2)
    """A place that is taken by others for so long counts as stolen."""
    escaped: timedelta = timedelta(seconds=3)
    """The owner has all its pods again and none of them came to us for so long."""
    arrival: timedelta = timedelta(seconds=2)
    """How long a pinned pod that HAMi has not booked yet keeps other arrivals of ours off the node."""
    extend: timedelta = timedelta(seconds=60)
    """A gate's deadline is moved so far ahead while the leader works on it."""
    lazy: timedelta = timedelta(seconds=5)
    """A phase that lasts longer is written to the status for people to see, at the price of one more call."""
    grace_slack: timedelta = timedelta(seconds=30)
    """Beyond the deletion deadline, before an old pod that is not gone is given up."""


# -- actions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Evict:
    """``recycle``: our own pinned pod that never started, counted apart from evictions of running pods."""

    pod: Pod
    dry_run: bool = False
    recycle: bool = False


@dataclass(frozen=True, slots=True)
class PatchPod:
    """A merge patch; ``why`` is pin, release, extend, wake, widen or cost."""

    pod: Pod
    patch: Mapping[str, Any]
    why: str


@dataclass(frozen=True, slots=True)
class Emit:
    """A Kubernetes Event on a pod (``pod`` given) or on the placement."""

    reason: str
    message: str
    pod: Pod | None = None
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """A Deployment's replica count; ``manager`` is the name under which it is written (see `core.placement_surge`)."""

    workload: Workload
    replicas: int
    manager: str


Write = Evict | PatchPod | Scale
Action = Write | Emit


@dataclass(frozen=True, slots=True)
class Memory:
    """``after``: nothing is attempted again before (one clock for validations, evictions and pins: only one of them
    is ever due)."""

    checks: int = 0
    after: datetime | None = None
    dry_run: str = ""
    """Pod revision for which a dry-run eviction was answered with yes."""
    tries: int = 0
    evicted: str = ""
    """"" not tried or refused for now; "OK" accepted; "Unknown" the answer was lost."""
    blocked: str = ""
    """What the API server said when it refused the last attempt for now."""
    refused: str = ""
    """What it said when it refused for good."""
    source: str = ""
    """Node of the old pod; "" = not known to this process."""
    gone_at: datetime | None = None
    pin_uid: str = ""
    """The pod that a pin was sent for; no other pod is taken while this one lives."""
    pin_tries: int = 0
    pinned: bool = False
    wakes: int = 0
    taken_since: datetime | None = None
    satisfied_since: datetime | None = None
    ready_seen: bool = False
    scaled_at: datetime | None = None
    """Of a surge: when our last change of the count was accepted."""
    marked: bool = False
    """Of a surge: the old pod has the lowest deletion cost."""
    handing_since: datetime | None = None
    extra_writes: int = 0
    """Status writes for people, beyond the four that crash-safety needs."""


@dataclass(frozen=True, slots=True)
class Decision:
    """``status`` is written before ``actions`` are carried out; ``wake``: look again then, even if nothing changes."""

    status: PlacementStatus | None = None
    actions: tuple[Action, ...] = ()
    wake: datetime | None = None
    memory: Memory = Memory()


@dataclass
class World:
    """One moment. ``seen``: the lowest placement revision that all serving webhook replicas act on; None = some
    replica's word is missing. ``arrivals``: node -> placement whose pod is being bound there. ``coming``: placements
    whose status is being written, as they will be; what they promise counts already, what they allow does not yet."""

    snapshot: Snapshot
    placements: Mapping[str, Placement]
    vendors: Mapping[str, Vendor]
    seen: int = 1 << 62
    unseen_by: str = ""
    memories: dict[str, Memory] = field(default_factory=dict)
    schedulers: Collection[str] = SCHEDULERS
    tuning: Tuning = Tuning()
    arrivals: dict[str, str] = field(default_factory=dict)
    admission: str = "gate"
    """"gate", or "pin": replacements are pinned as they are created, so they bind without being asked."""
    coming: dict[str, Placement] = field(default_factory=dict)

    @property
    def latest(self) -> Mapping[str, Placement]:
        """Placements with what is being written of them: whom to count with, not whom to rely on."""
        return {**self.placements, **self.coming} if self.coming else self.placements

    @cached_property
    def ledger(self) -> Ledger:
        """Budgets as they are, minus evictions of ours that the snapshot does not show yet."""
        ledger = Ledger.of(self.snapshot)
        for key, memory in self.memories.items():
            placement = self.placements.get(key)
            counts = placement is not None and memory.evicted and not placement.surges
            pod = self.old_pod(placement) if placement is not None and counts else None
            if pod is not None and not pod.deleting:
                ledger.take(pod)
        return ledger

    @cached_property
    def view(self) -> Snapshot:
        """The snapshot with the holds of all placements as this process knows them (its own writes included)."""
        return with_holds(self.snapshot, self.latest.values())

    @cached_property
    def owned(self) -> Mapping[str, tuple[Pod, ...]]:
        """Pods by controller UID, of controllers that placements wait for."""
        wanted = {p.status.owner_uid for p in self.placements.values() if wants_owner(p)}
        found: dict[str, list[Pod]] = {uid: [] for uid in wanted}
        for pod in self.snapshot.pods.values() if wanted else ():
            if pod.owner is not None and pod.owner.uid in wanted:
                found[pod.owner.uid].append(pod)
        return {uid: tuple(pods) for uid, pods in found.items()}

    @cached_property
    def seating(self) -> Seating:
        ready = [p.key for p in self.placements.values() if wants_selected(p) or (wants_owner(p) and self.leaving(p))]
        sticky = {key: m.pin_uid for key, m in self.memories.items() if m.pin_uid}
        return seat(self.gated_pods, self.placements.values(), ready=ready, sticky=sticky, suits=self.suits)

    @cached_property
    def gated_pods(self) -> tuple[Pod, ...]:
        """Pods that carry our gate, oldest first. A pod that this process has pinned already is not one of them."""
        taken = {p.status.pod_uid for p in self.latest.values() if p.status.pod_uid}
        return tuple(pod for pod in gated(self.snapshot.pods.values()) if pod.uid not in taken)

    @cached_property
    def requests(self) -> Mapping[tuple[str, str], tuple[Placement, ...]]:
        """(namespace, reqID) -> placements that carry it."""
        found: dict[tuple[str, str], list[Placement]] = {}
        for placement in self.latest.values():
            found.setdefault((placement.namespace, placement.spec.req_id), []).append(placement)
        return {key: tuple(some) for key, some in found.items()}

    def suits(self, placement: Placement, pod: Pod) -> bool:
        """The target could take this very pod now."""
        there = target(self.view, placement, prefer={request.vendor for request in pod.requests})
        without = frozenset({pod.key, tag(placement)})
        return there.ok and room(self.view, placement, pod, there.devices, vendors=self.vendors, without=without).ok

    def old_pod(self, placement: Placement) -> Pod | None:
        """The pod to be evicted, as long as its object is there (a namesake with another UID is not it)."""
        pod = self.snapshot.pods.get(f"{placement.namespace}/{placement.spec.evict_pod}")
        uid = placement.status.evicted_uid or placement.spec.evict_pod_uid
        return pod if pod is not None and (not uid or pod.uid == uid) else None

    def leaving(self, placement: Placement) -> bool:
        """The old pod is on its way out, or may be (the answer to its eviction was lost). Of a surge: the new one is on
        its way in."""
        if placement.surges:
            memory = self.memories.get(placement.key)
            return self.surging(placement) or (memory is not None and bool(memory.evicted))
        pod = self.old_pod(placement)
        if pod is None or pod.deleting or placement.status.eviction_accepted:
            return True
        memory = self.memories.get(placement.key)
        return memory is not None and bool(memory.evicted)

    def surging(self, placement: Placement) -> bool:
        """The replica count that the snapshot shows was raised for this placement."""
        return raised_for(self.snapshot, placement)

    def of_owner(self, uid: str) -> list[Pod]:
        """All pods of a controller."""
        return [p for p in self.snapshot.pods.values() if p.owner is not None and p.owner.uid == uid]

    def changed(self, placement: Placement) -> None:
        """Takes over a placement whose status this process has just written."""
        self.placements = {**self.placements, placement.key: placement}
        if placement.status.pod_uid and "gated_pods" in self.__dict__:
            left = tuple(pod for pod in self.gated_pods if pod.uid != placement.status.pod_uid)
            self.__dict__["gated_pods"] = left
        for name in ("view", "owned", "requests"):
            self.__dict__.pop(name, None)

    def promised(self) -> None:
        """``coming`` has changed."""
        for name in ("view", "requests"):
            self.__dict__.pop(name, None)

    def reseat(self) -> Seating:
        """Who waits for which pod after all that was written. Within a pass the first seating stays: the snapshot does
        not change, and a pod given to one placement must not be offered to another."""
        self.__dict__.pop("seating", None)
        return self.seating

    @cached_property
    def marked(self) -> Mapping[tuple[str, str], tuple[Pod, ...]]:
        """(namespace, placement name) -> pods that carry our pin and no gate of ours."""
        found: dict[tuple[str, str], list[Pod]] = {}
        for pod in self.snapshot.pods.values():
            name = pod.annotations.get(PINNED)
            if name and GATE not in pod.gates:
                found.setdefault((pod.namespace, name), []).append(pod)
        return {key: tuple(pods) for key, pods in found.items()}

    def pinned_pod(self, placement: Placement) -> Pod | None:
        """The pod that carries this placement's pin already: it was pinned at admission, or its status was not written
        (a crash in between)."""
        for pod in self.marked.get((placement.namespace, placement.name), ()):
            mine = is_pinned_by(pod, placement) and pod.uid != placement.status.evicted_uid
            if mine and holds_claim(pod, placement):
                return pod
        return None


def arrivals(
    placements: Iterable[Placement], snapshot: Snapshot, memories: Mapping[str, Memory], now: datetime, tuning: Tuning
) -> dict[str, str]:
    """Node -> placement whose pinned pod is on its way there: pinned a moment ago, or being bound by HAMi."""
    found: dict[str, str] = {}
    for placement in placements:
        status = placement.status
        if not placement.open or (status.step is not Step.PINNED and not _pin_sent(memories.get(placement.key))):
            continue
        uid = status.pod_uid or memories[placement.key].pin_uid
        pod = next((p for p in (snapshot.pods.get(f"{placement.namespace}/{status.pod_name}"),) if p), None)
        fresh = status.pinned_at is None or now - status.pinned_at < tuning.arrival
        if pod is None or pod.uid != uid:
            busy = fresh and status.step is not Step.PINNED
        elif pod.bind_phase == "success" or not pod.live or pod.ready:
            busy = False
        else:
            busy = fresh or (bool(pod.node) and pod.bind_phase == "allocating")
        if busy:
            found[placement.spec.node_name] = placement.key
    return found


def _pin_sent(memory: Memory | None) -> bool:
    return memory is not None and bool(memory.pin_uid)
