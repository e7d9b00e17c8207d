"""An HTTPS proxy between the daemon and the API server that breaks chosen requests in chosen ways.

    with FaultProxy(plane) as proxy:
        kubeconfig = plane.write_kubeconfig("kubeconfig-faulty", user.token, proxy.url)
        proxy.fail("POST", r"/eviction$", status=429, headers={"Retry-After": "1"}, times=3)
        proxy.fail("PATCH", r"/pods/", lose_answer=True, times=1)      # the server did it, nobody says so

Every request is parsed, so faults hit single requests of a kept connection; watches are streamed through.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.ground.controlplane import ControlPlane


@dataclass
class Fault:
    """What happens to requests that match; the first fault with ``times`` left wins."""

    method: str
    path: re.Pattern[str]
    status: int = 0
    """Answer with this status instead of asking the server."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: object = None
    delay: float = 0.0
    """Seconds before the request goes on."""
    drop: bool = False
    """The connection is closed; the server never sees the request."""
    lose_answer: bool = False
    """The server carries the request out, the connection is closed before the answer."""
    hang: bool = False
    """Half-closed: the request is swallowed, no answer comes, the connection stays."""
    cut_after: float | None = None
    """The answer (a watch) is cut off after that many seconds."""
    times: int | None = None
    skip: int = 0
    """So many matching requests pass first."""
    then: Callable[[], None] | None = None
    """Called at the moment of the fault: before the server sees the request, or after it (``lose_answer``)."""
    hits: int = 0

    def matches(self, method: str, path: str) -> bool:
        left = self.times is None or self.hits < self.times
        if not (left and self.method in ("*", method) and self.path.search(path)):
            return False
        self.skip -= 1
        return self.skip < 0


class Closed(Exception):
    """A side hung up."""


class _Stream:
    """A socket with just enough reading for HTTP/1.1 messages."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.rest = sock, b""

    def _more(self) -> None:
        try:
            part = self.sock.recv(1 << 16)
        except OSError as error:
            raise Closed from error
        if not part:
            raise Closed
        self.rest += part

    def until(self, mark: bytes) -> bytes:
        while mark not in self.rest:
            self._more()
        head, _, self.rest = self.rest.partition(mark)
        return head + mark

    def exactly(self, count: int) -> bytes:
        while len(self.rest) < count:
            self._more()
        data, self.rest = self.rest[:count], self.rest[count:]
        return data

    def send(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise Closed from error

    def body(self, head: bytes, *, answer_to: str = "") -> Iterator[bytes]:
        """The parts of a message's body as they stand on the wire."""
        lower = head.lower()
        if answer_to == "HEAD" or (answer_to and head.split(b" ", 2)[1] in (b"204", b"304")):
            return
        if b"transfer-encoding: chunked" in lower:
            while True:
                size = self.until(b"\r\n")
                count = int(size.split(b";")[0], 16)
                yield size + self.exactly(count + 2)
                if count == 0:
                    return
        found = re.search(rb"\r\ncontent-length: *(\d+)", lower)
        if found:
            yield self.exactly(int(found.group(1)))
        elif answer_to:
            with contextlib.suppress(Closed):
                while True:
                    if not self.rest:
                        self._more()
                    part, self.rest = self.rest, b""
                    yield part
            raise Closed


class FaultProxy:
    """``url`` is its address. ``log`` has every (method, path) that came by."""

    def __init__(self, plane: ControlPlane) -> None:
        address = urlsplit(plane.url)
        self._upstream = (address.hostname or "127.0.0.1", address.port or 443)
        self._client_tls = ssl.create_default_context(cafile=str(plane.ca.path))
        crt, key = plane.ca.issue("faultproxy")
        self._server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server_tls.load_cert_chain(crt, key)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        self.faults: list[Fault] = []
        self.log: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._cut = False
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True, name="faultproxy").start()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fail(self, method: str, path: str, **how: object) -> Fault:
        """Adds a fault for requests whose path (with query) matches the expression; see `Fault`. "*" is any method."""
        fault = Fault(method, re.compile(path), **how)  # type: ignore[arg-type]
        with self._lock:
            self.faults.insert(0, fault)
        return fault

    def heal(self) -> None:
        """No faults any more; a cut is mended."""
        with self._lock:
            self.faults.clear()
        self._cut = False

    def cut(self) -> None:
        """The daemon is cut off: every connection is dropped and none is accepted until `heal`."""
        self._cut = True
        for connection in list(self._open):
            _drop(connection)

    def close(self) -> None:
        self._closed.set()
        _drop(self._listener)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        upstream: _Stream | None = None
        self._open.add(plain)
        try:
            if self._cut:
                return
            client = _Stream(self._server_tls.wrap_socket(plain, server_side=True))
            self._open.add(client.sock)
            while True:
                upstream = self._one(client, upstream)
        except (Closed, OSError, ValueError):
            pass
        finally:
            for sock in (plain, upstream.sock if upstream else None):
                if sock is not None:
                    self._open.discard(sock)
                    with contextlib.suppress(OSError):
                        sock.close()
            with contextlib.suppress(OSError, NameError, UnboundLocalError):
                self._open.discard(client.sock)
                client.sock.close()

    def _one(self, client: _Stream, upstream: _Stream | None) -> _Stream | None:
        head = client.until(b"\r\n\r\n")
        body = b"".join(client.body(head))
        method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
        with self._lock:
            self.log.append((method, path))
            fault = next((f for f in self.faults if f.matches(method, path)), None)
            if fault:
                fault.hits += 1
        if fault:
            time.sleep(fault.delay)
            if fault.then and not fault.lose_answer:
                fault.then()
            if fault.drop:
                raise Closed
            while fault.hang and not self._closed.wait(0.1):
                pass
            if fault.status:
                client.send(_answer(fault))
                return upstream
        if upstream is None:
            plain = socket.create_connection(self._upstream, timeout=10)
            upstream = _Stream(self._client_tls.wrap_socket(plain, server_hostname=self._upstream[0]))
            upstream.sock.settimeout(None)
            self._open.add(upstream.sock)
        upstream.send(head + body)
        answer = upstream.until(b"\r\n\r\n")
        if fault and fault.lose_answer:
            for _ in upstream.body(answer, answer_to=method):
                break
            if fault.then:
                fault.then()
            raise Closed
        if fault and fault.cut_after is not None:
            timer = threading.Timer(fault.cut_after, _drop, [upstream.sock])
            timer.daemon = True
            timer.start()
        client.send(answer)
        for part in upstream.body(answer, answer_to=method):
            client.send(part)
        return upstream


def _drop(connection: socket.socket) -> None:
    """Ends it for both sides; the other side may have been first."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _answer(fault: Fault) -> bytes:
    body = fault.body or {
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": fault.status, "message": "injected fault",
    }  # fmt: skip
    text = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {fault.status} Injected", "Content-Type: application/json", f"Content-Length: {len(text)}"]
    lines += [f"{key}: {value}" for key, value in fault.headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + text
