"""The pump with a protocol of its own: it knows none."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from amqp_core.errors import ConnectionLost, DeadlineExceeded, ProtocolError, ReturnedUnexpectedly, UsageError
from amqp_core.heartbeat import Heartbeat
from amqp_core.pump import Pump
from amqp_core.transport import Transport, monotonic

if TYPE_CHECKING:
    from collections.abc import Iterator


class Echo:
    """A protocol of lines: keeps those that arrive; ``bad`` violates it, ``over`` ends the session."""

    def __init__(self, heartbeat_s: int = 0) -> None:
        self.is_open = True
        self.error: ConnectionLost | None = None
        self.lines: list[bytes] = []
        self.out: list[bytes] = []
        self.closed_by: Exception | None = None
        self.heartbeat = Heartbeat(heartbeat_s)

    def data_to_send(self) -> bytes:
        data = b"".join(self.out)
        self.out.clear()
        return data

    def receive(self, data: bytes) -> ConnectionLost | ProtocolError | None:
        self.heartbeat.received = True
        self.lines += data.splitlines()
        if b"over" in self.lines:
            self.error = ConnectionLost("the session is over")
            return ConnectionLost("the connection, too")
        return ProtocolError("a bad line") if b"bad" in self.lines else None

    def receive_eof(self) -> None:
        return None

    def tick(self, now: float, *, reading: bool) -> tuple[float | None, bool]:
        due, following, silent = self.heartbeat.tick(now, reading=reading)
        if due:
            self.out.append(b"beat\n")
        return following, silent

    def report(self, now: float) -> float:
        del now
        return math.inf

    def close(self, error: Exception) -> None:
        self.closed_by = error
        self.out.append(b"bye\n")


class Ends:
    """A pump, its protocol, and the socket of the peer."""

    def __init__(self, **settings: int) -> None:
        ours, self.peer = socket.socketpair()
        self.peer.settimeout(10)
        self.echo = Echo(**settings)
        self.pump = Pump(Transport(ours, "peer:1"), self.echo, call_timeout_s=5.0)


@pytest.fixture
def ends() -> Iterator[Ends]:
    both = Ends()
    yield both
    both.pump.abort()
    both.peer.close()


def test_a_call_waits_for_what_has_arrived(ends: Ends) -> None:
    ends.echo.out.append(b"question\n")
    ends.pump.write()
    assert ends.peer.recv(100) == b"question\n"
    threading.Timer(0.05, ends.peer.sendall, [b"answer\n"]).start()
    ends.pump.wait_for(lambda: b"answer" in ends.echo.lines, "the answer")
    assert ends.pump.received_bytes == 7


def test_a_round_that_wrote_what_was_pending_does_not_wait_for_data(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller may wait for room to write, and a peer that has read everything need not answer."""
    transport = ends.pump.transport
    while not transport.pending_bytes:
        ends.pump.write(memoryview(bytes(4096)))
    left = transport.sent_bytes
    while left:
        left -= len(ends.peer.recv(left))

    def wait(timeout: float, *, reading: bool) -> bool:
        raise AssertionError(f"waits {timeout} s, reading: {reading}")

    monkeypatch.setattr(transport, "wait", wait)
    ends.pump.pump_once(monotonic() + 30)
    assert transport.pending_bytes == 0


def test_a_call_without_an_answer_ends_the_connection(ends: Ends) -> None:
    ends.pump.call_timeout_s = 0.05
    with pytest.raises(DeadlineExceeded, match="peer:1 did not answer in time: waited for the answer"):
        ends.pump.wait_for(lambda: False, "the answer")
    assert ends.peer.recv(100) == b"bye\n"
    with pytest.raises(DeadlineExceeded):
        ends.pump.check()


def test_the_first_error_stays_and_the_sessions_own_is_preferred(ends: Ends) -> None:
    ends.peer.sendall(b"over\n")
    for _ in range(2):
        with pytest.raises(ConnectionLost, match="the session is over"):
            ends.pump.pump_once(monotonic() + 5)
    assert str(ends.echo.closed_by) == "the connection, too"


def test_what_arrived_before_a_write_failed_counts_if_no_retry_mends_it(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    def receive(data: bytes) -> None:
        raise ReturnedUnexpectedly(data.decode())

    monkeypatch.setattr(ends.echo, "receive", receive)
    ends.peer.sendall(b"a message that counts as delivered")
    ends.peer.close()
    ends.pump.write(memoryview(b"another message"))
    with pytest.raises(ReturnedUnexpectedly, match="counts as delivered"):
        ends.pump.check()


@pytest.mark.parametrize("publishes", [True, False])
def test_a_peer_that_stood_still_gets_no_more_messages_after_the_error(*, publishes: bool) -> None:
    """What the kernel still holds is sent again over another connection. Answers to the peer are not."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        transport = Transport.connect("127.0.0.1", server.getsockname()[1], timeout=10, context=None)
        peer, _ = server.accept()
    echo = Echo()
    pump = Pump(transport, echo, call_timeout_s=0.05)
    while not transport.pending_bytes:
        if publishes:
            pump.write(memoryview(bytes(65_536)))
        else:
            echo.out.append(bytes(65_536))
            pump.write()
    with pytest.raises(DeadlineExceeded):
        pump.wait_for(lambda: False, "an answer")
    read = 0
    with peer, contextlib.suppress(ConnectionResetError):
        while data := peer.recv(1 << 20):
            read += len(data)
    assert (read < transport.sent_bytes) == publishes


def test_a_violation_closes_the_connection(ends: Ends) -> None:
    ends.peer.sendall(b"bad\n")
    with pytest.raises(ProtocolError, match="a bad line"):
        ends.pump.pump_once(monotonic() + 5)
    assert ends.peer.recv(100) == b"bye\n"


def test_the_end_of_the_data_before_any_is_explained(ends: Ends) -> None:
    ends.peer.close()
    with pytest.raises(ConnectionLost, match=r"peer:1 ended: .* want TLS \(amqps://\)"):
        ends.pump.pump_once(monotonic() + 5)


def test_goodbye_is_said_once(ends: Ends) -> None:
    said: list[float] = []
    ends.pump.end(said.append)
    ends.pump.end(said.append)
    assert len(said) == 1
    with pytest.raises(UsageError, match="closed"):
        ends.pump.check()


def test_heartbeats_are_sent_and_silence_ends_the_connection_unless_it_is_allowed() -> None:
    both = Ends(heartbeat_s=1)
    both.pump.allow_silence(60.0, until=lambda: len(both.echo.lines) > 0)
    until = monotonic() + 2.7
    while monotonic() < until:
        both.pump.pump_once(until)
    assert both.peer.recv(100).startswith(b"beat\n")
    both.echo.lines.append(b"done")
    with pytest.raises(ConnectionLost, match="silent for two heartbeat intervals"):
        both.pump.wait_for(lambda: False, "the silence to end")
    both.peer.close()
