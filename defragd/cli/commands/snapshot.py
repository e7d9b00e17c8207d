"""`defragd snapshot`: everything a plan needs in one file, for bug reports and what-if questions."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import click

from defragd.cli import sources


@click.command("snapshot", short_help="Save everything that a plan needs.")
@sources.cluster_options(snapshot=False)
@click.option(
    "--snapshot", metavar="FILE", help="Rewrite a saved List instead of reading a cluster (with --anonymize)."
)
@click.option(
    "--hami-namespace", default="kube-system", show_default=True, metavar="NS", help="Where HAMi's configuration is."
)
@click.option("-o", "--output", metavar="FILE", help='File to write, gzipped when it ends in .gz; default "-", stdout.')
@click.option("--anonymize", is_flag=True, help="Replace names, labels and UUIDs, each word always by the same one.")
def command(
    kubeconfig: str | None,
    context: str | None,
    snapshot: str | None,
    hami_namespace: str,
    output: str | None,
    anonymize: bool,
) -> None:
    """Save a Kubernetes List with the fields a plan needs: no environment, no arguments, no secrets."""
    from defragd.errors import ConfigError
    from defragd.kube.snapshot_file import load_stores, save
    from defragd.kube.snapshot_hami import DEVICE_CONFIG, HAMI, hami_of_cluster

    if snapshot is not None:
        if kubeconfig or context:
            raise ConfigError("give either --snapshot or --kubeconfig, not both")
        raws: list[Any] = []
        stores, meta = load_stores(snapshot, raws)
        marks = {HAMI: meta[HAMI]} if meta and HAMI in meta else {}
        hami = (
            marks,
            [item for item in map(json.loads, map(bytes, raws)) if DEVICE_CONFIG in (item.get("data") or ())],
        )
    else:
        from defragd.kube.client import Client
        from defragd.kube.cluster import read_stores

        client = Client.from_kubeconfig(kubeconfig, context)
        try:
            stores = read_stores(client)
            hami = hami_of_cluster(client, hami_namespace, "hami-scheduler-device")
        finally:
            client.close()
    count = save(stores, output, anonymize=anonymize, now=datetime.now(UTC), hami=hami)
    if output not in (None, "-"):
        click.echo(f"{count} objects written to {output}", err=True)
