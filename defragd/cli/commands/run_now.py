"""`defragd run-now`; see `steer`."""

from defragd.cli.commands.steer import run_now as command

__all__ = ["command"]
