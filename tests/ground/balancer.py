"""What a Service is in a cluster: one address in front of several replicas, connection by connection.

It is also the place to break the way between the API server and the webhook: refuse, hang, delay.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Sequence


class Balancer:
    """Forwards TCP connections to the first backend, in turn, that accepts. ``mode``: ok, refuse or hang."""

    def __init__(self, backends: Sequence[int] = ()) -> None:
        self.backends = list(backends)
        self.mode, self.delay = "ok", 0.0
        self._turn = itertools.count()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._closed = threading.Event()
        threading.Thread(target=self._accept, daemon=True, name="balancer").start()

    def __enter__(self) -> Balancer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()

    def drop(self) -> None:
        """Closes every connection; clients connect anew (the API server keeps its own for long)."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def break_with(self, mode: str, *, delay: float = 0.0) -> None:
        """From now on refuse or hang (or ok again); existing connections are dropped so that it takes effect."""
        self.mode, self.delay = mode, delay
        self.drop()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._open.add(client)
        try:
            if self.mode == "refuse":
                return
            while self.mode == "hang" and not self._closed.wait(0.05):
                pass
            time.sleep(self.delay)
            backend = self._connect()
            if backend is None:
                return
            self._open.add(backend)
            pump = threading.Thread(target=_copy, args=(backend, client), daemon=True)
            pump.start()
            _copy(client, backend)
            pump.join()
            self._open.discard(backend)
            backend.close()
        finally:
            self._open.discard(client)
            client.close()

    def _connect(self) -> socket.socket | None:
        count = len(self.backends)
        start = next(self._turn)
        for offset in range(count):
            with contextlib.suppress(OSError):
                return socket.create_connection(("127.0.0.1", self.backends[(start + offset) % count]), timeout=1)
        return None


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        source.settimeout(None)
        while data := source.recv(1 << 16):
            target.sendall(data)
    except OSError:
        pass
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
