"""Quantities: exact, and in the API server's canonical form."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defragd.hami.quantity import canonical, milli, parse, units, whole


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4k", 4000),
        ("4000", 4000),
        ("16Gi", 17179869184),
        ("1e3", 1000),
        ("2E", 2 * 10**18),
        ("1.5k", 1500),
        ("0", 0),
        ("-1", -1),
        (3, 3),
    ],
)
def test_whole_numbers(text, value) -> None:
    assert whole(text) == value


@pytest.mark.parametrize(
    "text", ["", "500m", "1.5", "abc", "4 k", "4K", "1Mib", None, True, "10E", "--1", "1e", "e3", "٣"]
)
def test_no_whole_number(text) -> None:
    assert whole(text) is None


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("4000", "4k"),
        ("12000", "12k"),
        ("1000000", "1M"),
        ("16384Mi", "16Gi"),
        ("6000m", "6"),
        ("0.5", "500m"),
        ("1024Ki", "1Mi"),
        ("512", "512"),
        ("1500", "1500"),
        ("100k", "100k"),
        ("0Gi", "0"),
        ("1.5Gi", "1536Mi"),
        ("1e3", "1e3"),
        ("no quantity", "no quantity"),
    ],
)
def test_canonical_form(text, stored) -> None:
    assert canonical(text) == stored


def test_host_amounts_round_up() -> None:
    assert milli("100m") == 100
    assert milli("1") == 1000
    assert milli("0.0001") == 1
    assert units("128974848") == 128974848
    assert units("1.5") == 2
    assert units(None) == 0
    assert units("garbage") == 0


@given(st.integers(-(10**15), 10**15))
def test_canonical_keeps_the_value(number) -> None:
    assert parse(canonical(number)) == number
    assert canonical(canonical(number)) == canonical(number)


@given(st.text(max_size=40))
def test_any_text_is_a_value_or_none(text) -> None:
    assert parse(text) is None or isinstance(parse(text), Fraction)
    assert whole(text) is None or isinstance(whole(text), int)
    assert isinstance(canonical(text), str)
    assert units(text) == 0 or parse(text) is not None
