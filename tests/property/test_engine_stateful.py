"""The engine under arbitrary faults: lost answers, conflicts, busy servers, kill -9 around any write, lagging caches,
changed budgets, thieves, scaling, deleted pods and placements, two replicas that change roles.

Whatever happens, these hold (design, promises): I1 nothing is evicted without a promise that was stored before; I3 one
placement pins one pod; never a second eviction for a placement; budgets are never overdrawn; no device is overbooked;
after things calm down no gate, hold, steering or open placement is left (I7). I6 holds by construction: the ports have
no pod delete.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import timedelta

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from defragd.core.placement import COST_BEFORE, GATE, STEERED, Step
from defragd.core.placement_pin import can_widen
from defragd.core.rules import Timeouts
from tests.support.effort import amount, examples
from tests.support.engine_world import Access, EngineWorld, Killed, Replica, node, start

FAULTS = st.sampled_from(
    ["lost-before", "lost-after", "conflict", "busy", "kill-before", "kill-after", "ok", "ok", "ok", "ok"]
)
DELAYS = st.sampled_from([0.0, 0.0, 0.1, 0.4, 2.0, 15.0])
LIMITS = Timeouts(
    hold=timedelta(seconds=20), evict=timedelta(seconds=30), start=timedelta(seconds=20), pod=timedelta(seconds=40)
)
NODES = ("n1", "n2", "n3")


class Engine(RuleBasedStateMachine):
    admission = "gate"

    def __init__(self) -> None:
        super().__init__()
        self.world = EngineWorld([node(name) for name in NODES])
        self.world.admission = self.admission
        self.replicas: list[Replica] = []
        self.names = 0
        self.wanted: dict[str, int] = {}
        """Owner -> the replicas that its user asked for last."""
        self.promised: dict[str, str] = {}
        """UID of a pod -> placement that had stored Evicting for it when it was evicted."""
        original = self.world.evict

        def watched(pod, *, dry_run, check_revision):  # type: ignore[no-untyped-def]
            before = len(self.world.evictions)
            healthy = {k: self.world.healthy(b) for k, b in self.world.budgets.items()}
            answer = original(pod, dry_run=dry_run, check_revision=check_revision)
            assert dry_run or pod.owner is not None, f"{pod.key} has no controller and was evicted"
            if len(self.world.evictions) > before:
                self._evicted(pod.uid, healthy)
            return answer

        self.world.evict = watched  # type: ignore[method-assign]

    def _evicted(self, uid: str, healthy: dict[str, int]) -> None:
        owners = [p for p in self.world.placements.values() if p.status.evicted_uid == uid]
        held = [p for p in owners if p.status.step is Step.EVICTING and p.status.hold and not p.surges]
        assert held, f"{uid} was evicted without a stored, held placement (I1)"
        assert len(held) == 1
        assert uid not in self.promised, "one pod was evicted for two placements"
        self.promised[uid] = held[0].key
        assert list(self.promised.values()).count(held[0].key) == 1, "second eviction for one placement"
        for key, budget in self.world.budgets.items():
            if self.world.healthy(budget) < healthy[key]:
                assert self.world.healthy(budget) >= budget.desired, f"budget {key} overdrawn (I2)"

    # -- set-up -----------------------------------------------------------------------------------------------------

    @initialize(kinds=st.lists(st.sampled_from(["ReplicaSet", "StatefulSet"]), min_size=2, max_size=3))
    def begin(self, kinds: list[str]) -> None:
        for i in range(2):
            self.replicas.append(start(self.world, f"r{i}", leading=i == 0))
        for i, kind in enumerate(kinds):
            where = [(NODES[i], f"GPU-{NODES[i]}-0"), (NODES[i], f"GPU-{NODES[i]}-1")]
            owned = self.world.deployment(f"w{i}", 2, kind=kind, on=where, memory=7000 + 1000 * i)
            self.wanted[owned.uid] = 2
        self.world.tick(0.7)

    def _run(self, replica: Replica) -> None:
        """One round of one process; a killed one is replaced by a new one that leads as the old one did."""
        try:
            replica.once()
        except Killed:
            self._restart(replica)

    def _restart(self, replica: Replica) -> None:
        for lane in replica.lanes:
            with contextlib.suppress(Killed):
                lane.close()
        index = self.replicas.index(replica)
        self.names += 1
        access = Access(self.world, f"new{self.names}", leading=replica.access.leading)
        self.world.webhooks = [a for a in self.world.webhooks if a is not replica.access] + [access]
        self.replicas[index] = Replica(access)

    # -- what the user and the cluster do ---------------------------------------------------------------------------

    @rule(pick=st.integers(0, 5), where=st.sampled_from(NODES), index=st.integers(0, 1), surge=st.booleans())
    def place(self, pick: int, where: str, index: int, surge: bool = False) -> None:
        if sum(p.open for p in self.world.placements.values()) >= 4:
            return
        pods = [p for p in map(self.world.read, self.world.pods.values()) if p.owner and p.node and p.live]
        if not pods:
            return
        pod = pods[pick % len(pods)]
        self.names += 1
        name, settle = f"p{self.names}", timedelta(seconds=1)
        app, handover = pod.labels["app"], "SurgeFirst" if surge else "EvictFirst"
        self.world.place(
            name, node=where, devices=[f"gpu-{index}"], evict=pod.name, app=app, timeouts=LIMITS, settle=settle,
            handover=handover, alternatives=("gpu-0", "gpu-1") if pick % 2 else (),
        )  # fmt: skip

    @rule(where=st.sampled_from(NODES), index=st.integers(0, 1), pods=st.integers(0, 3))
    def place_by_selector(self, where: str, index: int, pods: int) -> None:
        if sum(p.open for p in self.world.placements.values()) >= 4:
            return
        self.names += 1
        self.world.place(f"s{self.names}", node=where, devices=[f"gpu-{index}"], app="job", timeouts=LIMITS)
        for i in range(pods):
            self.world.bare(f"job-{self.names}-{i}", {"app": "job"}, memory=500)

    @rule(memory=st.sampled_from([500, 9000]))
    def foreign_pod(self, memory: int) -> None:
        if len(self.world.pods) < 14:
            self.names += 1
            self.world.bare(f"job-{self.names}", {"app": "job"}, memory=memory)

    @rule(which=st.integers(0, 3))
    def thief(self, which: int) -> None:
        """A pod that nobody steered takes a held place, if there is still room on the device."""
        held = [(h.node, a.uuid) for h in self.world.seen().snapshot.holds for a in h.allocations]
        if not held or len(self.world.pods) > 14:
            return
        where, uuid = held[which % len(held)]
        if self.world.nodes[where].lock is not None or self._used(where, uuid) + 9000 > 16384:
            return
        self.names += 1
        webhooks, self.world.webhooks = self.world.webhooks, []
        raw = self.world.bare(f"thief-{self.names}", {"app": "thief"}, memory=9000)
        self.world.webhooks = webhooks
        self.world._book(raw, where, (uuid,))

    def _used(self, where: str, uuid: str) -> int:
        return replace(self.world.seen().snapshot, holds=()).usage(where)[uuid].memory_mib

    @rule(which=st.integers(0, 2), replicas=st.integers(1, 3))
    def scale(self, which: int, replicas: int) -> None:
        owned = self.world.owners.get(f"owner-w{which}")
        if owned is None or owned.replicas == replicas:
            return
        owned.replicas = self.wanted[owned.uid] = replicas
        extra = sorted(self.world.of(owned), key=lambda p: p.name)[replicas:]
        for pod in extra:
            self.world.delete(pod.key)

    @rule(which=st.integers(0, 20))
    def somebody_deletes_a_pod(self, which: int) -> None:
        keys = sorted(k for k, p in self.world.pods.items() if "deletionTimestamp" not in p["metadata"])
        if keys:
            self.world.delete(keys[which % len(keys)])

    @rule(which=st.integers(0, 2), need=st.integers(0, 2))
    def set_budget(self, which: int, need: int) -> None:
        self.world.budget(f"pdb{which}", f"w{which}", need)

    @rule(which=st.integers(0, 5))
    def delete_placement(self, which: int) -> None:
        keys = sorted(self.world.placements)
        if keys and which < len(keys):
            del self.world.placements[keys[which]]
            self.world.touch()

    @rule(name=st.sampled_from(NODES), ready=st.booleans(), cordoned=st.booleans())
    def node_changes(self, name: str, ready: bool, cordoned: bool) -> None:
        self.world.nodes[name] = replace(self.world.nodes[name], ready=ready, schedulable=not cordoned)
        self.world.touch()

    @rule(termination=st.sampled_from([0.0, 0.5, 3.0, 12.0]), forget=st.booleans())
    def weather(self, termination: float, forget: bool) -> None:
        self.world.termination, self.world.forget = termination, forget

    @rule(down=st.booleans())
    def scheduler(self, down: bool) -> None:
        self.world.scheduler_down = down

    @rule(times=st.integers(0, 6))
    def creations_are_refused(self, times: int) -> None:
        """By whatever is asked after our webhook, a quota for one."""
        self.world.refuse_creations = times

    @rule(broken=st.booleans(), dead=st.booleans())
    def workload_breaks(self, broken: bool, dead: bool) -> None:
        self.world.never_ready = {"w0"} if broken else set()
        self.world.fail_allocate = {"w1"} if dead else set()

    # -- faults of the daemon ---------------------------------------------------------------------------------------

    @rule(which=st.integers(0, 1), faults=st.lists(FAULTS, max_size=6))
    def faults(self, which: int, faults: list[str]) -> None:
        self.replicas[which].access.faults = faults

    @rule(which=st.integers(0, 1), delays=st.lists(DELAYS, max_size=6))
    def slow_calls(self, which: int, delays: list[float]) -> None:
        self.replicas[which].access.delays = delays

    @rule(which=st.integers(0, 1))
    def kill(self, which: int) -> None:
        self._restart(self.replicas[which])

    @rule(which=st.integers(0, 1), yes=st.booleans())
    def lag(self, which: int, yes: bool) -> None:
        self.replicas[which].access.freeze(yes)

    @rule()
    def change_of_leader(self) -> None:
        for replica in self.replicas:
            replica.access.leading = not replica.access.leading

    @rule(none=st.booleans())
    def no_leader(self, none: bool) -> None:
        for index, replica in enumerate(self.replicas):
            replica.access.leading = index == 0 and not none

    @rule(up=st.booleans())
    def webhook(self, up: bool) -> None:
        self.world.webhooks = [r.access for r in self.replicas] if up else []

    # -- time -------------------------------------------------------------------------------------------------------

    @rule(rounds=st.integers(1, 12))
    def time(self, rounds: int) -> None:
        for _ in range(rounds):
            for replica in list(self.replicas):
                self._run(replica)
            self.world.tick(0.1)

    @rule()
    @precondition(lambda self: self.replicas)
    def long_time(self) -> None:
        for _ in range(20):
            for replica in list(self.replicas):
                self._run(replica)
            self.world.tick(0.5)

    # -- what must hold ---------------------------------------------------------------------------------------------

    @invariant()
    def one_placement_pins_one_pod(self) -> None:
        for key, uids in self.world.pinned.items():
            assert len(uids) == 1, f"{key} pinned {uids} (I3)"

    @invariant()
    def nothing_is_broken(self) -> None:
        assert not self.world.breaches.found

    @invariant()
    def overdue_gates_go(self) -> None:
        """With any replica alive a gate outlives its deadline by moments only (the rounds between are bounded)."""
        from defragd.core.gating import deadline_of

        for pod in self.world.gated():
            deadline = deadline_of(pod)
            assert deadline is not None
            late = (self.world.clock.now() - deadline).total_seconds()
            assert late < 30, f"{pod.key} is gated {late} s past its deadline"

    def teardown(self) -> None:
        if not self.replicas:
            return
        self._calm_down()
        for _ in range(220):
            for replica in list(self.replicas):
                self._run(replica)
            self.world.tick(1.0)
            if not self._leftovers():
                break
        assert not self._leftovers(), self._leftovers()
        self.one_placement_pins_one_pod()
        self.nothing_is_broken()

    def _calm_down(self) -> None:
        """The faults end; what was begun must come to its end."""
        world = self.world
        world.termination, world.forget, world.scheduler_down = 0.5, False, False
        world.never_ready, world.fail_allocate, world.refuse_creations = set(), set(), 0
        for name in NODES:
            world.nodes[name] = replace(world.nodes[name], ready=True, schedulable=True)
        for index, replica in enumerate(self.replicas):
            replica.access.faults, replica.access.delays, replica.access.frozen = [], [], None
            replica.access.leading = index == 0
        world.webhooks = [r.access for r in self.replicas]
        world.touch()

    def _leftovers(self) -> list[str]:
        pods = [self.world.read(p) for p in self.world.pods.values()]
        found = [f"open {p.key} {p.status.reason}" for p in self.world.placements.values() if p.open]
        found += [f"gated {p.key}" for p in pods if GATE in p.gates]
        found += [f"steered {p.key}" for p in pods if (STEERED in p.annotations or p.selection.nouse_uuids) and p.live]
        stranded = [p for p in pods if p.selection.pinned_by_us and not p.node and (p.owner or can_widen(p))]
        found += [f"stranded {p.key}" for p in stranded]
        found += [f"cost {p.key}" for p in pods if COST_BEFORE in p.annotations and not p.deleting]
        for uid, wanted in self.wanted.items():
            if self.world.owners[uid].replicas != wanted:
                found.append(f"{uid} has {self.world.owners[uid].replicas} replicas, its user wants {wanted}")
        found += [f"hold {h.placement}" for h in self.world.seen().snapshot.holds]
        return found


common = {"deadline": None, "suppress_health_check": list(HealthCheck)}

TestEngineQuick = Engine.TestCase
TestEngineQuick.settings = settings(max_examples=examples(25), stateful_step_count=40, **common)  # type: ignore[arg-type]


class PinEngine(Engine):
    """Without scheduling gates: pods are pinned as they are created, by whichever replica is asked."""

    admission = "pin"

    @invariant()
    def nothing_is_gated(self) -> None:
        assert not self.world.gated()


TestPinEngineQuick = PinEngine.TestCase
TestPinEngineQuick.settings = settings(max_examples=examples(12), stateful_step_count=40, **common)  # type: ignore[arg-type]


class _Long(Engine):
    pass


class _PinLong(PinEngine):
    pass


TestEngineLong = pytest.mark.slow(_Long.TestCase)
TestEngineLong.settings = settings(max_examples=amount(300, 60), stateful_step_count=50, **common)  # type: ignore[arg-type]

TestPinEngineLong = pytest.mark.slow(_PinLong.TestCase)
TestPinEngineLong.settings = settings(max_examples=amount(100, 15), stateful_step_count=50, **common)  # type: ignore[arg-type]
