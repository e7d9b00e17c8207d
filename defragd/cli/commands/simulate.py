"""`defragd simulate`: policies against a simulated cluster over days, so that budgets can be chosen beforehand."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from defragd.cli import sources
from defragd.cli.printers import Table, emit, no_headers_option, output_option, warn
from defragd.errors import ConfigError

if TYPE_CHECKING:
    from defragd.core.plan import PlanReply, PlanRequest
    from defragd.policy.loaded import LoadedPolicy

NOTES = (
    "every policy acts as if its mode were Auto; of trigger.startOn only pendingPods is simulated; faults, approvals "
    "and the breaker are not",
    "the scheduler is a model (free room, host resources, taints, selectors, HAMi's scores); spread and anti-affinity "
    "between pods are left out of it, not out of the plans",
    "newcomers are drawn from the mix that runs in the snapshot",
)


@click.command("simulate", short_help="Policies against a simulated cluster over days.")
@click.option(
    "--policies", metavar="DIR", multiple=True, help="Directory or file of policies; default the shipped ones."
)
@sources.cluster_options()
@click.option("--days", type=click.FloatRange(0.05, 366), default=30, show_default=True, help="Simulated days.")
@click.option("--each", is_flag=True, help="One simulation per policy, instead of all together.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Dice of demand and scheduler.")
@click.option(
    "--turnover",
    type=click.FloatRange(0, 10),
    default=0.1,
    show_default=True,
    help="Share of workloads replaced per day.",
)
@click.option(
    "--scaling", type=click.FloatRange(0, 10), default=0.2, show_default=True, help="Scale-ins per workload and day."
)
@click.option("--growth", type=click.FloatRange(0, 10), default=1.0, show_default=True, help="Arrivals per departure.")
@click.option("--move-time", type=sources.Seconds(), default="90s", show_default=True, help="How long a move takes.")
@click.option("--plan-time", type=sources.Seconds(), default="5s", show_default=True, help="Wall time of one plan.")
@click.option("--max-steps", type=click.IntRange(1), metavar="N", help="Bound plans by steps, not time (reproducible).")
@click.option(
    "--node-policy", type=click.Choice(["binpack", "spread"]), help="HAMi's order of nodes; default the cluster's."
)
@click.option(
    "--device-policy", type=click.Choice(["binpack", "spread"]), help="HAMi's order of devices; default the cluster's."
)
@sources.now_option
@output_option("table", "json", "yaml", "html")
@no_headers_option
def command(
    policies: tuple[str, ...],
    snapshot: str | None,
    kubeconfig: str | None,
    context: str | None,
    hami_namespace: str,
    hami_config: str | None,
    days: float,
    each: bool,
    seed: int,
    turnover: float,
    scaling: float,
    growth: float,
    move_time: float,
    plan_time: float,
    max_steps: int | None,
    node_policy: str | None,
    device_policy: str | None,
    now: datetime | None,
    output: str,
    no_headers: bool,
) -> None:
    """Play days of arrivals, departures and scaling with and without the policies, and compare.

    Prints fragmentation over time, devices admitted, moves, and how often each workload was disturbed.
    """
    from defragd.hami.vendors import VENDORS
    from defragd.sim.churn import Demand, apps_of, changes
    from defragd.sim.days import Days
    from defragd.sim.days_report import html_page, outcome_value

    loaded = _load(policies)
    world = sources.read_cluster(snapshot, kubeconfig, context, hami_namespace, hami_config)
    if not apps_of(world):
        raise ConfigError("no pod in this cluster holds a device, so there is no mix to draw newcomers from")
    began = sources.present(now, world)
    demand = Demand(turnover=turnover, scaling=scaling, growth=growth, seed=seed)
    events = changes(world, demand, days)
    arms: list[tuple[str, Sequence[LoadedPolicy]]] = [("without", ())]
    arms += [(policy.name, (policy,)) for policy in loaded] if each or len(loaded) == 1 else [("with all", loaded)]
    found = []
    clock = time.monotonic()
    for name, chosen in arms:
        simulation = Days(
            world,
            events,
            began=began,
            days=days,
            policies=chosen,
            planner=_planner(plan_time, max_steps),
            vendors=VENDORS,
            node_policy=node_policy or world.node_policy,
            device_policy=device_policy or world.device_policy,
            move_seconds=move_time,
            sample_hours=max(0.25, min(6.0, days * 24 / 40)),
            seed=seed,
            progress=_Progress(name, days),
        )
        found.append(outcome_value(name, simulation.play(), down_seconds=move_time))
    value = {
        "days": days,
        "began": began.isoformat(),
        "nodes": len(world.nodes),
        "devices": len(world.devices),
        "pods": len(world.pods),
        "demand": {"turnover": turnover, "scaling": scaling, "growth": growth, "seed": seed, "changes": len(events)},
        "arms": found,
        "notes": [*NOTES, *_silent(loaded)],
        "elapsedSeconds": round(time.monotonic() - clock, 1),
    }
    if output == "html":
        click.echo(html_page(value), nl=False)
    else:
        emit(value, output, text=lambda wide: _text(value, headers=not no_headers))


def _load(policies: tuple[str, ...]) -> tuple[LoadedPolicy, ...]:
    from defragd.policy.load import load_policies, require

    paths: list[Any] = list(policies)
    if not paths:
        shipped = sources.shipped_policies()
        if shipped is None:
            raise ConfigError("give policies with --policies DIR; none are shipped with this build")
        paths = [shipped]
    found = load_policies(paths)
    usable = require(found)
    warn([str(problem) for problem in found.warnings])
    if not usable:
        raise ConfigError(f"no policy in {', '.join(str(path) for path in paths)}")
    return usable


def _silent(policies: Sequence[LoadedPolicy]) -> list[str]:
    said = []
    for policy in policies:
        if policy.suspended:
            said.append(f"{policy.name} is suspended")
        elif not (policy.schedules or policy.trigger.start_on.pending_pods):
            said.append(f"{policy.name} has no schedule and no startOn.pendingPods, so it never runs here")
    return said


def _planner(limit: float, max_steps: int | None) -> Any:
    from dataclasses import replace

    from defragd.core.planner import plan
    from defragd.policy.registry import strategies

    known = strategies()

    def run(request: PlanRequest) -> PlanReply:
        begin = time.monotonic()
        if max_steps is not None:
            return plan(replace(request, max_steps=max_steps), strategies=known)
        return plan(request, strategies=known, should_stop=lambda: time.monotonic() - begin > limit)

    return run


class _Progress:
    """One line per tenth on standard error, when that is a terminal."""

    def __init__(self, name: str, days: float) -> None:
        self._name, self._days, self._next = name, days, 0.0

    def __call__(self, day: float) -> None:
        if day >= self._next and sys.stderr.isatty():
            click.echo(f"{self._name}: day {day:.0f} of {self._days:g}", err=True)
        while self._next <= day:
            self._next += self._days / 10


def _text(value: Mapping[str, Any], *, headers: bool) -> str:
    table = Table(
        [
            "WITH",
            "L-MEAN",
            "L-END",
            "ADMITTED",
            "ARRIVED",
            "WAITED-H",
            "MOVES",
            "LOST",
            "RUNS",
            "MOST-MOVED",
            "IDLE-DEV",
        ],
        right=frozenset(range(1, 11)),
    )
    for arm in value["arms"]:
        devices, moves = arm["devices"], arm["moves"]
        table.rows.append(
            [
                arm["name"],
                arm["fragmentation"]["mean"],
                arm["fragmentation"]["last"],
                f"{devices['admitted']:.1f}",
                f"{devices['arrived']:.1f}",
                f"{devices['hoursWaited']:.0f}",
                moves["done"],
                moves["lost"],
                moves["runs"],
                arm["disruption"]["mostMoves"],
                devices["idleAtEnd"],
            ]
        )
    lines = [table.render(headers=headers), ""]
    for arm in value["arms"][1:]:
        top = arm["disruption"]["top"][:5]
        if top:
            said = ", ".join(f"{item['workload']} {item['moves']}x" for item in top)
            lines.append(f"{arm['name']}: {arm['disruption']['workloads']} workloads moved, most: {said}")
        for policy, counts in arm["policies"].items():
            said = ", ".join(f"{n} {what}" for what, n in counts.items()) or "never started"
            lines.append(f"{arm['name']}: policy {policy}: {said}")
    lines.append(
        f"{value['days']:g} days, {value['nodes']} nodes, {value['devices']} devices, {value['demand']['changes']} "
        f"changes of demand, in {value['elapsedSeconds']:.0f} s. ADMITTED, ARRIVED, WAITED-H: devices, shares add up."
    )
    lines += [f"note: {note}" for note in value["notes"]]
    return "\n".join(lines)
