"""TLS for cheroot: a server side context made from PEM bytes, swapped live, with the handshake in a worker thread.

cheroot's own adapter shakes hands in its accept loop, where one silent client holds up every other connection for the
whole time-out; here the loop only wraps, and the first read in a worker shakes hands under a short time-out.
"""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cheroot import errors
from cheroot.ssl.builtin import BuiltinSSLAdapter

from defragd.errors import ConfigError

HANDSHAKE_SECONDS = 3.0


class _LazySocket(ssl.SSLSocket):
    """Shakes hands at the first read. Any failure there ends the connection quietly: the peer is a scanner, a probe
    or a client that does not trust us, and nothing can be told to it."""

    shaken = False

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        if not self.shaken:
            patience = self.gettimeout()
            try:
                self.settimeout(HANDSHAKE_SECONDS)
                self.do_handshake()
                self.settimeout(patience)
            except (OSError, ValueError) as error:
                raise errors.FatalSSLAlert(*error.args) from error
            self.shaken = True
        try:
            return super().recv_into(buffer, nbytes or 0, flags)
        except ssl.SSLError as error:
            if isinstance(error, TimeoutError):
                raise
            raise errors.FatalSSLAlert(*error.args) from error


class LiveAdapter(BuiltinSSLAdapter):
    """``swap(cert_pem, key_pem)`` makes the next handshake use the new pair; open connections go on undisturbed."""

    def __init__(self, cert_pem: bytes, key_pem: bytes) -> None:
        # On purpose not the parent's __init__: it wants files that stay, and shakes hands with itself to read them.
        self.certificate = self.private_key = "<memory>"
        self.certificate_chain = self.ciphers = self.private_key_password = None
        self.context = build_context(cert_pem, key_pem)

    def swap(self, cert_pem: bytes, key_pem: bytes) -> None:
        """Raises ConfigError when the pair is not usable; the old one then stays."""
        self.context = build_context(cert_pem, key_pem)

    def wrap(self, sock: socket.socket) -> tuple[ssl.SSLSocket, dict[str, Any]]:
        try:
            wrapped = self.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        except (ssl.SSLError, OSError) as error:
            raise errors.FatalSSLAlert(*error.args) from error
        # Only what a WSGI application needs to know; the handshake is still to come.
        return wrapped, {"wsgi.url_scheme": "https", "HTTPS": "on"}


def build_context(cert_pem: bytes, key_pem: bytes) -> ssl.SSLContext:
    """A server context, TLS 1.2 or newer. Raises ConfigError for a pair that does not load."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    context.sslsocket_class = _LazySocket
    with _as_file(cert_pem + b"\n" + key_pem) as path:
        try:
            context.load_cert_chain(path)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise ConfigError(
                f"webhook certificate: the pair does not load ({error}); check tls.crt and tls.key of the Secret"
            ) from error
    return context


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A path that holds ``data`` while the block runs: memory only on Linux, else a private directory."""
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").exists():
        fd = os.memfd_create("pair", os.MFD_CLOEXEC)
        try:
            os.write(fd, data)
            yield f"/proc/self/fd/{fd}"
        finally:
            os.close(fd)
        return
    with tempfile.TemporaryDirectory(prefix="defragd-") as folder:
        path = Path(folder) / "pair.pem"
        path.touch(mode=0o600)
        path.write_bytes(data)
        yield str(path)
