"""Bytes on the wire as the specification lays them out, and the effect of any other bytes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqp_core.connection_states import Ended, Role, State
from amqp_core.errors import AmqpError, ProtocolError
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import encode_command, encode_control, encode_header
from amqp_core.v0_10.connection import Connection
from amqp_core.v0_10.connection_events import CommandReceived, CommandUnknown, ControlReceived, Event, TransfersReceived
from amqp_core.v0_10.framing import PROTOCOL_HEADER, encode_assembly, encode_control_frame
from amqp_core.v0_10.messages import messages_of
from amqp_core.v0_10.session import Session, SessionState
from tests.support import wire
from tests.support.choice import examples


class Anonymous:
    """A login that asks nothing of the peer."""

    def choose(self, mechanisms: object) -> tuple[str, bytes | None]:
        assert mechanisms is not None
        return "ANONYMOUS", b""

    def respond(self, challenge: bytes) -> bytes:
        return challenge

    def succeeded(self) -> None:
        return

    def shown(self, text: str) -> str:
        return text


def control(value: spec.Control) -> bytes:
    return encode_control_frame(0, encode_control(value))


def command(value: spec.Command, header: bytes | None = None, body: bytes | None = None) -> bytes:
    segments = [(1, encode_command(value))]
    segments += [] if header is None else [(2, header)]
    segments += [] if body is None else [(3, body)]
    return b"".join(encode_assembly(0, 1, segments, 65535))


HANDSHAKE = (
    PROTOCOL_HEADER
    + control(spec.ConnectionStart(server_properties={"product": "x"}, mechanisms=["ANONYMOUS"], locales=["en_US"]))
    + control(spec.ConnectionTune(channel_max=255, max_frame_size=65535, heartbeat_min=0, heartbeat_max=120))
    + control(spec.ConnectionOpenOk())
)


def open_client() -> Connection:
    connection = Connection(Role.CLIENT, login=Anonymous(), virtual_host="vh", scan_transfers=True)
    connection.receive_data(HANDSHAKE)
    assert connection.state is State.OPEN
    connection.data_to_send()
    return connection


# ------------------------------------------------------------------------------------------------------------ our bytes
def frame(kind: int, payload: str, *, track: int, flags: int = 0x0F) -> bytes:
    return wire.frame(flags, kind, bytes.fromhex(payload), track=track)


def test_a_client_says_what_the_specification_says() -> None:
    connection = Connection(Role.CLIENT, login=Anonymous(), virtual_host="vh", heartbeat=30)
    assert connection.data_to_send() == b"AMQP\x01\x01\x00\x0a"
    connection.receive_data(HANDSHAKE[:8])
    assert connection.data_to_send() == b""
    start = control(spec.ConnectionStart(mechanisms=["ANONYMOUS"], locales=["en_US"]))
    connection.receive_data(start)
    # client-properties (empty map: size 4, count 0), mechanism, response (present, empty), locale
    assert connection.data_to_send() == frame(
        0, "0102 0f00 00000004 00000000 09 414e4f4e594d4f5553 00000000 05 656e5f5553", track=0
    )
    connection.receive_data(HANDSHAKE[8 + len(_start()) :][: _size(HANDSHAKE[8 + len(_start()) :])])
    assert connection.data_to_send() == (
        frame(0, "0106 0700 00ff ffff 001e", track=0)  # tune-ok: channel-max, max-frame-size, heartbeat
        + frame(0, "0107 0100 02 7668", track=0)  # open: virtual-host; no capabilities, insist is a bit that is not set
    )
    connection.receive_data(control(spec.ConnectionOpenOk()))
    session = Session(connection, 0, b"\x01\x02")
    session.attach()
    assert connection.data_to_send() == (
        frame(0, "0201 0100 0002 0102", track=0)  # attach: name
        + frame(0, "0207 0300 00000000 0000000000000000", track=0)  # command-point: id, offset
    )
    session.receive_control(spec.SessionAttached(name=b"\x01\x02"))
    session.send(spec.QueueDeclare(queue="q", durable=True, arguments={"a": True}), sync=True)
    # fields 0 (queue), 3 (durable, a bit: present means true), 6 (arguments: size 9, count 1, "a", boolean, 1)
    assert connection.data_to_send() == frame(1, "0801 0101 4900 01 71 00000008 00000001 01 61 08 01", track=1)
    header = encode_header(spec.DeliveryProperties(routing_key="q"), spec.MessageProperties(content_type="t"))
    session.send(spec.MessageTransfer(destination="", accept_mode=0, acquire_mode=0), header=header, body=b"body")
    assert connection.data_to_send() == (
        frame(1, "0401 0100 0700 00 00 00", track=1, flags=0x0B)
        + frame(2, "00000006 0401 0002 01 71  00000006 0403 1000 01 74", track=1, flags=0x03)
        + frame(3, "626f6479", track=1, flags=0x07)
    )
    session.send(spec.MessageAccept(transfers=[(3, 5), (0xFFFFFFFF, 2)]))
    assert connection.data_to_send() == frame(1, "0402 0100 0100 0010 00000003 00000005 ffffffff 00000002", track=1)
    session.receive_command(spec.ExecutionSync(), sync=True)
    assert connection.data_to_send() == frame(0, "020a 0100 0008 00000000 00000000", track=0)
    connection.tick(0.0)
    connection.tick(30.0)
    assert connection.data_to_send() == frame(0, "010a 0000", track=0)
    session.detach()
    connection.close(200, "bye")
    assert connection.data_to_send() == (
        frame(0, "0203 0100 0002 0102", track=0) + frame(0, "010b 0300 00c8 03 627965", track=0)
    )


def _start() -> bytes:
    return HANDSHAKE[8 : 8 + _size(HANDSHAKE[8:])]


def _size(data: bytes) -> int:
    return int.from_bytes(data[2:4])


# ---------------------------------------------------------------------------------------------------------- any bytes
def outcome(connection: Connection, chunks: list[bytes]) -> list[object]:
    """Return the events, with transfers one by one and errors by their type and text."""
    seen: list[object] = []
    next_id = 0
    for chunk in chunks:
        for event in connection.receive_data(chunk):
            if isinstance(event, TransfersReceived):
                event.block.first_id = next_id
                next_id += event.block.count
                start = 0
                for end in event.block.ends:
                    seen.append(("transfer", _frames_of_transfer(event.block.frames[start:end])))
                    start = end
            elif isinstance(event, Ended):
                assert event.error is None or isinstance(event.error, AmqpError)
                seen.append(type(event.error))
                assert connection.state is State.CLOSED
            else:
                seen.append(event)
    return seen


def _frames_of_transfer(frames: bytes) -> list[bytes]:
    """The frames of the command track: controls may lie on either side of a cut."""
    found, pos = [], 0
    while pos < len(frames):
        size = int.from_bytes(frames[pos + 2 : pos + 4])
        if frames[pos + 5] & 15 == 1:
            found.append(frames[pos : pos + size])
        pos += size
    return found


VALID = [
    control(spec.SessionCompleted(commands=[(0, 3)])),
    control(spec.ConnectionHeartbeat()),
    control(spec.SessionFlush(completed=True)),
    command(spec.ExecutionResult(command_id=1, value=spec.QueueQueryResult(queue="q", arguments={"a": [1, "b"]}))),
    command(spec.MessageTransfer(destination="d", accept_mode=0, acquire_mode=0), encode_header(None, None), b"body"),
    command(spec.MessageTransfer(destination="d", accept_mode=0, acquire_mode=0), None, b"body"),
    command(spec.MessageTransfer(destination="d", accept_mode=0, acquire_mode=0)),
    wire.transfer(wire.delivery(routing_key=wire.str8(b"k")), b"x" * 100, limit=40),
    command(spec.ExecutionException(error_code=404, description="x")),
    wire.assembly(bytes.fromhex("090b 0100 0000"), b"header", b"body"),  # file.deliver
    control(spec.ConnectionClose(reply_code=320, reply_text="x")),
]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Frames that a broker may send, in any order, some of them damaged."""
    data = bytearray(b"".join(draw(st.lists(st.sampled_from(VALID), min_size=1, max_size=8))))
    for _ in range(draw(st.integers(0, 3))):
        how = draw(st.sampled_from(["flip", "insert", "remove"]))
        at = draw(st.integers(0, len(data)))
        if how == "flip" and at < len(data):
            data[at] ^= draw(st.integers(1, 255))
        elif how == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=20))
        else:
            del data[at : at + draw(st.integers(1, 20))]
    return bytes(data)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(marks)]


@settings(max_examples=examples(300))
@given(damaged(), st.lists(st.integers(0, 5000), max_size=10))
def test_damaged_streams_end_in_the_same_amqp_error_however_they_are_split(data: bytes, places: list[int]) -> None:
    whole = outcome(open_client(), [data])
    assert outcome(open_client(), cut(data, places)) == whole
    assert outcome(open_client(), [data[i : i + 1] for i in range(len(data))]) == whole


@settings(max_examples=examples(200))
@given(damaged(), st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_at_any_moment_end_in_amqp_errors_alone(damage: bytes, noise: bytes, length: int) -> None:
    for role in Role:
        prefix = HANDSHAKE if role is Role.CLIENT else SERVER_HANDSHAKE
        connection = (
            Connection(role, login=Anonymous()) if role is Role.CLIENT else Connection(role, authenticate=_accept)
        )
        outcome(connection, [prefix[: length % (len(prefix) + 1)], noise, damage, noise])
        connection.tick(1.0)
        connection.receive_eof()
        assert connection.state is State.CLOSED


def _accept(mechanism: str, response: bytes | None) -> bytes | None:
    assert isinstance(mechanism, str)
    return None if response is not None else b"challenge"


SERVER_HANDSHAKE = (
    PROTOCOL_HEADER
    + control(spec.ConnectionStartOk(mechanism="ANONYMOUS", response=b"", locale="en_US"))
    + control(spec.ConnectionTuneOk(channel_max=255, max_frame_size=65535, heartbeat=0))
    + control(spec.ConnectionOpen(virtual_host="vh"))
)


@settings(max_examples=examples(200))
@given(damaged())
def test_what_a_damaged_stream_means_to_a_session_is_a_protocol_error_at_most(data: bytes) -> None:
    connection = open_client()
    session = Session(connection, 0, b"n")
    session.attach()
    session.receive_control(spec.SessionAttached(name=b"n"))
    for event in connection.receive_data(data):
        try:
            _hand_over(event, session)
        except ProtocolError:
            break
        assert session.state in (SessionState.ATTACHED, SessionState.DETACHED)
        if session.state is SessionState.DETACHED:
            break


def _hand_over(event: Event, session: Session) -> None:
    if isinstance(event, TransfersReceived):
        before = session.received_next
        session.receive_block(event.block)
        assert event.block.first_id == before
        list(messages_of(event.block))
    elif isinstance(event, ControlReceived):
        session.receive_control(event.control)
    elif isinstance(event, CommandReceived):
        session.receive_command(event.command, sync=event.sync)
    elif isinstance(event, CommandUnknown):
        session.refuse_command(event.code)


@pytest.mark.parametrize("split", [1, 2, 3, 5, 7, 11, 13, 64])
def test_a_whole_conversation_in_pieces(split: int) -> None:
    stream = HANDSHAKE + b"".join(VALID)
    whole = outcome(Connection(Role.CLIENT, login=Anonymous(), scan_transfers=True), [stream])
    pieces = [stream[i : i + split] for i in range(0, len(stream), split)]
    assert outcome(Connection(Role.CLIENT, login=Anonymous(), scan_transfers=True), pieces) == whole
    assert sum(isinstance(item, tuple) for item in whole) == 4
