"""The JSON API under /api/v1: reads of cluster, placements, policies, plans, runs; explain; the few writes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from flask import Blueprint, Response, request

from defragd.core.run import Run
from defragd.errors import ConfigError, DefragError
from defragd.hami.version import shortcomings
from defragd.web.actions import Actions, place_of
from defragd.web.cluster_view import ViewCache
from defragd.web.deps import ApiDeps
from defragd.web.openapi import document
from defragd.web.paging import page, read_number, respond
from defragd.web.problems import Problem
from defragd.web.resources import (
    fragmentation_json,
    has_plan,
    node_json,
    placement_json,
    plan_json,
    policy_json,
    problem_json,
    run_detail_json,
    run_json,
    stamp,
    summary_json,
)
from defragd.web.security import FORM_TYPES, refuse_cross_site

PREFIX = "/api/v1"
MAX_PROBLEMS = 200
MAX_WAITERS = 3
"""Long polls that may hold a worker thread at a time; a further one is answered at once."""
MAX_WAIT_SECONDS = 25


def build_api(deps: ApiDeps, views: ViewCache, actions: Actions) -> Blueprint:
    """The blueprint with every route of the API; see `web.openapi` for the contract."""
    api = Blueprint("api", __name__)
    _cluster(api, deps, views)
    _lists(api, deps)
    _explain(api, deps)
    _writes(api, actions)

    @api.get("/openapi.json")
    def openapi() -> Response:
        return respond(request, document())

    return api


def created_key(run: Run) -> str:
    """Orders runs by when they were made, then by name."""
    when = run.created or datetime.fromtimestamp(0, UTC)
    return f"{when.timestamp():017.3f}/{run.name}"


def _as_of(deps: ApiDeps) -> str | None:
    return stamp(deps.clock.now())


def _cluster(api: Blueprint, deps: ApiDeps, views: ViewCache) -> None:
    @api.get(f"{PREFIX}/cluster-info")
    def cluster_info() -> Response:
        view = views.get()
        pool, text = request.args.get("pool", ""), request.args.get("q", "")
        chosen = view.find_nodes(pool=pool, text=text) if pool or text else view.nodes
        nodes, token = page(request, chosen, lambda item: item.node.name)
        body: dict[str, Any] = {
            "synced": deps.reader.synced(),
            "ageSeconds": round(deps.reader.age_seconds(), 1),
            "leader": deps.leadership.holder() or None,
            "hami": {
                "version": view.snapshot.hami_version,
                "shortcomings": list(shortcomings(view.snapshot.hami_version)),
            },
            "fragmentation": fragmentation_json(deps.score()),
            "fragmentationByPool": {name: fragmentation_json(s) for name, s in deps.pool_scores().items()},
            "summary": summary_json(view.summary),
            "pools": {name: summary_json(item) for name, item in view.pools.items()},
            "pendingPods": len(view.pending),
            "holds": [
                {"placement": h.placement, "node": h.node, "devices": [a.uuid for a in h.allocations]}
                for h in view.snapshot.holds
            ],
            "problems": [problem_json(p) for p in view.snapshot.problems[:MAX_PROBLEMS]],
            "problemCount": len(view.snapshot.problems),
            "nodes": [node_json(item) for item in nodes],
            "nextPageToken": token,
        }
        tag_free = {key: value for key, value in body.items() if key != "ageSeconds"}
        as_of = {"time": stamp(view.as_of), "ageSeconds": body["ageSeconds"]}
        return respond(request, {**tag_free, "asOf": as_of})

    waiters = threading.BoundedSemaphore(MAX_WAITERS)

    @api.get(f"{PREFIX}/changes")
    def changes() -> Response:
        after = read_number(request, "after", 0, 2**63)
        patience = read_number(request, "timeout", 0, MAX_WAIT_SECONDS)
        version = deps.reader.version()
        if version <= after and patience and waiters.acquire(blocking=False):
            try:
                version = deps.reader.wait(after, float(patience))
            finally:
                waiters.release()
        return respond(request, {"version": version, "changed": version > after, "asOf": _as_of(deps)})

    @api.get(f"{PREFIX}/settings")
    def settings() -> Response:
        return respond(request, {"settings": dict(deps.settings), "asOf": _as_of(deps)})


def _lists(api: Blueprint, deps: ApiDeps) -> None:
    def envelope(items: list[Any], token: str | None) -> Response:
        return respond(request, {"items": items, "nextPageToken": token, "asOf": _as_of(deps)})

    @api.get(f"{PREFIX}/placements")
    def placements() -> Response:
        namespace, phase = request.args.get("namespace"), request.args.get("phase")
        chosen = [
            p
            for p in deps.placements.list()
            if (not namespace or p.namespace == namespace) and (not phase or str(p.status.phase) == phase)
        ]
        items, token = page(request, chosen, lambda p: p.key)
        return envelope([placement_json(item) for item in items], token)

    @api.get(f"{PREFIX}/placements/<namespace>/<name>")
    def placement(namespace: str, name: str) -> Response:
        found = deps.placements.get(namespace, name)
        if found is None:
            raise Problem(404, f"no placement {namespace}/{name}"[:200], reason="PlacementUnknown")
        return respond(request, placement_json(found))

    @api.get(f"{PREFIX}/policies")
    def policies() -> Response:
        items, token = page(request, deps.policies(), lambda p: p.name)
        return envelope([policy_json(item) for item in items], token)

    @api.get(f"{PREFIX}/policies/<name>")
    def policy(name: str) -> Response:
        for item in deps.policies():
            if item.name == name:
                return respond(request, policy_json(item))
        raise Problem(404, f"no policy {name[:120]!r}; see {PREFIX}/policies", reason="PolicyUnknown")

    def chosen_runs() -> list[Run]:
        policy, phase = request.args.get("policy"), request.args.get("phase")
        return [
            run
            for run in deps.runs.list()
            if (not policy or run.policy == policy) and (not phase or str(run.phase) == phase)
        ]

    @api.get(f"{PREFIX}/plans")
    def plans() -> Response:
        items, token = page(request, [r for r in chosen_runs() if has_plan(r)], created_key, newest_first=True)
        return envelope([plan_json(item) for item in items], token)

    @api.get(f"{PREFIX}/runs")
    def runs() -> Response:
        items, token = page(request, chosen_runs(), created_key, newest_first=True)
        return envelope([run_json(item) for item in items], token)

    @api.get(f"{PREFIX}/plans/<name>")
    def plan(name: str) -> Response:
        run = deps.runs.get(name)
        found = plan_json(run) if run else None
        if found is None:
            raise Problem(404, f"no plan {name[:120]!r}; see {PREFIX}/plans", reason="PlanUnknown")
        return respond(request, found)

    @api.get(f"{PREFIX}/runs/<name>")
    def run(name: str) -> Response:
        found = deps.runs.get(name)
        if found is None:
            raise Problem(404, f"no run {name[:120]!r}; see {PREFIX}/runs", reason="RunUnknown")
        return respond(request, run_detail_json(found))


def _explain(api: Blueprint, deps: ApiDeps) -> None:
    def answer(kind: str, name: str) -> Response:
        found = explain(deps, kind, name, request.args.get("policy") or None)
        return respond(request, {**found, "asOf": _as_of(deps)})

    @api.get(f"{PREFIX}/explain/pod/<namespace>/<name>")
    def explain_pod(namespace: str, name: str) -> Response:
        return answer("pod", f"{namespace}/{name}")

    @api.get(f"{PREFIX}/explain/node/<name>")
    def explain_node(name: str) -> Response:
        return answer("node", name)

    @api.get(f"{PREFIX}/explain/device/<path:uuid>")
    def explain_device(uuid: str) -> Response:
        return answer("device", uuid)


def explain(deps: ApiDeps, kind: str, name: str, policy: str | None) -> dict[str, Any]:
    """The explanation of one object. Raises Problem 404 for an unknown one, 400 for bad input, 501 when not offered."""
    if deps.explain is None:
        raise Problem(501, "this daemon does not explain", reason="NotOffered")
    try:
        found = deps.explain(kind, name, policy)
    except ConfigError as error:
        raise Problem(400, str(error)) from error
    except DefragError as error:
        raise Problem(503, str(error), reason="ClusterError") from error
    if found is None:
        raise Problem(404, f"there is no {kind} {name[:200]!r}", reason=f"{kind.capitalize()}Unknown")
    return dict(found)


def _writes(api: Blueprint, actions: Actions) -> None:
    @api.post(f"{PREFIX}/runs/<name>:<action>")
    def steer(name: str, action: str) -> Response:
        return _write(action, "runs", name, lambda user: actions.steer(name, action, user), 200)

    @api.post(f"{PREFIX}/policies/<name>:run")
    def run_policy(name: str) -> Response:
        return _write("run", "policies", name, lambda user: actions.run_policy(name, user), 202)

    @api.post(f"{PREFIX}/placements")
    def create_placement() -> Response:
        body = _body()
        namespace, name = place_of(body)
        user = actions.authorize(request, "create", "placements", name, namespace=namespace)
        return respond(request, dict(actions.create_placement(body, user)), status=201)

    def _body() -> dict[str, Any]:
        refuse_cross_site(request)
        if request.mimetype in FORM_TYPES:
            raise Problem(415, "send application/json or no body; forms are refused here")
        if not request.get_data():
            return {}
        body = request.get_json(silent=True, force=True)
        if not isinstance(body, dict):
            raise Problem(400, "the body, if any, must be a JSON object", reason="BadBody")
        return body

    def _write(verb: str, resource: str, name: str, work: Callable[[Any], Run], status: int) -> Response:
        _body()
        user = actions.authorize(request, verb, resource, name)
        body = run_detail_json(work(user))
        return respond(request, body, status=status)
