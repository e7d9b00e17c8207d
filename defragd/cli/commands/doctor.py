"""`defragd doctor`: looks the installation over and says what to mend."""

from __future__ import annotations

import click

from defragd.cli.printers import emit, no_headers_option, output_option, paint


@click.command("doctor", short_help="Look over cluster, HAMi, rights, webhook; say what to mend.")
@click.option("--kubeconfig", metavar="FILE", help="Kubeconfig of the cluster.")
@click.option("--context", metavar="NAME", help="Context of the kubeconfig.")
@click.option(
    "-n", "--namespace", default="kube-system", show_default=True, metavar="NS", help="Where defragd is installed."
)
@click.option("--account", default="gpu-descheduler", show_default=True, metavar="NAME", help="Its ServiceAccount.")
@click.option("--hami-namespace", default="kube-system", show_default=True, metavar="NS", help="Where HAMi is.")
@click.option("--hami-metrics", metavar="URL|FILE", help="Metrics of HAMi's scheduler, to compare the books with.")
@output_option("table", "json", "yaml")
@no_headers_option
def command(
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    account: str,
    hami_namespace: str,
    hami_metrics: str | None,
    output: str,
    no_headers: bool,
) -> int:
    """Look the installation over; changes nothing. Exit code 1 when a check fails."""
    from defragd.cli.checkup import FAIL, OK, UNKNOWN, Patient, examine
    from defragd.kube.client import Client

    client = Client.from_kubeconfig(kubeconfig, context)
    try:
        found = examine(Patient(client, namespace, account, hami_namespace, hami_metrics or ""))
    finally:
        client.close()
    items = [{"check": f.check, "status": f.status, "detail": f.detail, "mend": f.mend} for f in found]

    def text(_wide: bool) -> str:
        lines = [] if no_headers else ["CHECK      STATUS    FINDING"]
        for item in found:
            lines.append(f"{item.check:<10} {item.status:<9} {item.detail}")
            if item.mend and item.status != OK:
                lines.append(f"{'':<20} -> {item.mend}")
        counts = {status: sum(1 for f in found if f.status == status) for status in ("fail", "warn", UNKNOWN)}
        lines.append(", ".join(f"{count} {status}" for status, count in counts.items() if count) or "all well")
        return paint("\n".join(lines))

    emit({"items": items}, output, text=text)
    return int(any(item.status == FAIL for item in found))
