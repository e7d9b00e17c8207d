"""Small worlds as snapshot files."""

from __future__ import annotations

import pytest
from cli_states import splinters, write_list


@pytest.fixture
def world(tmp_path):
    """Path of a snapshot file; see `cli_states.splinters`."""
    return write_list(tmp_path / "state.json.gz", splinters())
