"""cheroot servers that are embedded beside our own threads: plain HTTP for API and UI, TLS for the webhook.

    server = Server(app, "0.0.0.0:8083", name="api")
    server.start()            # binds in the caller's thread: ConfigError when the port is taken
    server.stop(drain=5.0)    # no new connections; requests under way end, idle connections are closed

With ``tls=(cert_pem, key_pem)`` it speaks TLS, and ``reload(cert_pem, key_pem)`` swaps the pair under traffic.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from typing import TYPE_CHECKING, Any

from cheroot import wsgi

from defragd.errors import ConfigError
from defragd.ports import Hook
from defragd.web.tls import LiveAdapter

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

BACKLOG = 128
"""Connections that may queue in the kernel (cheroot's default of 5 drops bursts)."""
KEEP_ALIVE = 256
"""Idle connections kept open: API servers keep theirs, and a closed one costs the next review a handshake."""
IDLE_SECONDS = 65
"""An idle connection is closed after this; longer than the usual pause between reviews and scrapes."""
REQUEST_SECONDS = 10.0
"""A peer that stalls within a request (or does not read the answer) is dropped after this."""
MAX_HEADER = 64 * 1024
MAX_BODY = 16 * 1024 * 1024
"""Hard limit of the server; the applications refuse earlier, with a proper answer."""


def parse_address(address: str, *, what: str) -> tuple[str, int]:
    """``host:port``, ``:port`` or ``[v6]:port``. Raises ConfigError with what to write instead."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "0.0.0.0"
    if not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ConfigError(f"{what} address {address!r}: want host:port with a port of 0 to 65535, such as 0.0.0.0:8083")
    return host, int(port)


class _Quiet(wsgi.Server):
    """A cheroot server that reports to a hook and lets a connection wait for its first byte outside the workers."""

    hook: Hook | None = None
    _connections: Any
    label = ""

    def error_log(self, msg: str = "", level: int = 20, traceback: bool = False) -> None:
        """Handshakes that fail and peers that vanish are no news; what is left is a fault of ours or cheroot's."""
        if level >= 30 and self.hook is not None:
            self.hook("http.request", {"route": self.label, "error": msg[:300], "code": 500})

    def process_conn(self, conn: Any) -> None:
        """A new connection is watched until it can be read, so silent peers hold no worker."""
        if getattr(conn, "was_watched", False):
            super().process_conn(conn)
            return
        conn.was_watched = True
        conn.socket.settimeout(REQUEST_SECONDS)
        self._connections.put(conn)


class Server:
    """One listening server; see the module. ``threads`` is the number of workers, ``hook`` gets its faults."""

    def __init__(
        self,
        app: WSGIApplication,
        address: str,
        *,
        name: str = "api",
        threads: int = 8,
        tls: tuple[bytes, bytes] | None = None,
        hook: Hook | None = None,
    ) -> None:
        self.name = name
        self._host, self._wanted = parse_address(address, what=name)
        self._server = _Quiet(
            (self._host, self._wanted),
            app,
            numthreads=threads,
            request_queue_size=BACKLOG,
            timeout=IDLE_SECONDS,
            shutdown_timeout=5,
            server_name="defragd",
        )
        self._server.keep_alive_conn_limit = KEEP_ALIVE
        self._server.max_request_header_size = MAX_HEADER
        self._server.max_request_body_size = MAX_BODY
        self._server.hook = hook
        self._server.label = name
        self._adapter = LiveAdapter(*tls) if tls is not None else None
        self._server.ssl_adapter = self._adapter
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The bound port (useful where 0 was asked for)."""
        return int(self._server.bind_addr[1])

    @property
    def url(self) -> str:
        host = "127.0.0.1" if self._host in ("0.0.0.0", "::") else self._host
        host = f"[{host}]" if ":" in host else host
        return f"{'https' if self._adapter else 'http'}://{host}:{self.port}"

    @property
    def serving(self) -> bool:
        """Bound, and its loop is alive (a readiness check)."""
        return self._thread is not None and self._thread.is_alive() and bool(self._server.ready)

    def start(self) -> None:
        """Bind and serve in a thread. Raises ConfigError (one line) when the address cannot be had."""
        try:
            self._server.prepare()
        except OSError as error:
            raise ConfigError(self._why_not(error)) from error
        self._thread = threading.Thread(target=self._serve, name=f"http-{self.name}", daemon=True)
        self._thread.start()

    def _why_not(self, error: OSError) -> str:
        where = f"{self._host}:{self._wanted}"
        text = f"{error} {error.__context__ or ''}"
        if error.errno == errno.EADDRINUSE or "in use" in text:
            return f"{self.name} address {where} is taken by another process; stop it or choose another address"
        return f"{self.name} address {where} cannot be listened on ({error}); choose an address of this machine"

    def _serve(self) -> None:
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            self._server.serve()

    def reload(self, cert_pem: bytes, key_pem: bytes) -> None:
        """Swap the certificate; the next handshake has it. Raises ConfigError and keeps the old one if it is broken."""
        if self._adapter is None:
            raise ConfigError(f"{self.name}: this server speaks plain HTTP, it has no certificate to swap")
        self._adapter.swap(cert_pem, key_pem)

    def stop(self, drain: float = 5.0) -> None:
        """Stop accepting, let requests under way end for up to ``drain`` seconds, close the rest. Idempotent."""
        self._server.shutdown_timeout = drain
        with contextlib.suppress(Exception):
            self._server.stop()
        if self._thread is not None:
            self._thread.join(timeout=drain + 5.0)
