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
