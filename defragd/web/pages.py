"""The UI: pages rendered on the server that work with scripts off, behind any path prefix (all URLs are relative)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from flask import Blueprint, Response, render_template, request

from defragd import __version__
from defragd.core.run import MoveState, Run, RunPhase
from defragd.web import draw
from defragd.web.actions import Actions
from defragd.web.api import created_key, explain
from defragd.web.cluster_view import ClusterView, ViewCache
from defragd.web.deps import ApiDeps, User
from defragd.web.health import run_checks
from defragd.web.paging import page, read_limit
from defragd.web.plan_view import draw_plan, read_moves
from defragd.web.problems import Problem
from defragd.web.resources import has_plan, move_counts
from defragd.web.security import check_token, form_token, keep_token
from defragd.web.wording import CAUSE_WORDS, MAKES_ROOM, STOPPED, age, gib, moment, percent, sentence, shape, short

NODES_PER_PAGE = 60
ROWS_PER_PAGE = 100
SHAPES = 12
DEVICES_PER_PAGE = 600
"""Drawn at most on one page of the map; a third of them on each side of a plan. About 0.7 kB each."""
PLAN_NODES = 40
MOVES_SHOWN = 200
OPEN_PLANS = frozenset({RunPhase.PLANNED, RunPhase.AWAITING_APPROVAL})
"""Runs whose plan still tells what moves would bring; others were carried out, wholly or in part."""

TONES = {
    "good": {"Completed", "Done", "Planned", "Held", "Auto"},
    "busy": {"Running", "InFlight", "Evicting", "AwaitingPod", "Binding", "Settling"},
    "wait": {"AwaitingApproval", "Paused", "Pending", "Waiting", "Approve"},
    "bad": {"Failed", "Aborted", "Expired"},
}
"""Badge colours by phase."""


def relative(path: str) -> str:
    """``path`` (without leading slash) from the page being served."""
    return "../" * (request.path.count("/") - 1) + path or "./"


def link(kind: str, name: str) -> str:
    """A relative URL to the page about an object: pod, node, device, run, plan."""
    where = {"run": "runs", "plan": "plans"}.get(kind, f"explain/{kind}")
    return relative(f"{where}/{quote(name, safe='/')}")


def _context(deps: ApiDeps) -> dict[str, Any]:
    now = deps.clock.now()
    return {
        "rel": relative,
        "link": link,
        "now": now,
        "age": lambda when: age(when, now),
        "moment": moment,
        "percent": percent,
        "gib": gib,
        "short": short,
        "shape": shape,
        "draw": draw,
        "stopped": STOPPED,
        "most": MOVES_SHOWN,
        "makes_room": MAKES_ROOM,
        "move_link": lambda move: f"#move-{quote(move.id)}",
        "badge": lambda word: next((tone for tone, words in TONES.items() if str(word) in words), "plain"),
        "counts": move_counts,
        "has_plan": has_plan,
        "deps": deps,
        "version": __version__,
        "can_write": deps.writes_enabled,
        "here": request.path.strip("/").split("/")[0],
    }


def show(deps: ApiDeps, template: str, *, status: int = 200, **values: Any) -> Response:
    """Render a page with a form token where writes are possible."""
    token = form_token(request)
    html = render_template(template, csrf=token, **_context(deps), **values)
    answer = Response(html, status=status, mimetype="text/html")
    if deps.writes_enabled:
        keep_token(answer, token)
    return answer


def render_error(deps: ApiDeps, problem: Problem) -> Response:
    """An error as a page, with the same reason code as the API's."""
    answer = show(deps, "error.html", status=problem.status, problem=problem)
    for name, value in problem.headers.items():
        answer.headers[name] = value
    return answer


def newest_first(runs: list[Run]) -> list[Run]:
    return sorted(runs, key=created_key, reverse=True)


def build_pages(deps: ApiDeps, views: ViewCache, actions: Actions) -> Blueprint:
    """The blueprint with every page."""
    pages = Blueprint("pages", __name__)
    _overview(pages, deps, views)
    _cluster(pages, deps, views)
    _plans(pages, deps, views)
    _tables(pages, deps)
    _explain(pages, deps, views)
    _forms(pages, deps, actions)
    return pages


def _overview(pages: Blueprint, deps: ApiDeps, views: ViewCache) -> None:
    @pages.get("/")
    def overview() -> Response:
        view, score = views.get(), deps.score()
        runs = newest_first(list(deps.runs.list()))
        newest = next((run for run in runs if has_plan(run)), None)
        plan = newest.plan if newest is not None and newest.phase in OPEN_PLANS else None
        starts = [(s.utc, policy, s) for policy in deps.policies() for s in policy.next_starts if s.allowed]
        return show(
            deps,
            "overview.html",
            view=view,
            score=score,
            sentence=sentence(score, plan) if score else "",
            causes=_causes(score.causes) if score else [],
            shapes=sorted(score.classes, key=lambda c: -c.weight)[:SHAPES] if score else [],
            after=_after_counts(plan),
            runs=runs[:6],
            policies=sorted(deps.policies(), key=lambda p: p.name)[:8],
            next_start=min(starts, key=lambda item: item[0], default=None),
            failing=[item for item in run_checks(deps.ready) if item[1]],
            problems=view.snapshot.problems[:20],
        )


def _causes(causes: Any) -> list[tuple[str, str, float, float]]:
    """(name, words, share, offset) of each cause, for a stacked bar."""
    out, offset = [], 0.0
    for name, words in CAUSE_WORDS.items():
        share = float(causes.get(name, 0.0))
        if share > 0:
            out.append((name, words, share, offset))
            offset += share
    return out


def _after_counts(plan: Any) -> dict[str, Any]:
    """Copies per shape after the newest plan, where it says so."""
    try:
        return {c["shape"]: c["fits"] for c in plan["fragmentation"]["after"]["classes"]}
    except (TypeError, KeyError):
        return {}


def _cluster(pages: Blueprint, deps: ApiDeps, views: ViewCache) -> None:
    @pages.get("/map")
    def device_map() -> Response:
        view = views.get()
        pool, text, state = (request.args.get(name, "") for name in ("pool", "q", "state"))
        nodes = [n for n in view.find_nodes(pool=pool, text=text) if not state or _has(n, state)]
        total, number = len(nodes), _page_number()
        widest = max((len(n.devices) for n in nodes), default=1)
        size = min(read_limit(request, NODES_PER_PAGE), max(1, DEVICES_PER_PAGE // max(1, widest)))
        shown = nodes[(number - 1) * size : number * size]
        return show(
            deps,
            "map.html",
            view=view,
            nodes=shown,
            total=total,
            number=number,
            last=max(1, -(-total // size)),
            columns=max((len(n.devices) for n in shown), default=0),
            pool=pool,
            text=text,
            state=state,
            query=_query(pool=pool, q=text, state=state),
        )


def _has(node: Any, state: str) -> bool:
    if state == "idle":
        return bool(node.idle)
    if state == "fragmented":
        return any(d.state == "partial" for d in node.devices)
    if state == "unusable":
        return node.state in ("unready", "unschedulable") or any(not d.device.usable for d in node.devices)
    return True


def _page_number() -> int:
    text = request.args.get("page", "1")
    return int(text) if text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= 99999 else 1


def _query(**values: str) -> str:
    return "".join(f"&{name}={quote(value)}" for name, value in values.items() if value)


def _plans(pages: Blueprint, deps: ApiDeps, views: ViewCache) -> None:
    @pages.get("/plans")
    def plans() -> Response:
        runs = [run for run in newest_first(list(deps.runs.list())) if has_plan(run)]
        return show(deps, "plans.html", runs=runs[:ROWS_PER_PAGE], more=len(runs) > ROWS_PER_PAGE)

    @pages.get("/plans/<name>")
    def plan(name: str) -> Response:
        run = deps.runs.get(name)
        if run is None or not has_plan(run):
            raise Problem(404, f"no plan {name[:120]!r}; see the list of plans", reason="PlanUnknown")
        return show(deps, "plan.html", run=run, plan=run.plan, **_picture(run, views.get()))

    @pages.get("/runs/<name>")
    def run(name: str) -> Response:
        found = deps.runs.get(name)
        if found is None:
            raise Problem(404, f"no run {name[:120]!r}; see the list of runs", reason="RunUnknown")
        moves = {move.id: move for move in read_moves(found.plan)}
        rows = [(state, moves.get(state.id)) for state in found.moves]
        states = {state.id: str(state.state) for state in found.moves}
        return show(deps, "run.html", run=found, rows=rows, moves=list(moves.values()), states=states)

    def _picture(run: Run, view: ClusterView) -> dict[str, Any]:
        moves = read_moves(run.plan)
        picture = draw_plan(view.snapshot, moves, deps.pools)
        done = {move.id for move in run.moves if move.state is MoveState.DONE}
        number = _page_number()
        widest = max((len(n.devices) for n in picture.before), default=1)
        size = min(PLAN_NODES, max(1, DEVICES_PER_PAGE // 3 // max(1, widest)))
        part = slice((number - 1) * size, number * size)
        return {
            "moves": moves,
            "picture": picture,
            "pairs": list(zip(picture.before[part], picture.after[part], strict=True)),
            "number": number,
            "last": max(1, -(-len(picture.before) // size)),
            "states": {move.id: str(move.state) for move in run.moves},
            "done": sum(1 for m in picture.left_out if m.id in done),
        }


def _tables(pages: Blueprint, deps: ApiDeps) -> None:
    @pages.get("/runs")
    def runs() -> Response:
        policy = request.args.get("policy", "")
        chosen = [run for run in deps.runs.list() if not policy or run.policy == policy]
        items, token = _page(chosen, created_key, newest=True)
        return show(deps, "runs.html", runs=items, token=token, policy=policy, query=_query(policy=policy))

    @pages.get("/placements")
    def placements() -> Response:
        phase = request.args.get("phase", "")
        chosen = [p for p in deps.placements.list() if not phase or str(p.status.phase) == phase]
        items, token = _page(chosen, lambda p: p.key)
        return show(deps, "placements.html", placements=items, token=token, phase=phase, query=_query(phase=phase))

    @pages.get("/policies")
    def policies() -> Response:
        items, token = _page(deps.policies(), lambda p: p.name)
        return show(deps, "policies.html", policies=items, token=token, query="")

    def _page(items: Any, key: Callable[[Any], str], *, newest: bool = False) -> tuple[list[Any], str | None]:
        return page(request, items, key, newest_first=newest)


def _explain(pages: Blueprint, deps: ApiDeps, views: ViewCache) -> None:
    @pages.get("/explain")
    def ask() -> Response:
        kind, name = request.args.get("kind", "pod"), request.args.get("name", "").strip().strip("/")
        policy = request.args.get("policy", "")
        if name and kind in ("pod", "node", "device"):
            query = f"?policy={quote(policy)}" if policy else ""
            return Response(status=303, headers={"Location": link(kind, name) + query})
        return show(deps, "explain.html", kind=kind, name=name, policy=policy, found=None, view=views.get())

    @pages.get("/explain/<any(pod, node, device):kind>/<path:name>")
    def answer(kind: str, name: str) -> Response:
        view, policy = views.get(), request.args.get("policy", "")
        nodes, device = _place(view, kind, name)
        known = nodes or (kind == "pod" and name in view.snapshot.pods)
        found: dict[str, Any] = {}
        note = ""
        try:
            found = explain(deps, kind, name, policy or None)
        except Problem as problem:
            if problem.status != 501 or not known:
                if problem.status == 501:
                    raise Problem(404, f"there is no {kind} {name[:200]!r}") from problem
                raise
            note = problem.detail
        if not nodes and found.get("name"):  # asked as NODE/gpu-I
            nodes, device = _place(view, kind, str(found["name"]))
        return show(
            deps, "explain.html", kind=kind, name=name, policy=policy, found=found, note=note, nodes=nodes,
            device=device, pod=view.snapshot.pods.get(name) if kind == "pod" else None, view=view,
        )  # fmt: skip


def _place(view: ClusterView, kind: str, name: str) -> tuple[list[Any], Any]:
    """The nodes to draw beside an explanation, and the device asked for."""
    if kind == "node":
        return ([view.by_name[name]] if name in view.by_name else []), None
    if kind == "device":
        known = view.snapshot.devices.get(name)
        node = view.by_name.get(known.node) if known else None
        if node is None:
            return [], None
        return [node], next((d for d in node.devices if d.device.uuid == name), None)
    pod = view.snapshot.pods.get(name)
    node = view.by_name.get(pod.booked_node or pod.node) if pod else None
    return ([node] if node else []), None


def _forms(pages: Blueprint, deps: ApiDeps, actions: Actions) -> None:
    def bearer() -> str:
        return request.form.get("token", "").strip()

    def who(action: str, resource: str, name: str) -> User | Response:
        """The user; or, where it is not known who asks, a page that asks for a token and repeats the form."""
        check_token(request)
        try:
            return actions.authorize(request, action, resource, name, bearer=bearer())
        except Problem as problem:
            if problem.status != 401:
                raise
            return show(deps, "token.html", status=401, problem=problem, action=action, name=name)

    @pages.post("/runs/<name>/<any(approve, pause, resume, cancel):action>")
    def steer(name: str, action: str) -> Response:
        user = who(action, "runs", name)
        if not isinstance(user, User):
            return user
        actions.steer(name, action, user)
        return Response(status=303, headers={"Location": f"../{quote(name)}"})

    @pages.post("/policies/<name>/run")
    def run_policy(name: str) -> Response:
        user = who("run", "policies", name)
        if not isinstance(user, User):
            return user
        run = actions.run_policy(name, user)
        return Response(status=303, headers={"Location": f"../../runs/{quote(run.name)}"})
