"""`defragd version`."""

from __future__ import annotations

import platform

import click

from defragd import __version__
from defragd.cli.printers import emit, output_option


@click.command("version", short_help="Show the version.")
@output_option("table", "json", "yaml")
def command(output: str) -> None:
    """Show the version of defragd and Python."""
    value = {"defragd": __version__, "python": platform.python_version()}
    emit(value, output, text=lambda wide: f"defragd {__version__}")
