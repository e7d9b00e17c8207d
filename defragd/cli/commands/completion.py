"""`defragd completion SHELL`: the script that makes the shell complete commands, options and their choices."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")


@click.command("completion", short_help="Print a shell's completion script.")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the completion script: `source <(defragd completion bash)`. For `kubectl defrag` kubectl asks by itself."""
    from click.shell_completion import get_completion_class

    from defragd.cli.main import cli

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, "defragd", "_DEFRAGD_COMPLETE").source())
