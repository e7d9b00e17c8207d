"""A tiny client of the API server for tests and emulators: JSON in, JSON out, one kept connection per thread.

Deliberately not the product's client: what the product gets wrong must not be repeated here.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

PODS = "/api/v1/namespaces/{ns}/pods"
NODES = "/api/v1/nodes"
PLACEMENTS = "/apis/scheduling.hami.placement.com/v1/namespaces/{ns}/hamipodplacements"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


class ApiError(RuntimeError):
    """An answer that was not expected: ``status`` (0: no answer) and the decoded ``body``."""

    def __init__(self, method: str, path: str, status: int, body: Any) -> None:
        text = body.get("message", body) if isinstance(body, dict) else body
        super().__init__(f"{method} {path}: {status} {str(text)[:600]}")
        self.status, self.body = status, body


class Api:
    """One user's view of the API server at ``url``; ``ca`` is the file with its authority."""

    def __init__(self, url: str, token: str, ca: str, *, timeout: float = 30) -> None:
        self.url, self.token, self.timeout = url, token, timeout
        self._address = urlsplit(url)
        self._tls = ssl.create_default_context(cafile=ca)
        self._local = threading.local()

    def as_user(self, token: str) -> Api:
        """The same server with another token."""
        other = Api.__new__(Api)
        other.__dict__.update(self.__dict__, token=token, _local=threading.local())
        return other

    def close(self) -> None:
        """Closes the calling thread's connection; the next call opens another."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def _connect(self, timeout: float) -> http.client.HTTPSConnection:
        host, port = self._address.hostname or "127.0.0.1", self._address.port
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=self._tls)

    def request(self, method: str, path: str, body: Any = None, content: str = "application/json") -> tuple[int, Any]:
        """(status, decoded body); status 0 with a text when there was no answer. Stale connections are tried again."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": content, "Accept": "application/json"}
        while True:
            connection = getattr(self._local, "connection", None)
            fresh = connection is None
            if fresh:
                connection = self._local.connection = self._connect(self.timeout)
            try:
                connection.request(method, path, data, headers)
                answer = connection.getresponse()
                raw = answer.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self._local.connection = None
                if fresh or isinstance(error, TimeoutError):
                    return 0, str(error)
                continue
            try:
                return answer.status, json.loads(raw) if raw else {}
            except ValueError:
                return answer.status, raw.decode(errors="replace")

    def call(self, method: str, path: str, body: Any = None, content: str = "application/json") -> Any:
        """The decoded body of a 2xx answer; ApiError otherwise."""
        status, answer = self.request(method, path, body, content)
        if not 200 <= status < 300:
            raise ApiError(method, path, status, answer)
        return answer

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def find(self, path: str) -> Any | None:
        """The object, or None when there is none."""
        status, answer = self.request("GET", path)
        if status == 404:
            return None
        if status != 200:
            raise ApiError("GET", path, status, answer)
        return answer

    def items(self, path: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get(path)["items"]
        return found

    def create(self, path: str, body: Mapping[str, Any]) -> Any:
        return self.call("POST", path, body)

    def patch(self, path: str, body: Any, content: str = MERGE) -> Any:
        return self.call("PATCH", path, body, content)

    def delete(self, path: str, body: Any = None) -> int:
        """Deletes; 404 is fine. Returns the status."""
        status, answer = self.request("DELETE", path, body)
        if not 200 <= status < 300 and status != 404:
            raise ApiError("DELETE", path, status, answer)
        return status

    def watch(self, path: str, stop: threading.Event) -> Iterator[dict[str, Any]]:
        """Events of a list path until ``stop``; after each (re)list one event {"type": "SYNC", "items": [...]}."""
        while not stop.is_set():
            try:
                listed = self.get(path)
                yield {"type": "SYNC", "items": listed["items"]}
                yield from self._events(path, listed["metadata"]["resourceVersion"], stop)
            except (OSError, ApiError, ValueError):
                stop.wait(0.1)

    def _events(self, path: str, revision: str, stop: threading.Event) -> Iterator[dict[str, Any]]:
        # HTTP/1.0: no chunks, so the bare socket can be read with a short timeout and ``stop`` is noticed.
        separator = "&" if "?" in path else "?"
        host, port = self._address.hostname or "127.0.0.1", self._address.port or 443
        with (
            socket.create_connection((host, port), timeout=5) as plain,
            self._tls.wrap_socket(plain, server_hostname=host) as stream,
        ):
            stream.sendall(
                f"GET {path}{separator}watch=1&resourceVersion={revision}&timeoutSeconds=240 HTTP/1.0\r\n"
                f"Host: {host}\r\nAuthorization: Bearer {self.token}\r\nAccept: application/json\r\n\r\n".encode()
            )
            stream.settimeout(0.5)
            rest, head = b"", True
            while not stop.is_set():
                try:
                    part = stream.recv(1 << 16)
                except TimeoutError:
                    continue
                if not part:
                    return
                rest += part
                if head:
                    top, found, rest_of_it = rest.partition(b"\r\n\r\n")
                    if not found:
                        continue
                    if b" 200 " not in top.split(b"\r\n")[0]:
                        raise OSError(f"watch {path}: {top[:80]!r}")
                    head, rest = False, rest_of_it
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise OSError(f"watch {path}: {event['object'].get('message')}")
                    yield event


def wait_for(condition: Callable[[], T], seconds: float = 30, what: str = "", step: float = 0.05) -> T:
    """The first true value of ``condition``; exceptions count as "not yet" and are shown when time runs out."""
    end = time.monotonic() + seconds
    last: object = None
    while True:
        with contextlib.suppress(ApiError, OSError, KeyError, IndexError):
            value = condition()
            if value:
                return value
            last = value
        if time.monotonic() > end:
            raise AssertionError(f"{what or 'condition'} not reached within {seconds:g} s (last: {last!r})")
        time.sleep(step)
