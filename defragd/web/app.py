"""The application behind port 8083: API, UI, health, metrics. The composition root calls ``create_app(deps)``."""

from __future__ import annotations

from typing import Any

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from defragd.errors import DefragError
from defragd.web.actions import Actions
from defragd.web.api import build_api
from defragd.web.cluster_view import ViewCache
from defragd.web.deps import ApiDeps, Denied, WriteRequest
from defragd.web.health import build_health
from defragd.web.pages import build_pages, render_error
from defragd.web.problems import Problem
from defragd.web.security import add_headers

MAX_BODY = 64 * 1024
"""Bytes. Nothing that is sent here is large."""
OPEN = frozenset({"health.livez", "health.readyz", "health.metrics", "static"})
"""Endpoints that a guard on reads never covers: probes and scrapers have no user."""


def create_app(deps: ApiDeps) -> Flask:
    """The WSGI app. Errors are problem details (JSON), or a page where a browser asked for one under no /api path."""
    app = Flask("defragd.web", static_url_path="/static")
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY
    app.config["MAX_FORM_MEMORY_SIZE"] = MAX_BODY
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    views = ViewCache(deps.reader, deps.clock, deps.pools, deps.view_max_age)
    actions = Actions(deps)
    add_headers(app)
    _guard_reads(app, deps)
    _count(app, deps)
    _errors(app, deps)
    app.register_blueprint(build_api(deps, views, actions))
    app.register_blueprint(build_health(deps))
    app.register_blueprint(build_pages(deps, views, actions))
    return app


def _guard_reads(app: Flask, deps: ApiDeps) -> None:
    guard = deps.authorize_read
    if guard is None:
        return

    @app.before_request
    def check() -> None:
        if request.endpoint in OPEN or request.method not in ("GET", "HEAD"):
            return
        headers = {key.lower(): value for key, value in request.headers.items()}
        try:
            found = guard(WriteRequest("read", "", request.path, headers, request.remote_addr or ""))
        except DefragError as error:
            raise Problem(503, f"cannot ask the API server whether this is allowed: {error}") from error
        if isinstance(found, Denied):
            extra = {"WWW-Authenticate": "Bearer"} if found.status == 401 else None
            raise Problem(found.status, found.detail, reason=found.reason, headers=extra)


def _count(app: Flask, deps: ApiDeps) -> None:
    @app.after_request
    def count(answer: Response) -> Response:
        deps.hook("http.request", {"route": request.endpoint or "unknown", "code": answer.status_code})
        return answer


def _errors(app: Flask, deps: ApiDeps) -> None:
    def answer(problem: Problem) -> Response:
        wants_page = not request.path.startswith("/api/") and request.accept_mimetypes.best_match(
            ["application/json", "text/html"], "application/json"
        ) == "text/html"  # fmt: skip
        return render_error(deps, problem) if wants_page else problem.response(request.path)

    @app.errorhandler(Problem)
    def known(problem: Problem) -> Response:
        return answer(problem)

    @app.errorhandler(HTTPException)
    def http(error: HTTPException) -> Response:
        status = error.code or 500
        detail = _DETAILS.get(status) or error.description or ""
        methods = getattr(error, "valid_methods", None)
        keep = {"Allow": ", ".join(sorted(methods))} if methods else {}
        return answer(Problem(status, detail, headers=keep))

    @app.errorhandler(Exception)
    def fault(error: Exception) -> Response:
        fields: dict[str, Any] = {"route": request.endpoint or "unknown", "error": f"{type(error).__name__}: {error}"}
        deps.hook("api.fault", fields)
        return answer(Problem(500, "something went wrong here; the log has the details"))


_DETAILS = {
    404: "there is nothing here; /openapi.json lists what there is",
    405: "this method is not offered here",
    413: f"at most {MAX_BODY} bytes are read",
}
