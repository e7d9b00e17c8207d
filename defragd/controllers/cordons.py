"""Keeps new pods off devices that gpu-drain is emptying, by HAMi's own device cordon, and takes it off afterwards.

Level-triggered and without memory: what is cordoned for which run stands on the node, so whoever leads next goes on,
and what a dead run has left is taken off like what a run has finished. Holds keep a drain's targets; this keeps its
source. It is a help, not a proof: HAMi reads the list up to half a minute late.
"""

from __future__ import annotations

from collections.abc import Mapping

from defragd.controllers.leader_loop import AGAIN, MAX_AGE_SECONDS, LeaderLoop
from defragd.core.snapshot import Snapshot
from defragd.core.vendor import Vendor
from defragd.hami import cordon
from defragd.ports import Clock, ClusterReader, Hook, Leadership, NodeWriter, Outcome, RunStore

PER_PASS = 20


class Cordons(LeaderLoop):
    """Writes nodes only: one patch per node and pass."""

    NAME, EVERY = "cordons", 1.0

    def __init__(
        self,
        *,
        reader: ClusterReader,
        runs: RunStore,
        nodes: NodeWriter,
        leadership: Leadership,
        clock: Clock,
        hook: Hook,
        vendors: Mapping[str, Vendor],
        max_age_seconds: float = MAX_AGE_SECONDS,
    ) -> None:
        super().__init__(reader, leadership, clock, hook, max_age_seconds)
        self._runs, self._nodes, self._vendors = runs, nodes, vendors
        self._told: set[tuple[str, str]] = set()

    def _pass(self, tick: float) -> int:
        snapshot, runs = self._reader.snapshot(), self._runs.list()
        wanted = cordon.wanted(runs, snapshot)
        lasting = {run.name for run in runs if run.phase in cordon.ACTIVE}
        done = 0
        for name, node in snapshot.nodes.items():
            if name not in wanted and cordon.MARK not in node.annotations:
                continue
            ours = cordon.marked(node.annotations)
            closed = {device.uuid for device in node.devices if device.cordoned}
            add = {
                uuid: run
                for uuid, run in wanted.get(name, {}).items()
                if uuid not in ours and self._obeyed(snapshot, name, uuid, run) and uuid not in closed
            }
            drop = [uuid for uuid, run in ours.items() if run not in lasting]
            if (add or drop) and name not in self._resting and done < PER_PASS:
                self._write(name, add, drop, tick)
                done += 1
        return done

    def _obeyed(self, snapshot: Snapshot, node: str, uuid: str, run: str) -> bool:
        if cordon.obeys(snapshot, uuid, self._vendors):
            return True
        if (uuid, run) not in self._told:
            self._told.add((uuid, run))
            why = "HAMi's backend for this device ignores the cordon: new pods may come while it is drained"
            self._hook("cordon.ignored", {"node": node, "device": uuid, "run": run, "reason": why})
        return False

    def _write(self, name: str, add: Mapping[str, str], drop: list[str], tick: float) -> None:
        answer = self._nodes.annotate(name, lambda annotations: cordon.change(annotations, add, drop))
        self._resting[name] = tick + (60.0 if answer.outcome is Outcome.REFUSED else AGAIN)
        fields = {"node": name, "cordoned": sorted(add), "restored": sorted(drop), "result": str(answer.outcome)}
        self._hook("cordon", {**fields, "reason": answer.message} if answer.message else fields)
