"""The stand-in answers as HAMi's real scheduler did, in every recorded world of the NVIDIA kinds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ground.hami.judge import judge_files

TRACES = Path(__file__).resolve().parents[1] / "data" / "hami-traces"
NVIDIA_KINDS = (
    "admission", "config-defaults", "containers", "edges", "exclusive", "health-cordon", "mig", "numa", "nvidia-basic",
    "pod-states", "policies", "quota", "scaling", "selectors", "sequence", "topology",
)  # fmt: skip


@pytest.mark.parametrize("kind", NVIDIA_KINDS)
def test_stand_in_decides_as_the_real_scheduler(kind: str) -> None:
    tally = judge_files([TRACES / f"{kind}.jsonl.gz"])[kind]

    assert tally.right > 0
    assert not tally.wrong, "\n".join(tally.differences[:5])
