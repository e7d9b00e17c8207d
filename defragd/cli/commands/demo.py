"""`defragd demo`: the daemon on the embedded simulated cluster."""

from __future__ import annotations

import click


@click.command("demo", short_help="The whole daemon on a simulated cluster.")
@click.option("--once", is_flag=True, help="End when the first run has ended (exit code 0 when every move was done).")
@click.option("--address", default="", metavar="HOST:PORT", help="API and UI (default 127.0.0.1:8083, or a free port).")
@click.option("--speed", default=8.0, show_default=True, type=click.FloatRange(0.1, 20.0), help="Times real time.")
@click.option("--debug", is_flag=True, help="Log to standard error.")
def command(once: bool, address: str, speed: float, debug: bool) -> None:
    """Show a fragmented cluster, the plan, its moves as they happen, and the outcome. No Kubernetes needed."""
    from defragd.daemon.demo import run_demo

    raise SystemExit(run_demo(once=once, address=address, speed=speed, debug=debug))
