"""The support table is what the small worlds show, and says what must not get lost."""

from __future__ import annotations

import pytest

from tests.support_table import CASES, VERSIONS, build, cell, main, version_told

BY_TITLE = {case.title: case for case in CASES}


def test_the_file_says_what_the_tests_find() -> None:
    assert main(["--check"]) == 0


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_every_vendor_is_read_and_scored_in_every_version_that_has_it(case) -> None:
    for version in VERSIONS:
        assert cell(version, case)[:2] in ("RS", "-"), version


def test_what_can_be_pinned_can_be_drained() -> None:
    last = {case.title: cell(VERSIONS[-1], case) for case in CASES}
    fixed = {"MetaX, whole", "Enflame, whole", "AWS Neuron"}
    assert {title for title, found in last.items() if "P" not in found} == fixed
    assert {title for title, found in last.items() if "D" not in found} == fixed | {"NVIDIA, MIG"}


@pytest.mark.parametrize(
    ("version", "told"), [("2.5", "<=2.7"), ("2.7", "<=2.7"), ("2.8", ">=2.8"), ("2.9", ">=2.8"), ("2.10", ">=2.8")]
)
def test_versions_are_told_by_what_they_write(version, told) -> None:
    assert version_told(version, BY_TITLE["NVIDIA"]) == told


def test_old_slices_are_read_as_devices_and_named() -> None:
    snapshot = build("2.9", BY_TITLE["NVIDIA, MIG"]).snapshot
    assert "written by HAMi 2.9 or older" in snapshot.pods["team/p"].problem
    assert [use.slots for use in snapshot.usage("n1").values()] == [1, 0]
