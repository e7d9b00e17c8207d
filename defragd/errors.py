"""The error tree. Third-party exceptions never leave their adapter; a message is one line with place and mend.

DefragError
 ├ ConfigError            settings, flags or files are wrong                     exit 2
 │  └ PolicyError         a policy file is wrong: file, line, column, nearest name
 ├ SnapshotError          a snapshot file is not readable as a Kubernetes List   exit 2
 ├ CodecError             an annotation is not what HAMi writes
 └ ClusterError           the cluster cannot be read                            exit 3
    ├ Unreachable, Forbidden, MissingResource
    └ NotLeader           a write after the lease was lost (the fence)
"""

from __future__ import annotations


class DefragError(Exception):
    """Base; ``exit_code`` is what the command line ends with."""

    exit_code = 1


class ConfigError(DefragError):
    exit_code = 2


class PolicyError(ConfigError):
    pass


class SnapshotError(DefragError):
    exit_code = 2


class CodecError(DefragError):
    """An annotation is not what HAMi writes: ``key``, ``position`` (item or character) and a short ``excerpt``."""

    def __init__(self, key: str, problem: str, *, position: str = "", excerpt: str = "") -> None:
        self.key, self.problem, self.position, self.excerpt = key, problem, position, excerpt
        place = f" at {position}" if position else ""
        shown = f": {excerpt!r}" if excerpt else ""
        super().__init__(f"annotation {key}{place}: {problem}{shown}")


class ClusterError(DefragError):
    exit_code = 3


class Unreachable(ClusterError):
    pass


class Forbidden(ClusterError):
    pass


class MissingResource(ClusterError):
    """A resource type is not served (CRD not installed)."""


class NotLeader(ClusterError):
    pass
