"""What policy files are checked against in these tests: stand-ins for strategies and a fixed present."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from policy_stand_ins import stand_in

from defragd.policy.load import Context


@pytest.fixture(scope="session")
def context():
    names = ("best-fit", "gpu-drain", "node-drain", "make-room")
    return Context(strategies={name: stand_in(name) for name in names}, now=datetime(2026, 12, 1, tzinfo=UTC))
