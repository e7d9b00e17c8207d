"""Pod disruption budgets as arithmetic over a whole plan or run, decided the way the eviction sub-resource decides.

The API server looks at one eviction at a time and trusts the budget's status, which lags. A plan (and a run with
several moves in flight) must look further: `Ledger` counts what was taken already, and trusts of a status only what the
Ready pods of the snapshot bear out, so that a budget is never overdrawn by Ready pods even while its status is old.

Rules (kube-apiserver ``registry/core/pod/storage/eviction.go``, measured in the protocol notes, section 11.5): a pod
that is Pending, finished or terminating asks no budget; more than one budget is an error; a pod that is not Ready goes
free with ``AlwaysAllow``, or when the healthy count meets the (positive) demand; otherwise the status must be of the
current generation and allow one more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from defragd.core.model import DisruptionBudget, Pod
from defragd.core.plan import Refusal
from defragd.core.reasons import Reason
from defragd.core.selectors import matches
from defragd.core.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Permit:
    """Whether something may start now; ``cap`` names the budget that binds (a policy field, or a PDB's ns/name)."""

    ok: bool
    reason: Reason | None = None
    detail: str = ""
    cap: str = ""


YES = Permit(True)
UNREADABLE = "UnreadableObject"
"""Reason of problems of objects that were set aside whole."""


class _Index:
    """Budgets by namespace and by one required label, so that a pod meets only those that can select it."""

    def __init__(self, budgets: Iterable[DisruptionBudget]) -> None:
        self.by_label: dict[tuple[str, str, str], list[DisruptionBudget]] = {}
        self.other: dict[str, list[DisruptionBudget]] = {}
        for budget in budgets:
            if budget.selector is None:
                continue
            exact = next((e for e in budget.selector.expressions if e.operator == "In" and len(e.values) == 1), None)
            if exact is None:
                self.other.setdefault(budget.namespace, []).append(budget)
            else:
                self.by_label.setdefault((budget.namespace, exact.key, exact.values[0]), []).append(budget)
        self.namespaces = {budget.namespace for budget in budgets}

    def of(self, pod: Pod) -> tuple[DisruptionBudget, ...]:
        if pod.namespace not in self.namespaces:
            return ()
        found = list(self.other.get(pod.namespace, ()))
        if self.by_label:
            for key, value in pod.labels.items():
                found += self.by_label.get((pod.namespace, key, value), ())
        return tuple(sorted((b for b in found if matches(b.selector, pod.labels)), key=lambda b: b.name))


def budgets_of(snapshot: Snapshot, pod: Pod) -> tuple[DisruptionBudget, ...]:
    """All budgets that select the pod, by name."""
    return tuple(
        sorted(
            (b for b in snapshot.budgets if b.namespace == pod.namespace and matches(b.selector, pod.labels)),
            key=lambda b: b.name,
        )
    )


def asks_budget(pod: Pod) -> bool:
    """The eviction of this pod is checked against budgets at all."""
    return not (pod.deleting or pod.phase in ("Pending", "Succeeded", "Failed"))


class Ledger:
    """What each budget still allows after the evictions taken so far. ``copy`` is cheap; the snapshot is not kept."""

    def __init__(
        self,
        index: _Index,
        left: dict[str, int],
        healthy: dict[str, int],
        *,
        known: bool,
        blind: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """``blind``: namespaces with a budget that could not be read -> its name."""
        self._blind = blind
        self._index = index
        self._left = left
        self._healthy = healthy
        self._taken: dict[str, str] = {}
        self.known = known
        """Budgets were read; False = there may be some that we do not see (`warnings` says so)."""

    @classmethod
    def of(cls, snapshot: Snapshot, *, partial: bool = False) -> Ledger:
        """Fresh books: per budget min(status.disruptionsAllowed, Ready pods seen - status.desiredHealthy), or 0.

        ``partial``: for plans. A file may leave out pods; those that the status expects and the file lacks are then
        taken to be as healthy as the status says. What moves pods for real counts seen pods only.
        """
        index = _Index(snapshot.budgets)
        ready = {budget.key: 0 for budget in snapshot.budgets}
        seen = dict(ready)
        if index.namespaces:
            for pod in snapshot.pods.values():
                for budget in index.of(pod) if pod.live else ():
                    seen[budget.key] += 1
                    ready[budget.key] += pod.ready and not pod.deleting
        left, healthy = {}, {}
        for budget in snapshot.budgets:
            # a budget none of whose pods we see (a file of GPU pods only) can only be taken at its word
            count = ready[budget.key] if seen[budget.key] else budget.healthy
            if partial and seen[budget.key]:
                count += max(0, min(budget.expected - seen[budget.key], budget.healthy - count))
            healthy[budget.key] = min(count, budget.healthy) if budget.healthy else count
            left[budget.key] = max(
                0, min(budget.allowed, count - budget.desired if seen[budget.key] else budget.allowed)
            )
        blind = {}
        for problem in snapshot.problems:
            kind, _, key = problem.object.partition("/")
            if kind == "PodDisruptionBudget" and problem.reason == UNREADABLE:
                blind[key.rpartition("/")[0]] = key
        return cls(index, left, healthy, known="pdbs" in snapshot.known or bool(snapshot.budgets), blind=blind)

    def copy(self) -> Ledger:
        twin = Ledger(self._index, dict(self._left), self._healthy, known=self.known, blind=self._blind)
        twin._taken = dict(self._taken)
        return twin

    def budgets_of(self, pod: Pod) -> tuple[DisruptionBudget, ...]:
        return self._index.of(pod)

    def covers(self, pod: Pod) -> bool:
        """Exactly one budget looks after this pod, so it (and not the built-in floor) limits its workload."""
        return len(self._index.of(pod)) == 1

    def left(self, budget: DisruptionBudget) -> int:
        """Evictions of Ready pods that the budget still has room for."""
        return self._left[budget.key]

    def may_evict(self, pod: Pod) -> Permit:
        """Whether one more eviction, of this pod, keeps every budget whole."""
        if _id(pod) in self._taken or not asks_budget(pod):
            return YES
        found = self._index.of(pod)
        if pod.namespace in self._blind:
            key = self._blind[pod.namespace]
            text = f"PodDisruptionBudget {key} cannot be read, so nobody knows whether it covers {pod.key}"
            return Permit(False, Reason.PDB_UNKNOWN, text, key)
        if not found:
            return YES
        if len(found) > 1:
            names = ", ".join(budget.name for budget in found)
            return Permit(
                False,
                Reason.SEVERAL_PDBS,
                f"{pod.key} is selected by {len(found)} PodDisruptionBudgets ({names}); the eviction API refuses such "
                "pods until only one selects it",
                found[0].key,
            )
        budget = found[0]
        if self._free(pod, budget):
            return YES
        if not budget.observed:
            return Permit(
                False,
                Reason.PDB_BLOCKS,
                f"PodDisruptionBudget {budget.key} is not yet processed by its controller",
                budget.key,
            )
        if self._left[budget.key] < 1:
            taken = sum(1 for key in self._taken.values() if key == budget.key)
            ours = f", {taken} taken by moves before this one" if taken else ""
            return Permit(
                False,
                Reason.PDB_BLOCKS,
                f"PodDisruptionBudget {budget.key} allows no further disruption "
                f"({self._healthy[budget.key]} healthy, {budget.desired} needed{ours})",
                budget.key,
            )
        return YES

    def take(self, pod: Pod) -> None:
        """Counts the eviction of ``pod`` (once, however often it is said). Ask `may_evict` first; an eviction that
        happened all the same is counted below zero."""
        if _id(pod) in self._taken:
            return
        found = self._index.of(pod) if asks_budget(pod) else ()
        if len(found) == 1 and not self._free(pod, found[0]):
            self._taken[_id(pod)] = found[0].key
            self._left[found[0].key] -= 1
        else:
            self._taken[_id(pod)] = ""

    def give_back(self, pod: Pod) -> None:
        """The replacement is Ready (or the eviction never happened): its room is free again."""
        key = self._taken.pop(_id(pod), "")
        if key:
            self._left[key] += 1

    def warnings(self) -> tuple[Refusal, ...]:
        """What has to be said about budgets as a whole."""
        if self.known:
            return ()
        return (
            Refusal(
                "PodDisruptionBudget/*",
                Reason.PDB_UNKNOWN,
                "no PodDisruptionBudgets were read, so none are counted; the eviction API will still enforce them",
            ),
        )

    def _free(self, pod: Pod, budget: DisruptionBudget) -> bool:
        """A pod that is not Ready goes without taking from the budget (unhealthyPodEvictionPolicy)."""
        if pod.ready:
            return False
        if budget.always_allow_unhealthy:
            return True
        return budget.desired > 0 and self._healthy[budget.key] >= budget.desired


def _id(pod: Pod) -> str:
    """Pods of hand-made files may have no UID."""
    return pod.uid or pod.key
