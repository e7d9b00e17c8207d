"""Errors as problem details (RFC 9457) with a stable reason code, for every route of the API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from flask import Response

MIME = "application/problem+json"

REASONS: Mapping[int, str] = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    413: "TooLarge",
    414: "TooLarge",
    415: "UnsupportedMediaType",
    422: "Refused",
    429: "TooManyRequests",
    500: "InternalError",
    501: "NotOffered",
    502: "Unknown",
    503: "NotReady",
}
"""The reason where a route gives none of its own."""


class Problem(Exception):
    """An error answer. ``reason`` is a CamelCase code that stays; ``detail`` one sentence that helps."""

    def __init__(self, status: int, detail: str, *, reason: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.reason = reason or REASONS.get(status, "Error")
        self.headers = dict(headers or {})

    @property
    def title(self) -> str:
        return HTTPStatus(self.status).phrase

    def body(self, instance: str) -> dict[str, Any]:
        return {
            "type": "about:blank",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "instance": instance,
            "reason": self.reason,
        }

    def response(self, instance: str) -> Response:
        answer = Response(json.dumps(self.body(instance)), status=self.status, content_type=MIME)
        for name, value in self.headers.items():
            answer.headers[name] = value
        return answer
