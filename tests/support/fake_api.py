"""A small API server in this process for unit tests: lists in pages, watches with bookmarks, and every way to break.

    with FakeApi() as api:
        api.put("/api/v1/pods", {"metadata": {"namespace": "a", "name": "x"}})
        client = api.client()

Objects live under their list path; namespaced paths read and write the same objects. Not a model of Kubernetes: it
checks revisions and preconditions, and nothing else.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import socket
import threading
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

from defragd.kube.client import Client
from defragd.kube.credentials import Credentials

_NAMESPACED = re.compile(r"^(/api/v1|/apis/[^/]+/[^/]+)/namespaces/([^/]+)/([^/]+)(?:/([^/]+))?(?:/([^/]+))?$")
_CLUSTER = re.compile(r"^(/api/v1|/apis/[^/]+/[^/]+)/([^/]+)(?:/([^/]+))?(?:/([^/]+))?$")


class FakeApi:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.revision = 100
        self.objects: dict[str, dict[str, dict[str, Any]]] = {}
        self.log: dict[str, list[tuple[int, str, dict[str, Any]]]] = {}
        self.oldest = 0
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.answers: list[tuple[str, str, int, Any, dict[str, str]]] = []
        self.forbidden: set[str] = set()
        self.raw_items: dict[str, list[bytes]] = {}
        self.watching: dict[socket.socket, str] = {}
        self.last_headers: Any = {}
        self.delay = 0.0
        self.bookmarks = True
        self.drop_watches_at_once = False
        self.handler: Any = None
        self.behind_proxy: Any = None
        """(method, path, headers, body) -> (status, body): what the service proxy leads to."""

    # -- life -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> FakeApi:
        api = self

        class Handler(self.handler or _Handler):  # type: ignore[misc]
            fake = api

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.break_watches()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(5)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def kubeconfig(self, folder: Any, **user: Any) -> str:
        path = folder / "kubeconfig"
        path.write_text(json.dumps(self.config(**user)))
        return str(path)

    def config(self, **user: Any) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": user or {"token": "t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        }

    def client(self, folder: Any, **kwargs: Any) -> Client:
        return Client(Credentials(self.kubeconfig(folder)), **kwargs)

    # -- state ----------------------------------------------------------------------------------------------------

    def put(self, path: str, obj: dict[str, Any]) -> dict[str, Any]:
        """Create or replace; watchers hear of it."""
        with self.lock:
            self.revision += 1
            meta = obj.setdefault("metadata", {})
            key = f"{meta.get('namespace', '')}/{meta['name']}"
            known = self.objects.setdefault(path, {})
            meta["resourceVersion"] = str(self.revision)
            meta.setdefault("uid", (known.get(key) or {}).get("metadata", {}).get("uid") or f"uid-{self.revision}")
            kind = "MODIFIED" if key in known else "ADDED"
            copy = json.loads(json.dumps(obj))
            known[key] = copy
            self._event(path, kind, copy)
            return copy

    def delete(self, path: str, key: str) -> None:
        with self.lock:
            self.revision += 1
            gone = json.loads(json.dumps(self.objects[path].pop(key)))
            gone["metadata"]["resourceVersion"] = str(self.revision)
            self._event(path, "DELETED", gone)

    def _event(self, path: str, kind: str, obj: dict[str, Any]) -> None:
        self.log.setdefault(path, []).append((self.revision, kind, obj))
        self.changed.notify_all()

    def compact(self) -> None:
        """Every watch from now on that starts at an old revision gets 410."""
        with self.lock:
            self.revision += 1
            self.oldest = self.revision

    def break_watches(self, path: str = "") -> int:
        """Cut the connections of open watches, without a word."""
        with self.lock:
            chosen = [sock for sock, where in self.watching.items() if not path or where == path]
            for sock in chosen:
                self.watching.pop(sock, None)
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            self.changed.notify_all()
            return len(chosen)

    def answer(self, method: str, path: str, status: int, body: Any = None, **headers: str) -> None:
        """The next matching request gets exactly this. ``body`` bytes are sent as they are."""
        self.answers.append((method, path, status, body, {k.replace("_", "-"): v for k, v in headers.items()}))

    def count(self, method: str, path: str, *, watch: bool | None = None) -> int:
        with self.lock:
            return sum(
                1
                for verb, where, query, _ in self.requests
                if verb == method and where == path and (watch is None or ("watch" in query) == watch)
            )

    def wait(self, condition: Any, seconds: float = 5.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "the condition was not reached in time"
            time.sleep(0.005)


class _Handler(http.server.BaseHTTPRequestHandler):
    fake: FakeApi
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError, BrokenPipeError, ValueError):
            super().handle()

    def do_GET(self) -> None:
        self._do("GET")

    def do_POST(self) -> None:
        self._do("POST")

    def do_PUT(self) -> None:
        self._do("PUT")

    def do_PATCH(self) -> None:
        self._do("PATCH")

    def do_DELETE(self) -> None:
        self._do("DELETE")

    def _do(self, method: str) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length) if length else b""
        body = json.loads(raw) if raw else None
        fake = self.fake
        with fake.lock:
            fake.requests.append((method, parts.path, query, body))
            chosen = next((a for a in fake.answers if a[0] == method and a[1] == parts.path), None)
            if chosen:
                fake.answers.remove(chosen)
        fake.last_headers = self.headers  # case does not matter in it
        if fake.delay:
            time.sleep(fake.delay)
        if chosen:
            if chosen[2] == 0:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self._send(chosen[2], chosen[3], chosen[4])
            return
        _, proxied, path = self.path.partition("/proxy/")
        if proxied and fake.behind_proxy is not None:
            # as the real one does: the caller's credentials stay here, and nobody is named in their stead
            headers = {k: v for k, v in self.headers.items() if k.lower() not in ("authorization", "host")}
            status, answer = fake.behind_proxy(method, f"/{path}", headers, raw)
            self._send(status, answer, {})
            return
        path, key, sub = _place(parts.path)
        if path in fake.forbidden:
            self._send(403, _status(403, "Forbidden", f'pods is forbidden: User "u" cannot list {path}'))
        elif method == "GET" and "watch" in query:
            self._watch(path, query)
        elif method == "GET" and key.endswith("/"):
            self._list(path, key.strip("/"), query)
        else:
            self._one(method, path, key, sub, body)

    def _list(self, path: str, namespace: str, query: dict[str, str]) -> None:
        fake = self.fake
        with fake.lock:
            revision = str(fake.revision)
            every = [o for k, o in sorted(fake.objects.get(path, {}).items()) if k.startswith(namespace)]
            name = query.get("fieldSelector", "").partition("metadata.name=")[2]
            every = [o for o in every if not name or o["metadata"]["name"] == name]
            raws = [json.dumps(o).encode() for o in every] + fake.raw_items.get(path, [])
        start, limit = int(query.get("continue") or 0), int(query.get("limit") or 0) or len(raws) or 1
        more = str(start + limit) if start + limit < len(raws) else ""
        head = json.dumps({"resourceVersion": revision, "continue": more}).encode()
        self._send(
            200, b'{"kind":"List","metadata":' + head + b',"items":[' + b",".join(raws[start : start + limit]) + b"]}"
        )

    def _watch(self, path: str, query: dict[str, str]) -> None:
        fake = self.fake
        at = int(query.get("resourceVersion") or 0)
        end = time.monotonic() + float(query.get("timeoutSeconds") or 60)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        sock = self.connection
        with fake.lock:
            fake.watching[sock] = path
        try:
            if at < fake.oldest:
                self._chunk({"type": "ERROR", "object": _status(410, "Expired", "too old resource version")})
                end = 0.0
            while time.monotonic() < end and not fake.drop_watches_at_once:
                with fake.lock:
                    if sock not in fake.watching:
                        return
                    news = [event for event in fake.log.get(path, []) if event[0] > at]
                    if not news:
                        fake.changed.wait(0.05)
                        news = [event for event in fake.log.get(path, []) if event[0] > at]
                    if not news and fake.bookmarks and fake.revision > at:
                        news = [(fake.revision, "BOOKMARK", {"metadata": {"resourceVersion": str(fake.revision)}})]
                for rev, kind, obj in news:
                    at = rev
                    self._chunk({"type": kind, "object": obj})
            self.wfile.write(b"0\r\n\r\n")
        finally:
            with fake.lock:
                fake.watching.pop(sock, None)

    def _chunk(self, event: dict[str, Any]) -> None:
        data = json.dumps(event).encode() + b"\n"
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _one(self, method: str, path: str, key: str, sub: str, body: Any) -> None:
        fake = self.fake
        with fake.lock:
            known = fake.objects.get(path, {})
            if method == "POST" and not sub:
                key = f"{body['metadata'].get('namespace', '')}/{body['metadata']['name']}"
                if key in known:
                    return self._send(409, _status(409, "AlreadyExists", f"{key} already exists"))
                return self._send(201, fake.put(path, {k: v for k, v in body.items() if k != "status"}))
            if key not in known:
                return self._send(404, _status(404, "NotFound", f"{key} not found"))
            have = known[key]
            if method == "GET":
                return self._send(200, have)
            if method == "DELETE":
                fake.delete(path, key)
                return self._send(200, _status(200, "", "deleted"))
            if sub == "eviction":
                wanted = (body["deleteOptions"].get("preconditions") or {}).get("uid")
                if wanted and wanted != have["metadata"]["uid"]:
                    return self._send(409, _status(409, "Conflict", "the UID in the precondition does not match"))
                return self._send(201, _status(201, "", "evicted"))
            wanted = (body.get("metadata") or {}).get("resourceVersion")
            if wanted and wanted != have["metadata"]["resourceVersion"]:
                return self._send(409, _status(409, "Conflict", "the object has been modified"))
            if method == "PUT":
                new = {**have, "status": body["status"]} if sub == "status" else {**body}
                new["metadata"] = {**have["metadata"], **(body["metadata"] if sub != "status" else {})}
            else:
                new = _merge(have, body)
            return self._send(200, fake.put(path, new))

    def _send(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


def _place(path: str) -> tuple[str, str, str]:
    """(list path of all namespaces, ns/name with a trailing / for lists, sub-resource)."""
    found = _NAMESPACED.match(path)
    if found:
        base, namespace, plural, name, sub = found.groups()
        return f"{base}/{plural}", f"{namespace}/{name or ''}", sub or ""
    found = _CLUSTER.match(path)
    if not found:
        return path, "/x", ""
    base, plural, name, sub = found.groups()
    return f"{base}/{plural}", f"/{name}" if name else "/", sub or ""


def _status(code: int, reason: str, message: str) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": message}


def _merge(have: Any, patch: Any) -> Any:
    if not isinstance(have, dict) or not isinstance(patch, dict):
        return patch
    out = dict(have)
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = _merge(have.get(key), value)
    return out
