"""`defragd approve|pause|resume|cancel RUN`, `run-now POLICY`: what people ask of a running defragd."""

from __future__ import annotations

from typing import Any

import click

from defragd.cli.printers import emit, output_option
from defragd.cli.remote import Door, door_options, open_door
from defragd.errors import ConfigError

PAUSED = "defragd.io/paused"
WORDS = {"approve": "approved", "pause": "paused", "resume": "resumed", "cancel": "cancelled"}


def _steer(verb: str, text: str) -> click.Command:
    @click.command(verb, short_help=text)
    @click.argument("run", metavar="RUN")
    @click.option("--wait", is_flag=True, help="Follow the run until it ends; exit code 1 unless it completed.")
    @output_option("table", "json", "yaml", "name")
    @door_options
    def command(run: str, wait: bool, output: str, **where: Any) -> int:
        door = open_door(**where)
        try:
            return _said(door, door.steer(run, verb), WORDS[verb], output, wait=wait)
        finally:
            door.close()

    command.help = text
    return command


def _said(door: Door, found: dict[str, Any], word: str, output: str, *, wait: bool) -> int:
    name = found["id"]
    emit(found, output, text=lambda wide: f"defragrun/{name} {word}", names=[f"defragrun/{name}"])
    if not wait:
        return 0
    from defragd.cli.commands.history import follow

    return follow(door, name)


approve = _steer("approve", "Let a run that waits for approval begin.")
cancel = _steer("cancel", "End a run; what is under way ends cleanly.")


@click.command("pause", short_help="Hold a run, or with --all everything.")
@click.argument("run", metavar="[RUN]", required=False)
@click.option("--all", "everything", is_flag=True, help="Everything: annotates the namespace of the installation.")
@click.option("--reason", default="paused by hand", show_default=True, help="With --all: shown wherever it waits.")
@output_option("table", "json", "yaml", "name")
@door_options
def pause(run: str | None, everything: bool, reason: str, output: str, **where: Any) -> int:
    """Hold a run: nothing of it starts, what is under way ends. With --all nothing new starts anywhere."""
    return _pause("pause", run, everything, reason, output, **where)


@click.command("resume", short_help="Go on with a paused run, or with --all everything.")
@click.argument("run", metavar="[RUN]", required=False)
@click.option("--all", "everything", is_flag=True, help="Take the pause over everything away.")
@output_option("table", "json", "yaml", "name")
@door_options
def resume(run: str | None, everything: bool, output: str, **where: Any) -> int:
    """Go on with a paused run, or take the pause over everything away."""
    return _pause("resume", run, everything, None, output, **where)


def _pause(verb: str, run: str | None, everything: bool, reason: str | None, output: str, **where: Any) -> int:
    if everything == bool(run):
        raise ConfigError(f"{verb}: give a RUN, or --all")
    if everything:
        return _annotate(reason, **where)
    door = open_door(**where)
    try:
        return _said(door, door.steer(str(run), verb), WORDS[verb], output, wait=False)
    finally:
        door.close()


def _annotate(reason: str | None, *, api: str | None, token: str | None, **where: Any) -> int:
    """The pause over everything is an annotation of the namespace, so it is set in the cluster, never over the API."""
    from defragd.errors import ClusterError
    from defragd.kube.client import MERGE_PATCH, Client

    if api or token:
        raise ConfigError("--all is set in the cluster itself; leave out --api and --token")
    namespace = where["namespace"]
    client = Client.from_kubeconfig(where["kubeconfig"], where["context"])
    try:
        body = {"metadata": {"annotations": {PAUSED: reason}}}
        written = client.write("PATCH", f"/api/v1/namespaces/{namespace}", body, content_type=MERGE_PATCH)
    finally:
        client.close()
    if not written.ok:
        raise ClusterError(f"namespace {namespace}: {written.message}")
    click.echo(f"everything {'paused: ' + reason if reason else 'resumed'}")
    return 0


@click.command("run-now", short_help="Plan a policy now, in its own mode.")
@click.argument("policy", metavar="POLICY")
@click.option("--wait", is_flag=True, help="Follow the run until it ends; exit code 1 unless it completed.")
@output_option("table", "json", "yaml", "name")
@door_options
def run_now(policy: str, wait: bool, output: str, **where: Any) -> int:
    """Plan a policy now, in its own mode; the daemon's leader does it. Its trigger is not asked, its windows are."""
    door = open_door(**where)
    try:
        found = door.run_policy(policy)
        planned = found["moves"]["planned"]
        return _said(door, found, f"created, {found['phase']}, {planned} moves planned", output, wait=wait)
    finally:
        door.close()
