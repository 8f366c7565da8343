"""Sockets with deadlines: what is buffered, what wakes, how ends and TLS failures are called."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING

import pytest

from amqp_core.address import ConnectOptions
from amqp_core.errors import ConnectionFailed, ConnectionLost, TlsError
from amqp_core.transport import READ_BYTES, Transport, tls_context
from tests.support.ports import free_port
from tests.support.tls import TlsMaterial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HOST = "127.0.0.1"


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsMaterial:
    return TlsMaterial.make(tmp_path_factory.mktemp("keys") / "tls")


@pytest.fixture
def pair() -> Iterator[tuple[Transport, socket.socket]]:
    """A transport and the plain socket of its peer."""
    with socket.create_server((HOST, 0)) as listener:
        transport = Transport.connect(HOST, listener.getsockname()[1], timeout=10, context=None)
        peer, _ = listener.accept()
    with peer:
        peer.settimeout(10)
        yield transport, peer
    transport.close()


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


def read(transport: Transport, size: int) -> bytes:
    data, deadline = b"", time.monotonic() + 10
    while len(data) < size:
        assert time.monotonic() < deadline
        part = transport.read()
        assert part != b"", "the stream ended"
        data += part or b""
        if part is None:
            transport.wait(1)
    return data


# ---------------------------------------------------------------------------------------------------------------- data
def test_bytes_go_both_ways(pair: tuple[Transport, socket.socket]) -> None:
    transport, peer = pair
    assert transport.read() is None
    transport.write(b"hello")
    assert peer.recv(10) == b"hello"
    peer.sendall(b"world")
    assert read(transport, 5) == b"world"
    assert transport.peer == "{}:{}".format(*peer.getsockname())
    assert transport.peer_is_loopback
    assert not transport.is_tls


def test_what_the_peer_does_not_take_waits_and_arrives_in_order(pair: tuple[Transport, socket.socket]) -> None:
    transport, peer = pair
    data = bytes(range(256)) * (1 << 16)
    for start in range(0, len(data), 1 << 20):
        transport.write(data[start : start + (1 << 20)])
    assert 0 < transport.pending_bytes < len(data)
    found = bytearray()
    while len(found) < len(data):
        found += peer.recv(1 << 20)
        transport.wait(0)
    assert found == data
    assert transport.pending_bytes == 0
    transport.write(b"")
    assert transport.pending_bytes == 0


def test_one_read_is_bounded(pair: tuple[Transport, socket.socket]) -> None:
    transport, peer = pair
    sender = threading.Thread(target=peer.sendall, args=(bytes(8 << 20),))
    sender.start()
    left = 8 << 20
    while left:
        data = read(transport, 1)
        assert len(data) <= READ_BYTES
        left -= len(data)
    sender.join(10)


def test_wait_ends_at_once_when_there_is_something(pair: tuple[Transport, socket.socket]) -> None:
    transport, peer = pair
    peer.sendall(b"x")
    assert transport.wait(60) is False
    assert transport.read() == b"x"
    assert transport.wait(0.01) is False
    assert transport.wait(-5) is False


def test_wait_without_reading_leaves_what_arrives(pair: tuple[Transport, socket.socket]) -> None:
    transport, peer = pair
    peer.sendall(b"x")
    transport.wait(60)  # it has arrived
    assert transport.wait(0.01, reading=False) is False
    assert transport.read() == b"x"


def test_wake_ends_a_wait_that_runs_or_comes_next(pair: tuple[Transport, socket.socket]) -> None:
    transport, _ = pair
    for _ in range(100_000):
        transport.wake()  # more than the pipe takes
    assert transport.wait(60) is True
    while transport.wait(0):
        pass
    timer = threading.Timer(0.05, transport.wake)
    timer.start()
    assert transport.wait(60) is True
    timer.join()
    assert transport.wait(0) is False


# ---------------------------------------------------------------------------------------------------------------- ends
def test_the_end_of_the_stream_is_no_error(pair: tuple[Transport, socket.socket]) -> None:
    transport, peer = pair
    peer.sendall(b"last")
    peer.close()
    assert read(transport, 4) == b"last"
    transport.wait(60)
    assert transport.read() == b""
    assert transport.read() == b""


def test_a_half_closed_peer_still_reads(pair: tuple[Transport, socket.socket]) -> None:
    transport, peer = pair
    peer.shutdown(socket.SHUT_WR)
    transport.wait(60)
    assert transport.read() == b""
    transport.write(b"still")
    assert peer.recv(10) == b"still"


def _reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    peer.close()


def test_a_reset_is_a_lost_connection(pair: tuple[Transport, socket.socket]) -> None:
    transport, peer = pair
    _reset(peer)
    transport.wait(60)
    with pytest.raises(ConnectionLost, match="broke while reading: Connection reset by peer"):
        transport.read()
    with pytest.raises(ConnectionLost, match="broke while writing"):
        transport.write(b"x")


def test_a_reset_is_noticed_while_nobody_reads(pair: tuple[Transport, socket.socket]) -> None:
    transport, peer = pair
    _reset(peer)
    with pytest.raises(ConnectionLost, match="was reset by the peer"):
        transport.wait(60, reading=False)


def test_a_write_that_waits_meets_the_reset(pair: tuple[Transport, socket.socket]) -> None:
    transport, peer = pair
    transport.write(bytes(32 << 20))
    assert transport.pending_bytes
    timer = threading.Timer(0.05, _reset, (peer,))
    timer.start()
    with pytest.raises(ConnectionLost):
        _wait_on(transport)
    timer.join()


def _wait_on(transport: Transport) -> None:
    while True:
        transport.wait(10)
        transport.read()


def test_close_is_for_good_and_may_be_repeated(pair: tuple[Transport, socket.socket]) -> None:
    transport, _ = pair
    transport.write(bytes(32 << 20))
    transport.close()
    transport.close()
    transport.wake()
    assert transport.pending_bytes == 0
    assert not transport.peer_is_loopback
    with pytest.raises(ConnectionLost):
        transport.write(b"x")
    with pytest.raises(ConnectionLost):
        transport.read()


# ------------------------------------------------------------------------------------------------------------- connect
def test_nobody_listens() -> None:
    port = free_port()
    with pytest.raises(ConnectionFailed, match=f"cannot connect to {HOST}:{port}: Connection refused"):
        Transport.connect(HOST, port, timeout=5, context=None)


@pytest.mark.parametrize(
    "name", ["no-such-host.invalid", "", "a..b", "x" * 70 + ".example", "x" * 300, "\ud800", "a b"]
)
def test_a_name_that_does_not_exist_is_named(name: str) -> None:
    # an empty name is this machine, where nobody listens on the port
    with pytest.raises(ConnectionFailed):
        Transport.connect(name, free_port(), timeout=5, context=None)


@pytest.mark.parametrize("port", [-1, 65536, 1 << 40])
def test_a_port_that_does_not_exist(port: int) -> None:
    with pytest.raises(ConnectionFailed):
        Transport.connect(HOST, port, timeout=5, context=None)


def test_every_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        nobody = free_port()
        family = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        addresses = [(*family, (HOST, nobody)), (*family, (HOST, port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
        transport = Transport.connect("some.name", port, timeout=5, context=None)
        assert transport.peer == f"some.name:{port}"
        transport.close()
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [])
        with pytest.raises(ConnectionFailed, match="the name has no address"):
            Transport.connect("some.name", port, timeout=5, context=None)


def test_addresses_that_do_not_answer_share_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float | None] = []

    class Blackhole(socket.socket):
        def connect(self, address: object) -> None:
            given.append(self.gettimeout())
            raise TimeoutError

    family = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(*family, (HOST, 1))] * 4)
    monkeypatch.setattr(socket, "socket", Blackhole)
    with pytest.raises(ConnectionFailed, match=r"no answer from some.name:1 within 8 s \(connectTimeout\)"):
        Transport.connect("some.name", 1, timeout=8, context=None)
    assert [round(seconds or 0) for seconds in given] == [2, 3, 4, 8]


def test_an_ipv6_address_is_written_with_brackets() -> None:
    with pytest.raises(ConnectionFailed, match=r"\[::1\]:"):
        Transport.connect("::1", free_port(), timeout=5, context=None)


# ----------------------------------------------------------------------------------------------------------------- TLS
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
        ({"tls_ca_file": "other"}, False, r"is not trusted: .* \(tls\.caFile"),
        ({"tls_ca_file": None}, False, "is not trusted"),
        ({}, True, r"is for another name: .*tls\.verifyHostname"),
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
def test_tls_to_somebody_who_does_not_speak_it(tls: TlsMaterial, answer: bytes) -> None:
    def plain(sock: socket.socket) -> None:
        sock.recv(4096)
        sock.sendall(answer)

    with TlsServer(plain) as server, pytest.raises(TlsError, match="does not speak TLS: use amqp://"):
        Transport.connect(HOST, server.port, timeout=10, context=tls_context(options(tls)))


def test_a_handshake_that_ends_or_stalls(tls: TlsMaterial) -> None:
    context = tls_context(options(tls))

    def end(sock: socket.socket) -> None:
        sock.recv(4096)

    def reset(sock: socket.socket) -> None:
        sock.recv(4096)
        _reset(sock)

    def stall(_: socket.socket) -> None:
        stop.wait(10)

    for handle in (end, reset):
        with (
            TlsServer(handle) as server,
            pytest.raises(ConnectionLost, match="broke during the TLS handshake"),
        ):
            Transport.connect(HOST, server.port, timeout=10, context=context)
    stop = threading.Event()
    with TlsServer(stall) as server:
        with pytest.raises(ConnectionFailed, match=r"no TLS handshake with .* within 0\.2 s"):
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
            _wait_on(transport)
        transport.close()


def test_a_host_that_cannot_be_in_a_certificate(tls: TlsMaterial) -> None:
    for name in (".host", ""):
        with pytest.raises(TlsError, match=f"'{name}' cannot be the name in a certificate"):
            Transport.connect(name, 1, timeout=5, context=tls_context(options(tls)))


@pytest.mark.parametrize("name", ["tls_ca_file", "tls_cert_file"])
@pytest.mark.parametrize("content", [None, "not pem"])
def test_tls_files_that_cannot_be_used_are_named(
    tls: TlsMaterial, tmp_path: Path, name: str, content: str | None
) -> None:
    file = tmp_path / "odd.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(TlsError, match=r"the TLS files .*odd\.pem.* cannot be used"):
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


def test_without_file_descriptors_nothing_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> tuple[socket.socket, socket.socket]:
        raise OSError(24, "Too many open files")

    with socket.create_server((HOST, 0)) as listener:
        monkeypatch.setattr(socket, "socketpair", none_left)
        with pytest.raises(ConnectionFailed, match="Too many open files"):
            Transport.connect(HOST, listener.getsockname()[1], timeout=5, context=None)
