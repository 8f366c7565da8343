"""The connection machine: two of them against each other, every transition, every other control, time, strangers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from amqp_core.errors import (
    AuthenticationFailed,
    ConnectionClosed,
    DecodeError,
    EncodeError,
    ProtocolError,
    UsageError,
    VersionRefused,
    VirtualHostRefused,
)
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import decode_control, encode_command, encode_control
from amqp_core.v0_10.connection import (
    CLIENT_TRANSITIONS,
    SERVER_TRANSITIONS,
    CommandReceived,
    Connection,
    ControlReceived,
    Ended,
    Event,
    Opened,
    Redirected,
    Role,
    State,
    TransfersReceived,
)
from amqp_core.v0_10.frames import PROTOCOL_HEADER, encode_control_frame
from tests.support import wire

if TYPE_CHECKING:
    from collections.abc import Sequence


class Login:
    """Answers ``rounds`` challenges; refuses to believe the server if told so."""

    def __init__(self, *, believes: bool = True) -> None:
        self.offered: Sequence[str] = ()
        self.challenges: list[bytes] = []
        self.believes = believes

    def choose(self, mechanisms: Sequence[str]) -> tuple[str, bytes | None]:
        self.offered = mechanisms
        if "ANONYMOUS" not in mechanisms:
            raise AuthenticationFailed("nothing suits")
        return "ANONYMOUS", b""

    def respond(self, challenge: bytes) -> bytes:
        self.challenges.append(challenge)
        return b"re:" + challenge

    def succeeded(self) -> None:
        if not self.believes:
            raise AuthenticationFailed("the server has proven nothing")


def client(**options: object) -> Connection:
    settings: dict[str, object] = {"login": Login(), "virtual_host": "vh", "scan_transfers": True}
    return Connection(Role.CLIENT, **settings | options)  # type: ignore[arg-type]


def server(**options: object) -> Connection:
    return Connection(Role.SERVER, **options)  # type: ignore[arg-type]


def pump(a: Connection, b: Connection) -> tuple[list[Event], list[Event]]:
    """Carry bytes both ways until nothing moves; return what each side saw."""
    seen: tuple[list[Event], list[Event]] = ([], [])
    while True:
        to_b, to_a = a.data_to_send(), b.data_to_send()
        if not to_a and not to_b:
            return seen
        seen[1].extend(b.receive_data(to_b))
        seen[0].extend(a.receive_data(to_a))


def control(value: spec.Control, channel: int = 0) -> bytes:
    return encode_control_frame(channel, encode_control(value))


def sent(connection: Connection) -> list[spec.Control]:
    """The controls that a connection wants to send (and, before them, perhaps the protocol header)."""
    data = connection.data_to_send().removeprefix(PROTOCOL_HEADER)
    controls = []
    while data:
        size = int.from_bytes(data[2:4])
        controls.append(decode_control(data[12:size]))
        data = data[size:]
    return controls


def at(role: Role, state: State) -> Connection:
    """A connection of a role in a state, reached by what a peer sends."""
    connection = (
        client() if role is Role.CLIENT else server(authenticate=lambda _, response: None if response else b"?")
    )
    steps: list[tuple[State, bytes]] = (
        [
            (State.HEADER, PROTOCOL_HEADER),
            (State.START, control(spec.ConnectionStart(mechanisms=["ANONYMOUS"], locales=["en_US"]))),
            (State.SECURE_OR_TUNE, control(spec.ConnectionTune(channel_max=9, max_frame_size=65535))),
            (State.OPEN_OK, control(spec.ConnectionOpenOk())),
        ]
        if role is Role.CLIENT
        else [
            (State.HEADER, PROTOCOL_HEADER),
            (State.START_OK, control(spec.ConnectionStartOk(mechanism="ANONYMOUS"))),
            (State.SECURE_OK, control(spec.ConnectionSecureOk(response=b"!"))),
            (State.TUNE_OK, control(spec.ConnectionTuneOk(channel_max=9, max_frame_size=65535))),
            (State.OPEN_FROM_CLIENT, control(spec.ConnectionOpen(virtual_host="vh"))),
        ]
    )
    for before, data in steps:
        if connection.state is state:
            break
        assert connection.state is before
        connection.receive_data(data)
    if state in (State.CLOSE_OK, State.CLOSED):
        connection.close()
    if state is State.CLOSED:
        connection.receive_data(control(spec.ConnectionCloseOk()))
    connection.data_to_send()
    assert connection.state is state
    return connection


RESULT = wire.frame(0x0F, 1, encode_command(spec.ExecutionResult(7, spec.QueueQueryResult(queue="q"))))
HEARTBEAT = control(spec.ConnectionHeartbeat())

CLIENT_STATES = [
    *(State.HEADER, State.START, State.SECURE_OR_TUNE, State.OPEN_OK, State.OPEN, State.CLOSE_OK, State.CLOSED)
]
SERVER_STATES = [
    *(State.HEADER, State.START_OK, State.SECURE_OK, State.TUNE_OK, State.OPEN_FROM_CLIENT, State.OPEN),
    *(State.CLOSE_OK, State.CLOSED),
]
EVERY_STATE = [(Role.CLIENT, state) for state in CLIENT_STATES] + [(Role.SERVER, state) for state in SERVER_STATES]
EVERY_CONTROL = list(spec.CONTROL_TYPES.values())
PLAUSIBLE: dict[type, spec.Control] = {
    spec.ConnectionStart: spec.ConnectionStart(mechanisms=["ANONYMOUS"], locales=["en_US"]),
    spec.ConnectionTune: spec.ConnectionTune(channel_max=9, max_frame_size=65535),
    spec.ConnectionTuneOk: spec.ConnectionTuneOk(channel_max=9, max_frame_size=65535),
    spec.ConnectionClose: spec.ConnectionClose(reply_code=320, reply_text="forced"),
    spec.ConnectionRedirect: spec.ConnectionRedirect(host="elsewhere"),
}


# ------------------------------------------------------------------------------------------------------- both sides
def test_two_connections_open_and_close() -> None:
    login = Login()
    us = client(login=login, heartbeat=30, client_properties={"product": "us"}, max_frame_size=8192)
    them = server(heartbeat=20, server_properties={"product": "them", "qpid.features": ["a", "b"]})
    assert pump(us, them) == ([Opened()], [Opened()])
    assert (us.state, them.state) == (State.OPEN, State.OPEN)
    assert us.peer_properties == {"product": "them", "qpid.features": ["a", "b"]}
    assert them.peer_properties == {"product": "us"}
    assert (us.heartbeat_s, them.heartbeat_s) == (20, 20)
    assert (us.max_frame_size, them.max_frame_size) == (8192, 8192)
    assert them.virtual_host == "vh"
    assert login.offered == ["ANONYMOUS"]

    us.close(200, "bye")
    assert us.state is State.CLOSE_OK
    assert [type(event) for event in pump(us, them)[1]] == [Ended]
    assert (us.state, them.state) == (State.CLOSED, State.CLOSED)
    us.close()
    assert us.data_to_send() == b""
    assert us.receive_data(b"anything") == []


def test_what_an_orderly_close_means_to_each_side() -> None:
    us, them = client(), server()
    pump(us, them)
    us.close(200, "bye")
    ours, theirs = pump(us, them)
    assert ours == [Ended(None)]
    closed = error_of(theirs)
    assert isinstance(closed, ConnectionClosed)
    assert (closed.reply_code, closed.reply_text) == (200, "bye")


def test_both_sides_close_at_once() -> None:
    us, them = client(), server()
    pump(us, them)
    us.close()
    them.close()
    ours, theirs = pump(us, them)
    assert isinstance(error_of(ours), ConnectionClosed)
    assert isinstance(error_of(theirs), ConnectionClosed)
    assert (us.state, them.state) == (State.CLOSED, State.CLOSED)


def test_challenges_go_back_and_forth() -> None:
    login = Login()
    responses: list[bytes | None] = []

    def authenticate(mechanism: str, response: bytes | None) -> bytes | None:
        assert mechanism == "ANONYMOUS"
        responses.append(response)
        return b"challenge %d" % len(responses) if len(responses) < 3 else None

    us, them = client(login=login), server(authenticate=authenticate)
    assert pump(us, them) == ([Opened()], [Opened()])
    assert login.challenges == [b"challenge 1", b"challenge 2"]
    assert responses == [b"", b"re:challenge 1", b"re:challenge 2"]


def test_a_login_that_the_server_refuses() -> None:
    def refuse(mechanism: str, response: bytes | None) -> bytes | None:
        raise AuthenticationFailed("wrong")

    us, them = client(), server(authenticate=refuse)
    ours, theirs = pump(us, them)
    assert isinstance(error_of(theirs), AuthenticationFailed)
    refused = error_of(ours)
    assert isinstance(refused, AuthenticationFailed)
    assert "refused the login (ANONYMOUS): 320" in str(refused)


def test_a_login_that_the_client_cannot_or_will_not_use() -> None:
    for us in (client(login=Login(believes=False)), client()):
        them = server(mechanisms=["ANONYMOUS"] if not us._login.believes else ["GSSAPI"])  # type: ignore[union-attr]
        ours, theirs = pump(us, them)
        assert isinstance(error_of(ours), AuthenticationFailed)
        closed = error_of(theirs)
        assert isinstance(closed, ConnectionClosed)
        assert closed.reply_code == 320
        assert (us.state, them.state) == (State.CLOSED, State.CLOSED)


def test_a_client_without_a_login_is_a_mistake_of_ours() -> None:
    ours, _ = pump(client(login=None), server())
    assert isinstance(error_of(ours), UsageError)


@pytest.mark.parametrize("single_bytes", [False, True])
def test_commands_and_controls_arrive(single_bytes: bool) -> None:
    us, them = client(), server()
    pump(us, them)
    command = spec.MessageTransfer(destination="x", accept_mode=1, acquire_mode=0)
    them.send_assembly(0, [(1, wire.transfer_command()), (3, b"body")])
    them.send_assembly(0, [(1, encode_command(spec.ExecutionSync(), True))])
    them.send_control(0, spec.SessionFlush(completed=True))
    data = them.data_to_send()
    chunks = [data[i : i + 1] for i in range(len(data))] if single_bytes else [data]
    events = [event for chunk in chunks for event in us.receive_data(chunk)]
    assert [type(event) for event in events] == [TransfersReceived, CommandReceived, ControlReceived]
    assert events[1] == CommandReceived(0, spec.ExecutionSync(), True, None, None)
    assert events[2] == ControlReceived(0, spec.SessionFlush(completed=True))
    us.send_assembly(5, [(1, bytes.fromhex("0401 0100 0700 0178 01 00")), (2, b""), (3, b"body")])
    assert them.receive_data(us.data_to_send()) == [CommandReceived(5, command, False, b"", b"body")]


def test_what_comes_with_open_ok_in_one_read_is_scanned() -> None:
    us = at(Role.CLIENT, State.OPEN_OK)
    data = (
        control(spec.ConnectionOpenOk(known_hosts=["a", "b"])) + wire.transfer(None, b"1") + wire.transfer(None, b"2")
    )
    for cut in range(len(data) + 1):
        us = at(Role.CLIENT, State.OPEN_OK)
        events = us.receive_data(data[:cut]) + us.receive_data(data[cut:])
        assert events[0] == Opened()
        assert sum(event.block.count for event in events if isinstance(event, TransfersReceived)) == 2
    assert us.known_hosts == ("a", "b")


def test_a_partial_frame_is_not_lost_by_close() -> None:
    us = at(Role.CLIENT, State.OPEN)
    late = wire.transfer(None, b"late") + control(spec.SessionDetached(name=b"x", code=0)) + RESULT
    data = late + control(spec.ConnectionCloseOk())
    us.receive_data(data[:20])
    us.close()
    assert us.receive_data(data[20:]) == [Ended(None)]


# ---------------------------------------------------------------------------------------------- every other control
@pytest.mark.parametrize("cls", EVERY_CONTROL, ids=lambda cls: cls.NAME)
@pytest.mark.parametrize(("role", "state"), EVERY_STATE, ids=lambda value: value.name.lower())
def test_a_control_leads_where_the_table_says_or_ends_the_connection(
    role: Role, state: State, cls: type[spec.Control]
) -> None:
    connection = at(role, state)
    events = connection.receive_data(control(PLAUSIBLE.get(cls, cls())))
    table = CLIENT_TRANSITIONS if role is Role.CLIENT else SERVER_TRANSITIONS
    if state is State.HEADER:
        assert isinstance(error_of(events), VersionRefused)
        assert connection.state is State.CLOSED
    elif state is State.CLOSED:
        assert events == []
        assert connection.state is State.CLOSED
    elif cls is spec.ConnectionClose:
        assert error_of(events) is not None
        assert connection.state is State.CLOSED
        assert sent(connection) == [spec.ConnectionCloseOk()]
    elif cls is spec.ConnectionHeartbeat:
        assert events == []
        assert connection.state is state
    elif (state, cls) in table:
        follows = {State.SECURE_OK: State.TUNE_OK} if (state, cls) == (State.SECURE_OK, spec.ConnectionSecureOk) else {}
        expected = table[state, cls]
        assert connection.state is follows.get(expected, expected) or cls is spec.ConnectionSecureOk
        assert not any(isinstance(event, Ended) and event.error for event in events)
    elif state is State.OPEN and cls.CODE >> 8 != 1:
        assert events == [ControlReceived(0, cls())]
        assert connection.state is state
    elif state is State.CLOSE_OK:
        assert events == []
        assert connection.state is state
    else:
        error = error_of(events)
        assert isinstance(error, ProtocolError)
        assert cls.NAME in str(error)
        assert connection.state is State.CLOSED
        assert sent(connection) == [spec.ConnectionClose(reply_code=501, reply_text="ProtocolError")]


@pytest.mark.parametrize(("role", "state"), EVERY_STATE, ids=lambda value: value.name.lower())
def test_a_command_before_the_connection_is_open_ends_it(role: Role, state: State) -> None:
    connection = at(role, state)
    events = connection.receive_data(RESULT)
    if state is State.OPEN:
        assert [type(event) for event in events] == [CommandReceived]
    elif state in (State.CLOSE_OK, State.CLOSED):
        assert events == []
    elif state is State.HEADER:
        assert isinstance(error_of(events), VersionRefused)
    else:
        assert "a command arrived before the connection was open" in str(error_of(events))
        assert connection.state is State.CLOSED


def test_the_end_of_the_stream_in_every_state() -> None:
    for role, state in EVERY_STATE:
        connection = at(role, state)
        assert connection.receive_eof() == []
        assert connection.state is State.CLOSED


@pytest.mark.parametrize(
    ("state", "code", "error", "text"),
    [
        (State.SECURE_OR_TUNE, 320, AuthenticationFailed, "refused the login (ANONYMOUS): 320 forced"),
        (State.OPEN_OK, 402, VirtualHostRefused, "refused virtual host 'vh': 402 forced"),
        (State.OPEN_OK, 530, VirtualHostRefused, "refused virtual host 'vh': 530 forced"),
        (State.OPEN_OK, 320, ConnectionClosed, "closed the connection: 320 forced"),
        (State.OPEN, 320, ConnectionClosed, "closed the connection: 320 forced"),
        (State.OPEN, 501, ConnectionClosed, "closed the connection: 501 forced"),
    ],
)
def test_what_a_close_means_depends_on_when_it_comes(
    state: State, code: int, error: type[Exception], text: str
) -> None:
    events = at(Role.CLIENT, state).receive_data(control(spec.ConnectionClose(reply_code=code, reply_text="forced")))
    found = error_of(events)
    assert type(found) is error
    assert text in str(found)


def test_redirect_names_the_other_host() -> None:
    us = at(Role.CLIENT, State.OPEN_OK)
    events = us.receive_data(control(spec.ConnectionRedirect(host="other:5673", known_hosts=["x"])))
    assert events == [Redirected("other:5673", ("x",))]
    assert us.state is State.CLOSED


# ------------------------------------------------------------------------------------------------------ what is agreed
@pytest.mark.parametrize(
    ("ours", "least", "most", "agreed"),
    [
        (30, 0, 120, 30),
        (30, 0, 10, 10),
        (30, 60, 120, 60),
        (0, 0, 120, 0),
        (0, 5, 120, 5),
        (30, None, None, 30),
        (30, 0, 0, 0),
    ],
)
def test_heartbeats_are_agreed_within_the_offer(ours: int, least: int | None, most: int | None, agreed: int) -> None:
    us = client(heartbeat=ours)
    us.receive_data(PROTOCOL_HEADER + control(spec.ConnectionStart(mechanisms=["ANONYMOUS"])))
    us.data_to_send()
    us.receive_data(control(spec.ConnectionTune(channel_max=7, heartbeat_min=least, heartbeat_max=most)))
    tune_ok, opened = sent(us)
    assert tune_ok == spec.ConnectionTuneOk(channel_max=7, max_frame_size=65535, heartbeat=agreed)
    assert opened == spec.ConnectionOpen(virtual_host="vh", insist=False)


def test_frames_are_never_larger_than_agreed() -> None:
    us = client()
    us.receive_data(PROTOCOL_HEADER + control(spec.ConnectionStart(mechanisms=["ANONYMOUS"])))
    us.receive_data(control(spec.ConnectionTune(channel_max=7, max_frame_size=4096)) + control(spec.ConnectionOpenOk()))
    us.data_to_send()
    us.send_assembly(0, [(1, b"\x03\x01\x01\x00"), (3, b"x" * 10_000)])
    data, sizes = us.data_to_send(), []
    while data:
        sizes.append(int.from_bytes(data[2:4]))
        data = data[sizes[-1] :]
    assert max(sizes) == 4096
    before = us.receive_data(wire.transfer(None, b"fits") + wire.transfer(None, b"y" * 5000))
    assert isinstance(before[0], TransfersReceived)
    assert "frame size 5012 is outside 12..4096" in str(error_of(before))


def test_an_offer_that_the_specification_does_not_allow() -> None:
    us = at(Role.CLIENT, State.SECURE_OR_TUNE)
    error = error_of(us.receive_data(control(spec.ConnectionTune(max_frame_size=4095))))
    assert isinstance(error, ProtocolError)
    assert "4095" in str(error)
    for size in (4095, 65535):
        them = server(max_frame_size=5000)
        them.receive_data(PROTOCOL_HEADER + control(spec.ConnectionStartOk(mechanism="ANONYMOUS")))
        error = error_of(them.receive_data(control(spec.ConnectionTuneOk(max_frame_size=size))))
        assert isinstance(error, ProtocolError)
        assert "5000 was offered" in str(error)


def test_a_frame_size_of_ours_that_is_not_allowed() -> None:
    for size in (4095, 65536):
        with pytest.raises(UsageError, match=str(size)):
            client(max_frame_size=size)


def test_what_does_not_fit_the_wire_ends_the_connection() -> None:
    us = client(virtual_host="v" * 300)
    events = pump(us, server())[0]
    assert isinstance(error_of(events), EncodeError)
    us = client(client_properties={"x": "y" * 70_000})
    assert isinstance(error_of(pump(us, server())[0]), EncodeError)


@pytest.mark.parametrize("answer", [b"AMQP\0\0\x09\x01", b"AMQP\x03\x01\0\0", b"HTTP/1.1 400 Bad Request\r\n"])
@pytest.mark.parametrize("split", [False, True])
def test_a_stranger_is_named_however_it_is_split(answer: bytes, split: bool) -> None:
    us = client()
    assert us.data_to_send() == PROTOCOL_HEADER
    events: list[Event] = []
    for chunk in [answer[i : i + 1] for i in range(len(answer))] if split else [answer]:
        events += us.receive_data(chunk)
    error = error_of(events)
    assert isinstance(error, VersionRefused)
    assert error.offered in ("AMQP 0-9-1", "AMQP 1.0 with SASL", "HTTP")
    assert us.data_to_send() == b""


def test_a_stranger_that_stops_early_is_named_at_the_end() -> None:
    us = client()
    assert us.receive_data(b"AMQP\x01") == []
    error = error_of(us.receive_eof())
    assert isinstance(error, VersionRefused)
    assert error.offered == "an incomplete AMQP header"


def test_a_server_answers_another_version_with_its_own() -> None:
    them = server()
    events = them.receive_data(b"AMQP\0\0\x09\x01")
    assert isinstance(error_of(events), VersionRefused)
    assert them.data_to_send() == PROTOCOL_HEADER


# --------------------------------------------------------------------------------------------- broken, and what is lost
@pytest.mark.parametrize(
    ("broken", "error", "text"),
    [
        (b"\x0f\x00\xff\xff\0\0" + bytes(6) + b"x" * 65523, DecodeError, "size 65535 is outside 12..8192"),
        (b"\x0f\x09\0\x0c" + bytes(8), DecodeError, "type 9"),
        (wire.frame(0x0F, 0, b"\x01\x7f", track=0), DecodeError, "unknown control 0x017f"),
        (wire.frame(0x0F, 0, b"\x02\x0a\x01", track=0), DecodeError, "session.completed: "),
        (wire.frame(0x0F, 1, b"\x63\x01\x01\x00"), DecodeError, "unknown command 0x6301"),
        (wire.frame(0x0F, 1, b"\x03\x02\x01\x00\x03\x00\x00"), DecodeError, "execution.result: "),
        (wire.frame(0x0F, 1, b"\x03"), DecodeError, "too short to name its command"),
        (wire.frame(0x04, 3, b"body"), DecodeError, "does not open an assembly"),
        (wire.frame(0x0F, 0, b"\x02\x05\0\0", track=0, channel=3), ProtocolError, "channel 3, where there is no"),
        (wire.transfer(None, b"x", channel=2), ProtocolError, "channel 2, where there is no session"),
    ],
)
@pytest.mark.parametrize("split", [False, True])
def test_what_came_before_the_broken_frame_is_delivered(
    broken: bytes, error: type[Exception], text: str, split: bool
) -> None:
    us = client(max_frame_size=8192)
    pump(us, server())
    data = wire.transfer(None, b"1") + wire.transfer(None, b"2") + RESULT + broken + wire.transfer(None, b"3")
    events: list[Event] = []
    for chunk in [data[i : i + 7] for i in range(0, len(data), 7)] if split else [data]:
        events += us.receive_data(chunk)
    assert sum(event.block.count for event in events if isinstance(event, TransfersReceived)) == 2
    assert isinstance(events[-2], CommandReceived)
    found = error_of(events)
    assert isinstance(found, error)
    assert re.search(text, str(found)), str(found)
    assert us.state is State.CLOSED
    assert sent(us) == [spec.ConnectionClose(reply_code=501, reply_text=type(found).__name__)]


# ---------------------------------------------------------------------------------------------------------------- time
def open_with_heartbeat(seconds: int) -> Connection:
    us = client(heartbeat=seconds)
    pump(us, server(heartbeat=seconds))
    return us


def test_no_heartbeats_were_agreed() -> None:
    us = open_with_heartbeat(0)
    assert us.tick(1000.0) == (None, False)
    assert us.data_to_send() == b""


def test_nothing_is_due_before_the_connection_is_open() -> None:
    assert client(heartbeat=5).tick(1000.0) == (None, False)


def test_a_heartbeat_goes_out_in_time_whatever_was_sent() -> None:
    us = open_with_heartbeat(10)
    now, last_sent = 100.0, 100.0
    due, _ = us.tick(now)
    us.data_to_send()
    for sent_after in (0.1, 4.9, 3.0, 9.0, None, None, 0.1, 5.1, None):
        assert due is not None
        if sent_after is not None and now + sent_after < due:
            last_sent = now + sent_after
            us.send_control(0, spec.SessionFlush())
            us.data_to_send()
        now = due
        us.receive_data(HEARTBEAT)
        due, silent = us.tick(now)
        assert not silent
        if us.data_to_send():
            last_sent = now
        assert due is not None
        assert due > now
        assert due - last_sent <= 10.0


def test_a_peer_silent_for_two_intervals_is_noticed() -> None:
    us = open_with_heartbeat(10)
    due, silent = us.tick(0.0)
    us.receive_data(HEARTBEAT)
    now = 0.0
    while not silent:
        assert due is not None
        assert now < 100
        now = due
        due, silent = us.tick(now)
    assert 20 <= now <= 25


def test_silence_proves_nothing_while_nobody_reads() -> None:
    us = open_with_heartbeat(10)
    us.tick(0.0)
    for now in range(10, 200, 10):
        assert us.tick(float(now), reading=False)[1] is False
    assert us.tick(205.0)[1] is False
    assert us.tick(211.0)[1] is True


def error_of(events: Sequence[Event]) -> Exception | None:
    """The error of the event that ends the connection, which is the last."""
    assert events, "nothing was seen"
    assert isinstance(events[-1], Ended)
    return events[-1].error
