"""Keeps new pods off devices that gpu-drain is emptying, by HAMi's own device cordon, and takes it off afterwards.

Level-triggered and without memory: what is cordoned for which run stands on the node, so whoever leads next goes on,
and what a dead run has left is taken off like what a run has finished. Holds keep a drain's targets; this keeps its
source. It is a help, not a proof: HAMi reads the list up to half a minute late.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from defragd.core.vendor import Vendor
from defragd.errors import NotLeader
from defragd.hami import cordon
from defragd.ports import Clock, ClusterReader, Hook, Leadership, NodeWriter, Outcome, RunStore, Written

MAX_AGE_SECONDS = 90.0
AGAIN = 2.0
"""Seconds before a node is written again (the cache may be behind)."""
PER_PASS = 20


class Cordons:
    """``cycle`` is one pass; ``run`` passes about once a second."""

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
        self._reader, self._runs, self._nodes, self._leadership = reader, runs, nodes, leadership
        self._clock, self._hook, self._vendors, self._max_age = clock, hook, vendors, max_age_seconds
        self._not_before: dict[str, float] = {}
        self._told: set[tuple[str, str]] = set()
        self.beat = clock.monotonic()

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self.cycle()
            except NotLeader:
                self._not_before.clear()
            except Exception as error:  # noqa: BLE001 - the next pass must come
                self._hook("loop.failed", {"loop": "cordons", "error": f"{type(error).__name__}: {error}"})
                stop.wait(2.0)
            self.beat = self._clock.monotonic()
            stop.wait(1.0)

    def cycle(self) -> int:
        """One pass; returns the number of nodes written."""
        if not self._leadership.is_leader():
            self._not_before.clear()
            return 0
        if not self._reader.synced() or self._reader.age_seconds() > self._max_age:
            return 0
        tick = self._clock.monotonic()
        self._not_before = {name: until for name, until in self._not_before.items() if until > tick}
        snapshot, runs = self._reader.snapshot(), self._runs.list()
        wanted = cordon.wanted(runs, snapshot)
        lasting = {run.name for run in runs if run.phase in cordon.ACTIVE}
        done = 0
        for name, node in snapshot.nodes.items():
            if name not in wanted and cordon.MARK not in node.annotations:
                continue
            wish, ours = wanted.get(name), cordon.marked(node.annotations)
            add = {
                uuid: run for uuid, run in (wish or {}).items() if uuid not in ours and self._obeyed(name, uuid, run)
            }
            closed = {device.uuid for device in node.devices if device.cordoned}
            add = {uuid: run for uuid, run in add.items() if uuid not in closed}
            drop = [uuid for uuid, run in ours.items() if run not in lasting]
            if (add or drop) and name not in self._not_before and done < PER_PASS:
                self._write(name, add, drop, tick)
                done += 1
        return done

    def _obeyed(self, node: str, uuid: str, run: str) -> bool:
        if cordon.obeys(self._reader.snapshot(), uuid, self._vendors):
            return True
        if (uuid, run) not in self._told:
            self._told.add((uuid, run))
            why = "HAMi's backend for this device ignores the cordon: new pods may come while it is drained"
            self._hook("cordon.ignored", {"node": node, "device": uuid, "run": run, "reason": why})
        return False

    def _write(self, name: str, add: Mapping[str, str], drop: list[str], tick: float) -> Written:
        answer = self._nodes.annotate(name, lambda annotations: cordon.change(annotations, add, drop))
        self._not_before[name] = tick + (60.0 if answer.outcome is Outcome.REFUSED else AGAIN)
        fields = {"node": name, "cordoned": sorted(add), "restored": sorted(drop), "result": str(answer.outcome)}
        self._hook("cordon", {**fields, "reason": answer.message} if answer.message else fields)
        return answer
