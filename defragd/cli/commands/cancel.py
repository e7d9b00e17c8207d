"""`defragd cancel`; see `steer`."""

from defragd.cli.commands.steer import cancel as command

__all__ = ["command"]
