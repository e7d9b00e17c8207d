"""`defragd history [RUN]`: what was planned and done, newest first; one run with its moves; ``-w`` follows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from defragd.cli.printers import Table, age, emit, no_headers_option, output_option, paint
from defragd.cli.remote import Door, Json, door_options, open_door

POLL_SECONDS = 2.0
ENDED = {"Planned", "Completed", "Aborted", "Cancelled", "Expired", "Failed"}
GOOD = {"Planned", "Completed"}
MOVE_COLUMNS = ["MOVE", "POD", "TO", "STATE", "TOOK", "REASON", "MESSAGE"]


@click.command("history", short_help="Runs and what became of them.")
@click.argument("run", metavar="[RUN]", required=False)
@click.option("--policy", metavar="NAME", help="Runs of this policy only.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Runs shown at most.")
@click.option("-w", "--watch", is_flag=True, help="Go on and print what changes; one run: until it ends.")
@output_option("table", "wide", "json", "yaml", "name")
@no_headers_option
@door_options
def command(
    run: str | None, policy: str | None, limit: int, watch: bool, output: str, no_headers: bool, **where: Any
) -> int:
    """Runs, newest first; with RUN its moves and how far each is."""
    door = open_door(**where)
    try:
        if run:
            found = door.run(run)
            emit(found, output, text=lambda wide: run_text(found, wide=wide, headers=not no_headers),
                 names=[f"defragrun/{run}"])  # fmt: skip
            return follow(door, run, found) if watch else 0
        found_runs = door.runs(policy)[:limit]
        names = [f"defragrun/{item['id']}" for item in found_runs]
        if watch:
            return _watch(door, policy, limit, wide=output == "wide", headers=not no_headers)
        emit({"items": found_runs}, output, names=names,
             text=lambda wide: _list_text(found_runs, wide=wide, headers=not no_headers))  # fmt: skip
        return 0
    finally:
        door.close()


def _list_text(runs: Sequence[Json], *, wide: bool, headers: bool) -> str:
    if not runs:
        return "No runs yet." if headers else ""
    table = Table(
        ["RUN", "POLICY", "MODE", "PHASE", "PLANNED", "DONE", "FAILED", "AGE", "TOOK", "REASON", "MESSAGE"],
        wide=frozenset({8, 9}),
        right=frozenset({4, 5, 6}),
    )
    for item in runs:
        table.rows.append(_row(item))
    return paint(table.render(wide=wide, headers=headers))


def _row(item: Json) -> list[Any]:
    moves = item["moves"]
    return [
        item["id"], item["policy"], item["mode"], item["phase"], str(moves["planned"]), str(moves["done"]),
        str(moves["failed"]), _age(item["created"]), _took(item), item["reason"], item["message"],
    ]  # fmt: skip


def run_text(found: Json, *, wide: bool = False, headers: bool = True) -> str:
    """One run: a line on it, then its moves."""
    table = Table(MOVE_COLUMNS, wide=frozenset({4}))
    planned: Mapping[str, Json] = {m["id"]: m for m in (found.get("plan") or {}).get("moves") or ()}
    for state in found["moveStates"]:
        move = planned.get(state["id"]) or {}
        to = move.get("to") or {}
        place = f"{to.get('node', '')}/{','.join(to.get('devices', ()))}" if to else ""
        row = [state["id"], move.get("pod", ""), place, state["state"], _took(state), state["reason"], state["message"]]
        table.rows.append(row)
    head = f"{found['id']}: {found['phase']}, {found['policy']} ({found['mode']})"
    head += f", {found['moves']['done']} of {found['moves']['planned']} moves done"
    if found["message"]:
        head += f"; {found['message']}"
    rows = table.render(wide=wide, headers=headers) if table.rows else ""
    return paint(f"{head}\n{rows}".rstrip())


def follow(door: Door, name: str, known: Json | None = None) -> int:
    """Prints each change of a run until it ends: 0 when it completed, 1 otherwise."""
    seen: dict[str, str] = {}
    if known is not None:
        seen = {state["id"]: state["state"] for state in known["moveStates"]} | {"": known["phase"]}
    while True:
        found = door.run(name)
        planned = {m["id"]: m["pod"] for m in (found.get("plan") or {}).get("moves") or ()}
        for state in found["moveStates"]:
            if seen.get(state["id"]) != state["state"]:
                seen[state["id"]] = state["state"]
                why = f" ({state['reason']})" if state["reason"] and state["state"] != "Done" else ""
                click.echo(paint(f"{state['id']} {planned.get(state['id'], '')} {state['state']}{why}"))
        if seen.get("") != found["phase"]:
            seen[""] = found["phase"]
            click.echo(paint(f"run {name} {found['phase']}{': ' + found['message'] if found['message'] else ''}"))
        if found["phase"] in ENDED:
            return 0 if found["phase"] in GOOD else 1
        time.sleep(POLL_SECONDS)


def _watch(door: Door, policy: str | None, limit: int, *, wide: bool, headers: bool) -> int:
    """As kubectl: the list, then a line for each run that changed, until interrupted."""
    seen: dict[str, Any] = {}
    while True:
        found = door.runs(policy)[:limit]
        key: dict[str, Any] = {item["id"]: (item["phase"], item["moves"], item["message"]) for item in found}
        fresh = [item for item in found if seen.get(item["id"]) != key[item["id"]]]
        if fresh or not seen:
            text = _list_text(fresh, wide=wide, headers=headers and not seen)
            if text:
                click.echo(text)
        seen = dict(key) or {"": None}
        time.sleep(POLL_SECONDS)


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _age(text: str | None) -> str:
    when = _moment(text)
    return age(datetime.now(UTC) - when) if when else ""


def _took(item: Json) -> str:
    start, end = _moment(item["started"]), _moment(item["finished"])
    return age(end - start) if start and end else ""
