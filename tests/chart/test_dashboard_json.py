"""The dashboard by the rules of Grafana's dashboard linter, and equal to what the code makes."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.chart import dashboard

FILE = Path(__file__).parents[2] / "chart" / "files" / "dashboard.json"
BOARD: dict[str, Any] = json.loads(FILE.read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
TARGETS = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]


def test_the_committed_file_is_what_the_code_makes() -> None:
    assert FILE.read_text() == dashboard.text()


def test_fixed_identity_and_variables() -> None:
    assert (BOARD["uid"], BOARD["editable"]) == ("defragd", False)
    variables = {item["name"]: item for item in BOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "job", "instance"]
    assert variables["datasource"]["type"] == "datasource" and variables["datasource"]["query"] == "prometheus"
    for name in ("job", "instance"):
        item = variables[name]
        assert item["multi"] and item["includeAll"] and item["allValue"] == ".+" and item["refresh"] == 2
        assert item["datasource"]["uid"] == "${datasource}"


def test_rows_ask_the_questions_in_order() -> None:
    assert [panel["title"] for panel in BOARD["panels"] if panel["type"] == "row"] == [
        "Is it healthy?", "How fragmented are we?", "What did it do, and what did it gain?", "What did it cost?",
        "What would it do?",
    ]  # fmt: skip


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_every_panel_says_what_it_is(panel: dict[str, Any]) -> None:
    assert panel["title"] and panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"]["uid"] == "${datasource}"
    assert panel["targets"]


@pytest.mark.parametrize(("title", "target"), TARGETS, ids=[f"{t}-{q['refId']}" for t, q in TARGETS])
def test_queries_follow_the_rules(title: str, target: dict[str, Any]) -> None:
    expr = target["expr"]
    assert target["datasource"]["uid"] == "${datasource}"
    for metric, selector in re.findall(r"([a-z_]+)(\{[^}]*\})", expr):
        assert 'job=~"$job"' in selector and 'instance=~"$instance"' in selector, metric
    metrics = re.findall(r"\b(?:defragd|process)_[a-z_]+", expr)
    assert len(metrics) == len(re.findall(r"\{[^}]*\}", expr)), "every metric has its selector"
    for name in metrics:
        if name.endswith(("_total", "_bucket")):
            assert re.search(rf"(rate|increase)\({name}\{{", expr), f"{name} is a counter"
    for window in re.findall(r"\[([^\]]+)\]", expr):
        assert window in ("$__rate_interval", "$__range")
    assert expr.count("(") == expr.count(")")


def test_panels_do_not_overlap_and_fit_the_width() -> None:
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    boxes = [(p["title"], p["gridPos"]) for p in BOARD["panels"]]
    assert all(box["x"] + box["w"] <= dashboard.WIDTH for _, box in boxes)
    for (one, a), (two, b) in combinations(boxes, 2):
        apart = (
            a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
            or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        )  # fmt: skip
        assert apart, (one, two)


def test_titles_are_unique() -> None:
    titles = [panel["title"] for panel in PANELS]
    assert len(set(titles)) == len(titles)
