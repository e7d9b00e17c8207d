"""Hard caps of an installation: limits that no policy can raise. They clamp a policy's budgets and say so."""

from __future__ import annotations

from dataclasses import dataclass, replace

from defragd.core.rules import Budgets, Cap, Rules


@dataclass(frozen=True, slots=True)
class Caps:
    """None: not capped. ``concurrent`` and ``per_day`` also hold over all policies together."""

    total: int | None = None
    concurrent: int | None = None
    per_day: int | None = None
    per_workload: int | None = None
    per_source_node: int | None = None
    per_namespace: int | None = None
    modes: tuple[str, ...] = ("DryRun", "Approve", "Auto")
    """Modes that policies may use; others become DryRun."""


def clamp(rules: Rules, caps: Caps) -> tuple[Rules, list[str]]:
    """The rules within the caps, and one sentence per budget that was lowered."""
    said: list[str] = []
    budgets = rules.budgets

    def lower(name: str, value: int | None, cap: int | None) -> int | None:
        if cap is None or (value is not None and value <= cap):
            return value
        said.append(
            f"budgets.{name} is {value if value is not None else 'unlimited'}; the installation caps it at {cap}"
        )
        return cap

    def lower_cap(name: str, value: Cap, cap: int | None) -> Cap:
        return replace(value, in_flight=lower(name, value.in_flight, cap))

    clamped: Budgets = replace(
        budgets,
        total=lower("total", budgets.total, caps.total),
        concurrent=lower("concurrent", budgets.concurrent, caps.concurrent),
        per_day=lower("perDay", budgets.per_day, caps.per_day),
        per_workload=lower_cap("perWorkload", budgets.per_workload, caps.per_workload),
        per_source_node=lower_cap("perSourceNode", budgets.per_source_node, caps.per_source_node),
        per_namespace=lower_cap("perNamespace", budgets.per_namespace, caps.per_namespace),
    )
    return replace(rules, budgets=clamped), said
