"""What must hold for a scheduled start to become a run, and which term says no. All terms are always shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from defragd.core.duration import format_duration
from defragd.core.reasons import Reason
from defragd.core.snapshot import Snapshot
from defragd.policy.schema import TriggerSpec


@dataclass(frozen=True, slots=True)
class Term:
    """One condition with both sides in its text, such as ``fragmentation 0.081 of at least 0.15``."""

    name: str
    ok: bool
    text: str
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class TriggerVerdict:
    ok: bool
    terms: tuple[Term, ...]

    @property
    def reason(self) -> Reason | None:
        return next((term.reason for term in self.terms if not term.ok), None)

    def __str__(self) -> str:
        return "; ".join(f"{term.text}{'' if term.ok else ' (no)'}" for term in self.terms)


def pending_pods(snapshot: Snapshot) -> int:
    """Pods that wait for a node: unbound, not gated, not ending."""
    return sum(
        1 for pod in snapshot.pods.values() if pod.phase == "Pending" and not (pod.node or pod.gates or pod.deleting)
    )


def light_nodes(snapshot: Snapshot, used_at_most: float) -> int:
    """Nodes with devices of which more than none and at most this share is held (devices counted, not slices)."""
    count = 0
    for node in snapshot.nodes.values():
        if not node.devices:
            continue
        usage = snapshot.usage(node.name)
        used = sum(1 for device in node.devices if usage[device.uuid].holders) / len(node.devices)
        count += 0 < used <= used_at_most
    return count


def evaluate(
    trigger: TriggerSpec,
    snapshot: Snapshot,
    *,
    fragmentation: float,
    now: datetime,
    last_eviction: datetime | None = None,
    failed: Sequence[datetime] = (),
) -> TriggerVerdict:
    """Judge a trigger. ``fragmentation`` is L of the scope; ``last_eviction`` the end of our last one, None = never;
    ``failed``: when moves failed."""
    terms: list[Term] = []
    least = trigger.min_fragmentation
    if least is not None:
        ok = fragmentation >= least
        text = f"fragmentation {fragmentation:.3f} of at least {least:g}"
        terms.append(Term("minFragmentation", ok, text, Reason.BELOW_TRIGGER))
    most = trigger.max_pending_pods
    if most is not None:
        pending = pending_pods(snapshot)
        terms.append(
            Term(
                "maxPendingPods", pending <= most, f"{pending} pods pending of at most {most}", Reason.TOO_MANY_PENDING
            )
        )
    light = trigger.light_nodes
    if light is not None:
        found = light_nodes(snapshot, light.used_at_most)
        text = f"{found} nodes at most {light.used_at_most:.0%} used of at least {light.count}"
        terms.append(Term("lightNodes", found >= light.count, text, Reason.BELOW_TRIGGER))
    pause = trigger.since_last_eviction
    if pause is not None:
        if last_eviction is None:
            terms.append(Term("sinceLastEviction", True, "no eviction of ours yet"))
        else:
            passed = max(now - last_eviction, now - now)
            text = f"last eviction {format_duration(passed)} ago of at least {format_duration(pause)}"
            terms.append(Term("sinceLastEviction", passed >= pause, text, Reason.BELOW_TRIGGER))
    failures = trigger.recent_failures
    if failures is not None:
        count = sum(1 for at in failed if now - at < failures.within)
        text = f"{count} moves failed within {format_duration(failures.within)} of at most {failures.at_most}"
        terms.append(Term("recentFailures", count <= failures.at_most, text, Reason.RECENT_FAILURES))
    return TriggerVerdict(all(term.ok for term in terms), tuple(terms))
