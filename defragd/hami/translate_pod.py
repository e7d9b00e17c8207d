"""Pod objects into core values: what the pod asks, what it holds, what kube-scheduler looks at.

This runs for every pod of every list and every watch event, so the plain pod takes the short way through it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from defragd.core.model import EMPTY, Allocation, DeviceRequest, MigReservation, Owner, Pod, Volume
from defragd.core.placement import PINNED
from defragd.core.vendor import Vendor
from defragd.errors import CodecError
from defragd.hami.codec import Entry, read_mig, read_slots, read_time, split_mig_uuid
from defragd.hami.config import HamiConfig
from defragd.hami.keys import (
    BIND_PHASE,
    BIND_TIME,
    BOOKED_NODE,
    BOOKED_TIME,
    METAX_APP_CLASS,
    METAX_QOS,
    METAX_TOPOLOGY,
    MIG_ALLOCATIONS,
    VNPU_MODE,
    VOLCANO_PREFIX,
)
from defragd.hami.requests import ContainerNeeds, resolve_requests
from defragd.hami.scheduling import scheduling_of
from defragd.hami.selection import COMMON_KEYS, NOTHING, selection_of
from defragd.hami.vendors import backends, managed_resources, vendors_for

_KEEP_PREFIX = ("defragd.io/", "scheduling.hami.placement.com/", "scheduling.k8s.io/", "scheduling.volcano.sh/")
_KEEP = frozenset(
    {
        VNPU_MODE,
        METAX_APP_CLASS,
        METAX_QOS,
        METAX_TOPOLOGY,
        "pod-group-name",
        "kubernetes.io/config.mirror",
        "kubernetes.io/config.source",
        "cluster-autoscaler.kubernetes.io/safe-to-evict",
        "controller.kubernetes.io/pod-deletion-cost",
        "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes",
    }
)
_SUFFIX = "allocated"


@lru_cache(maxsize=32)
def _allocated_keys(config: HamiConfig) -> Mapping[str, str]:
    """Allocation annotation -> vendor word."""
    return {b.allocated: b.word for b in backends(config).values()}


@lru_cache(maxsize=32)
def _facts(config: HamiConfig) -> Mapping[str, Vendor]:
    return vendors_for(config)


def _needs(container: Any, init: bool) -> ContainerNeeds:
    res = container.resources
    if res is None:
        return ContainerNeeds(init=init, sidecar=init and container.restart_policy == "Always")
    return ContainerNeeds(
        tuple(res.limits.items()) if res.limits else (),
        tuple(res.requests.items()) if res.requests else (),
        init,
        init and container.restart_policy == "Always",
    )


def _requesting(requests: tuple[DeviceRequest, ...], word: str) -> list[DeviceRequest]:
    return [r for r in requests if r.vendor == word]


def _allocations(
    word: str, slots: tuple[tuple[Entry, ...], ...], requests: tuple[DeviceRequest, ...], inits: int, containers: int
) -> list[Allocation]:
    """Slots matched to containers: by position where there is a slot per container (HAMi 2.9, or none left out), else
    the k-th non-empty slot belongs to the k-th requesting container (2.10). ``hami_init`` is by position always."""
    if not inits:
        return [
            Allocation(k, _bare(e.uuid), e.memory_mib, e.cores, word)
            for k, slot in enumerate(s for s in slots if s)
            for e in slot
        ]
    asking = _requesting(requests, word)
    full = len(slots) == containers
    by_container = {r.container: r for r in asking}
    out = []
    order = 0
    for place, slot in enumerate(slots):
        if not slot:
            continue
        if full and place in by_container:
            asked: DeviceRequest | None = by_container[place]
        else:
            asked = asking[order] if order < len(asking) else None
        init = asked.init and not asked.sidecar if asked else False
        out += [Allocation(order, _bare(e.uuid), e.memory_mib, e.cores, word, init, place < inits) for e in slot]
        order += 1
    return out


def _plain(text: str, word: str) -> tuple[Allocation, ...]:
    """The short way for one device in one place, as most pods have it; () for everything else."""
    last = len(text) - 1
    if text.count(",") != 3 or text.find(":") != last - 1 or text.find(";") != last:
        return ()
    uuid, _, memory, cores = text[:-2].split(",")
    numbers = memory + cores
    if not uuid or uuid[-1] == "]" or not (numbers.isascii() and memory.isdigit() and cores.isdigit()):
        return ()
    return (Allocation(0, uuid, int(memory), int(cores), word),) if len(numbers) < 13 and len(memory) < 10 else ()


def _bare(uuid: str) -> str:
    return split_mig_uuid(uuid)[0] if uuid.endswith("]") else uuid


# what an annotation key is, found by one look-up per key
_PLAIN, _HELD, _WISH, _KEPT, _MIG = range(5)


@lru_cache(maxsize=32)
def _key_kinds(config: HamiConfig) -> Mapping[str, int]:
    kinds = dict.fromkeys(_KEEP, _KEPT) | dict.fromkeys((BOOKED_NODE, BOOKED_TIME, BIND_PHASE, BIND_TIME), _PLAIN)
    kinds |= dict.fromkeys(COMMON_KEYS, _WISH) | {MIG_ALLOCATIONS: _MIG}
    for backend in backends(config).values():
        facts = backend.facts
        for key in (*facts.use_keys, *facts.nouse_keys, *facts.use_type_keys, *facts.nouse_type_keys):
            kinds[key] = _WISH
        kinds[backend.to_allocate] = _PLAIN
        kinds[backend.allocated] = _HELD
    return kinds


@dataclass(slots=True)
class _Notes:
    """A pod's annotations, sorted by what they are for."""

    held: list[tuple[str, str]]
    kept: dict[str, str]
    wishes: dict[str, str]
    mig: str = ""
    unknown: str = ""


def _sort_out(annotations: Mapping[str, str], config: HamiConfig) -> _Notes:
    kinds = _key_kinds(config)
    notes = _Notes([], {}, {})
    for key, text in annotations.items():
        kind = kinds.get(key)
        if kind is None:
            if key.startswith(_KEEP_PREFIX):
                notes.kept[key] = text
            elif key.startswith("hami.io/") and key.endswith(_SUFFIX):
                notes.unknown = key
        elif kind == _HELD:
            notes.held.append((key, text))
        elif kind == _WISH:
            notes.wishes[key] = text
            if key.startswith(_KEEP_PREFIX):
                notes.kept[key] = text
        elif kind == _KEPT:
            notes.kept[key] = text
        elif kind == _MIG:
            notes.mig = text
    return notes


def _read_held(
    notes: _Notes, config: HamiConfig, requests: tuple[DeviceRequest, ...], inits: int, containers: int
) -> tuple[tuple[Allocation, ...], tuple[MigReservation, ...], str]:
    """(allocations, MIG reservations, problem). One undecodable list makes HAMi count the pod as nothing at all."""
    keys = _allocated_keys(config)
    found: list[Allocation] = []
    problem = f"annotation {notes.unknown}: devices of an unknown backend" if notes.unknown else ""
    for key, text in notes.held:
        try:
            found += _allocations(keys[key], read_slots(key, text), requests, inits, containers)
        except CodecError as error:
            return (), (), str(error)
    reservations: tuple[MigReservation, ...] = ()
    if notes.mig:
        try:
            reservations = read_mig(notes.mig)
        except CodecError as error:
            problem = problem or str(error)
    elif any("[" in text for _, text in notes.held):
        problem = problem or "MIG devices written by HAMi 2.9 or older: the instances are not readable"
    return tuple(found), reservations, problem


def _held_by(
    annotations: Mapping[str, str], config: HamiConfig, requests: tuple[DeviceRequest, ...], inits: int, containers: int
) -> tuple[_Notes, tuple[Allocation, ...], tuple[MigReservation, ...], str]:
    """Annotations sorted by what they are for, and what the pod holds as `_read_held` gives it."""
    notes = _sort_out(annotations, config)
    if len(notes.held) == 1 and not inits and not notes.unknown and not notes.mig:
        key, text = notes.held[0]
        plain = _plain(text, _allocated_keys(config)[key])
        if plain:
            return notes, plain, (), ""
    if notes.held or notes.unknown or notes.mig:
        return notes, *_read_held(notes, config, requests, inits, containers)
    return notes, (), (), ""


def read_annotations(obj: Any, config: HamiConfig) -> tuple[Allocation, ...]:
    """The devices that HAMi's annotations on a Pod object name, without the rest of the translation."""
    inits, apps = len(obj.spec.init_containers or ()), len(obj.spec.containers)
    return _held_by(obj.metadata.annotations or EMPTY, config, (), inits, inits + apps)[1]


def _time(text: str | None) -> datetime | None:
    return read_time(text) if text else None


def _owner(meta: Any) -> Owner | None:
    for ref in meta.owner_references or ():
        if ref.controller:
            return Owner(ref.kind, ref.name, ref.uid, ref.api_version)
    return None


def _init_done(spec: Any, status: Any) -> tuple[bool, bool]:
    """(all init containers but sidecars ended well, HAMi sees all of them ended well)."""
    if not spec.init_containers:
        return False, False
    statuses = status.init_container_statuses or ()
    if not statuses:
        return False, False
    sidecars = {c.name for c in spec.init_containers if c.restart_policy == "Always"}
    ended = {
        s.name: s.state is not None and s.state.terminated is not None and s.state.terminated.exit_code == 0
        for s in statuses
    }
    mine = all(ended.get(c.name, False) for c in spec.init_containers if c.name not in sidecars)
    return mine, all(ended.values())


def _waiting_reason(status: Any) -> tuple[bool, datetime | None, str]:
    """(ready, since when, why kube-scheduler cannot place it)."""
    ready, since, reason = False, None, ""
    for condition in status.conditions or ():
        if condition.type == "Ready":
            ready = condition.status == "True"
            since = _time(condition.last_transition_time) if ready else None
        elif condition.type == "PodScheduled" and condition.status == "False":
            reason = condition.message or condition.reason or "Unschedulable"
    return ready, since, reason


def translate_pod(obj: Any, config: HamiConfig, *, claims: Mapping[str, Volume] | None = None) -> Pod:
    """A Pod object (attributes as in kube.wire) as the core sees it. Never raises for odd content: what cannot be
    judged is in ``Pod.problem``. ``claims``: `hami.scheduling.claim_table`; None = claims are unknown."""
    meta, spec, status = obj.metadata, obj.spec, obj.status
    annotations: Mapping[str, str] = meta.annotations or EMPTY
    inits = spec.init_containers or ()
    needs = tuple([_needs(c, True) for c in inits] + [_needs(c, False) for c in spec.containers])
    requests = resolve_requests(needs, config)
    booked = annotations.get(BOOKED_NODE, "")
    notes, allocations, mig, problem = _held_by(annotations, config, requests, len(inits), len(needs))
    if not problem and _volcano(needs):
        problem = "devices of Volcano's own vGPU plugin: HAMi's scheduler does not know this pod"
    pinned = PINNED in annotations
    selection, selections = NOTHING, EMPTY
    if notes.wishes and (requests or allocations):
        words = [r.vendor for r in requests] or [a.vendor for a in allocations]
        selection, selections = selection_of(notes.wishes, words, _facts(config))
    scheduling, pin_node = scheduling_of(obj, managed_resources(config), pinned=pinned, claims=claims)
    if pin_node:
        selection = replace(selection, pin_node=pin_node)
    ready, since, waiting = _waiting_reason(status)
    done, shrunk = _init_done(spec, status)
    return Pod(
        namespace=meta.namespace or "default",
        name=meta.name,
        uid=meta.uid,
        labels=meta.labels or EMPTY,
        annotations=notes.kept or EMPTY,
        owner=_owner(meta),
        scheduler=spec.scheduler_name or "default-scheduler",
        node=spec.node_name,
        booked_node=booked,
        bind_phase=annotations.get(BIND_PHASE, ""),
        phase=status.phase or "Pending",
        ready=ready,
        ready_since=since,
        created=_time(meta.creation_timestamp),
        deleting=meta.deletion_timestamp is not None,
        deletion_deadline=_time(meta.deletion_timestamp),
        grace_seconds=_grace(meta, spec),
        gates=tuple(g.name for g in spec.scheduling_gates) if spec.scheduling_gates else (),
        priority=spec.priority or 0,
        init_done=done,
        shrunk=shrunk,
        has_init=bool(inits),
        init_count=len(inits),
        app_count=len(spec.containers),
        requests=requests,
        allocations=allocations,
        mig=mig,
        selection=selection,
        selections=selections,
        scheduling=scheduling,
        unschedulable=waiting,
        revision=meta.resource_version,
        problem=problem,
    )


def _grace(meta: Any, spec: Any) -> int:
    for value in (meta.deletion_grace_period_seconds, spec.termination_grace_period_seconds):
        if value is not None:
            return int(value)
    return 30


def _volcano(needs: tuple[ContainerNeeds, ...]) -> bool:
    return any(name.startswith(VOLCANO_PREFIX) for n in needs for name, _ in n.limits)
