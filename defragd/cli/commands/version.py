"""`defragd version`."""

from __future__ import annotations

import platform

import click

from defragd import __version__
from defragd.cli.printers import emit, output_option


@click.command("version", short_help="Show the version.")
@click.option("--sbom", is_flag=True, help="Print what is installed beside it as CycloneDX JSON.")
@output_option("table", "json", "yaml")
def command(sbom: bool, output: str) -> None:
    """Show the version of defragd and Python."""
    if sbom:
        from defragd.cli.sbom import document

        emit(document(), "json", text=lambda wide: "")
        return
    value = {"defragd": __version__, "python": platform.python_version()}
    emit(value, output, text=lambda wide: f"defragd {__version__}")
