"""`defragd approve`; see `steer`."""

from defragd.cli.commands.steer import approve as command

__all__ = ["command"]
