"""Words and pictures: the sentence, ages, sizes, colours of devices, the move graph."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from defragd.core.plan import ClassScore, Score
from defragd.web import draw
from defragd.web.cluster_view import build_view
from defragd.web.draw import device_words, glance, graph, tone
from defragd.web.wording import age, gib, percent, sentence, shape, short
from tests.support.web_fakes import build_score
from tests.support.web_world import NOW, build_plan, build_snapshot


@pytest.mark.parametrize(
    ("loss", "idle", "want"),
    [(0.69, 931.68, "could take 3.2 times as many"), (1.0, 5.0, "hardly one such request fits"),
     (0.0, 5.0, "take about all that they could"), (0.3, 0.0, "fragmentation is 0")],
)  # fmt: skip
def test_the_sentence(loss: float, idle: float, want: str) -> None:
    score = Score(
        loss, 0.2, 1, 1, idle, {"host": 0.2, "type": 0.001}, (ClassScore("1 device, 50 cores, 50 %, 4 CPU", 1.0, 1, 3),)
    )
    text = sentence(score)
    assert want in text and "4 CPU" not in text and "device type" not in text


@pytest.mark.parametrize(
    ("label", "want"),
    [
        ("1 device, 0 cores, 10240 MiB, 0.5 CPU, 2048 MiB host", ("1 device: 10 GiB", "0.5 CPU, 2.0 GiB host")),
        ("8 devices, 100 cores, 100 %, 96 CPU, 512 MiB host", ("8 whole devices", "96 CPU, 512 MiB host")),
        ("1 device, 47 cores, 47 %, A30, 8 CPU", ("1 device: 47 %, 47 cores", "A30, 8 CPU")),
        ("anything else", ("anything else", "")),
    ],
)
def test_shapes_for_people(label: str, want: tuple[str, str]) -> None:
    assert shape(label) == want


def test_the_sentence_speaks_of_the_plan_only_when_it_has_moves() -> None:
    frag = {"fragmentation": {"after": {"L": 0.4}}}
    assert sentence(build_score(), {"moves": [1, 2], **frag}).endswith("2 moves would bring it to 0.40.")
    for plan in (None, {}, {"moves": [], **frag}, {"moves": [1], "fragmentation": None}):
        assert "would bring" not in sentence(build_score(), plan)


@pytest.mark.parametrize(
    ("seconds", "want"),
    [(0, "0s"), (59, "59s"), (61, "1m1s"), (3600, "1h"), (7500, "2h5m"), (-7500, "2h5m"), (864000, "10d")],
)
def test_ages(seconds: float, want: str) -> None:
    from datetime import timedelta

    assert age(NOW - timedelta(seconds=seconds), NOW) == want and age(None, NOW) == "-"


def test_figures() -> None:
    assert [percent(x) for x in (0, 0.001, 0.5, 0.999, 1)] == ["0%", "<1%", "50%", "99%", "100%"]
    assert [gib(x) for x in (512, 1536, 81920)] == ["512 MiB", "1.5 GiB", "80 GiB"]
    assert short("a" * 50, 11) == "aaaaa…aaaaa" and short("abc", 11) == "abc"


def test_tones_and_words_of_devices() -> None:
    view = build_view(build_snapshot())
    tones = {d.device.uuid: tone(d) for n in view.nodes for d in n.devices}
    assert set(tones.values()) <= {"idle", "full", "bad", "p1", "p2", "p3", "p4"} and len(set(tones.values())) == 7
    first = view.by_name["gpu-node-01"].devices[1]
    assert device_words(first).endswith("full, 1 pod, 80 GiB of 80 GiB, cores 100 of 100")
    assert str(glance(view)).count("M") >= 48


def test_large_graphs_stay_small() -> None:
    one = build_plan(build_snapshot()).moves[0]
    moves = [replace(one, id=f"m{k}", wave=1 + k // 100) for k in range(1000)]
    text = str(graph(moves, lambda m: f"#{m.id}"))
    assert text.count("<rect") == 400 and len(text) < 150_000
    assert str(graph([], lambda m: "")).count("<rect") == 0


# -- colours -----------------------------------------------------------------------------------------------------------

SEES = {
    "all colours": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "no red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "no green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
}
"""Linear RGB as people without one kind of cone see it (Machado, Oliveira, Fernandes 2009)."""


def lab(colour: str, sees: str) -> tuple[float, float, float]:
    """CIELAB of #rrggbb."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    r, g, b = (sum(k * c for k, c in zip(row, linear, strict=True)) for row in SEES[sees])
    x, y, z = (
        max(0.0, total) ** (1 / 3)
        for total in (
            (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047,
            0.2126 * r + 0.7152 * g + 0.0722 * b,
            (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883,
        )
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("sees", SEES)
@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_the_colours_of_the_legend_can_be_told_apart(theme: int, sees: str) -> None:
    text = (Path(draw.__file__).parent / "static" / "app.css").read_text()
    names = [*("unusable" if tone_ == "bad" else tone_ for tone_ in draw.TONES), "mv"]
    colours = {name: re.findall(rf"--{name}: (#[0-9a-f]{{6}});", text)[theme] for name in names}
    near = {
        (one, other): math.dist(lab(colours[one], sees), lab(colours[other], sees))
        for one, other in itertools.combinations(names, 2)
    }
    assert min(near.values()) > 18, min(near, key=near.__getitem__)
