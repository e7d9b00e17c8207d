"""`defragd pause`; see `steer`."""

from defragd.cli.commands.steer import pause as command

__all__ = ["command"]
