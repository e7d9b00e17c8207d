"""HAMi's scheduler keeps its own books, and its metrics show them. Compared here with what the pods' annotations and
the nodes' registers say; a device on which they differ for longer than HAMi lags is doubted, with the cause if known.

Known leaks and phantoms (reference sections 2.5 and 11.1): pods whose deletion HAMi missed, or whose annotations were
stripped before it, stay booked until HAMi restarts; a HAMi that starts never counts pods that are already ending; a
failed second look drops the booking of a Pending pod until that pod's next event.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from defragd.core.fit_state import hami_collapse
from defragd.core.model import Device, Pod, Problem
from defragd.core.snapshot import Snapshot, collapse

LAG = timedelta(seconds=30)
"""HAMi's metrics follow its books by up to 15 s (its register tick), and our watches are a moment apart from its."""
GRACE = timedelta(seconds=60)
"""How long the books may differ before a device is doubted."""

BOOKS_DIFFER = "BooksDiffer"

Amount = tuple[int, int, int]
"""(slots, MiB, cores) in use."""
Place = tuple[str, str]
"""(node, device UUID)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What HAMi's scheduler says of one device. ``cores`` may be in another unit than ours where the limit differs."""

    memory_limit_mib: int | None = None
    core_limit: int | None = None
    slots: int | None = None
    memory_mib: int | None = None
    cores: int | None = None


Holders = Callable[[Place], Mapping[str, int]]
"""Pods (ns/name) that HAMi books on a device -> MiB; asked only where the books differ."""


def nobody(_place: Place) -> Mapping[str, int]:
    return {}


@dataclass(frozen=True, slots=True)
class Page:
    """One look at HAMi's metrics."""

    entries: Mapping[Place, Entry]
    holders: Holders = nobody


@dataclass(slots=True)
class _Kept:
    """Our own figures of one device lately, oldest first; the first may be older than the lag and still count."""

    seen: list[tuple[datetime, frozenset[Amount]]] = field(default_factory=list)
    since: datetime | None = None
    """Since when the books differ."""


def doubted(snapshot: Snapshot, doubts: Mapping[Place, str]) -> Snapshot:
    """The snapshot with these devices distrusted and named among the problems; the same one without doubts."""
    if not doubts:
        return snapshot
    nodes, problems = dict(snapshot.nodes), list(snapshot.problems)
    for name in sorted({name for name, _ in doubts}):
        node = nodes.get(name)
        if node is None:
            continue
        devices = []
        for device in node.devices:
            why = doubts.get((name, device.uuid), "")
            if why:
                problems.append(Problem(f"Device/{device.uuid}", BOOKS_DIFFER, f"on node {name}: {why}"))
            devices.append(replace(device, distrusted=device.distrusted or why) if why else device)
        nodes[name] = replace(node, devices=tuple(devices))
    return replace(snapshot, nodes=nodes, problems=tuple(problems))


class BookCheck:
    """The comparison over time; not for several threads at once.

    ``doubts`` maps (node, UUID) to a sentence. With ``grace`` 0 one look decides (files, the command line).
    """

    def __init__(self, *, grace: timedelta = GRACE, lag: timedelta = LAG) -> None:
        self._grace, self._lag = grace, lag
        self._kept: dict[Place, _Kept] = {}
        self.compared = 0
        """Devices that the last look could compare."""

    def look(self, snapshot: Snapshot, page: Page, now: datetime) -> dict[Place, str]:
        """The doubted devices as of now. A page without any device says nothing, so nothing is doubted for it."""
        if not page.entries:
            self.compared = 0
            return {}
        doubts: dict[Place, str] = {}
        kept: dict[Place, _Kept] = {}
        vendors = _vendors(snapshot, page)
        for name, node in snapshot.nodes.items():
            devices = [d for d in node.devices if _comparable(d) and d.vendor in vendors]
            books = _ours(snapshot, name) if devices else {}
            for device in devices:
                place = (name, device.uuid)
                mine = kept[place] = self._kept.get(place) or _Kept()
                self._remember(mine, books.get(device.uuid, frozenset({(0, 0, 0)})), now)
                entry = page.entries.get(place)
                if entry is not None and _agrees(device, entry, mine):
                    mine.since = None
                    continue
                mine.since = mine.since or now
                if now - mine.since >= self._grace:
                    doubts[place] = _explain(snapshot, device, entry, mine.seen[-1][1], page)
        self._kept = kept
        self.compared = len(kept)
        return doubts

    def _remember(self, mine: _Kept, amounts: frozenset[Amount], now: datetime) -> None:
        if not mine.seen or mine.seen[-1][1] != amounts:
            mine.seen.append((now, amounts))
        while len(mine.seen) > 1 and mine.seen[1][0] <= now - self._lag:
            del mine.seen[0]


def _comparable(device: Device) -> bool:
    """MIG devices are booked by instance, and a device without its plugin or on two nodes is out of the game anyway."""
    return device.registered and device.mode != "mig"


def _vendors(snapshot: Snapshot, page: Page) -> frozenset[str]:
    """Vendors of which the page shows anything: an installation may keep a backend out of the metrics."""
    return frozenset(
        device.vendor
        for node in snapshot.nodes.values()
        for device in node.devices
        if (node.name, device.uuid) in page.entries
    )


def _ours(snapshot: Snapshot, node: str) -> dict[str, frozenset[Amount]]:
    """Per device what the annotations come to: as they are read here, and as HAMi reads them (it tells init containers
    otherwise, and lets go of their share at a later event)."""
    ways: list[dict[str, Amount]] = [{}, {}, {}]
    for pod in snapshot.booked_on.get(node, ()):
        readings = (
            collapse(pod.allocations, init_done=pod.init_done),
            hami_collapse(pod),
            collapse(pod.allocations),
        )
        for total, reading in zip(ways, readings, strict=True):
            for uuid, amount in reading.items():
                total[uuid] = _add(total.get(uuid, (0, 0, 0)), amount)
    nothing = (0, 0, 0)
    return {
        uuid: frozenset(total.get(uuid, nothing) for total in ways) for uuid in {u for total in ways for u in total}
    }


def _add(first: Amount, second: Amount, sign: int = 1) -> Amount:
    return (first[0] + sign * second[0], first[1] + sign * second[1], first[2] + sign * second[2])


def _agrees(device: Device, entry: Entry, mine: _Kept) -> bool:
    if entry.memory_limit_mib is not None and entry.memory_limit_mib != device.memory_mib:
        return False
    return any(_same(device, entry, amount) for _, amounts in mine.seen for amount in amounts)


def _same(device: Device, entry: Entry, amount: Amount) -> bool:
    slots, memory, cores = amount
    if entry.slots is not None and entry.slots != slots:
        return False
    if entry.memory_mib is not None and entry.memory_mib != memory:
        return False
    # some backends show cores in another unit than they are booked in
    return entry.cores is None or entry.core_limit != device.cores or entry.cores == cores


def _explain(snapshot: Snapshot, device: Device, entry: Entry | None, amounts: Collection[Amount], page: Page) -> str:
    """One sentence: the two figures, and why as far as it is one of the known reasons."""
    if entry is None:
        elsewhere = sorted(node for node, uuid in page.entries if uuid == device.uuid)
        if elsewhere:
            return f"HAMi's scheduler has it on node {elsewhere[0]}, the register annotation on {device.node}"
        return "HAMi's scheduler does not know it, though it is registered"
    if entry.memory_limit_mib is not None and entry.memory_limit_mib != device.memory_mib:
        return f"HAMi's scheduler reckons with {entry.memory_limit_mib} MiB, the register says {device.memory_mib}"
    ours = max(amounts)
    theirs = (
        ours[0] if entry.slots is None else entry.slots,
        ours[1] if entry.memory_mib is None else entry.memory_mib,
        ours[2] if entry.cores is None or entry.core_limit != device.cores else entry.cores,
    )
    figures = f"HAMi's scheduler counts {_words(theirs)}, the pods' annotations say {_words(ours)}"
    cause = _cause(snapshot, device, theirs, ours, page.holders((device.node, device.uuid)))
    return f"{figures}: {cause}" if cause else figures


def _words(amount: Amount) -> str:
    return f"{amount[1]} MiB, {amount[2]} cores in {amount[0]} slots"


def _cause(snapshot: Snapshot, device: Device, theirs: Amount, ours: Amount, said: Mapping[str, int]) -> str:
    here = {
        pod.key: pod for pod in snapshot.booked_on.get(device.node, ()) if any(device.uuid == u for u in pod.devices)
    }
    if said:
        ghosts = sorted(key for key in said if key not in here)
        if ghosts:
            shown = ", ".join(f"{key} ({said[key]} MiB)" for key in ghosts[:3])
            more = f" and {len(ghosts) - 3} more" if len(ghosts) > 3 else ""
            if all(key not in snapshot.pods or not snapshot.pods[key].live for key in ghosts):
                return f"it still counts {shown}{more}, which no longer exist; a restart of HAMi's scheduler heals that"
            return f"it also counts {shown}{more}"
        uncounted = [pod for key, pod in sorted(here.items()) if key not in said]
    else:
        if theirs >= ours and all(t >= o for t, o in zip(theirs, ours, strict=True)):
            if here:
                return "it still counts pods that are gone; a restart of HAMi's scheduler heals that"
            return "no pod is booked there; it missed a deletion, and a restart of HAMi's scheduler heals that"
        uncounted = _missing(here.values(), device, _add(ours, theirs, -1))
    if not uncounted:
        return ""
    names = ", ".join(pod.key for pod in uncounted[:3])
    if all(pod.deleting for pod in uncounted):
        return f"it does not count {names}, still ending (it was restarted meanwhile); the device only seems free"
    if all(not pod.node for pod in uncounted):
        return f"it dropped the booking of {names}, which waits and takes it again at its next event"
    return f"it does not count {names}"


def _missing(pods: Collection[Pod], device: Device, difference: Amount) -> list[Pod]:
    """The pods whose bookings make up the difference: all that are ending, or all that wait, or a single one."""
    choices = [[p for p in pods if p.deleting], [p for p in pods if not p.node], *([p] for p in pods)]
    for chosen in choices:
        total: Amount = (0, 0, 0)
        for pod in chosen:
            total = _add(total, hami_collapse(pod).get(device.uuid, (0, 0, 0)))
        if chosen and total == difference:
            return sorted(chosen, key=lambda pod: pod.key)
    return []
