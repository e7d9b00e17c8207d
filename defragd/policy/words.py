"""A policy in plain sentences: when it runs, what starts it, whom it leaves alone, how much it may do, when it stops.

The same values that the daemon obeys, after defaults and caps; so what is read here is what will happen.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from defragd.core.duration import format_duration
from defragd.core.rules import Cap, Rules
from defragd.policy.fields import to_camel
from defragd.policy.loaded import LoadedPolicy
from defragd.policy.schedule import next_starts
from defragd.policy.schema import StartOnSpec

Section = tuple[str, list[str]]


def explain(policy: LoadedPolicy, now: datetime) -> list[Section]:
    """(heading, sentences), in the order in which a run meets them."""
    return [
        ("what", _what(policy)),
        ("when", _when(policy, now)),
        ("holds a start back", _gates(policy)),
        ("starts besides the schedule", _signals(policy.trigger.start_on)),
        ("where", _scope(policy.rules)),
        ("left alone", _protected(policy.rules)),
        ("how much", _budgets(policy.rules)),
        ("execution", _execution(policy)),
    ]


def _for(span: timedelta | None) -> str:
    return "without limit" if span is None else format_duration(span)


def _what(policy: LoadedPolicy) -> list[str]:
    given = [f"{to_camel(key)}={value!r}" for key, value in policy.args.items() if value is not None and value != ""]
    args = ", ".join(given) or "no arguments"
    mode = {
        "DryRun": "plans and reports, moves nothing",
        "Approve": "plans, and moves after a person approved the plan",
        "Auto": "plans and moves",
    }[policy.mode]
    free = ["replicas get deletion costs, so that scale-ins free what helps most"]
    return [f"strategy {policy.strategy} ({args})", f"mode {policy.mode}: {mode}"] + (
        free if policy.model.spec.free.deletion_cost and policy.mode != "DryRun" else []
    )


def _when(policy: LoadedPolicy, now: datetime) -> list[str]:
    said = ["the policy is suspended: nothing starts by itself"] if policy.suspended else []
    for schedule in policy.schedules:
        late = (
            "made up for however late"
            if schedule.starting_deadline is None
            else f"skipped when missed by more than {format_duration(schedule.starting_deadline)}"
        )
        said.append(
            f'starts at cron "{schedule.cron.text}" ({schedule.cron.zone.key}), {late}; a run lasts '
            f"{_for(schedule.max_duration)}{' at most' if schedule.max_duration else ''}"
        )
    if not policy.schedules:
        said.append("no schedule: runs start on demand or by what is listed below")
    said += [f"moves may start only in: {span}" for span in policy.windows.allow]
    said += [f"no move starts in: {span}" for span in policy.windows.deny]
    window = policy.windows.check(now)
    said.append("now: moves may start" if window.allowed else f"now: {window.reason}")
    for start in next_starts(policy, now, 3):
        reason = f" (not allowed: {start.reason})" if start.reason else ""
        said.append(f"next start {start.local.isoformat(timespec='minutes')}, {start.utc:%Y-%m-%d %H:%M} UTC{reason}")
    return said


def _gates(policy: LoadedPolicy) -> list[str]:
    trigger, gain = policy.trigger, policy.rules.gain
    said = []
    if trigger.min_fragmentation:
        said.append(f"fragmentation L below {trigger.min_fragmentation:g}")
    if trigger.max_pending_pods is not None:
        said.append(f"more than {trigger.max_pending_pods} pods pending")
    if trigger.light_nodes is not None:
        light = trigger.light_nodes
        said.append(f"fewer than {light.count} nodes that are used, but at most {light.used_at_most:.0%}")
    if trigger.since_last_eviction is not None:
        said.append(f"an eviction of ours less than {format_duration(trigger.since_last_eviction)} ago")
    if trigger.recent_failures is not None:
        failures = trigger.recent_failures
        said.append(f"more than {failures.at_most} moves failed within {format_duration(failures.within)}")
    said.append("another run under way (one at a time; due at once: by time, then by name)")
    if gain.per_move or gain.total:
        said.append(f"a plan that gains less than {gain.total:g}, or moves that gain less than {gain.per_move:g}")
    return said


def _signals(on: StartOnSpec) -> list[str]:
    said = []
    if on.fragmentation is not None:
        said.append(f"L at {on.fragmentation.above:g} or more for {format_duration(on.fragmentation.for_)}")
    if on.pending_pods is not None:
        said.append(f"a pod that waits {format_duration(on.pending_pods.after)} and that moves could let fit")
    if on.unhealthy_devices is not None:
        said.append(f"a device with pods on it, unhealthy for {format_duration(on.unhealthy_devices.after)}")
    return [*said, f"at most one such start in {format_duration(on.interval)}"] if said else ["nothing"]


def _scope(rules: Rules) -> list[str]:
    scope = rules.scope
    said = [f"devices of {', '.join(scope.vendors) or 'every vendor'}"]
    if scope.device_types:
        said.append(f"device types {', '.join(scope.device_types)}")
    if scope.node_selector.expressions:
        said.append("nodes where " + _selector(scope.node_selector))
    if scope.pod_selector.expressions:
        said.append("pods where " + _selector(scope.pod_selector))
    if scope.namespaces_include:
        said.append(f"namespaces {', '.join(scope.namespaces_include)} only")
    if scope.namespaces_exclude:
        said.append(f"never namespaces {', '.join(scope.namespaces_exclude)}")
    return said


def _selector(selector: Any) -> str:
    return " and ".join(f"{e.key} {e.operator} {','.join(e.values)}".strip() for e in selector.expressions)


def _protected(rules: Rules) -> list[str]:
    protect = rules.protect
    facts: list[tuple[bool, str]] = [
        (protect.min_pod_age > timedelta(0), f"pods younger than {format_duration(protect.min_pod_age)}"),
        (protect.min_replicas > 1, f"workloads of fewer than {protect.min_replicas} replicas"),
        (protect.priority_at_most is not None, f"pods of a priority above {protect.priority_at_most}"),
        (bool(protect.owner_kinds_exclude), f"pods of a {', '.join(protect.owner_kinds_exclude)}"),
        (bool(protect.owner_kinds_include), f"pods of anything but {', '.join(protect.owner_kinds_include)}"),
        (protect.require_pdb, "pods that no PodDisruptionBudget covers"),
        (not protect.local_storage, "pods with local data (emptyDir on disk, hostPath, ephemeral volumes)"),
        (not protect.volumes, "pods with volume claims"),
        (not protect.not_ready, "pods that are not Ready, unless draining"),
    ]
    gangs = {"Whole": "gangs, unless all members move together", "Members": "gangs at their minimum", "Never": "gangs"}
    said = [text for holds, text in facts if holds] + [gangs[protect.gangs]]
    return [*said, "whoever opted out, or whose allowed hours say no; last Ready replicas without a budget, always"]


def _budgets(rules: Rules) -> list[str]:
    budgets = rules.budgets
    said = [
        f"{_number(budgets.total)} moves a run, {_number(budgets.concurrent)} at once, "
        f"{_number(budgets.per_day)} in 24 hours over all policies"
    ]
    said += [
        text
        for name, cap in (
            ("node that is left", budgets.per_source_node),
            ("node that receives", budgets.per_target_node),
            ("namespace", budgets.per_namespace),
            ("workload", budgets.per_workload),
        )
        if (text := _cap(name, cap))
    ]
    if budgets.spacing > timedelta(0):
        said.append(f"{format_duration(budgets.spacing)} between two moves of a workload")
    if budgets.rate is not None:
        said.append(f"{budgets.rate[0]} starts of moves in {format_duration(budgets.rate[1])}")
    return said


def _number(value: int | None) -> str:
    return "any number of" if value is None else str(value)


def _cap(name: str, cap: Cap) -> str:
    parts = [
        f"{cap.in_flight} at once" if cap.in_flight is not None else "",
        f"{cap.in_flight_pct}% of the replicas at once" if cap.in_flight_pct is not None else "",
        f"{cap.per_run} a run" if cap.per_run is not None else "",
        f"{cap.per_day} in 24 hours" if cap.per_day is not None else "",
    ]
    said = ", ".join(part for part in parts if part)
    return f"per {name}: {said}" if said else ""


def _execution(policy: LoadedPolicy) -> list[str]:
    execution, limits = policy.rules.execution, policy.rules.execution.timeouts
    said = [
        f"{execution.handover}; at most {format_duration(limits.hold)} until the place is held, "
        f"{format_duration(limits.evict)} until the old pod has gone, {format_duration(limits.start)} until the new "
        f"one is Ready, and Ready for {format_duration(execution.settle)}",
        f"a workload rests {format_duration(execution.cooldown)} after a move, a node that received one "
        f"{format_duration(execution.node_cooldown)} (drains do not wait)",
    ]
    if execution.abort_above is not None:
        said.append(f"the run stops when more than {execution.abort_above:.0%} of its moves fail")
    if policy.mode == "Approve":
        expires = policy.model.spec.execution.approval_expires
        said.append(f"a plan that nobody approves within {format_duration(expires)} is dropped")
    return said


def as_value(sections: list[Section]) -> Mapping[str, list[str]]:
    """For JSON and YAML."""
    return dict(sections)
