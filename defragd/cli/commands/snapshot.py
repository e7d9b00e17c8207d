"""`defragd snapshot`: everything a plan needs in one file, for bug reports and what-if questions."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from defragd.cli import sources


@click.command("snapshot", short_help="Save everything that a plan needs.")
@sources.cluster_options(snapshot=False)
@click.option(
    "--snapshot", metavar="FILE", help="Rewrite a saved List instead of reading a cluster (with --anonymize)."
)
@click.option("-o", "--output", metavar="FILE", help='File to write, gzipped when it ends in .gz; default "-", stdout.')
@click.option("--anonymize", is_flag=True, help="Replace names, labels and UUIDs, each word always by the same one.")
def command(
    kubeconfig: str | None,
    context: str | None,
    snapshot: str | None,
    output: str | None,
    anonymize: bool,
) -> None:
    """Save a Kubernetes List with the fields a plan needs: no environment, no arguments, no secrets."""
    from defragd.errors import ConfigError
    from defragd.kube.snapshot_file import load_stores, save

    if snapshot is not None:
        if kubeconfig or context:
            raise ConfigError("give either --snapshot or --kubeconfig, not both")
        stores, _ = load_stores(snapshot)
    else:
        from defragd.kube.client import Client
        from defragd.kube.cluster import read_stores

        client = Client.from_kubeconfig(kubeconfig, context)
        try:
            stores = read_stores(client)
        finally:
            client.close()
    count = save(stores, output, anonymize=anonymize, now=datetime.now(UTC))
    if output not in (None, "-"):
        click.echo(f"{count} objects written to {output}", err=True)
