"""kube-scheduler with HAMi's extender, as far as a move can feel it: fit, choice, node lock, back-off.

The decision itself is the product's own model of HAMi (`core.fit`, `core.kube_fit`), which is compared with the real
scheduler elsewhere; here it is put under time: binds on a node go one after the other, losers back off together.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from defragd.core.fit import Fit, FitConfig, choose_node
from defragd.core.kube_fit import kube_fit
from defragd.core.model import MigReservation, Node, Pod
from defragd.core.snapshot import Snapshot

if TYPE_CHECKING:
    from defragd.sim.cluster import SimCluster

AS_HAMI = FitConfig(as_hami=True, obey_pin=True)
BACKOFF = (1.0, 2.0, 4.0, 8.0, 10.0)
"""Seconds after the first, second, ... failed bind (measured, protocol notes 11.3)."""


class Scheduler:
    """The queue of pods without a node."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._waiting: dict[str, int] = {}
        """Pod key to number of failed binds."""
        self._until: dict[str, float] = {}
        """Pod key to the end of its back-off, which nothing shortens."""

    def add(self, key: str) -> None:
        """A pod was created, or its last gate was removed, or it was changed."""
        self._waiting.setdefault(key, 0)
        self._cluster.at(self._cluster.faults.schedule, lambda: self._try(key))

    def wake(self) -> None:
        """Something came free: everybody waiting tries again, oldest first."""
        faults = self._cluster.faults
        if self._waiting and faults.forget_wakeups > 0:
            faults.forget_wakeups -= 1
            return
        for key in list(self._waiting):
            self._cluster.at(faults.schedule, lambda key=key: self._try(key))  # type: ignore[misc]

    def _try(self, key: str) -> None:
        cluster = self._cluster
        pod = cluster.pods.get(key)
        if pod is None or pod.node or pod.deleting or not pod.live:
            self._waiting.pop(key, None)
            self._until.pop(key, None)
            return
        if pod.gates or key not in self._waiting:
            return
        if cluster.clock.monotonic() < self._until.get(key, 0.0) - 1e-6:
            return
        view = replace(cluster.snapshot(), holds=())
        node, fit, why = choose(view, pod, cluster)
        if node is None:
            if pod.unschedulable != why:
                cluster.set_pod(replace(pod, unschedulable=why))
            return
        assert fit is not None
        # the filter has written its choice, which counts whether the bind comes off or not
        chosen = replace(
            pod,
            booked_node=node.name,
            allocations=fit.allocations,
            mig=tuple(MigReservation(m.uuid, m.profile, m.start, m.size, m.container, m.device) for m in fit.mig),
            unschedulable="",
        )
        if node.lock is not None and node.lock.holder != key:
            cluster.set_pod(chosen)
            failed = self._waiting[key]
            self._waiting[key] = failed + 1
            pause = BACKOFF[min(failed, len(BACKOFF) - 1)]
            self._until[key] = cluster.clock.monotonic() + pause
            cluster.at(pause, lambda: self._try(key))
            return
        del self._waiting[key]
        bound = cluster.set_pod(replace(chosen, node=node.name, bind_phase="allocating"))
        cluster.bound(bound)


def choose(view: Snapshot, pod: Pod, cluster: SimCluster) -> tuple[Node | None, Fit | None, str]:
    """Node and devices, or why there is none. Our own pin binds here like any other constraint."""
    pin = pod.selection.pin_node
    why = f"node {pin} is not there" if pin else "no nodes"
    able = []
    for node in cluster.nodes.values():
        if pin and node.name != pin:
            continue
        verdict = kube_fit(view, pod, node.name)
        if verdict.ok:
            able.append(node.name)
        else:
            why = verdict.detail or str(verdict.reason)
    choice = choose_node(view, pod, able, vendors=cluster.vendors, config=AS_HAMI)
    if not choice.tied:
        return None, None, next((fit.text for fit in choice.fits.values()), why)
    name = min(choice.tied)
    return cluster.nodes[name], choice.fits[name], ""
