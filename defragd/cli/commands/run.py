"""`defragd run`: flags to settings, settings to the daemon."""

from __future__ import annotations

from typing import Any

import click


@click.command("run", short_help="Run the daemon on a cluster.")
@click.option(
    "--kubeconfig", metavar="FILE", help="Kubeconfig; default $KUBECONFIG, the pod's account, ~/.kube/config."
)
@click.option("--context", metavar="NAME", help="Context of the kubeconfig.")
@click.option("--policies", metavar="DIR", help="Directory (or file) of policies; reloaded when it changes.")
@click.option("--config", metavar="FILE", help="Configuration file; environment DEFRAGD_* and flags go over it.")
@click.option("--api-address", metavar="HOST:PORT", help="API, UI, metrics and health (default 0.0.0.0:8083).")
@click.option("--webhook-address", metavar="HOST:PORT", help="HTTPS, /mutate only (default 0.0.0.0:8443).")
@click.option("--webhook-url", metavar="URL", help="Out of a cluster: register our webhook with this https address.")
@click.option("--namespace", metavar="NS", help="Namespace of our own objects (default kube-system).")
@click.option("--hami-metrics", metavar="URL|FILE", help="Metrics of HAMi's scheduler, to cross-check the books.")
@click.option("--no-leader-elect", is_flag=True, help="Act without a Lease; never with more than one replica.")
@click.option("--debug", is_flag=True, help="Log at debug level.")
def command(
    kubeconfig: str | None,
    context: str | None,
    policies: str | None,
    config: str | None,
    api_address: str | None,
    webhook_address: str | None,
    webhook_url: str | None,
    namespace: str | None,
    hami_metrics: str | None,
    no_leader_elect: bool,
    debug: bool,
) -> None:
    """Serve webhook, API and UI; with the lease, plan by the policies and carry placements out."""
    from defragd.daemon.serve import run
    from defragd.settings import load_settings

    webhook = {"address": webhook_address, "url": webhook_url}
    flags: dict[str, Any] = {
        "kubeconfig": kubeconfig,
        "context": context,
        "policies": policies,
        "namespace": namespace,
        "api": {"address": api_address} if api_address is not None else None,
        "webhook": {name: value for name, value in webhook.items() if value is not None} or None,
        "hami": {"metrics": hami_metrics} if hami_metrics is not None else None,
        "leader_elect": False if no_leader_elect else None,
        "debug": True if debug else None,
    }
    raise SystemExit(run(load_settings(config, flags), config=config, reread=lambda: load_settings(config, flags)))
