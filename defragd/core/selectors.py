"""Whether labels satisfy a selector, by the API server's rules (apimachinery ``labels.Requirement.Matches``)."""

from __future__ import annotations

from collections.abc import Mapping

from defragd.core.model import Expression, Selector


def holds(expression: Expression, labels: Mapping[str, str]) -> bool:
    """One requirement. NotIn and DoesNotExist hold for an absent key; Gt and Lt need integers on both sides.

    An operator that is not known holds for nothing (the object that carries it is then treated with caution).
    """
    value = labels.get(expression.key)
    match expression.operator:
        case "In":
            return value is not None and value in expression.values
        case "NotIn":
            return value is None or value not in expression.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            try:
                have, limit = int(value or ""), int(expression.values[0])
            except (ValueError, IndexError):
                return False
            return have > limit if expression.operator == "Gt" else have < limit
        case _:
            return False


def matches(selector: Selector | None, labels: Mapping[str, str]) -> bool:
    """All requirements hold; an empty selector matches everything, ``None`` nothing."""
    return selector is not None and all(holds(expression, labels) for expression in selector.expressions)
