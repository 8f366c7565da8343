"""Sockets with deadlines: what is buffered, what wakes, and how ends are called."""

from __future__ import annotations

import errno
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.errors import ConnectionFailed, ConnectionLost
from amqp_core.transport import READ_BYTES, Transport
from tests.support.ports import free_port
from tests.support.sockets import HOST, read, reset, wait_on

if TYPE_CHECKING:
    from collections.abc import Iterator


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


@pytest.mark.parametrize("timeout", [float("inf"), 1e7])
def test_a_wait_without_an_end_is_one(pair: tuple[Transport, socket.socket], timeout: float) -> None:
    transport, peer = pair
    threading.Timer(0.1, peer.sendall, (b"x",)).start()
    assert not transport.wait(timeout)
    assert transport.read() == b"x"


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


def test_a_reset_is_a_lost_connection(pair: tuple[Transport, socket.socket]) -> None:
    transport, peer = pair
    reset(peer)
    transport.wait(60)
    with pytest.raises(ConnectionLost, match="broke while reading: Connection reset by peer"):
        transport.read()
    with pytest.raises(ConnectionLost, match="broke while writing"):
        transport.write(b"x")


def test_a_reset_is_noticed_while_reading_is_paused(pair: tuple[Transport, socket.socket]) -> None:
    transport, peer = pair
    reset(peer)
    with pytest.raises(ConnectionLost, match="the peer reset it"):
        transport.wait(60, reading=False)


def test_a_write_that_waits_meets_thereset(pair: tuple[Transport, socket.socket]) -> None:
    transport, peer = pair
    transport.write(bytes(32 << 20))
    assert transport.pending_bytes
    timer = threading.Timer(0.05, reset, (peer,))
    timer.start()
    with pytest.raises(ConnectionLost):
        wait_on(transport)
    timer.join()


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
def test_a_closed_port() -> None:
    port = free_port()
    with pytest.raises(ConnectionFailed, match=f"Connecting to {HOST}:{port} failed: Connection refused"):
        Transport.connect(HOST, port, timeout=5, context=None)


@pytest.mark.parametrize(
    "name", ["no-such-host.invalid", "", "a..b", "x" * 70 + ".example", "x" * 300, "\ud800", "a b"]
)
def test_a_name_that_does_not_exist_is_named(name: str) -> None:
    # an empty name is this machine, where no program listens on the port
    with pytest.raises(ConnectionFailed):
        Transport.connect(name, free_port(), timeout=5, context=None)


@pytest.mark.parametrize("port", [-1, 65536, 1 << 40])
def test_a_port_that_does_not_exist(port: int) -> None:
    with pytest.raises(ConnectionFailed):
        Transport.connect(HOST, port, timeout=5, context=None)


def test_every_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        closed_port = free_port()
        family = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        addresses = [(*family, (HOST, closed_port)), (*family, (HOST, port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
        transport = Transport.connect("some.name", port, timeout=5, context=None)
        assert transport.peer == f"some.name:{port}"
        transport.close()
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [])
        with pytest.raises(ConnectionFailed, match="the name has no address"):
            Transport.connect("some.name", port, timeout=5, context=None)


class WithoutIpv6(socket.socket):
    """A socket of a machine that has no IPv6: it is not built in, turned off, or has no route."""

    error = errno.EAFNOSUPPORT

    def __init__(self, family: int, *others: int) -> None:
        if family == socket.AF_INET6 and self.error == errno.EAFNOSUPPORT:
            raise OSError(self.error, os.strerror(self.error))
        super().__init__(family, *others)

    def connect(self, address: Any) -> None:
        if self.family == socket.AF_INET6:
            raise OSError(self.error, os.strerror(self.error))
        super().connect(address)


@pytest.mark.parametrize("error", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENETUNREACH])
@pytest.mark.parametrize("is_last", [False, True])
def test_an_address_of_a_kind_that_the_machine_does_not_have_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, error: int, *, is_last: bool
) -> None:
    """As localhost in a container: 127.0.0.1 and ::1."""

    def resolved(port: int) -> None:
        found = [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (HOST, port)),
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found[::-1] if is_last else found)

    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        resolved(port)
        monkeypatch.setattr(WithoutIpv6, "error", error)
        monkeypatch.setattr(socket, "socket", WithoutIpv6)
        Transport.connect("some.name", port, timeout=5, context=None).close()
    with pytest.raises(ConnectionFailed, match="Connection refused"):
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
    with pytest.raises(ConnectionFailed, match=r"some.name:1 failed: no answer within 8 s.*connect timeout"):
        Transport.connect("some.name", 1, timeout=8, context=None)
    assert [round(seconds or 0) for seconds in given] == [2, 3, 4, 8]


def test_an_ipv6_address_is_written_with_brackets() -> None:
    with pytest.raises(ConnectionFailed, match=r"\[::1\]:"):
        Transport.connect("::1", free_port(), timeout=5, context=None)


def test_without_file_descriptors_nothing_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> tuple[socket.socket, socket.socket]:
        raise OSError(24, "Too many open files")

    with socket.create_server((HOST, 0)) as listener:
        monkeypatch.setattr(socket, "socketpair", none_left)
        with pytest.raises(
            ConnectionFailed, match=r"Too many open files\. Raise the limit of open files \(ulimit -n\)"
        ):
            Transport.connect(HOST, listener.getsockname()[1], timeout=5, context=None)


def test_too_many_open_files_are_no_matter_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query over hundreds of queues has as many connections."""

    def none_left(*_: object, **_more: object) -> socket.socket:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "socket", none_left)
    with pytest.raises(ConnectionFailed, match=r"OPEN_FILES_EXHAUSTED.*Raise the limit of open files"):
        Transport.connect(HOST, 5672, timeout=5, context=None)


def test_a_name_that_is_not_resolved_in_time_is_named_with_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    resolve = socket.getaddrinfo

    def slow(host: str, port: int, *, flags: int = 0, **kwargs: Any) -> Any:
        if not flags:
            answered.wait(30)
        return resolve(host, port, flags=flags, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    try:
        with pytest.raises(
            ConnectionFailed,
            match=r"slow\.example:5672 failed: the host name was not resolved within 0\.2 s.*connect timeout",
        ):
            Transport.connect("slow.example", 5672, timeout=0.2, context=None)
    finally:
        answered.set()


def test_a_number_needs_no_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread was started"))
    with socket.create_server((HOST, 0)) as listener:
        Transport.connect(HOST, listener.getsockname()[1], timeout=10, context=None).close()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70 + ".example", "\u2603" * 64])
def test_what_the_resolver_says_is_heard(host: str) -> None:
    with pytest.raises(ConnectionFailed, match=r"cannot be resolved|is not an address"):
        Transport.connect(host, 5672, timeout=10, context=None)
