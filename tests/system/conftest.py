"""Fixtures of the system tests: the daemon's replicas on a clean cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from tests.ground.cluster import Cluster
from tests.ground.daemon import Daemon


@pytest.fixture
def start_daemon(cluster: Cluster) -> Iterator[Callable[..., Daemon]]:
    """``start_daemon([policy, ...], replicas=2)``: runs until the test ends."""
    with ExitStack() as stack:

        def start(policies: Sequence[Mapping[str, Any]] = (), **options: Any) -> Daemon:
            return stack.enter_context(Daemon(cluster.plane, policies, **options))

        yield start
