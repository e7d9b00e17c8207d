"""`defragd policy validate|list|schedule|explain|show|schema`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from defragd.cli import sources
from defragd.cli.printers import Table, emit, no_headers_option, output_option
from defragd.cli.remote import door_options, open_door
from defragd.errors import ConfigError, PolicyError

if TYPE_CHECKING:
    from defragd.policy.loaded import LoadedPolicy, PolicySet


@click.group("policy", short_help="Validate, list and show policies; their start times.")
def command() -> None:
    """Work with policy files, for which no cluster is needed, or look at the policies of a running defragd."""


def _read(files: tuple[str, ...]) -> PolicySet:
    from defragd.policy.load import load_policies

    if not files:
        shipped = sources.shipped_policies()
        if shipped is None:
            raise ConfigError("no policy files given, and none are shipped with this build")
        return load_policies(shipped)
    return load_policies(list(files))


def _chosen(given: tuple[str, ...], where: Mapping[str, Any]) -> PolicySet:
    """Policies by file and by name: names are those of the running defragd that ``where`` (see `door_options`) leads
    to, else of the shipped ones."""
    from defragd.policy.loaded import PolicySet

    names = tuple(word for word in given if not (sources.is_file(word) or Path(word).is_dir()))
    if (where["api"] or where["kubeconfig"] or where["context"]) and (names or not given):
        parts = [_served(names, where)]
    elif names:
        parts = [PolicySet((sources.find_policy(name)[0],)) for name in names]
    else:
        parts = [] if given else [_read(())]
    files = tuple(word for word in given if word not in names)
    parts += [_read(files)] if files else []
    return PolicySet(
        tuple(policy for part in parts for policy in part.policies),
        tuple(problem for part in parts for problem in part.errors),
        tuple(problem for part in parts for problem in part.warnings),
    )


def _served(names: tuple[str, ...], where: Mapping[str, Any]) -> PolicySet:
    """Policies as the daemon has them in force, defaults and caps of its installation included."""
    import json

    from defragd.policy.load import load_text
    from defragd.policy.loaded import PolicySet
    from defragd.policy.problems import nearest
    from defragd.policy.schema import API_VERSION, KIND
    from defragd.policy.yaml_source import Problem

    door = open_door(**where)
    try:
        items = {item["name"]: item for item in door.policies()}
    finally:
        door.close()
    for name in names:
        if name not in items:
            hint = nearest(name, sorted(items)).replace("fields here", "known") if items else "; it has none"
            raise ConfigError(f'no policy "{name}" in the running defragd{hint}')
    found: list[LoadedPolicy] = []
    errors: list[Problem] = []
    for item in (items[name] for name in names or sorted(items)):
        source = str(item["source"]).rpartition(":")[0] or str(item["source"])
        if item["lastError"]:
            errors.append(Problem(source, 1, 1, "", str(item["lastError"])))
        if item["spec"]:
            value = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": item["name"]}, "spec": item["spec"]}
            read = load_text(json.dumps(value), source)
            found += read.policies
            errors += read.errors
    return PolicySet(tuple(found), tuple(errors))


def _plugins() -> list[str]:
    from defragd.policy.registry import refused

    return [str(item) for item in refused()]


def _say(found: PolicySet) -> None:
    """Errors and warnings of the files on standard error, every one of them."""
    for problem in found.errors:
        click.echo(f"error: {problem}", err=True)
    for problem in found.warnings:
        click.echo(f"warning: {problem}", err=True)
    for line in _plugins():
        click.echo(f"warning: {line}", err=True)


def _usable(found: PolicySet) -> tuple[LoadedPolicy, ...]:
    if found.errors:
        raise PolicyError("\n".join(str(problem) for problem in found.errors))
    return found.policies


@command.command("validate")
@click.argument("files", nargs=-1, required=True, metavar="FILE|DIR...")
def validate(files: tuple[str, ...]) -> int:
    """Check policies. Errors and warnings with their place on stderr; exit 2 with errors, 0 with warnings only."""
    found = _read(files)
    _say(found)
    count = len(found.policies)
    wrong = len(found.errors)
    click.echo(f"{count} {'policy' if count == 1 else 'policies'} valid, {wrong} error{'' if wrong == 1 else 's'}")
    return 2 if found.errors else 0


@command.command("list")
@click.argument("files", nargs=-1, metavar="[NAME|FILE|DIR...]")
@door_options
@sources.now_option
@output_option("table", "wide", "json", "yaml", "name")
@no_headers_option
def list_policies(
    files: tuple[str, ...], now: datetime | None, output: str, no_headers: bool, **where: str | None
) -> int:
    """List policies: strategy, mode, schedule, next start.

    Those of the files; with --api or --kubeconfig those of the running defragd; else the shipped ones.
    """
    from defragd.policy.schedule import next_starts

    found = _chosen(files, where)
    _say(found)
    when = sources.present(now)
    items: list[dict[str, Any]] = []
    for policy in found.policies:
        allowed = next((start for start in next_starts(policy, when, 50) if start.allowed), None)
        items.append(
            {
                "name": policy.name,
                "strategy": policy.strategy,
                "mode": policy.mode,
                "suspended": policy.suspended,
                "schedules": [{"cron": s.cron.text, "timeZone": s.cron.zone.key} for s in policy.schedules],
                "nextStart": allowed.local.isoformat() if allowed else None,
                "source": policy.source,
                "digest": policy.digest,
            }
        )

    def text(wide: bool) -> str:
        table = Table(
            ["NAME", "STRATEGY", "MODE", "SCHEDULE", "ZONE", "NEXT-START", "SOURCE", "DIGEST"], wide=frozenset({6, 7})
        )
        for item in items:
            crons = [schedule["cron"] for schedule in item["schedules"]]
            zones = dict.fromkeys(schedule["timeZone"] for schedule in item["schedules"])
            state = "Suspended" if item["suspended"] else item["nextStart"]
            table.rows.append(
                [
                    item["name"],
                    item["strategy"],
                    item["mode"],
                    "; ".join(crons),
                    ",".join(zones),
                    state,
                    item["source"],
                    item["digest"],
                ]
            )
        return table.render(wide=wide, headers=not no_headers)

    emit(items, output, text=text, names=[f"policy/{item['name']}" for item in items])
    return 2 if found.errors else 0


@command.command("schedule")
@click.argument("files", nargs=-1, metavar="[NAME|FILE|DIR...]")
@door_options
@sources.now_option
@click.option("--count", type=click.IntRange(1, 1000), default=10, show_default=True, help="Starts per policy.")
@output_option("table", "json", "yaml")
@no_headers_option
def schedule(
    files: tuple[str, ...], now: datetime | None, count: int, output: str, no_headers: bool, **where: str | None
) -> None:
    """The next start times in local time and UTC; those that a window denies are marked.

    A NAME is a shipped policy or, with --api or --kubeconfig, one of the running defragd.
    """
    from defragd.policy.schedule import next_starts

    found = _chosen(files, where)
    usable = _usable(found)
    when = sources.present(now)
    items: list[dict[str, Any]] = []
    for policy in usable:
        zones = list(dict.fromkeys(s.cron.zone.key for s in policy.schedules))
        items.append(
            {
                "policy": policy.name,
                "timeZone": zones[0] if zones else None,
                "starts": [
                    {
                        "utc": start.utc.strftime("%Y-%m-%dT%H:%M:%SZ"),
                        "local": start.local.isoformat(),
                        "allowed": start.allowed,
                        "reason": start.reason,
                    }
                    for start in next_starts(policy, when, count)
                ],
            }
        )

    def text(wide: bool) -> str:
        table = Table(["POLICY", "LOCAL", "ZONE", "UTC", "ALLOWED", "REASON"])
        for item in items:
            if not item["starts"]:
                table.rows.append([item["policy"], None, None, None, None, "no schedule: runs on demand only"])
            table.rows += [
                [
                    item["policy"],
                    s["local"],
                    item["timeZone"],
                    s["utc"],
                    "yes" if s["allowed"] else "no",
                    s["reason"] or " ",
                ]
                for s in item["starts"]
            ]
        return table.render(headers=not no_headers)

    for problem in found.warnings:
        click.echo(f"warning: {problem}", err=True)
    emit(items, output, text=text)


@command.command("explain")
@click.argument("policy", metavar="FILE|NAME")
@sources.policies_option
@sources.now_option
@output_option("table", "json", "yaml")
def explain(policy: str, policies: tuple[str, ...], now: datetime | None, output: str) -> None:
    """A policy in plain sentences: when it runs, what starts it, whom it leaves alone, how much it may do."""
    from defragd.policy import words

    loaded, _ = sources.find_policy(policy, policies)
    sections = words.explain(loaded, sources.present(now))

    def text(wide: bool) -> str:
        lines = [f"{loaded.name} ({loaded.source})"]
        for heading, sentences in sections:
            lines += [f"{heading}:", *(f"  - {sentence}" for sentence in sentences)]
        return "\n".join(lines)

    for problem in loaded.warnings:
        click.echo(f"warning: {problem}", err=True)
    emit({"policy": loaded.name, "source": loaded.source, **words.as_value(sections)}, output, text=text)


@command.command("show")
@click.argument("policy", metavar="FILE|NAME")
@sources.policies_option
@output_option("yaml", "json")
def show(policy: str, policies: tuple[str, ...], output: str) -> None:
    """A policy with all defaults filled in, as it is understood."""
    loaded, _ = sources.find_policy(policy, policies)
    emit(loaded.document, output, text=lambda wide: "")


@command.command("schema")
def schema() -> None:
    """The JSON Schema of policy files, for editors and CI."""
    import json

    from defragd.policy.json_schema import shipped

    click.echo(json.dumps(shipped(), indent=2, ensure_ascii=False))
