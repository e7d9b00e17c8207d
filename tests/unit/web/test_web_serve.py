"""The servers on real sockets: TLS that is swapped under traffic, silent peers, draining, taken ports."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from defragd.errors import ConfigError
from defragd.web.serve import Server, parse_address
from defragd.web.webhook import create_webhook_app


def make_pair(name: str = "localhost") -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return cert.public_bytes(serialization.Encoding.PEM), private


PAIRS = [make_pair("one"), make_pair("two")]
BODY = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u-1"}}'


def trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def serial(port: int) -> int:
    with socket.create_connection(("127.0.0.1", port), 5) as raw, trusting().wrap_socket(raw) as tls:
        der = tls.getpeercert(binary_form=True)
        assert der is not None
        return x509.load_der_x509_certificate(der).serial_number


@pytest.fixture
def server() -> Iterator[Server]:
    app = create_webhook_app(lambda request: [], lambda event, fields: None)
    found = Server(app, "127.0.0.1:0", name="webhook", tls=PAIRS[0], threads=4)
    found.start()
    yield found
    found.stop(drain=1)


def post(port: int, connection: http.client.HTTPSConnection | None = None) -> http.client.HTTPResponse:
    conn = connection or http.client.HTTPSConnection("127.0.0.1", port, context=trusting(), timeout=5)
    conn.request("POST", "/mutate", BODY, {"Content-Type": "application/json"})
    answer = conn.getresponse()
    answer.read()
    return answer


def test_certificate_is_swapped_under_traffic_without_a_failed_request(server: Server) -> None:
    stop, failures, done = threading.Event(), [], []

    def traffic() -> None:
        kept = http.client.HTTPSConnection("127.0.0.1", server.port, context=trusting(), timeout=5)
        while not stop.is_set():
            try:
                assert post(server.port, kept).status == 200
                assert post(server.port).status == 200
                done.append(1)
            except Exception as error:
                failures.append(error)
        kept.close()

    threads = [threading.Thread(target=traffic) for _ in range(2)]
    for thread in threads:
        thread.start()
    first = serial(server.port)
    seen = set()
    for turn in range(6):
        server.reload(*PAIRS[(turn + 1) % 2])
        seen.add(serial(server.port))
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert done
    assert len(seen) == 2 and first in seen


def test_a_broken_pair_is_refused_and_the_old_one_stays(server: Server) -> None:
    before = serial(server.port)
    for cert, key in ((b"no", b"sense"), (PAIRS[1][0], PAIRS[0][1]), (b"", b"")):
        with pytest.raises(ConfigError, match=r"tls\.crt"):
            server.reload(cert, key)
    assert serial(server.port) == before


def test_silent_and_babbling_peers_do_not_hold_up_others(server: Server) -> None:
    silent = [socket.create_connection(("127.0.0.1", server.port), 5) for _ in range(20)]
    plain = socket.create_connection(("127.0.0.1", server.port), 5)
    plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
    started = time.monotonic()
    assert post(server.port).status == 200
    assert time.monotonic() - started < 1.0
    for sock in (*silent, plain):
        sock.close()


def test_old_tls_is_refused(server: Server) -> None:
    context = trusting()
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", server.port), 5) as raw, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(raw)


def test_nothing_stays_on_disk(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delattr("os.memfd_create")
    server = Server(lambda env, start: [], "127.0.0.1:0", name="webhook", tls=PAIRS[0])
    server.reload(*PAIRS[1])
    assert list(tmp_path.iterdir()) == []


def test_a_taken_port_is_one_clear_line(server: Server) -> None:
    other = Server(lambda env, start: [], f"127.0.0.1:{server.port}", name="api")
    with pytest.raises(ConfigError) as caught:
        other.start()
    text = str(caught.value)
    assert "\n" not in text and str(server.port) in text and "taken" in text and "api" in text


def test_an_address_that_is_not_ours_is_one_clear_line() -> None:
    with pytest.raises(ConfigError) as caught:
        Server(lambda env, start: [], "192.0.2.1:8083", name="api").start()
    assert "192.0.2.1:8083" in str(caught.value) and "\n" not in str(caught.value)


def test_stop_lets_a_request_end_and_is_idempotent() -> None:
    begun = threading.Event()

    def slow(env, start):
        begun.set()
        time.sleep(0.4)
        start("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    server = Server(slow, "127.0.0.1:0", name="api")
    server.start()
    assert server.serving
    answers = []

    def ask() -> None:
        conn = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
        conn.request("GET", "/")
        answers.append(conn.getresponse().read())

    thread = threading.Thread(target=ask)
    thread.start()
    assert begun.wait(5)
    server.stop(drain=3)
    thread.join()
    assert answers == [b"ok"]
    assert not server.serving
    server.stop()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.port), 1)


def test_a_server_can_be_stopped_before_it_was_started() -> None:
    Server(lambda env, start: [], "127.0.0.1:0", name="api").stop()


@pytest.mark.parametrize(
    ("text", "want"),
    [("0.0.0.0:8083", ("0.0.0.0", 8083)), (":8083", ("0.0.0.0", 8083)), ("[::1]:1", ("::1", 1)), ("a.b:0", ("a.b", 0))],
)
def test_addresses(text: str, want: tuple[str, int]) -> None:
    assert parse_address(text, what="api") == want


@pytest.mark.parametrize("text", ["", "8083:", "host", "host:port", "host:70000", "host:-1"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        parse_address(text, what="api")
