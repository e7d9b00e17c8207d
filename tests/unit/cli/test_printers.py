"""Tables as kubectl prints them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from defragd.cli.printers import MAX_WARNINGS, Table, age, cell, warn


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(seconds=-5), "0s"),
        (timedelta(seconds=45), "45s"),
        (timedelta(minutes=3, seconds=5), "3m5s"),
        (timedelta(minutes=30, seconds=5), "30m"),
        (timedelta(hours=5, minutes=2), "5h2m"),
        (timedelta(hours=20, minutes=2), "20h"),
        (timedelta(days=5, hours=2), "5d2h"),
        (timedelta(days=50, hours=2), "50d"),
    ],
)
def test_ages(span, text):
    assert age(span) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "<none>"),
        ("", "<none>"),
        ([], "<none>"),
        (True, "true"),
        (0, "0"),
        (0.5, "0.500"),
        (["a", "b"], "a,b"),
        ("a\nb", "a b"),
    ],
)
def test_cells(value, text):
    assert cell(value) == text


def test_columns_line_up_and_wide_ones_are_left_out():
    table = Table(
        ["NAME", "N", "MORE"], [["a", "1", "x"], ["long-name", "22", "y"]], wide=frozenset({2}), right=frozenset({1})
    )
    assert table.render() == "NAME         N\na            1\nlong-name   22"
    assert table.render(wide=True, headers=False).splitlines() == ["a            1   x", "long-name   22   y"]
    assert Table(["A"]).render(headers=False) == ""


def test_warnings_are_bounded_and_each_is_said_once(capsys):
    warn(["same\nline"] * 5 + [f"w{i}" for i in range(30)])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == MAX_WARNINGS + 1
    assert lines[0] == "warning: same line" and lines[-1].startswith("warning: 11 more warnings")
