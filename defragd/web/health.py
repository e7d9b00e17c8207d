"""/livez, /readyz, /healthz and /metrics. Plain text like the API server's; never guarded, never slow."""

from __future__ import annotations

from collections.abc import Mapping

from flask import Blueprint, Response, request

from defragd.web.deps import ApiDeps, Check
from defragd.web.problems import Problem


def run_checks(checks: Mapping[str, Check]) -> list[tuple[str, str]]:
    """(name, "" or why not) of each check; one that raises has failed."""
    found = []
    for name, check in checks.items():
        try:
            found.append((name, check()))
        except Exception as error:  # noqa: BLE001 - a broken check is a failed check, not a broken page
            found.append((name, f"{type(error).__name__}: {error}"))
    return found


def build_health(deps: ApiDeps) -> Blueprint:
    """The blueprint; /healthz is /livez by its older name."""
    health = Blueprint("health", __name__)

    @health.get("/livez")
    @health.get("/healthz")
    def livez() -> Response:
        return _answer("livez", deps.live)

    @health.get("/readyz")
    def readyz() -> Response:
        return _answer("readyz", deps.ready)

    @health.get("/metrics")
    def metrics() -> Response:
        if deps.metrics is None:
            raise Problem(501, "this daemon has no metrics", reason="NotOffered")
        return Response(deps.metrics.render(), content_type=deps.metrics.content_type)

    return health


def _answer(name: str, checks: Mapping[str, Check]) -> Response:
    found = run_checks(checks)
    bad = [item for item in found if item[1]]
    if not bad and "verbose" not in request.args:
        return Response("ok\n", mimetype="text/plain")
    lines = [f"[-]{check} failed: {why}" if why else f"[+]{check} ok" for check, why in found]
    lines.append(f"{name} check failed" if bad else f"{name} check passed")
    return Response("\n".join(lines) + "\n", status=503 if bad else 200, mimetype="text/plain")
