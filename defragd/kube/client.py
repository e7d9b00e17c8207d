"""One connection pool to the API server: raw requests in, bytes or outcomes out, every failure mapped.

Reads raise `defragd.errors` (one line with place and mend); writes answer with `ports.Written`, because an outcome is
input for the state machine. Only reads are ever sent again: a write that got no answer is UNKNOWN.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import msgspec
import urllib3
from urllib3.exceptions import HTTPError, NewConnectionError, ProtocolError, ReadTimeoutError, SSLError
from urllib3.exceptions import TimeoutError as PoolTimeout

from defragd import __version__
from defragd.errors import DefragError, Unreachable
from defragd.kube.credentials import Credentials
from defragd.kube.errors import decode_status, read_error, retry_after, written
from defragd.ports import Hook, Outcome, Written

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
JSON = "application/json"

_READ_TRIES = 4
"""Attempts of one read while the server sheds load (429, 503) or a kept-alive connection turns out closed."""
_LONGEST_PAUSE = 10.0


def no_hook(event: str, fields: Mapping[str, Any]) -> None:
    """The hook of those who do not listen."""


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    data: bytes
    headers: Mapping[str, str]


class Client:
    """Thread-safe. ``hook`` hears ``api.call`` [verb, resource, code, seconds] of every request."""

    def __init__(self, credentials: Credentials, *, hook: Hook = no_hook, timeout: float = 15.0) -> None:
        self._credentials = credentials
        self._hook = hook
        self._timeout = timeout
        self._closed = threading.Event()
        self.user_agent = f"defragd/{__version__}"

    @classmethod
    def from_kubeconfig(
        cls, path: str | None, context: str | None = None, *, hook: Hook = no_hook, timeout: float = 15.0
    ) -> Client:
        """``path`` None: $KUBECONFIG, the pod's own account, ~/.kube/config. Raises ConfigError."""
        return cls(Credentials(path, context), hook=hook, timeout=timeout)

    @property
    def server(self) -> str:
        return self._credentials.server

    @property
    def namespace(self) -> str:
        """The namespace of the pod we run in, "" outside of a cluster."""
        return self._credentials.namespace

    def token(self) -> str:
        """Our bearer token, "" where we log in by a certificate."""
        kind, _, token = self._credentials.headers().get("authorization", "").partition(" ")
        return token if kind.lower() == "bearer" else ""

    # -- reads --------------------------------------------------------------------------------------------------------

    def get(self, path: str, query: Mapping[str, str] | None = None, *, timeout: float | None = None) -> Response:
        """A successful answer, or an error of `defragd.errors`. Sheds of load are waited out within reason."""
        for attempt in range(1, _READ_TRIES + 1):
            try:
                response = self.send("GET", path, query=query, timeout=timeout)
            except ProtocolError as err:
                if attempt == _READ_TRIES:
                    raise self._unreachable(err) from err
                continue
            except HTTPError as err:
                raise self._unreachable(err) from err
            if response.status < 300:
                return response
            status = decode_status(response.data)
            pause = retry_after(response.headers, status)
            if response.status not in (429, 503) or attempt == _READ_TRIES:
                raise read_error("GET", path, response.status, status)
            if self._closed.wait(min(pause if pause is not None else 0.5 * attempt, _LONGEST_PAUSE)):
                break
        raise Unreachable(f"the connection to {self.server} was closed")

    def get_json(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        decoded: dict[str, Any] = msgspec.json.decode(self.get(path, query).data)
        return decoded

    # -- writes -------------------------------------------------------------------------------------------------------

    def write(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = JSON,
        query: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Written:
        """Sent once. ``body`` of the answer is the decoded object, ``revision`` its resourceVersion."""
        written_, _ = self.write_raw(method, path, body, content_type=content_type, query=query, timeout=timeout)
        return written_

    def write_raw(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = JSON,
        query: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> tuple[Written, bytes]:
        """As ``write``, with the answer's bytes for callers that decode it into their own structs."""
        try:
            response = self.send(method, path, query=query, body=body, content_type=content_type, timeout=timeout)
        except HTTPError as err:
            return Written(Outcome.UNKNOWN, str(self._unreachable(err))), b""
        except DefragError as err:
            return Written(Outcome.UNKNOWN, str(err)), b""
        result = written(response.status, response.data, response.headers)
        if not result.ok:
            return result, response.data
        try:
            decoded = msgspec.json.decode(response.data) if response.data else {}
        except msgspec.DecodeError:
            decoded = {}
        fields = decoded if isinstance(decoded, dict) else {}
        revision = str((fields.get("metadata") or {}).get("resourceVersion") or "")
        return replace(result, revision=revision, body=fields), response.data

    # -- transport ----------------------------------------------------------------------------------------------------

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """One request and its whole answer, whatever the code. Raises urllib3's HTTPError, Unreachable."""
        began = time.monotonic()
        code = 0
        try:
            limits = urllib3.Timeout(timeout or self._timeout)
            raw = self._request(method, path, query, body, content_type, limits, extra=headers)
            if raw.status == 401 and self._credentials.reload():
                raw = self._request(method, path, query, body, content_type, limits, extra=headers)
            code = raw.status
            return Response(raw.status, raw.data, raw.headers)
        finally:
            self._report(method, path, query, code, time.monotonic() - began)

    def stream(self, path: str, query: Mapping[str, str], *, read_timeout: float) -> urllib3.BaseHTTPResponse:
        """An open answer to read from piece by piece; the caller closes it. Raises like ``get``."""
        began = time.monotonic()
        code = 0
        limits = urllib3.Timeout(connect=self._timeout, read=read_timeout)
        try:
            raw = self._request("GET", path, query, None, JSON, limits, preload=False)
            if raw.status == 401 and self._credentials.reload():
                raw.close()
                raw = self._request("GET", path, query, None, JSON, limits, preload=False)
            code = raw.status
        except HTTPError as err:
            raise self._unreachable(err) from err
        finally:
            self._report("WATCH", path, query, code, time.monotonic() - began)
        if raw.status >= 300:
            data = raw.read(20_000)
            raw.close()
            raise read_error("GET", path, raw.status, decode_status(data))
        return raw

    def close(self) -> None:
        """Ends waits between tries and drops the kept-alive connections."""
        self._closed.set()
        self._credentials.pool.clear()

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any,
        content_type: str,
        limits: urllib3.Timeout,
        *,
        preload: bool = True,
        extra: Mapping[str, str] | None = None,
    ) -> urllib3.BaseHTTPResponse:
        url = self._credentials.server + path
        if query:
            url += "?" + urlencode(query)
        headers = {"Accept": JSON, "User-Agent": self.user_agent, **self._credentials.headers(), **(extra or {})}
        data: bytes | None = None
        if body is not None:
            data = body if isinstance(body, bytes) else msgspec.json.encode(body)
            headers["Content-Type"] = content_type
        return self._credentials.pool.request(
            method, url, body=data, headers=headers, timeout=limits, preload_content=preload, redirect=False
        )

    def _unreachable(self, err: Exception) -> Unreachable:
        place = f"cannot reach the API server {self.server}"
        if isinstance(err, SSLError) or "CERTIFICATE_VERIFY_FAILED" in str(err):
            return Unreachable(f"{place}: its certificate is not accepted ({_cause(err)}); check certificate-authority")
        if isinstance(err, NewConnectionError):
            return Unreachable(f"{place}: {_cause(err)}; check the address in the kubeconfig and that the server runs")
        if isinstance(err, (ReadTimeoutError, PoolTimeout)):
            return Unreachable(f"{place}: no answer in time; check network and load of the API server")
        return Unreachable(f"{place}: {_cause(err)}")

    def _report(self, method: str, path: str, query: Mapping[str, str] | None, code: int, seconds: float) -> None:
        verb = _VERBS.get(method, method.lower())
        if method == "GET" and is_list_path(path):
            verb = "list"
        self._hook("api.call", {"verb": verb, "resource": resource_of(path), "code": code, "seconds": seconds})


_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get", "WATCH": "watch"}


def _parts(path: str) -> list[str]:
    """The path after group and version, without ``namespaces/NS``: resource, name, sub-resource."""
    parts = [part for part in path.partition("?")[0].split("/") if part]
    rest = parts[2:] if parts[:1] == ["api"] else parts[3:] if parts[:1] == ["apis"] else []
    return rest[2:] if rest[:1] == ["namespaces"] and len(rest) > 2 else rest


def resource_of(path: str) -> str:
    """ "pods", "pods/eviction", ...; the first path segment for anything that is no resource (/version)."""
    rest = _parts(path)
    if not rest:
        return path.strip("/").partition("/")[0]
    return f"{rest[0]}/{rest[2]}" if len(rest) > 2 else rest[0]


def is_list_path(path: str) -> bool:
    return len(_parts(path)) == 1


def _cause(err: BaseException) -> str:
    """The innermost, shortest words: urllib3 wraps them in object reprs."""
    text = " ".join(str(err).split())
    for mark in ("Failed to establish a new connection: ", "Failed to resolve ", "[SSL: "):
        if mark in text:
            text = text[text.index(mark) + (0 if mark == "Failed to resolve " else len(mark)) :]
            break
    return text.strip("()'\", ")[:200] or type(err).__name__
