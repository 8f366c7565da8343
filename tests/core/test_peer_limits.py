"""Bounds of the memory that a peer can occupy: early frames, large messages, maps, answers that it never reads."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import TYPE_CHECKING

import pytest

from amqp_core import pump as pump_module
from amqp_core.connection_states import Opened, Role, State
from amqp_core.errors import AmqpError, DeadlineExceeded, DecodeError, LimitExceeded, ProtocolError
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import decode_command, decode_control, decode_header
from tests.support import wire
from tests.support.fakepeer import FakePeer, Peer
from tests.support.machines import at, client, control, error_of, pump, server

if TYPE_CHECKING:
    from collections.abc import Callable


# ---------------------------------------------------------------------------------------- before the connection is open
@pytest.mark.parametrize("state", [State.START, State.SECURE_OR_TUNE, State.OPEN_OK])
@pytest.mark.parametrize("track", [0, 1])
def test_only_channel_0_has_a_meaning_before_the_connection_is_open(state: State, track: int) -> None:
    us = at(Role.CLIENT, state)
    for half in (wire.frame(0x0B, track, b"\x02\x05", track=track, channel=7), wire.frame(0x0F, track, b"\x01\x0a")):
        error = error_of(at(Role.CLIENT, state).receive_data(half[:6] + b"\x00\x07" + half[8:]))
        assert isinstance(error, ProtocolError)
        assert "channel 7, before the connection was open" in str(error)
    assert us.state is state


@pytest.mark.parametrize("role", Role)
def test_frames_are_small_until_their_size_is_agreed(role: Role) -> None:
    state = State.START if role is Role.CLIENT else State.START_OK
    small = wire.frame(0x0B, 0, bytes(4084), track=0)
    large = wire.frame(0x0B, 0, bytes(4085), track=0)
    assert at(role, state).receive_data(small) == []
    error = error_of(at(role, state).receive_data(large[:12]))
    assert isinstance(error, LimitExceeded)
    assert "a frame of 4097 bytes arrived where 4096 are the most" in str(error)


def test_a_start_in_many_frames_is_taken_up_to_a_limit() -> None:
    start = control(spec.ConnectionStart(server_properties={"x": "y" * 20_000}, mechanisms=["ANONYMOUS"]))[12:]
    us = at(Role.CLIENT, State.START)
    for begin in range(0, len(start), 4000):
        flags = 0x0C | (2 if begin == 0 else 0) | (1 if begin + 4000 >= len(start) else 0)
        us.receive_data(wire.frame(flags, 0, start[begin : begin + 4000], track=0))
    assert us.state is State.SECURE_OR_TUNE
    us = at(Role.CLIENT, State.START)
    events = us.receive_data(wire.frame(0x0E, 0, bytes(4000), track=0))
    for _ in range(40):
        events += us.receive_data(wire.frame(0x0C, 0, bytes(4000), track=0))
    assert isinstance(error_of(events), LimitExceeded)


def test_frames_may_be_as_large_as_agreed_from_tune_ok_on() -> None:
    us = at(Role.CLIENT, State.OPEN_OK)
    assert us.receive_data(control(spec.ConnectionOpenOk(known_hosts=["h" * 200] * 100))) == [Opened()]


# ------------------------------------------------------------------------------------------------- messages, commands
@pytest.mark.parametrize("frame_size", [4096, 65535])
def test_a_message_beyond_the_limit_ends_the_connection_and_names_the_option(frame_size: int) -> None:
    us = client(max_message_bytes=100_000)
    pump(us, server())
    events = us.receive_data(wire.transfer(None, b"1") + wire.transfer(None, b"x" * 100_000, limit=frame_size))
    error = error_of(events)
    assert isinstance(error, LimitExceeded)
    assert "larger than 100000 bytes, the largest allowed (max message bytes): raise that limit" in str(error)
    assert len(events) == 2
    assert not error.retryable


def test_a_command_beyond_the_limit_names_the_option_where_that_is_the_limit() -> None:
    us = client(max_message_bytes=100_000, scan_transfers=False)
    pump(us, server())
    error = error_of(us.receive_data(wire.transfer(None, b"x" * 100_000)))
    assert isinstance(error, LimitExceeded)
    assert "a command of more than 100000 bytes arrived on channel 0 (raise max message bytes" in str(error)
    us = client()
    pump(us, server())
    result = bytes.fromhex("0302 0100 0300 00000007") + bytes(5 << 20)
    error = error_of(us.receive_data(wire.assembly(result)))
    assert isinstance(error, LimitExceeded)
    assert f"a command of more than {1 << 22} bytes" in str(error)


def test_a_client_takes_no_message_beyond_its_option() -> None:
    def script(peer: Peer) -> None:
        peer.subscribed()
        peer.transfer(b"small", b"x" * (64 << 10))
        with contextlib.suppress(AssertionError):
            peer.serve()

    with FakePeer(script) as peer:
        subscription = peer.connect(max_message_bytes=64 << 10).subscribe("q")
        subscription.grant(5)
        (small,) = subscription.take(timeout=10)
        assert small.body == b"small"
        with pytest.raises(LimitExceeded, match="larger than 65536 bytes"):
            subscription.take(timeout=10)


def test_maps_of_controls_and_commands_are_small_and_those_of_messages_are_not() -> None:
    entries = b"".join(bytes([4]) + b"%04x" % number + b"\xf0" for number in range(11_000))
    large = struct.pack(">II", 4 + len(entries), 11_000) + entries
    with pytest.raises(DecodeError, match="a map of 66004 bytes among arguments, where 65536 are the most"):
        decode_control(bytes.fromhex("0101 0100") + large)
    with pytest.raises(DecodeError, match="a map of 66004 bytes among arguments"):
        decode_command(bytes.fromhex("0801 0100 4000") + large)
    result = bytes.fromhex("0801 2000") + large
    with pytest.raises(DecodeError, match="a map of 66004 bytes among arguments"):
        decode_command(bytes.fromhex("0302 0100 0300 00000007") + struct.pack(">I", len(result)) + result)
    header = bytes.fromhex("0403 0001") + large
    _, properties, _ = decode_header(struct.pack(">I", len(header)) + header)
    assert properties is not None
    assert len(properties.application_headers or {}) == 11_000


# ---------------------------------------------------------------------------------------- a peer that sends, not reads
FLUSHES = control(spec.SessionFlush(expected=True, confirmed=True, completed=True)) * 4000


def flood(peer: Peer, until: Callable[[], bool]) -> None:
    """Ask for state again and again, reading nothing, until then."""
    sent = 0
    peer.sock.settimeout(0.2)
    while not until():
        with contextlib.suppress(TimeoutError):
            sent += peer.sock.send(FLUSHES[sent % len(FLUSHES) :])


def small_buffers(peer: Peer) -> None:
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)


def test_a_peer_that_sends_and_does_not_read_is_not_read_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump_module, "_MOST_PENDING", 1 << 16)

    ended = threading.Event()

    def script(peer: Peer) -> None:
        peer.open()
        peer.expect(spec.MessageSetFlowMode)
        small_buffers(peer)
        with contextlib.suppress(ConnectionError):
            flood(peer, ended.is_set)

    with FakePeer(script) as peer:
        us = peer.connect()
        subscription = us.subscribe("q")
        us._driver.call_timeout_s = 1.0
        most = 0
        error: AmqpError | None = None
        while error is None:
            try:
                subscription.take_blocks(0.2)
            except AmqpError as caught:
                error = caught
            most = max(most, us._driver.transport.pending_bytes)
        ended.set()
        assert isinstance(error, DeadlineExceeded)
        assert "it sends, but has read nothing for 1 s" in str(error)
        assert 1 << 16 < most < 8 << 20  # the bound, and what one read of 256 KiB makes us answer


def test_a_peer_that_reads_late_is_read_again() -> None:
    gone_on = threading.Event()

    def script(peer: Peer) -> None:
        peer.subscribed()
        gone_on.wait(15)
        peer.transfer(b"after")
        peer.serve()

    with FakePeer(script) as peer:
        us = peer.connect(call_timeout_s=20.0)
        subscription = us.subscribe("q")
        subscription.grant(1)
        driver, transport = us._driver, us._driver.transport
        assert driver._stuck_deadline(100.0) is None
        transport.pending_own_bytes += pump_module._MOST_PENDING + 1
        assert driver._stuck_deadline(110.0) == 130.0
        assert driver._stuck_deadline(120.0) == 130.0
        transport.sent_bytes += 1  # something was taken: it counts from here
        assert driver._stuck_deadline(125.0) == 145.0
        with pytest.raises(DeadlineExceeded):
            driver._stuck_deadline(145.0)
        driver._stuck_at = None
        gone_on.set()
        assert subscription.take(timeout=0.3) == []  # left in the socket
        transport.pending_own_bytes -= pump_module._MOST_PENDING + 1
        (message,) = subscription.take(timeout=10)
        assert message.body == b"after"


def test_messages_that_wait_for_a_slow_reader_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump_module, "_MOST_PENDING", 1 << 10)

    published = threading.Event()

    def script(peer: Peer) -> None:
        peer.open()
        published.wait(15)
        peer.serve()

    with FakePeer(script) as peer:
        us = peer.connect(call_timeout_s=20.0)
        us._driver.send_ready(memoryview(wire.transfer(None, b"x" * (24 << 20))), 1)
        transport = us._driver.transport
        assert transport.pending_bytes > 1 << 20
        assert transport.pending_own_bytes < 1 << 10
        assert us._driver._stuck_deadline(0.0) is None
        published.set()
        us.sync()


@pytest.mark.parametrize("cut_command", [False, True])
@pytest.mark.parametrize("destination", ["s1", "unknown"])
def test_a_large_message_without_credit_is_refused_before_it_is_here(destination: str, cut_command: bool) -> None:
    frames = wire.frames_of(wire.transfer(b"", bytes(1 << 18), destination=destination.encode()))
    command = frames[0]
    if cut_command:
        frames[0] = wire.frame(0x0A, wire.COMMAND, command[12:16]) + wire.frame(0x09, wire.COMMAND, command[16:])

    def script(peer: Peer) -> None:
        peer.hooks[spec.ExecutionSync] = lambda _: peer.raw(b"".join(frames[:-1]))
        peer.open()
        peer.serve()

    with FakePeer(script) as peer_server:
        connected = peer_server.connect()
        connected.subscribe("q")
        with pytest.raises(ProtocolError, match="a large message to a destination that has no subscription"):
            connected.sync()
