"""What simulated days came to, as a plain value, and as one HTML page with plots that needs nothing from outside."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from defragd.sim.churn import DAY
from defragd.sim.days import Outcome

COLOURS = ("#8a8f98", "#1667c7", "#c7621a", "#2a8f4d", "#8e44ad", "#b8860b")
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 860, 240, 56, 30, 16
MOST_WORKLOADS = 20


def outcome_value(name: str, out: Outcome, *, down_seconds: float) -> dict[str, Any]:
    """One arm of the comparison. ``down_seconds``: how long a replica is away per move."""
    moved = out.moves_of.most_common()
    first, last = (out.samples[0], out.samples[-1]) if out.samples else (None, None)
    return {
        "name": name,
        "fragmentation": {
            "first": round(first.loss, 4) if first else None,
            "last": round(last.loss, 4) if last else None,
            "mean": round(out.mean_loss, 4),
        },
        "devices": {
            "arrived": round(out.arrived, 2),
            "admitted": round(out.admitted, 2),
            "hoursWaited": round(out.waited, 1),
            "waitingAtEnd": round(last.waiting, 2) if last else 0.0,
            "idleAtEnd": last.idle_devices if last else 0,
        },
        "idleNodesAtEnd": last.idle_nodes if last else 0,
        "moves": {"done": out.moves, "lost": out.lost, "runs": out.runs},
        "disruption": {
            "workloads": len(moved),
            "medianMoves": median([n for _, n in moved]) if moved else 0,
            "mostMoves": moved[0][1] if moved else 0,
            "secondsDownPerMove": down_seconds,
            "top": [
                {"workload": key, "moves": n, "secondsDown": round(n * down_seconds)}
                for key, n in moved[:MOST_WORKLOADS]
            ],
        },
        "policies": {policy: dict(sorted(counts.items())) for policy, counts in out.by_policy.items()},
        "samples": [
            {
                "day": round(s.at / DAY, 3),
                "L": round(s.loss, 4),
                "idleDevices": s.idle_devices,
                "idleNodes": s.idle_nodes,
                "pods": s.pods,
                "pendingPods": s.pending,
                "pendingDevices": round(s.waiting, 2),
            }
            for s in out.samples
        ],
    }


def html_page(value: Mapping[str, Any]) -> str:
    """The result of `defragd simulate -o json` as a page: figures, plots (SVG), the most disturbed workloads."""
    arms = value["arms"]
    title = f"defragd simulate: {value['days']:g} days, {value['nodes']} nodes, {value['devices']} devices"
    plots = "".join(
        f"<h2>{html.escape(head)}</h2>{_plot(arms, key, unit)}"
        for head, key, unit in (
            ("Fragmentation L (lower is better)", "L", ""),
            ("Devices' worth of pods that wait", "pendingDevices", "devices"),
            ("Devices wholly idle", "idleDevices", "devices"),
        )
    )
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in value["notes"])
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style><main><h1>{html.escape(title)}</h1>"
        f"{_figures(arms)}{plots}<h2>Most disturbed workloads</h2>{_workloads(arms)}<h2>Notes</h2>"
        f"<ul>{notes}</ul></main></html>\n"
    )


_STYLE = (
    ":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;margin:0}main{max-width:900px;margin:auto;"
    "padding:1rem}table{border-collapse:collapse;width:100%}th,td{padding:.3rem .6rem;text-align:right;border-bottom:"
    "1px solid #8884}th:first-child,td:first-child{text-align:left}svg{width:100%;height:auto}svg text{font:11px "
    "system-ui;fill:currentColor}h1{font-size:1.3rem}h2{font-size:1.05rem;margin-top:1.6rem}"
)


def _figures(arms: Sequence[Mapping[str, Any]]) -> str:
    rows: list[tuple[str, list[str]]] = [
        ("L, mean", [f"{a['fragmentation']['mean']:.3f}" for a in arms]),
        ("L, at the end", [f"{a['fragmentation']['last'] or 0:.3f}" for a in arms]),
        ("devices admitted", [f"{a['devices']['admitted']:.1f} of {a['devices']['arrived']:.1f}" for a in arms]),
        ("device-hours of waiting", [f"{a['devices']['hoursWaited']:.0f}" for a in arms]),
        ("moves (lost)", [f"{a['moves']['done']} ({a['moves']['lost']})" for a in arms]),
        ("most moves of one workload", [str(a["disruption"]["mostMoves"]) for a in arms]),
    ]
    head = "".join(
        f"<th><span style='color:{COLOURS[i % len(COLOURS)]}'>&#9632;</span> {html.escape(a['name'])}"
        for i, a in enumerate(arms)
    )
    body = "".join(f"<tr><td>{name}" + "".join(f"<td>{html.escape(v)}" for v in values) for name, values in rows)
    return f"<table><tr><th>{head}{body}</table>"


def _workloads(arms: Sequence[Mapping[str, Any]]) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(item['workload'])}<td>{html.escape(arm['name'])}<td>{item['moves']}"
        f"<td>{item['secondsDown']}"
        for arm in arms
        for item in arm["disruption"]["top"][:10]
    )
    return (
        f"<table><tr><th>workload<th>with<th>moves<th>seconds down{rows}</table>" if rows else "<p>None was moved.</p>"
    )


def _plot(arms: Sequence[Mapping[str, Any]], key: str, unit: str) -> str:
    points = [[(s["day"], s[key]) for s in arm["samples"]] for arm in arms]
    far = max((x for line in points for x, _ in line), default=1.0) or 1.0
    high = max((y for line in points for _, y in line), default=1.0) or 1.0
    low = min((y for line in points for _, y in line), default=0.0) if key == "L" else 0.0
    low = min(low, high * 0.9)
    wide, tall = WIDTH - LEFT - 10, HEIGHT - TOP - BOTTOM

    def at(x: float, y: float) -> str:
        return f"{LEFT + x / far * wide:.1f},{TOP + (1 - (y - low) / (high - low)) * tall:.1f}"

    lines = "".join(
        f"<polyline fill='none' stroke='{COLOURS[i % len(COLOURS)]}' stroke-width='1.8' "
        f"points='{' '.join(at(x, y) for x, y in line)}'><title>{html.escape(arms[i]['name'])}</title></polyline>"
        for i, line in enumerate(points)
    )
    grid = ""
    for step in range(5):
        y = low + (high - low) * step / 4
        height = TOP + (1 - step / 4) * tall
        text = f"{y:.3f}" if key == "L" else f"{y:.0f}"
        grid += f"<line x1='{LEFT}' x2='{WIDTH - 10}' y1='{height:.1f}' y2='{height:.1f}' stroke='#8883'/>"
        grid += f"<text x='{LEFT - 6}' y='{height + 4:.1f}' text-anchor='end'>{text}</text>"
    for step in range(6):
        x = LEFT + wide * step / 5
        grid += f"<text x='{x:.0f}' y='{HEIGHT - 8}' text-anchor='middle'>{far * step / 5:.3g}</text>"
    label = f"<text x='{WIDTH - 10}' y='{TOP - 4}' text-anchor='end'>{unit} over days</text>"
    return f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img'>{grid}{label}{lines}</svg>"
