"""What protects browser and daemon: headers, cross-site checks, form tokens, a cap on the rate of writes."""

from __future__ import annotations

import hmac
import secrets
import threading
from urllib.parse import urlsplit

from flask import Flask, Request, Response, request

from defragd.ports import Clock
from defragd.web.problems import Problem

CSP = "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'self'; frame-ancestors 'none'"
COOKIE = "defragd_csrf"
FIELD = "csrf"
FORM_TYPES = frozenset({"application/x-www-form-urlencoded", "multipart/form-data", "text/plain"})


def add_headers(app: Flask) -> None:
    """Strict headers on every answer, errors too."""

    @app.after_request
    def headers(answer: Response) -> Response:
        answer.headers["Content-Security-Policy"] = CSP
        answer.headers["X-Content-Type-Options"] = "nosniff"
        answer.headers["X-Frame-Options"] = "DENY"
        # same-origin, not no-referrer: with the latter browsers send "Origin: null" with our own forms
        answer.headers["Referrer-Policy"] = "same-origin"
        answer.headers["Cross-Origin-Opener-Policy"] = "same-origin"
        answer.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        answer.headers["Cache-Control"] = "max-age=300" if request.endpoint == "static" else "no-store"
        return answer


def refuse_cross_site(req: Request) -> None:
    """Raises Problem 403 when a browser says that another site caused this write."""
    site = req.headers.get("Sec-Fetch-Site", "")
    if site not in ("", "same-origin", "none"):
        raise Problem(403, "this change was asked for by another web site", reason="CrossSite")
    origin = req.headers.get("Origin", "")
    if origin and not site and not _same_host(origin, req):
        raise Problem(403, f"this change was asked for by {origin[:100]}, not by this site", reason="CrossSite")


def _same_host(origin: str, req: Request) -> bool:
    hosts = {req.host, req.headers.get("X-Forwarded-Host", req.host)}
    return urlsplit(origin).netloc in hosts


def form_token(req: Request) -> str:
    """The token of this browser; made when it has none. Put into forms and (see ``keep_token``) into the cookie."""
    known = req.cookies.get(COOKIE, "")
    return known if len(known) >= 32 and known.isascii() else secrets.token_urlsafe(32)


def keep_token(answer: Response, token: str) -> None:
    """Double submit: the cookie is not sent by other sites and cannot be read by them; no server state, any replica."""
    answer.set_cookie(COOKIE, token, httponly=True, samesite="Strict")


def check_token(req: Request) -> None:
    """Raises Problem 403 unless the form carries the cookie's token."""
    refuse_cross_site(req)
    cookie, sent = req.cookies.get(COOKIE, ""), req.form.get(FIELD, "")
    if not cookie or not hmac.compare_digest(cookie.encode(), sent.encode()):
        raise Problem(
            403, "the form is too old or not from here; load the page again and repeat", reason="BadFormToken"
        )


class RateLimit:
    """A token bucket over all callers: ``burst`` writes at once, ``per_second`` on average."""

    def __init__(self, clock: Clock, *, burst: int = 20, per_second: float = 1.0) -> None:
        self._clock, self._burst, self._rate = clock, float(burst), per_second
        self._lock = threading.Lock()
        self._level, self._last = float(burst), clock.monotonic()

    def take(self) -> None:
        """Raises Problem 429 with Retry-After when the bucket is empty."""
        with self._lock:
            now = self._clock.monotonic()
            self._level = min(self._burst, self._level + max(0.0, now - self._last) * self._rate)
            self._last = now
            if self._level < 1.0:
                wait = str(int((1.0 - self._level) / self._rate) + 1)
                raise Problem(429, "too many changes at once; try again shortly", headers={"Retry-After": wait})
            self._level -= 1.0
