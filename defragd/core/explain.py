"""Why a pod does (not) move, a node does (not) empty, a device does (not) take somebody.

Answered by the code that plans: `core.eligibility` for who may move, `core.pdb` and `core.budget` for what may be out,
`core.kube_fit` and `core.fit` for places. One main reason per pod, with its class: never, notNow, noPlace. Places are
counted per class of target ("12 devices: memory; 2: unhealthy"). Results are JSON-like, the same for command line, API
and UI.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from defragd.core.budget import Floor
from defragd.core.eligibility import Eligibility, eligible, workload_key
from defragd.core.fit import FitConfig, fit_pod
from defragd.core.kube_fit import kube_fit
from defragd.core.model import Device, Node, Pod
from defragd.core.pdb import Ledger, budgets_of
from defragd.core.reasons import Reason
from defragd.core.rules import Rules
from defragd.core.selectors import matches
from defragd.core.snapshot import Snapshot
from defragd.core.vendor import Vendor

NO_PLACE = "noPlace"
MOVABLE = "movable"
WORDS: Mapping[str, str] = {
    "CardNotHealth": "unhealthy",
    "CardCordoned": "cordoned",
    "CardTypeMismatch": "type",
    "NumaNotFit": "NUMA",
    "CardUuidMismatch": "the pod's own device list",
    "CardTimeSlicingExhausted": "slots",
    "ExclusiveDeviceAllocateConflict": "in use, whole device wanted",
    "ResourceQuotaNotFit": "quota",
    "CardInsufficientMemory": "memory",
    "CardInsufficientCore": "cores",
    "CardComputeUnitsExhausted": "all cores taken",
    "CardMigTopologyInfeasible": "no MIG placement",
    "CardNotFoundCustomFilterRule": "backend rule",
    "ModeNotFit": "mode",
    "AllocatedCardsInsufficientRequest": "too few free on the node",
    "NodeInsufficientDevice": "too few on the node",
}
"""HAMi's words for a refused device -> ours."""
NODE_WORDS: Mapping[Reason, str] = {
    Reason.NODE_NOT_READY: "node not Ready",
    Reason.NODE_UNSCHEDULABLE: "node cordoned",
    Reason.NODE_FULL: "CPU, memory or pods of the node",
    Reason.NODE_UNFIT: "taints, selectors or affinity",
    Reason.VOLUME_BOUND: "volumes",
    Reason.NODE_LOCK_MALFORMED: "node lock malformed",
}
"""Why a whole node is no place, in words."""
_COUNTED = re.compile(r"(\d+)/\d+ ([A-Za-z]+)")
SHOWN = 5
"""Places named in an answer; the rest are counted."""


@dataclass
class Places:
    """Where a pod could go. ``devices``: refused devices per class; ``nodes``: nodes refused as a whole, per class."""

    fits: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    fitting_nodes: int = 0
    devices: Counter[str] = field(default_factory=Counter)
    nodes: Counter[str] = field(default_factory=Counter)
    complete: bool = True

    def to_json(self) -> dict[str, Any]:
        return {
            "nodes": self.fitting_nodes,
            "complete": self.complete,
            "examples": [{"node": node, "devices": list(devices)} for node, devices in self.fits[:SHOWN]],
            "refused": [{"class": word, "devices": count} for word, count in _ranked(self.devices)],
            "refusedNodes": [{"class": word, "nodes": count} for word, count in _ranked(self.nodes)],
            "text": self.text(),
        }

    def text(self) -> str:
        """``12 devices: memory; 2: unhealthy; 1: type``."""
        parts = [f"{count}: {word}" for word, count in _ranked(self.devices)]
        if parts:
            count, _, word = parts[0].partition(": ")
            parts[0] = f"{count} device{'s' if count != '1' else ''}: {word}"
        return "; ".join(parts)


def _ranked(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


class Explainer:
    """Answers about one snapshot under one policy's rules. ``drain``: as a strategy that empties places sees it."""

    def __init__(
        self,
        snapshot: Snapshot,
        rules: Rules,
        now: datetime,
        *,
        vendors: Mapping[str, Vendor],
        drain: bool = False,
        history: Mapping[str, int] | None = None,
        last_moved: Mapping[str, datetime] | None = None,
        config: FitConfig | None = None,
    ) -> None:
        self.snapshot, self.rules, self.now, self.vendors, self.drain = snapshot, rules, now, vendors, drain
        self._history, self._last_moved = history, last_moved
        self._ledger = Ledger.of(snapshot, partial=True)
        self._floor = Floor.of(snapshot, self._ledger, partial=True)
        self._config = config or FitConfig()

    # -- objects --------------------------------------------------------------------------------------------------

    def pod(self, name: str) -> dict[str, Any] | None:
        """``ns/name``; None when there is no such pod."""
        pod = self.snapshot.pods.get(name)
        if pod is None:
            return None
        places = self.places(pod)
        return {
            "kind": "pod",
            "name": pod.key,
            **self._verdict(pod, places),
            "node": pod.node or pod.booked_node,
            "devices": list(pod.devices),
            "workload": workload_key(self.snapshot, pod),
            "budgets": [budget.key for budget in budgets_of(self.snapshot, pod)],
            "targets": places.to_json(),
        }

    def node(self, name: str) -> dict[str, Any] | None:
        """A node by name: can it be emptied, what stands in the way, can it receive; None when there is none."""
        node = self.snapshot.nodes.get(name)
        if node is None:
            return None
        pods = [pod for pod in self._holders(node) if pod.live]
        away = [self._short(pod, leaving=frozenset({name})) for pod in pods]
        blockers = [item for item in away if item["verdict"] != MOVABLE]
        usage = self.snapshot.usage(name)
        return {
            "kind": "node",
            "name": name,
            "verdict": "drainable" if not blockers else "blocked",
            "detail": self._drain_text(len(pods), blockers),
            "pods": away,
            "asTarget": self._node_as_target(node),
            "devices": [self._device_line(device, usage[device.uuid]) for device in node.devices],
        }

    def device(self, name: str) -> dict[str, Any] | None:
        """A device by UUID or ``NODE/gpu-I``: can it be emptied, can it receive; None when there is none."""
        device = self.find_device(name)
        if device is None:
            return None
        usage = self.snapshot.usage(device.node)[device.uuid]
        pods = [self.snapshot.pods[key] for key in usage.holders if key in self.snapshot.pods]
        away = [self._short(pod, leaving=frozenset({device.uuid})) for pod in pods]
        blockers = [item for item in away if item["verdict"] != MOVABLE]
        reason, detail = self._device_as_target(device)
        return {
            "kind": "device",
            "name": device.uuid,
            "node": device.node,
            "verdict": "drainable" if not blockers else "blocked",
            "detail": self._drain_text(len(pods), blockers),
            "pods": away,
            "asTarget": {"ok": reason is None, "reason": reason and str(reason), "detail": detail},
            **{key: value for key, value in self._device_line(device, usage).items() if key != "uuid"},
        }

    def find_device(self, name: str) -> Device | None:
        """By UUID, by ``NODE/UUID`` as plans print it, or by ``NODE/gpu-I`` with the device's index on its node."""
        found = self.snapshot.devices.get(name)
        if found is not None:
            return found
        node_name, _, word = name.rpartition("/")
        found = self.snapshot.devices.get(word)
        if found is not None and found.node == node_name:
            return found
        node = self.snapshot.nodes.get(node_name)
        if node is None or not word.startswith("gpu-") or not re.fullmatch("[0-9]{1,6}", word[4:]):
            return None
        return next((device for device in node.devices if device.index == int(word[4:])), None)

    # -- pods -----------------------------------------------------------------------------------------------------

    def may_move(self, pod: Pod) -> Eligibility:
        """Rules and owners first, then disruption budgets."""
        found = eligible(
            self.snapshot,
            pod,
            self.rules,
            self.now,
            drain=self.drain,
            history=self._history,
            last_moved=self._last_moved,
            vendors=self.vendors,
        )
        if not found.ok:
            return found
        for permit in (self._ledger.may_evict(pod), self._floor.may_leave(pod)):
            if not permit.ok:
                kind = "never" if permit.reason is Reason.SEVERAL_PDBS else "notNow"
                return Eligibility(False, permit.reason, permit.detail, kind)
        return found

    def _verdict(self, pod: Pod, places: Places) -> dict[str, Any]:
        found = self.may_move(pod)
        if not found.ok:
            return {
                "verdict": found.kind,
                "reason": str(found.reason),
                "detail": found.detail,
                "until": found.until.isoformat() if found.until else None,
            }
        if not places.fitting_nodes:
            return {"verdict": NO_PLACE, "reason": str(Reason.NO_PLACE), "detail": places.text(), "until": None}
        return {"verdict": MOVABLE, "reason": None, "detail": "", "until": None}

    def _short(self, pod: Pod, *, leaving: frozenset[str]) -> dict[str, Any]:
        """One line per pod. The search for a place ends at the first; a pod without one has its classes counted."""
        found = self.may_move(pod)
        places = Places(fitting_nodes=1)
        if found.ok:
            places = self.places(pod, leaving=leaving, first=True)
        line = {"name": pod.key, **self._verdict(pod, places)}
        if found.ok and not places.fitting_nodes:
            line["targets"] = places.to_json()
        return line

    def places(self, pod: Pod, *, leaving: frozenset[str] = frozenset(), first: bool = False) -> Places:
        """Devices that could take the pod if it were evicted now, with nobody else moved.

        ``leaving``: a node or device UUIDs that do not count (they are to be emptied). Without it the pod's present
        devices do not count. ``first``: stop at the first place.
        """
        out = Places()
        without = frozenset({pod.key})
        closed = leaving or frozenset(pod.devices)
        here = pod.node or pod.booked_node
        # Its own node first: a move within the node is the cheapest.
        for name in sorted(self.snapshot.nodes, key=lambda name: (name != here, name)):
            node = self.snapshot.nodes[name]
            if not node.devices or name in leaving:
                continue
            self._on_node(pod, node, closed, without, out)
            if first and out.fitting_nodes:
                out.complete = False
                return out
        return out

    def _on_node(self, pod: Pod, node: Node, closed: frozenset[str], without: frozenset[str], out: Places) -> None:
        open_devices = [device for device in node.devices if device.uuid not in closed]
        if not open_devices:
            return None
        if not matches(self.rules.scope.node_selector, node.labels):
            return self._whole_node("outside the policy's scope", open_devices, out)
        verdict = kube_fit(self.snapshot, pod, node.name, without=without)
        if not verdict.ok:
            return self._whole_node(_node_word(verdict.reason), open_devices, out)
        usable = [device for device in open_devices if not device.distrusted]
        out.devices["not trusted"] += len(open_devices) - len(usable)
        world = self._closing(node, closed)
        fit = fit_pod(world, pod, node.name, vendors=self.vendors, without=without, config=self._config)
        if fit.ok:
            out.fitting_nodes += 1
            out.fits.append((node.name, tuple(dict.fromkeys(a.uuid for a in fit.allocations))))
        else:
            self._count(fit.text, fit.reason, len(usable), out)
        out.devices = +out.devices
        return None

    def _closing(self, node: Node, closed: frozenset[str]) -> Snapshot:
        """The snapshot with some devices of one node taken out of use."""
        if not any(device.uuid in closed for device in node.devices):
            return self.snapshot
        kept = tuple(device for device in node.devices if device.uuid not in closed)
        return replace(self.snapshot, nodes={**self.snapshot.nodes, node.name: replace(node, devices=kept)})

    @staticmethod
    def _whole_node(word: str, devices: list[Device], out: Places) -> None:
        out.nodes[word] += 1
        out.devices[word] += len(devices)

    @staticmethod
    def _count(text: str, reason: Reason | None, devices: int, out: Places) -> None:
        found = [(int(count), WORDS.get(word, word)) for count, word in _COUNTED.findall(text)]
        counted = 0
        for count, word in found:
            take = min(count, devices - counted)
            out.devices[word] += take
            counted += take
        rest = devices - counted
        if rest > 0:
            # Devices that HAMi does not even look at for this request are of another backend.
            word = "other vendor" if found else WORDS.get(text, str(reason) if reason else "other")
            out.devices[word] += rest

    # -- nodes and devices ----------------------------------------------------------------------------------------

    def _holders(self, node: Node) -> list[Pod]:
        """Pods on the node that hold devices, or ask for some that no record shows (outside of HAMi)."""
        seen = {pod.key: pod for pod in self.snapshot.booked_on.get(node.name, ())}
        for pod in self.snapshot.pods_on.get(node.name, ()):
            if pod.requests or pod.allocations or pod.problem or pod.mig:
                seen[pod.key] = pod
        return [seen[key] for key in sorted(seen)]

    @staticmethod
    def _drain_text(count: int, blockers: list[dict[str, Any]]) -> str:
        if not count:
            return "nobody is on it"
        if not blockers:
            return f"all {count} pods can leave" if count > 1 else "its pod can leave"
        first = blockers[0]
        return f"{len(blockers)} of {count} pods cannot leave, first {first['name']}: {first['reason']}"

    def _node_as_target(self, node: Node) -> dict[str, Any]:
        reason: Reason | None = None
        detail = ""
        if not matches(self.rules.scope.node_selector, node.labels):
            reason, detail = Reason.OUT_OF_SCOPE, "the policy does not select the node"
        elif not node.ready:
            reason, detail = Reason.NODE_NOT_READY, "the node is not Ready"
        elif not node.schedulable:
            reason, detail = Reason.NODE_UNSCHEDULABLE, "the node is cordoned"
        elif not node.devices:
            reason, detail = Reason.DEVICE_COUNT, "no device is registered on the node"
        elif not any(device.usable for device in node.devices):
            reason, detail = Reason.DEVICE_UNHEALTHY, "none of its devices is usable"
        elif node.lock is not None and node.lock.since is None:
            reason, detail = Reason.NODE_LOCK_MALFORMED, f"HAMi's node lock is malformed: {node.lock.raw[:60]}"
        return {"ok": reason is None, "reason": reason and str(reason), "detail": detail}

    def _device_as_target(self, device: Device) -> tuple[Reason | None, str]:
        node = self.snapshot.nodes[device.node]
        if device.distrusted:
            return Reason.DEVICE_DISTRUSTED, device.distrusted
        if not device.healthy:
            return Reason.DEVICE_UNHEALTHY, "HAMi reports the device as unhealthy"
        if device.cordoned:
            return Reason.DEVICE_CORDONED, "the device is cordoned"
        found = self._node_as_target(node)
        if not found["ok"]:
            return Reason(found["reason"]), found["detail"]
        use = self.snapshot.usage(device.node)[device.uuid]
        if use.exclusive or use.slots >= device.slots:
            what = "one pod has the whole device" if use.exclusive else "all slots are taken"
            return Reason.DEVICE_FULL, what
        if use.memory_mib >= device.memory_mib:
            return Reason.DEVICE_FULL, "no memory is free"
        return None, ""

    @staticmethod
    def _device_line(device: Device, usage: Any) -> dict[str, Any]:
        return {
            "uuid": device.uuid,
            "index": device.index,
            "type": device.model,
            "healthy": device.healthy,
            "cordoned": device.cordoned,
            "distrusted": device.distrusted,
            "slots": {"used": usage.slots, "total": device.slots},
            "memoryMiB": {"used": usage.memory_mib, "total": device.memory_mib},
            "cores": {"used": usage.cores, "total": device.cores},
        }


def _node_word(reason: Reason | None) -> str:
    return NODE_WORDS.get(reason, str(reason)) if reason else "node"
