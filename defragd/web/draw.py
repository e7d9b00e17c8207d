"""Server-made SVG: device bars, the cluster at a glance, the move graph. Attributes only, no styles (strict CSP).

Colours are classes (see static/app.css), so light and dark need no second drawing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from markupsafe import Markup, escape

from defragd.core.plan import Move
from defragd.core.run import MoveState, Run
from defragd.web.cluster_view import ClusterView, DeviceView, NodeView
from defragd.web.resources import move_counts
from defragd.web.wording import gib, percent, short

BAR = 240
"""Width of a device bar in drawing units."""
MAX_GRAPH = 400
"""Moves drawn at most; the table has them all."""


def tone(view: DeviceView) -> str:
    """The class that colours a device: bad, idle, full, or p1 (little free) to p4 (much free but not idle)."""
    if view.state in ("unhealthy", "cordoned", "distrusted"):
        return "bad"
    if view.state == "empty":
        return "idle"
    if view.free < 0.005:
        return "full"
    return f"p{min(4, int(view.free * 4) + 1)}"


def device_words(view: DeviceView) -> str:
    """A device in one line, for tooltips and screen readers."""
    device = view.device
    pods = sum(1 for s in view.segments if not s.hold)
    state = {"empty": "idle", "partial": f"{percent(view.free)} free", "full": "full"}.get(view.state, view.state)
    words = f"gpu-{device.index} {device.uuid}: {state}, {pods} pod{'' if pods == 1 else 's'}"
    words += f", {gib(view.use.memory_mib)} of {gib(device.memory_mib)}, cores {view.use.cores} of {device.cores}"
    if view.device.distrusted:
        words += f" ({view.device.distrusted})"
    return words


def device_bar(view: DeviceView, moved: Collection[str] = (), freed: Collection[str] = ()) -> Markup:
    """One device as a bar: a piece per holder, free room to the right. Moved pods and freed devices stand out."""
    parts: list[str] = []
    x = 0.0
    for segment in view.segments:
        width = min(max(segment.share * BAR, 2.0), BAR - x)
        if width <= 0:
            break
        kind = "mv" if segment.holder in moved else "hold" if segment.hold else "pod"
        text = f"{segment.holder.replace('hold:', 'held for ')}: {gib(segment.memory_mib)}"
        text += f", cores {segment.cores}, {percent(segment.share)}"
        inner = max(width - 1.5, 1.0)
        parts.append(
            f'<rect class="{kind}" x="{x:.1f}" width="{inner:.1f}" height="16"><title>{escape(text)}</title></rect>'
        )
        x += width
    fresh = " freed" if view.device.uuid in freed else ""
    return Markup(
        f'<svg class="bar {tone(view)}{fresh}" viewBox="0 0 {BAR} 16" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="room" width="{BAR}" height="16"></rect>{"".join(parts)}</svg>'
    )


TONES = ("idle", "p4", "p3", "p2", "p1", "full", "bad")
CELL = 9
GAP = 4


def glance(view: ClusterView, *, width: int = 1160) -> Markup:
    """Every device as one small square, nodes side by side, pools below each other: thousands stay readable."""
    squares: dict[str, list[str]] = {name: [] for name in TONES}
    labels: list[str] = []
    groups: dict[str, list[NodeView]] = {}
    for node in view.with_devices:
        groups.setdefault(node.pool, []).append(node)
    count = sum(len(n.devices) for n in view.with_devices)
    cell, gap = (24, 14) if count <= 120 else (16, 10) if count <= 400 else (CELL, GAP)
    y = 0
    for pool in sorted(groups):
        labels.append(f'<text x="0" y="{y + 12}">{escape(pool)} · {len(groups[pool])} nodes</text>')
        y += 18
        x = 0
        for node in groups[pool]:
            size = len(node.devices) * cell
            if x and x + size > width:
                x, y = 0, y + cell + gap
            for item in node.devices:
                squares[tone(item)].append(f"M{x} {y}h{cell - 1}v{cell - 1}h-{cell - 1}z")
                x += cell
            x += gap
        y += cell + 14
    paths = "".join(f'<path class="{name}" d="{"".join(d)}"></path>' for name, d in squares.items() if d)
    counts = ", ".join(f"{len(d)} {_WORDS[name]}" for name, d in squares.items() if d)
    return Markup(
        f'<svg class="glance" viewBox="0 0 {width} {max(y, 20)}" role="img" aria-label="Devices: {escape(counts)}">'
        f"{paths}{''.join(labels)}</svg>"
    )


_WORDS = {
    "idle": "idle",
    "p4": "over 75% free",
    "p3": "50 to 75% free",
    "p2": "25 to 50% free",
    "p1": "under 25% free",
    "full": "full",
    "bad": "unusable",
}


def legend() -> list[tuple[str, str]]:
    """(class, words) of the colours, in order."""
    return [(name, _WORDS[name]) for name in TONES]


def progress(run: Run) -> Markup:
    """How far a run is: done, failed, refused, in flight of all planned moves."""
    counts = move_counts(run)
    flight = sum(1 for move in run.moves if move.state is MoveState.IN_FLIGHT)
    total = max(1, counts["planned"])
    parts, x = "", 0.0
    for name, number in (
        ("done", counts["done"]),
        ("failed", counts["failed"]),
        ("refused", counts["refused"]),
        ("inflight", flight),
    ):
        width = 100 * number / total
        parts += f'<rect class="{name}" x="{x:.2f}" width="{width:.2f}" height="8"></rect>' if number else ""
        x += width
    return Markup(
        '<svg class="progress" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" '
        f'aria-label="{counts["done"]} of {counts["planned"]} moves done">'
        f'<rect class="track" width="100" height="8"></rect>{parts}</svg>'
    )


def graph(moves: Sequence[Move], link: Callable[[Move], str], states: dict[str, str] | None = None) -> Markup:
    """The move graph: a column per wave, an arrow where one move waits for another."""
    shown = list(moves)[:MAX_GRAPH]
    waves = sorted({m.wave for m in shown})
    tallest = max((sum(1 for m in shown if m.wave == w) for w in waves), default=1)
    small = tallest > 40
    box_w, box_h, step_x, step_y = (14, 10, 70, 14) if small else (190, 34, 250, 44)
    place: dict[str, tuple[int, int]] = {}
    for column, wave in enumerate(waves):
        for row, move in enumerate(m for m in shown if m.wave == wave):
            place[move.id] = (column * step_x, 22 + row * step_y)
    width = (len(waves) - 1) * step_x + box_w + 2 if waves else 100
    height = 22 + tallest * step_y
    out = [f'<text class="wave" x="{place_x * step_x}" y="12">wave {w}</text>' for place_x, w in enumerate(waves)]
    for move in shown:
        x, y = place[move.id]
        for before in move.after:
            if before in place:
                bx, by = place[before]
                x1, y1, y2 = bx + box_w, by + box_h // 2, y + box_h // 2
                bend = max(20, (x - x1) // 2)
                out.append(f'<path class="edge" d="M{x1} {y1}C{x1 + bend} {y1} {x - bend} {y2} {x - 5} {y2}"></path>')
                out.append(f'<path class="tip" d="M{x} {y2}l-7 -3.5v7z"></path>')
    size, known = (box_w, box_h), states or {}
    out.extend(_box(m, place[m.id], size, small, link(m), known.get(m.id, "")) for m in shown)
    text = f"{len(moves)} moves in {len({m.wave for m in moves})} waves"
    return Markup(
        f'<svg class="graph" viewBox="-1 0 {width + 2} {height}" width="{width + 2}" height="{height}" role="img" '
        f'aria-label="{text}">{"".join(out)}</svg>'
    )


def _box(move: Move, at: tuple[int, int], size: tuple[int, int], small: bool, href: str, state: str) -> str:
    (x, y), (w, h) = at, size
    words = f"{move.id}: {move.pod} from {move.source.node} to {move.target.node}. {move.why}"
    out = f'<a href="{escape(href)}"><rect class="box {state.lower()}" x="{x}" y="{y}" width="{w}" height="{h}" rx="4">'
    out += f"<title>{escape(words)}</title></rect>"
    if not small:
        name = move.pod.partition("/")[2] or move.pod
        route = f"{short(move.source.node, 14)} → {short(move.target.node, 14)}"
        out += f'<text class="id" x="{x + 8}" y="{y + 14}">{escape(move.id)} {escape(short(name, 22))}</text>'
        out += f'<text class="to" x="{x + 8}" y="{y + 27}">{escape(route)}</text>'
    return out + "</a>"
