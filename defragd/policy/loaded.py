"""A policy that was read and checked, ready for planner and scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from defragd.core.model import EMPTY
from defragd.core.rules import Rules
from defragd.policy.schedule import Schedule
from defragd.policy.schema import DefragPolicy, TriggerSpec
from defragd.policy.windows import Windows
from defragd.policy.yaml_source import Problem

GOAL_STRATEGIES = frozenset({"gpu-drain", "node-drain", "make-room"})
"""Strategies with a goal of their own: the default of trigger.minFragmentation does not apply to them."""


@dataclass(frozen=True)
class LoadedPolicy:
    """``source`` is FILE:LINE; ``digest`` changes with any value; ``args`` are the strategy's arguments by their
    Python names, defaults filled in (``args_type(**args)`` builds the dataclass); ``mode`` is within the caps."""

    name: str
    source: str
    digest: str
    model: DefragPolicy
    rules: Rules
    strategy: str
    args: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    mode: str = "DryRun"
    schedules: tuple[Schedule, ...] = ()
    windows: Windows = field(default_factory=Windows)
    warnings: tuple[Problem, ...] = ()

    @property
    def suspended(self) -> bool:
        return self.model.spec.suspend

    @property
    def trigger(self) -> TriggerSpec:
        """The trigger as it applies (see GOAL_STRATEGIES)."""
        trigger = self.model.spec.trigger
        if self.strategy in GOAL_STRATEGIES and "min_fragmentation" not in trigger.model_fields_set:
            return trigger.model_copy(update={"min_fragmentation": None})
        return trigger

    @cached_property
    def document(self) -> dict[str, Any]:
        """The policy as its JSON object, defaults filled in; not to be changed."""
        return self.model.model_dump(mode="json", by_alias=True)


@dataclass(frozen=True)
class PolicySet:
    """Everything that was read: usable policies in order of name, and what is wrong with the rest."""

    policies: tuple[LoadedPolicy, ...] = ()
    errors: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()

    def get(self, name: str) -> LoadedPolicy | None:
        return next((policy for policy in self.policies if policy.name == name), None)
