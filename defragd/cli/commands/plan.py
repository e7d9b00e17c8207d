"""`defragd plan`: what a policy would do now, and why; changes nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from defragd.cli import sources
from defragd.cli.printers import Table, emit, no_headers_option, output_option, warn, warn_refusals
from defragd.errors import ConfigError
from defragd.web.wording import MAKES_ROOM

if TYPE_CHECKING:
    from defragd.core.plan import PlanReply
    from defragd.core.snapshot import Snapshot
    from defragd.policy.loaded import LoadedPolicy


@click.command("plan", short_help="Compute a plan; changes nothing.")
@click.option("--policy", required=True, metavar="FILE|NAME", help="Policy file, or the name of a policy.")
@sources.policies_option
@sources.cluster_options(metrics=True)
@sources.now_option
@click.option(
    "--time-limit", type=sources.Seconds(), default="30s", show_default=True, help="Best plan within this time."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Dice of the search.")
@click.option("--max-steps", type=click.IntRange(1), metavar="N", help="Bound the search by steps (reproducible).")
@click.option("--diff", "as_diff", is_flag=True, help="Show the devices of the nodes touched, now and after the plan.")
@click.option("--exit-code", is_flag=True, help="End with 4 when the plan has moves.")
@output_option("table", "wide", "json", "yaml", "name")
@no_headers_option
def command(
    policy: str,
    policies: tuple[str, ...],
    snapshot: str | None,
    kubeconfig: str | None,
    context: str | None,
    hami_namespace: str,
    hami_config: str | None,
    hami_metrics: str | None,
    now: datetime | None,
    time_limit: float,
    seed: int,
    max_steps: int | None,
    as_diff: bool,
    exit_code: bool,
    output: str,
    no_headers: bool,
) -> int:
    """Compute what a policy would do, and print moves, waves, scores and what was refused.

    Schedule, windows and triggers are not obeyed; what would have kept the policy from running is among the notes.
    """
    from defragd.core.plan_json import plan_to_json

    loaded, _ = sources.find_policy(policy, policies)
    world = sources.read_cluster(snapshot, kubeconfig, context, hami_namespace, hami_config, hami_metrics)
    when = sources.present(now, world)
    reply = compute(loaded, world, when, time_limit=time_limit, seed=seed, max_steps=max_steps)
    value = plan_to_json(reply)
    warn([str(problem) for problem in loaded.warnings])
    warn_refusals(value["warnings"])
    names = [f"move/{move['id']}" for move in value["moves"]]
    if as_diff:
        from defragd.cli.diff import paint_diff, plan_diff

        if output not in ("table", "wide"):
            raise ConfigError("--diff is text for people; leave out -o")
        click.echo(paint_diff(plan_diff(world, reply.moves)) or "no moves: nothing would change")
        return 4 if exit_code and reply.moves else 0
    emit(value, output, text=lambda wide: _text(value, wide=wide, headers=not no_headers), names=names)
    return 4 if exit_code and reply.moves else 0


def compute(
    policy: LoadedPolicy,
    world: Snapshot,
    now: datetime,
    *,
    time_limit: float = 30.0,
    seed: int = 0,
    max_steps: int | None = None,
) -> PlanReply:
    """The plan in this process, cut after ``time_limit`` seconds, with the notes on what would have held it back."""
    from defragd.core.plan import PlanRequest
    from defragd.core.planner import plan
    from defragd.hami.vendors import VENDORS
    from defragd.policy.registry import strategies

    request = PlanRequest(
        snapshot=world,
        policy=policy.name,
        strategy=policy.strategy,
        args=policy.args,
        rules=policy.rules,
        now=now,
        seed=seed,
        max_steps=max_steps,
        vendors=VENDORS,
    )
    begin = time.monotonic()
    reply = plan(request, strategies=strategies(), should_stop=lambda: time.monotonic() - begin > time_limit)
    notes = (*reply.notes, *held_back(policy, world, now, reply.before.loss))
    return replace(reply, notes=notes, elapsed_seconds=time.monotonic() - begin)


def held_back(policy: LoadedPolicy, world: Snapshot, now: datetime, fragmentation: float) -> list[str]:
    """What would have kept the policy from running at ``now``: suspension, schedule, windows, trigger."""
    from defragd.policy.schedule import due, next_starts
    from defragd.policy.triggers import evaluate

    notes: list[str] = []
    if policy.suspended:
        notes.append("would not run: the policy is suspended")
    window = policy.windows.check(now)
    if not window.allowed:
        notes.append(f"would not run now: {window.reason}")
    if policy.schedules and window.allowed and not policy.suspended and due(policy, None, now) is None:
        coming = next_starts(policy, now, 1)
        text = f", the next one is {coming[0].local.isoformat(timespec='minutes')}" if coming else ""
        notes.append(f"would not run now: no start of its schedule is due{text}")
    budgets = policy.rules.budgets
    if budgets.per_day is not None or budgets.per_workload.per_day is not None:
        notes.append("limits per day count from nothing here: what was moved lately is known to the daemon only")
    verdict = evaluate(policy.trigger, world, fragmentation=fragmentation, now=now)
    notes += [f"would not run: {term.name}: {term.text}" for term in verdict.terms if not term.ok]
    return notes


def _text(plan: Mapping[str, Any], *, wide: bool, headers: bool) -> str:
    table = Table(
        ["MOVE", "POD", "FROM", "TO", "WAVE", "GAIN", "AFTER", "COST", "WHY"],
        wide=frozenset({6, 7, 8}),
        right=frozenset({4, 5}),
    )
    for move in plan["moves"]:
        table.rows.append(
            [
                move["id"],
                move["pod"],
                _place(move["from"], wide=wide),
                _place(move["to"], wide=wide),
                str(move["wave"]),
                f"{move['gain']:.4f}",
                move["after"],
                f"{move['cost']:.2f}",
                move["why"],
            ]
        )
    score, freed = plan["score"], plan["freed"]
    moves, waves = len(plan["moves"]), len(plan["waves"])
    lines = [table.render(wide=wide, headers=headers), ""] if plan["moves"] else []
    lines.append(
        f"{plan['policy']} ({plan['strategy']}): {_count(moves, 'move')} in {_count(waves, 'wave')}, "
        f"{score['name']} {_number(score['before'])} -> {_number(score['after'])}, "
        f"frees {_count(freed['devices'], 'device')} and {_count(freed['nodes'], 'node')}; "
        f"stopped: {plan['stopped']}; {plan['elapsedSeconds']:.1f} s"
    )
    if any(move["gain"] < 0 for move in plan["moves"]):
        lines.append(f"GAIN below 0: {MAKES_ROOM}")
    counts = Counter(item["reason"] for item in plan["refused"])
    if counts:
        lines.append("refused: " + ", ".join(f"{count} {reason}" for reason, count in counts.most_common()))
    if wide or len(plan["refused"]) <= 3:
        lines += [f"  {item['object']}: {item['detail']} ({item['reason']})" for item in plan["refused"][:200]]
    lines += [f"note: {note}" for note in plan["notes"]]
    return "\n".join(lines)


def _place(place: Mapping[str, Any], *, wide: bool) -> str:
    devices = place["devices"]
    shown = devices if wide else [uuid if len(uuid) <= 12 else f"{uuid[:12]}…" for uuid in devices]
    return f"{place['node']}/{','.join(shown)}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _number(value: float) -> str:
    return f"{value:g}" if float(value).is_integer() else f"{value:.4f}"
