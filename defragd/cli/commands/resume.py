"""`defragd resume`; see `steer`."""

from defragd.cli.commands.steer import resume as command

__all__ = ["command"]
