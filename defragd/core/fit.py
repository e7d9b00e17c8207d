"""Would HAMi place this pod on this node, on which devices, and if not, why not (in HAMi's own words)?

Replays HAMi's filter for one node: init containers each on a fresh copy of the node's use, app containers one after
another on one working copy. Vendors differ by facts only (`core.vendor.Vendor`). `choose_node` compares nodes as HAMi
does. What cannot be predicted is refused with the reason Unjudged, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from defragd.core import fit_checks as checks
from defragd.core.fit_bonus import node_bonus
from defragd.core.fit_families import FAMILIES, UNPREDICTABLE
from defragd.core.fit_state import (
    Order,
    Slot,
    Spot,
    Task,
    arrange,
    base_spots,
    f32,
    hami_collapse,
    node_score,
    rate,
    to_allocations,
)
from defragd.core.model import Allocation, Device, DeviceRequest, Node, Pod, Selection
from defragd.core.reasons import Reason
from defragd.core.snapshot import Snapshot, collapse
from defragd.core.vendor import Vendor


@dataclass(frozen=True, slots=True)
class FitConfig:
    """Policies: "" = those of the snapshot. ``as_hami``: predict HAMi exactly, with its own books (not the true use),
    without our holds, and believing devices that we distrust. ``obey_pin``: our own pin and steering on the pod count
    (they are there for HAMi)."""

    node_policy: str = ""
    device_policy: str = ""
    as_hami: bool = False
    obey_pin: bool = False
    holds: bool = True
    soft_slicing: bool = False


@dataclass(frozen=True, slots=True)
class MigPick:
    """A MIG instance that HAMi would reserve. ``container`` is the place in HAMi's (packed) list."""

    uuid: str
    profile: str
    start: int
    size: int
    container: int
    device: int


@dataclass(frozen=True, slots=True)
class Fit:
    """The answer for one node. ``text`` is HAMi's reason text, ``score`` its node score (float32 value)."""

    ok: bool
    reason: Reason | None = None
    text: str = ""
    allocations: tuple[Allocation, ...] = ()
    score: float = 0.0
    mig: tuple[MigPick, ...] = ()
    layout: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Per backend the number of devices in each place of HAMi's list. HAMi 2.10 fills places of containers without a
    request only for backends whose word is a device model on the node, and then even for backends nobody asked."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The node HAMi takes: any of ``tied``. ``fits`` has the answer for every node asked."""

    tied: tuple[str, ...]
    fits: Mapping[str, Fit]


DEFAULT = FitConfig()
_NO_WEIGHTS = (1, 1, 1)

# HAMi's word -> ours; the check that came last says most about how near the pod was to fitting
_REASONS: tuple[tuple[str, Reason], ...] = (
    (UNPREDICTABLE, Reason.UNJUDGED),
    (checks.RULE, Reason.NODE_UNFIT),
    (checks.MIG, Reason.DEVICE_FULL),
    (checks.FULL, Reason.DEVICE_FULL),
    (checks.CORE, Reason.DEVICE_FULL),
    (checks.MEMORY, Reason.DEVICE_FULL),
    (checks.QUOTA, Reason.QUOTA_EXCEEDED),
    (checks.EXCLUSIVE, Reason.DEVICE_FULL),
    (checks.SLOTS, Reason.DEVICE_FULL),
    (checks.TOO_FEW, Reason.DEVICE_FULL),
    (checks.NUMA, Reason.NODE_UNFIT),
    (checks.TYPE, Reason.DEVICE_TYPE),
    (checks.CORDONED, Reason.DEVICE_CORDONED),
    (checks.NOT_HEALTHY, Reason.DEVICE_UNHEALTHY),
    (checks.MODE, Reason.DEVICE_TYPE),
    (checks.NODE_TOO_FEW, Reason.DEVICE_COUNT),
    (checks.UUID, Reason.DEVICE_TYPE),
)


def reason_of(text: str) -> Reason:
    """Our reason for a reason text of HAMi."""
    return next((ours for word, ours in _REASONS if word in text), Reason.NO_PLACE)


def _weights(selection: Selection) -> tuple[int, int, int]:
    return selection.weights or _NO_WEIGHTS


def _quota(
    snapshot: Snapshot, pod: Pod, word: str, without: frozenset[str], as_hami: bool
) -> tuple[int | None, int | None, int, int]:
    """(memory limit, core limit, memory used, cores used). With several quotas HAMi obeys the one it read last."""
    memory = cores = None
    for quota in snapshot.quotas:
        if quota.namespace == pod.namespace and quota.vendor == word:
            memory = quota.memory_mib if quota.memory_mib is not None else memory
            cores = quota.cores if quota.cores is not None else cores
    if memory is None and cores is None:
        return None, None, 0, 0
    used_memory = used_cores = 0
    for other in snapshot.pods.values():
        if other.namespace != pod.namespace or not other.live or not other.booked_node or other.key in without:
            continue
        mine = tuple(a for a in other.allocations if a.vendor == word)
        held = hami_collapse(other, mine) if as_hami else collapse(mine, init_done=other.init_done)
        for _slots, mib, core in held.values():
            used_memory += mib
            used_cores += core
    return memory, cores, used_memory, used_cores


def _eligible(spots: list[Spot], word: str) -> list[Spot]:
    """HAMi offers a backend every device whose model contains the backend's word, in any letter case."""
    wanted = word.lower()
    return [spot for spot in spots if wanted in spot.device.model.lower()]


@dataclass(slots=True)
class _Stage:
    """One run of HAMi's per-container loop: the init containers, or the app containers."""

    snapshot: Snapshot
    pod: Pod
    node: Node
    vendors: Mapping[str, Vendor]
    config: FitConfig
    pin: frozenset[str] | None
    without: frozenset[str]
    models: frozenset[str]
    slots: dict[str, list[Slot]] = field(default_factory=dict)

    def run(self, containers: list[list[DeviceRequest]], base: list[Spot], *, fresh: bool) -> str:
        """Fit each container, on a fresh copy of ``base`` or one after another; the reason text when one fails."""
        spots = [spot.copy() for spot in base]
        for number, requests in enumerate(containers):
            if fresh:
                spots = [spot.copy() for spot in base]
            text = self._container(requests, spots) if requests else ""
            if text:
                return text
            for model in self.models:
                row = self.slots.setdefault(model, [])
                if len(row) == number:
                    row.append(Slot(None, []))
        return ""

    def _container(self, requests: list[DeviceRequest], spots: list[Spot]) -> str:
        first = self.pod.selection
        rate(spots, requests, _weights(first))
        order = Order.of(first.device_policy or self.config.device_policy or self.snapshot.device_policy)
        for request in requests:
            facts = self.vendors[request.vendor]
            selection = self.pod.selections.get(request.vendor, first)
            arrange(spots, order, selection.numa_bind)
            eligible = _eligible(spots, request.vendor)
            if request.count > len(eligible) and not self._mig_request(facts, selection, eligible):
                return checks.NODE_TOO_FEW
            row = self.slots.setdefault(request.vendor, [])
            task = Task(
                pod=self.pod,
                node=self.node,
                facts=facts,
                request=request,
                selection=selection,
                order=order,
                pin=self.pin,
                obey_pin=self.config.obey_pin,
                slots=row,
                quota=self._quota(request.vendor) if facts.quota else (None, None, 0, 0),
                soft_slicing=self.config.soft_slicing,
            )
            picks, reasons = FAMILIES[facts.family](task, eligible)
            if not picks:
                return checks.text_of(reasons, len(eligible))
            for pick in picks:
                pick.spot.add(pick.memory_mib, pick.cores, pick.slots)
                if pick.mig:
                    pick.spot.taken.append((pick.mig[1], pick.mig[2]))
            row.append(Slot(request, picks))
        return ""

    def _quota(self, word: str) -> tuple[int | None, int | None, int, int]:
        return _quota(self.snapshot, self.pod, word, self.without, self.config.as_hami)

    @staticmethod
    def _mig_request(facts: Vendor, selection: Selection, eligible: list[Spot]) -> bool:
        if not facts.mig or (selection.mode and "mig" not in selection.mode):
            return False
        return any(s.device.mode == "mig" for s in eligible)


def _by_container(pod: Pod, *, init: bool) -> list[list[DeviceRequest]]:
    """Requests per container of one stage, containers without a request included."""
    shift = 0 if init else pod.init_count
    mine = [r for r in pod.requests if r.init == init]
    known = pod.init_count if init else pod.app_count
    size = max([known, *(r.container - shift + 1 for r in mine)])
    rows: list[list[DeviceRequest]] = [[] for _ in range(size)]
    for request in mine:
        rows[request.container - shift].append(request)
    return rows


def _refuse(text: str, reason: Reason | None = None) -> Fit:
    return Fit(ok=False, reason=reason or reason_of(text), text=text)


def _unusable(
    snapshot: Snapshot, pod: Pod, node_name: str, vendors: Mapping[str, Vendor], config: FitConfig
) -> Fit | None:
    """What refuses the pod before any device is looked at."""
    node = snapshot.nodes.get(node_name)
    if node is None or not any(d.registered for d in node.devices):
        return _refuse(checks.UNREGISTERED, Reason.NODE_UNKNOWN)
    if pod.selection.invalid:
        return _refuse(pod.selection.invalid, Reason.MALFORMED_ANNOTATION)
    unknown = sorted({r.vendor for r in pod.requests if r.vendor not in vendors})
    if unknown:
        return _refuse(f"devices of {', '.join(unknown)}: backend unknown", Reason.UNJUDGED)
    if pod.problem and not config.as_hami:
        return _refuse(pod.problem, Reason.UNREADABLE_ALLOCATION)
    return None


def fit_pod(
    snapshot: Snapshot,
    pod: Pod,
    node: str,
    *,
    vendors: Mapping[str, Vendor],
    devices: tuple[str, ...] | None = None,
    without: frozenset[str] = frozenset(),
    config: FitConfig = DEFAULT,
) -> Fit:
    """HAMi's answer for ``pod`` offered only ``node``. A pod that asks nothing of HAMi fits everywhere.

    ``devices``: an exact pin; the pod must end up on all of them and nothing else, its own wishes still apply.
    ``without``: pods ("ns/name") and holds ("hold:NAME") to leave out. An unbound pod never counts against itself; a
    bound one does (the question is then about its replacement) unless it is in ``without``.
    """
    if not pod.requests:
        return Fit(ok=True)
    refused = _unusable(snapshot, pod, node, vendors, config)
    if refused is not None:
        return refused
    here = snapshot.nodes[node]
    if not pod.node:
        without = without | {pod.key}
    if not config.as_hami:
        here = _trusted(here, devices)
        doubt = next((d for d in here.devices if devices and d.uuid in devices and d.distrusted), None)
        if doubt is not None:
            return _refuse(f"device {doubt.uuid}: {doubt.distrusted}", Reason.DEVICE_DISTRUSTED)
    base = base_spots(
        snapshot, here, vendors, without=without, as_hami=config.as_hami, holds=config.holds and not config.as_hami
    )
    pin = frozenset(devices) if devices is not None else None

    models = frozenset(s.device.model for s in base) & frozenset(vendors)

    def stage() -> _Stage:
        return _Stage(snapshot, pod, here, vendors, config, pin, without, models)

    first, app = stage(), stage()
    text = first.run(_by_container(pod, init=True), base, fresh=True)
    text = text or app.run(_by_container(pod, init=False), base, fresh=False)
    if text:
        return _refuse(text)
    words = dict.fromkeys([*first.slots, *app.slots])
    slots = {word: [*first.slots.get(word, ()), *app.slots.get(word, ())] for word in words}
    allocations = to_allocations(slots, pod.init_count)
    if pin is not None and {a.uuid for a in allocations} != pin:
        used = ", ".join(dict.fromkeys(a.uuid for a in allocations))
        return _refuse(f"HAMi would use {used} of the {len(pin)} devices named", Reason.DEVICE_COUNT)
    if not config.as_hami:
        over = _sidecars_overbook(pod, base, allocations)
        if over:
            return _refuse(over, Reason.DEVICE_FULL)
    policy = pod.selection.node_policy or config.node_policy or snapshot.node_policy
    score = f32(node_score(base) + node_bonus(here, pod, slots, base, vendors, policy))
    layout = tuple((word, tuple(len(entry.picks) for entry in row)) for word, row in slots.items())
    return Fit(ok=True, allocations=allocations, score=float(score), mig=_mig(slots), layout=layout)


def _trusted(node: Node, wanted: tuple[str, ...] | None) -> Node:
    """Devices whose books are not believed offer nothing (named ones stay, to be refused by name)."""
    if all(not d.distrusted for d in node.devices):
        return node

    def judge(device: Device) -> Device:
        keep = not device.distrusted or (wanted is not None and device.uuid in wanted)
        return device if keep else replace(device, healthy=False)

    return replace(node, devices=tuple(judge(d) for d in node.devices))


def _sidecars_overbook(pod: Pod, base: list[Spot], allocations: tuple[Allocation, ...]) -> str:
    """HAMi does not add a sidecar's devices to those of the app containers; together they must still fit."""
    if not any(r.sidecar for r in pod.requests):
        return ""
    spots = {s.device.uuid: s for s in base}
    for uuid, (slots, memory, cores) in collapse(allocations).items():
        spot = spots[uuid]
        if (
            spot.used + slots > spot.device.slots
            or spot.memory_mib + memory > spot.device.memory_mib
            or spot.cores + cores > spot.device.cores
        ):
            return f"device {uuid}: the pod's sidecar and its other containers do not fit together"
    return ""


def _mig(slots: Mapping[str, list[Slot]]) -> tuple[MigPick, ...]:
    return tuple(
        MigPick(pick.spot.device.uuid, pick.mig[0], pick.mig[1], pick.mig[2], place, number)
        for row in slots.values()
        for place, entry in enumerate(row)
        for number, pick in enumerate(entry.picks)
        if pick.mig
    )


def choose_node(
    snapshot: Snapshot,
    pod: Pod,
    nodes: Iterable[str],
    *,
    vendors: Mapping[str, Vendor],
    without: frozenset[str] = frozenset(),
    config: FitConfig = DEFAULT,
) -> Choice:
    """Which of ``nodes`` HAMi takes: spread = the emptiest, anything else (binpack) = the fullest. Nodes with equal
    scores may come out in any order, so all of them are in ``tied``."""
    fits = {name: fit_pod(snapshot, pod, name, vendors=vendors, without=without, config=config) for name in nodes}
    good = {name: np.float32(fit.score) for name, fit in fits.items() if fit.ok}
    if not good:
        return Choice((), fits)
    policy = pod.selection.node_policy or config.node_policy or snapshot.node_policy
    best = min(good.values()) if policy == "spread" else max(good.values())
    return Choice(tuple(name for name, score in good.items() if score == best), fits)
