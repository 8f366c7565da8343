"""TLS: what it carries, and how its failures are called."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.address import ConnectOptions
from amqp_core.errors import ConnectionFailed, ConnectionLost, TlsError
from amqp_core.transport import Transport, tls_context
from tests.support.sockets import HOST, read, reset, wait_on
from tests.support.tls import TlsMaterial

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsMaterial:
    return TlsMaterial.make(tmp_path_factory.mktemp("keys") / "tls")


class TlsServer:
    """Accepts connections and handles each by a function on a thread of its own."""

    def __init__(self, handle: Callable[[socket.socket], None]) -> None:
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._handle = handle
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> TlsServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # the client's end of a handshake that is meant to fail
            sock, _ = self._listener.accept()
            with sock:
                sock.settimeout(10)
                self._handle(sock)


def server_context(tls: TlsMaterial, *, wrong_name: bool = False, ask: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    pair = tls.wrong_name if wrong_name else tls.server
    context.load_cert_chain(pair.cert_file, pair.key_file)
    if ask:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(tls.ca_file)
    return context


def options(tls: TlsMaterial, **settings: object) -> ConnectOptions:
    values: dict[str, object] = {"hosts": ((HOST, 1),), "tls": True, "tls_ca_file": str(tls.ca_file)} | settings
    return ConnectOptions(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_carries_more_than_a_record_and_what_the_library_holds(tls: TlsMaterial, version: ssl.TLSVersion) -> None:
    data = bytes(range(256)) * (1 << 13)

    def echo(sock: socket.socket) -> None:
        with context.wrap_socket(sock, server_side=True) as peer:
            found = bytearray()
            while len(found) < len(data):
                found += peer.recv(1 << 16)
            peer.sendall(found)
            assert peer.recv(10) == b"end"

    context = server_context(tls)
    context.minimum_version = context.maximum_version = version
    with TlsServer(echo) as server:
        transport = Transport.connect(HOST, server.port, timeout=10, context=tls_context(options(tls)))
        assert transport.is_tls
        transport.write(data)
        assert read(transport, len(data)) == data
        transport.write(b"end")
        transport.wait(10)
        assert transport.read() == b""
        transport.close()


def test_what_tls_has_decoded_is_not_waited_for(tls: TlsMaterial) -> None:
    sent = threading.Event()

    def send(sock: socket.socket) -> None:
        with context.wrap_socket(sock, server_side=True) as peer:
            peer.sendall(bytes(16_000))  # one record
            sent.set()
            peer.recv(1)

    context = server_context(tls)
    with TlsServer(send) as server:
        transport = Transport.connect(HOST, server.port, timeout=10, context=tls_context(options(tls)))
        assert sent.wait(10)
        transport.wait(10)
        assert isinstance(transport._sock, ssl.SSLSocket)
        while not (part := _read_some(transport, 1000)):
            transport.wait(10)
        assert len(part) == 1000
        assert transport._sock.pending() == 15_000
        waited = Waited()
        transport._poll = waited  # type: ignore[assignment]
        transport.wait(60)
        assert waited.timeouts == [0.0]
        assert len(read(transport, 15_000)) == 15_000
        transport.wait(60)
        assert waited.timeouts == [0.0, 60_000.0]
        transport.close()


class Waited:
    """A poll object that only notes how long it would have waited, in ms."""

    def __init__(self) -> None:
        self.timeouts: list[float] = []

    def poll(self, timeout_ms: float) -> list[tuple[int, int]]:
        self.timeouts.append(timeout_ms)
        return []


def _read_some(transport: Transport, size: int) -> bytes:
    try:
        return transport._sock.recv(size)
    except ssl.SSLWantReadError:
        return b""


@pytest.mark.parametrize(
    ("settings", "wrong_name", "text"),
    [
        ({"tls_ca_file": "other"}, False, r"is not trusted: .*CA file"),
        ({"tls_ca_file": None}, False, "is not trusted"),
        ({}, True, r"is for another name: .*verification of host names"),
    ],
)
def test_a_certificate_that_is_not_believed(
    tls: TlsMaterial, settings: dict[str, object], wrong_name: bool, text: str
) -> None:
    if settings.get("tls_ca_file") == "other":
        settings = {"tls_ca_file": str(tls.other_ca_file)}
    context = server_context(tls, wrong_name=wrong_name)
    with (
        TlsServer(lambda sock: context.wrap_socket(sock, server_side=True).close()) as server,
        pytest.raises(TlsError, match=text),
    ):
        Transport.connect(HOST, server.port, timeout=10, context=tls_context(options(tls, **settings)))


def test_the_name_need_not_be_verified_but_the_authority_is(tls: TlsMaterial) -> None:
    context = server_context(tls, wrong_name=True)
    unverified = tls_context(options(tls, tls_verify_hostname=False))
    with TlsServer(lambda sock: context.wrap_socket(sock, server_side=True).close()) as server:
        Transport.connect(HOST, server.port, timeout=10, context=unverified).close()
    stranger = tls_context(options(tls, tls_verify_hostname=False, tls_ca_file=str(tls.other_ca_file)))
    with (
        TlsServer(lambda sock: context.wrap_socket(sock, server_side=True).close()) as server,
        pytest.raises(TlsError, match="is not trusted"),
    ):
        Transport.connect(HOST, server.port, timeout=10, context=stranger)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("certificate", ["none", "stranger"])
def test_a_certificate_of_ours_that_the_peer_does_not_take(
    tls: TlsMaterial, version: ssl.TLSVersion, certificate: str
) -> None:
    context = server_context(tls, ask=True)
    context.minimum_version = context.maximum_version = version
    settings: dict[str, object] = {}
    if certificate == "stranger":
        settings = {"tls_cert_file": str(tls.stranger.cert_file), "tls_key_file": str(tls.stranger.key_file)}
    with (
        TlsServer(lambda sock: context.wrap_socket(sock, server_side=True).close()) as server,
        pytest.raises(TlsError, match=r"(?i)certificate|unknown ca|handshake failure"),
    ):
        _connect_and_read(server.port, tls_context(options(tls, **settings)))


def _connect_and_read(port: int, context: ssl.SSLContext) -> None:
    """With TLS 1.3 the peer's verdict comes after our handshake."""
    with contextlib.closing(Transport.connect(HOST, port, timeout=10, context=context)) as transport:
        deadline = time.monotonic() + 10
        while transport.read() is None and time.monotonic() < deadline:
            transport.wait(1)


@pytest.mark.parametrize("answer", [b"AMQP\x01\x01\x00\x0a", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_tls_to_a_peer_that_does_not_speak_it(tls: TlsMaterial, answer: bytes) -> None:
    def plain(sock: socket.socket) -> None:
        sock.recv(4096)
        sock.sendall(answer)

    with TlsServer(plain) as server, pytest.raises(TlsError, match=r"does not speak TLS: .* Use amqp://"):
        Transport.connect(HOST, server.port, timeout=10, context=tls_context(options(tls)))


def test_a_handshake_that_ends_or_stalls(tls: TlsMaterial) -> None:
    context = tls_context(options(tls))

    def end(sock: socket.socket) -> None:
        sock.recv(4096)

    def reset_it(sock: socket.socket) -> None:
        sock.recv(4096)
        reset(sock)

    def stall(_: socket.socket) -> None:
        stop.wait(10)

    for handle in (end, reset_it):
        with (
            TlsServer(handle) as server,
            pytest.raises(ConnectionLost, match="broke during the TLS handshake"),
        ):
            Transport.connect(HOST, server.port, timeout=10, context=context)
    stop = threading.Event()
    with TlsServer(stall) as server:
        with pytest.raises(ConnectionFailed, match=r"no TLS handshake within 0\.2 s"):
            Transport.connect(HOST, server.port, timeout=0.2, context=context)
        stop.set()


def test_a_broken_stream_after_the_handshake_is_a_lost_connection(tls: TlsMaterial) -> None:
    context = server_context(tls)

    def break_it(sock: socket.socket) -> None:
        raw = socket.socket(fileno=sock.detach())
        with context.wrap_socket(raw, server_side=True) as peer:
            peer.sendall(b"fine")
            assert peer.recv(10) == b"go on"
            plain = socket.socket(fileno=peer.detach())
        with plain:
            plain.sendall(b"\x17\x03\x03\x00\x40" + bytes(64))

    with TlsServer(break_it) as server:
        transport = Transport.connect(HOST, server.port, timeout=10, context=tls_context(options(tls)))
        assert read(transport, 4) == b"fine"
        transport.write(b"go on")
        with pytest.raises(ConnectionLost, match="broke while reading"):
            wait_on(transport)
        transport.close()


def test_a_host_that_cannot_be_in_a_certificate(tls: TlsMaterial) -> None:
    for name in (".host", "", "a\0b"):
        with pytest.raises(TlsError, match=f"{re.escape(repr(name))} cannot be the name in a certificate"):
            Transport.connect(name, 1, timeout=5, context=tls_context(options(tls)))


@pytest.mark.parametrize("name", ["tls_ca_file", "tls_cert_file"])
@pytest.mark.parametrize("content", [None, "not pem"])
def test_tls_files_that_cannot_be_used_are_named(
    tls: TlsMaterial, tmp_path: Path, name: str, content: str | None
) -> None:
    file = tmp_path / "odd.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(TlsError, match=r"The TLS files .*odd\.pem.* cannot be used"):
        tls_context(options(tls, **{name: str(file)}))


def test_a_key_with_a_passphrase_is_an_error_and_no_prompt(tls: TlsMaterial, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    key = serialization.load_pem_private_key(tls.client.key_file.read_bytes(), None)
    file = tmp_path / "locked.pem"
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"pass"),
        )
    )
    with pytest.raises(TlsError, match=r"locked\.pem"):
        tls_context(options(tls, tls_cert_file=str(tls.client.cert_file), tls_key_file=str(file)))


@pytest.mark.parametrize("name", ["tls_ca_file", "tls_cert_file"])
def test_a_path_that_cannot_be_one_is_an_error_of_tls(name: str) -> None:
    given: dict[str, Any] = {name: "\ud800"}
    with pytest.raises(TlsError, match=r"The TLS files '\\ud800' cannot be used") as caught:
        tls_context(ConnectOptions(hosts=(("h", 1),), tls=True, **given))
    str(caught.value).encode()
