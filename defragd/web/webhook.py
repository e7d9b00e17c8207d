"""The mutating webhook over HTTP: AdmissionReview v1 in and out around a pure ``decide``.

It must never block or break the creation of a pod: whatever goes wrong (nonsense bodies, too large ones, an exception
in ``decide``) is answered with ``allowed: true``, counted and logged. It never lists, plans or waits. The decision
itself is `core.admission`'s; this file only speaks HTTP.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from flask import Flask, Response, request

from defragd.ports import Hook

Decide = Callable[[Mapping[str, Any]], list[dict[str, Any]]]
"""AdmissionRequest (the review's ``request``) to JSON patch operations; [] leaves the pod as it is."""

MAX_BODY = 4 * 1024 * 1024
"""Bytes. The API server stores at most 1.5 MiB per object; a review holds at most two of them."""

_UID = re.compile(rb'"uid"\s*:\s*"([A-Za-z0-9-]{1,64})"')
"""The request's own uid comes first in what an API server sends; enough to answer a body that is not parsed."""


class _Fault(Exception):
    """Why a review is answered without a decision; ``kind`` is malformed, oversize or exception."""

    def __init__(self, kind: str, detail: str, uid: str = "") -> None:
        super().__init__(detail)
        self.kind = kind
        self.uid = uid


def create_webhook_app(decide: Decide, observer: Hook, *, max_body: int = MAX_BODY) -> Flask:
    """A WSGI app that serves ``POST /mutate`` and nothing else.

    ``observer`` gets "webhook.request" with decision (unchanged, patched, fault), seconds and, of faults, fault and
    detail. Every answer to a POST on /mutate is 200 with ``allowed: true``.
    """
    app = Flask(__name__, static_folder=None)

    @app.post("/mutate")
    def mutate() -> Response:
        started = time.perf_counter()
        fields: dict[str, Any] = {}
        uid, patch = "", None
        try:
            review_request = _read(max_body)
            uid = str(review_request.get("uid") or "")
            patch = _patch(decide, review_request, uid)
            fields["decision"] = "patched" if patch else "unchanged"
        except _Fault as fault:
            uid = uid or fault.uid
            fields |= {"decision": "fault", "fault": fault.kind, "detail": str(fault)[:300]}
        fields["seconds"] = time.perf_counter() - started
        _report(observer, fields)
        return _answer(uid, patch, close=fields.get("fault") == "oversize")

    @app.errorhandler(404)
    @app.errorhandler(405)
    def refuse(error: Any) -> Response:
        text = "only POST /mutate is served here\n"
        answer = Response(text, status=error.code, mimetype="text/plain")
        if error.code == 405:
            answer.headers["Allow"] = "POST"
        return answer

    return app


def _read(max_body: int) -> Mapping[str, Any]:
    length = request.content_length
    if length is not None and length > max_body:
        head = request.stream.read(4096)
        raise _Fault("oversize", f"{length} bytes, at most {max_body} are read", _find_uid(head))
    try:
        body = request.stream.read(max_body + 1)
    except Exception as error:
        raise _Fault("malformed", f"the body could not be read: {error}") from error
    if len(body) > max_body:
        raise _Fault("oversize", f"more than {max_body} bytes", _find_uid(body[:4096]))
    try:
        review = json.loads(body)
        found = review["request"]
        if review.get("apiVersion") != "admission.k8s.io/v1" or not isinstance(found, Mapping) or not found.get("uid"):
            raise ValueError("not an admission.k8s.io/v1 AdmissionReview with a request")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _Fault("malformed", f"{type(error).__name__}: {error}", _find_uid(body[:4096])) from error
    return dict(found)


def _find_uid(head: bytes) -> str:
    match = _UID.search(head)
    return match.group(1).decode() if match else ""


def _patch(decide: Decide, review_request: Mapping[str, Any], uid: str) -> str | None:
    try:
        operations = decide(review_request)
        if not operations:
            return None
        if not isinstance(operations, list):
            raise TypeError(f"operations are a {type(operations).__name__}, not a list")
        return base64.b64encode(json.dumps(operations).encode()).decode()
    except Exception as error:
        raise _Fault("exception", f"{type(error).__name__}: {error}", uid) from error


def _report(observer: Hook, fields: Mapping[str, Any]) -> None:
    try:
        observer("webhook.request", fields)
    except Exception:  # noqa: BLE001 - counting must not break the answer
        return


def _answer(uid: str, patch: str | None, *, close: bool) -> Response:
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if patch is not None:
        response |= {"patchType": "JSONPatch", "patch": patch}
    body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
    answer = Response(body, status=200, mimetype="application/json")
    answer.headers["X-Content-Type-Options"] = "nosniff"
    if close:
        answer.headers["Connection"] = "close"
    return answer
