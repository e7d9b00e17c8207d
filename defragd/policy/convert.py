"""From the validated model to the core's values: `core.rules.Rules`, compiled schedules and windows, request mixes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from pydantic import TypeAdapter, ValidationError

from defragd.core import rules as core
from defragd.core.model import Expression, Selector
from defragd.policy import schema
from defragd.policy.cron import parse_cron
from defragd.policy.fields import CapSpec, SelectorSpec, load_zone
from defragd.policy.schedule import Schedule
from defragd.policy.windows import Span, Windows
from defragd.policy.yaml_source import MAX_BYTES, Loc, read_documents

NODE_COOLDOWN = timedelta(hours=1)
Fault = tuple[Loc, str]
"""Where in the policy, and what."""


def to_rules(spec: schema.PolicySpec, mix: tuple[core.MixClass, ...] | None) -> core.Rules:
    """The policy's values as the core wants them."""
    scope, protect, gain, budgets, execution = spec.scope, spec.protect, spec.gain, spec.budgets, spec.execution
    limits = execution.timeouts
    return core.Rules(
        scope=core.Scope(
            node_selector=to_selector(scope.node_selector),
            pod_selector=to_selector(scope.pod_selector),
            namespaces_include=tuple(scope.namespaces.include),
            namespaces_exclude=tuple(scope.namespaces.exclude),
            vendors=tuple(scope.vendors),
            device_types=tuple(scope.device_types),
        ),
        protect=core.Protection(
            min_pod_age=protect.min_pod_age,
            min_replicas=protect.min_replicas,
            priority_at_most=protect.priority_at_most,
            owner_kinds_exclude=tuple(protect.owner_kinds.exclude),
            owner_kinds_include=tuple(protect.owner_kinds.include),
            require_pdb=protect.require_pdb,
            local_storage=protect.local_storage,
            volumes=protect.volumes,
            not_ready=protect.not_ready,
            gangs=protect.gangs,
        ),
        gain=core.Gain(per_move=gain.per_move, total=gain.total, expected_mix=mix),
        budgets=core.Budgets(
            total=budgets.total,
            per_day=budgets.per_day,
            concurrent=budgets.concurrent,
            per_source_node=_cap(budgets.per_source_node),
            per_target_node=_cap(budgets.per_target_node),
            per_namespace=_cap(budgets.per_namespace),
            per_workload=_cap(budgets.per_workload),
            spacing=budgets.spacing,
            rate=budgets.rate,
        ),
        execution=core.Execution(
            handover=execution.handover,
            timeouts=core.Timeouts(hold=limits.hold, evict=limits.evict, start=limits.start, pod=limits.pod),
            settle=execution.settle,
            abort_above=execution.abort_above,
            cooldown=execution.cooldown,
            node_cooldown=min(NODE_COOLDOWN, execution.cooldown)
            if execution.node_cooldown is None
            else execution.node_cooldown,
        ),
        partial=gain.accept_partial,
    )


def _cap(spec: CapSpec) -> core.Cap:
    share = spec.in_flight if isinstance(spec.in_flight, str) else None
    return core.Cap(
        in_flight=None if isinstance(spec.in_flight, str) else spec.in_flight,
        per_run=spec.per_run,
        per_day=spec.per_day,
        in_flight_pct=int(share.removesuffix("%")) if share else None,
    )


def to_selector(spec: SelectorSpec) -> Selector:
    """matchLabels first, sorted, then the expressions as written."""
    exact = core.equals(dict(spec.match_labels)).expressions
    return Selector((*exact, *(Expression(e.key, e.operator, tuple(e.values)) for e in spec.match_expressions)))


def compile_schedules(spec: schema.PolicySpec) -> tuple[tuple[Schedule, ...], list[Fault]]:
    """Compiled schedules; a cron expression that cannot be read or never fires is a fault."""
    out: list[Schedule] = []
    faults: list[Fault] = []
    for index, item in enumerate(spec.schedule):
        try:
            cron = parse_cron(item.cron, load_zone(item.time_zone))
        except ValueError as error:
            faults.append((("spec", "schedule", index, "cron"), str(error)))
            continue
        out.append(Schedule(cron, item.starting_deadline, item.max_duration))
    return tuple(out), faults


def compile_windows(spec: schema.PolicySpec, now: datetime) -> tuple[Windows, list[Fault], list[Fault]]:
    """(windows, faults, warnings). Zones default to the first schedule's."""
    default = spec.schedule[0].time_zone if spec.schedule else "UTC"
    spans: dict[str, list[Span]] = {"allow": [], "deny": []}
    faults: list[Fault] = []
    warnings: list[Fault] = []
    for index, window in enumerate(spec.windows):
        kind = "allow" if window.allow is not None else "deny"
        item = window.allow or window.deny
        assert item is not None
        loc: Loc = ("spec", "windows", index, kind)
        zone = load_zone(item.time_zone or default)
        try:
            span = _span(item, zone)
        except ValueError as error:
            faults.append(((*loc, "cron") if item.cron is not None else loc, str(error)))
            continue
        if span.end is not None and span.end <= now:
            warnings.append((loc, "this window is over and has no effect any more"))
        spans[kind].append(span)
    return Windows(tuple(spans["allow"]), tuple(spans["deny"])), faults, warnings


def _span(item: schema.SpanSpec, zone: ZoneInfo) -> Span:
    if item.cron is not None:
        assert item.duration is not None
        return Span(zone, cron=parse_cron(item.cron, zone), duration=item.duration)
    assert item.from_ is not None and item.to is not None
    begin, end = item.from_.instant(zone), item.to.instant(zone)
    if begin >= end:
        raise ValueError(f'"to" ({item.to.text}) is not after "from" ({item.from_.text})')
    return Span(zone, begin=begin, end=end)


def to_mix(gain: schema.GainSpec, base: Path) -> tuple[tuple[core.MixClass, ...] | None, list[Fault]]:
    """The expected mix; None means the running one. Files are read relative to ``base``."""
    mix = gain.expected_mix
    loc: Loc = ("spec", "gain", "expectedMix")
    if mix == "auto":
        return None, []
    if mix.file is None:
        return tuple(_mix_class(item) for item in mix.classes), []
    path = base / mix.file
    try:
        if path.stat().st_size > MAX_BYTES:
            return None, [(loc, f"{path} is too large")]
        documents, problems = read_documents(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        return None, [(loc, f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}")]
    problems += [problem for document in documents for problem in document.problems]
    if problems:
        return None, [(loc, str(problem)) for problem in problems[:3]]
    value: Any = documents[0].value if len(documents) == 1 else None
    classes = value.get("classes") if isinstance(value, Mapping) else None
    if not isinstance(classes, list) or not classes:
        return None, [(loc, f'{path} has no list "classes"')]
    try:
        checked = TypeAdapter(list[schema.MixClassSpec]).validate_json(json.dumps(classes))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return None, [(loc, f"{path}: classes.{where}: {first['msg'].lower()}")]
    return tuple(_mix_class(item) for item in checked), []


def _mix_class(item: schema.MixClassSpec) -> core.MixClass:
    return core.MixClass(
        cpu_milli=item.cpu_milli,
        memory_bytes=item.memory_mib * 2**20,
        gpus=item.gpus,
        cores=item.cores,
        memory_pct=item.mem_percent,
        memory_mib=item.mem_mib,
        use_types=",".join(item.types),
        nouse_types=",".join(item.nouse_types),
        weight=item.weight,
    )
