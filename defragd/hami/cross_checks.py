"""What only all objects together show: devices that two nodes register, bookings of unknown devices or elsewhere.

`CrossChecks` remembers its findings per node and pod and looks again only at those that are other objects than last
time, so that a snapshot of twenty thousand pods of which one has changed costs about as much as the comparison.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from defragd.core.model import Device, Node, Pod, Problem
from defragd.hami.translate_node import DUPLICATE_UUID

UNKNOWN_DEVICE = "DeviceUnknown"
BOOKED_ELSEWHERE = "BookedElsewhere"
UNREADABLE_POD = "UnreadableAllocation"

_NONE: frozenset[str] = frozenset()


class CrossChecks:
    """For one sequence of snapshots; not for several threads at once."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._uuids: dict[str, frozenset[str]] = {}
        self._count: Counter[str] = Counter()
        self._doubles: set[str] = set()
        self._pods: dict[str, Pod] = {}
        self._found: dict[str, tuple[Problem, ...]] = {}
        self._booked: dict[str, set[str]] = {}
        self._outside: dict[str, set[str]] = {}
        """Node -> pods that use devices there which HAMi's books do not show."""

    def nodes(self, nodes: Mapping[str, Node]) -> tuple[Mapping[str, Node], list[Problem]]:
        """The nodes with devices distrusted that several of them register: the books on none are believed."""
        for name in [name for name in self._nodes if name not in nodes]:
            self._set_node(name, None)
        for name, node in nodes.items():
            if self._nodes.get(name) is not node:
                self._set_node(name, node)
        if not self._doubles:
            return nodes, []
        out, problems = dict(nodes), []
        for name, node in nodes.items():
            mine = [d.uuid for d in node.devices if d.uuid in self._doubles]
            if mine:
                problems += [Problem(f"Node/{name}", DUPLICATE_UUID, f"device {u} is on several nodes") for u in mine]
                out[name] = replace(node, devices=tuple(self._doubt(d) for d in node.devices))
        return out, problems

    def pods(self, pods: Mapping[str, Pod]) -> list[Problem]:
        """Bookings that HAMi does not count, or counts where the pod is not. After `nodes` of the same snapshot."""
        seen = self._pods
        for key, pod in pods.items():
            if seen.get(key) is not pod:
                self._forget(key)
                seen[key] = pod
                if pod.allocations and pod.booked_node:
                    self._booked.setdefault(pod.booked_node, set()).add(key)
                if pod.live and pod.node and pod.requests and not pod.allocations and not pod.mig:
                    self._outside.setdefault(pod.node, set()).add(key)
                self._look(key, pod)
        if len(seen) > len(pods):
            for key in [key for key in seen if key not in pods]:
                self._forget(key)
        return [problem for found in self._found.values() for problem in found]

    def outside(self, nodes: Mapping[str, Node]) -> Mapping[str, Node]:
        """The nodes with devices distrusted that only seem idle: a pod that HAMi's books do not show uses one of them,
        and which one nobody can tell. After `pods` of the same snapshot."""
        out: dict[str, Node] | None = None
        for name, keys in self._outside.items():
            node = nodes.get(name)
            if node is None:
                continue
            vendors = {request.vendor: key for key in sorted(keys) for request in self._pods[key].requests}
            booked = (self._pods[key] for key in self._booked.get(name, ()))
            held = {uuid for pod in booked if pod.live for uuid in pod.devices}
            seen = tuple(
                replace(d, distrusted=f"may be in use outside HAMi's books by {vendors[d.vendor]}")
                if d.vendor in vendors and d.uuid not in held and not d.distrusted
                else d
                for d in node.devices
            )
            out = dict(nodes) if out is None else out
            out[name] = replace(node, devices=seen)
        return nodes if out is None else out

    def _set_node(self, name: str, node: Node | None) -> None:
        before = self._uuids.get(name)
        old, new = before or _NONE, _NONE
        if node is None:
            del self._nodes[name], self._uuids[name]
        else:
            self._nodes[name] = node
            new = frozenset(d.uuid for d in node.devices)
            if new == before:
                return
            self._uuids[name] = new
        self._count.subtract(old)
        self._count.update(new)
        for uuid in old | new:
            if self._count[uuid] > 1:
                self._doubles.add(uuid)
            else:
                self._doubles.discard(uuid)
            if not self._count[uuid]:
                del self._count[uuid]
        for key in self._booked.get(name, ()):
            self._look(key, self._pods[key])

    def _doubt(self, device: Device) -> Device:
        return replace(device, distrusted="duplicate UUID") if device.uuid in self._doubles else device

    def _forget(self, key: str) -> None:
        old = self._pods.pop(key, None)
        self._found.pop(key, None)
        if old is not None and old.booked_node in self._booked:
            self._booked[old.booked_node].discard(key)
            if not self._booked[old.booked_node]:
                del self._booked[old.booked_node]
        if old is not None and old.node in self._outside:
            self._outside[old.node].discard(key)
            if not self._outside[old.node]:
                del self._outside[old.node]

    def _look(self, key: str, pod: Pod) -> None:
        found = tuple(_problems(key, pod, self._uuids.get(pod.booked_node)))
        if found:
            self._found[key] = found
        else:
            self._found.pop(key, None)


def _problems(key: str, pod: Pod, here: frozenset[str] | None) -> Iterable[Problem]:
    """``here``: UUIDs of the node the pod is booked on; None = that node is not known."""
    if pod.problem:
        yield Problem(key, UNREADABLE_POD, pod.problem)
    if not pod.allocations or not pod.live:
        return
    if pod.node and pod.booked_node and pod.node != pod.booked_node:
        text = f"runs on {pod.node}, but HAMi counts its devices on {pod.booked_node}"
        yield Problem(key, BOOKED_ELSEWHERE, text)
    missing = [uuid for uuid in pod.devices if uuid not in here] if here is not None else []
    if missing:
        text = f"holds {', '.join(missing)}, unknown on node {pod.booked_node}; not counted"
        yield Problem(key, UNKNOWN_DEVICE, text)
