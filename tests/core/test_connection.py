"""The connection machine: two of them against each other, what they agree on, strangers, and what is broken."""

from __future__ import annotations

import re

import pytest

from amqp_core.address import ConnectOptions
from amqp_core.connection_states import Ended, Opened, Role, State
from amqp_core.errors import (
    AuthenticationFailed,
    ConnectionClosed,
    DecodeError,
    EncodeError,
    LimitExceeded,
    ProtocolError,
    UsageError,
    VersionRefused,
    VirtualHostRefused,
)
from amqp_core.sasl import SaslLogin
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import decode_control, encode_command
from amqp_core.v0_10.connection_events import CommandReceived, CommandUnknown, ControlReceived, Event, TransfersReceived
from amqp_core.v0_10.framing import PROTOCOL_HEADER
from tests.support import wire
from tests.support.machines import RESULT, Login, at, client, control, error_of, pump, sent, server


# ---------------------------------------------------------------------------------------------------------- both sides
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


def test_a_server_that_repeats_the_password() -> None:
    text = "no user 'u' with 's3cret'"
    for is_open in (False, True):
        us = client(login=SaslLogin(ConnectOptions(hosts=(("h", 1),), username="u", password="s3cret"), loopback=True))
        us.receive_data(PROTOCOL_HEADER + control(spec.ConnectionStart(mechanisms=["PLAIN"], locales=["en_US"])))
        if is_open:
            us.receive_data(control(spec.ConnectionTune(channel_max=9)) + control(spec.ConnectionOpenOk()))
        error = error_of(us.receive_data(control(spec.ConnectionClose(reply_code=320, reply_text=text))))
        assert isinstance(error, ConnectionClosed if is_open else AuthenticationFailed)
        assert "s3cret" not in str(error)
        assert "its text is not shown" in str(error)


def test_a_login_that_the_server_refuses() -> None:
    def refuse(mechanism: str, response: bytes | None) -> bytes | None:
        raise AuthenticationFailed("wrong")

    us, them = client(), server(authenticate=refuse)
    ours, theirs = pump(us, them)
    assert isinstance(error_of(theirs), AuthenticationFailed)
    refused = error_of(ours)
    assert isinstance(refused, AuthenticationFailed)
    assert "refused the login (ANONYMOUS): 320" in str(refused)


def test_a_login_that_is_checked_meanwhile() -> None:
    us, them = client(), server(authenticate=lambda *_: State.CHECKING)
    assert pump(us, them) == ([], [])
    assert them.state is State.CHECKING
    assert them.login_checked(None) == []
    assert pump(us, them) == ([Opened()], [Opened()])
    assert them.login_checked(None) == [], "once"

    us, them = client(), server(authenticate=lambda *_: State.CHECKING)
    pump(us, them)
    assert isinstance(error_of(them.login_checked(AuthenticationFailed("wrong"))), AuthenticationFailed)
    ours, _ = pump(us, them)
    assert "320 the login with ANONYMOUS was refused" in str(error_of(ours))


def test_a_client_has_to_wait_while_its_login_is_checked() -> None:
    for early in (spec.ConnectionSecureOk(response=b"x"), spec.ConnectionTuneOk(), spec.ConnectionStartOk()):
        them = server(authenticate=lambda *_: State.CHECKING)
        pump(client(), them)
        assert isinstance(error_of(them.receive_data(control(early))), ProtocolError)
        assert them.login_checked(None) == []
        assert them.state is State.CLOSED


def test_a_virtual_host_that_is_there_and_not_for_this_login() -> None:
    us, them = client(), server(forbids_virtual_host=lambda name: f"not {name}" if name == "vh" else None)
    ours, _ = pump(us, them)
    assert isinstance(error_of(ours), VirtualHostRefused)
    assert "402 not vh" in str(error_of(ours))
    assert pump(client(), server(forbids_virtual_host=lambda _: None)) == ([Opened()], [Opened()])


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


def test_a_partial_frame_is_not_lost_by_close() -> None:
    us = at(Role.CLIENT, State.OPEN)
    late = wire.transfer(None, b"late") + control(spec.SessionDetached(name=b"x", code=0)) + RESULT
    data = late + control(spec.ConnectionCloseOk())
    us.receive_data(data[:20])
    us.close()
    assert us.receive_data(data[20:]) == [Ended(None)]


# ------------------------------------------------------------------------------------------------------ what is agreed
@pytest.mark.parametrize(
    ("ours", "least", "most", "agreed"),
    [
        (30, 0, 120, 30),
        (30, 0, 10, 10),
        (30, 60, 120, 60),
        (30, 5, None, 30),
        (30, 0, 0, 0),
        # none is wanted, or none is supported: the field is left out
        (0, 0, 120, None),
        (0, 5, 120, None),
        (30, None, None, None),
        (30, None, 60, None),
    ],
)
def test_heartbeats_are_agreed_within_the_offer(
    ours: int, least: int | None, most: int | None, agreed: int | None
) -> None:
    us = client(heartbeat=ours)
    us.receive_data(PROTOCOL_HEADER + control(spec.ConnectionStart(mechanisms=["ANONYMOUS"])))
    us.data_to_send()
    us.receive_data(control(spec.ConnectionTune(channel_max=7, heartbeat_min=least, heartbeat_max=most)))
    tune_ok, opened = sent(us)
    assert tune_ok == spec.ConnectionTuneOk(channel_max=7, max_frame_size=65535, heartbeat=agreed)
    assert opened == spec.ConnectionOpen(virtual_host="vh", insist=False)
    assert us.heartbeat_s == (agreed or 0)


def test_the_channels_that_we_use_are_named_where_the_server_names_no_limit() -> None:
    us = at(Role.CLIENT, State.SECURE_OR_TUNE)
    us.receive_data(control(spec.ConnectionTune()))
    tune_ok, _ = sent(us)
    assert isinstance(tune_ok, spec.ConnectionTuneOk)
    assert tune_ok.channel_max == 1


@pytest.mark.parametrize("state", [State.START, State.SECURE_OR_TUNE, State.OPEN_OK, State.OPEN, State.CLOSE_OK])
@pytest.mark.parametrize("channel", [0, 1, 5, 65535])
def test_a_close_counts_on_any_channel(state: State, channel: int) -> None:
    us = at(Role.CLIENT, state)
    close = control(spec.ConnectionClose(reply_code=320, reply_text="forced by an operator"), channel)
    error = error_of(us.receive_data(close))
    assert "320 forced by an operator" in str(error)
    assert sent(us) == [spec.ConnectionCloseOk()]


def test_a_control_is_not_sent_without_its_required_fields() -> None:
    us = at(Role.CLIENT, State.OPEN)
    with pytest.raises(EncodeError, match=r"session\.attach cannot be sent without name, which is required"):
        us.send_control(0, spec.SessionAttach())
    assert us.data_to_send() == b""


@pytest.mark.parametrize("most", [4096, 5000, 65535])
def test_a_control_with_a_large_set_goes_out_as_several(most: int) -> None:
    us = client(max_frame_size=most)
    pump(us, server())
    ranges = [(2 * number, 2 * number) for number in range(8000)]
    us.send_control(0, spec.SessionKnownCompleted(commands=ranges))
    us.send_control(0, spec.SessionCompleted(commands=ranges[:3000], timely_reply=True))
    data, sizes = us.data_to_send(), []
    controls = []
    while data:
        sizes.append(int.from_bytes(data[2:4]))
        controls.append(decode_control(data[12 : sizes[-1]]))
        data = data[sizes[-1] :]
    assert max(sizes) <= most
    known = [each for each in controls if isinstance(each, spec.SessionKnownCompleted)]
    assert [pair for each in known for pair in each.commands or []] == ranges
    completed = [each for each in controls if isinstance(each, spec.SessionCompleted)]
    assert [pair for each in completed for pair in each.commands or []] == ranges[:3000]
    assert all(each.timely_reply for each in completed)
    assert len(known) + len(completed) == len(controls)


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
    us = client(client_properties={"x": "y" * 5000})
    error = error_of(pump(us, server())[0])
    assert isinstance(error, EncodeError)
    assert "connection.start-ok of 50" in str(error)
    assert "does not fit a frame, which holds 4084" in str(error)


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


# -------------------------------------------------------------------------------------------- broken, and what is lost
@pytest.mark.parametrize(
    ("broken", "error", "text"),
    [
        (b"\x0f\x00\xff\xff\0\0" + bytes(6) + b"x" * 65523, DecodeError, "size 65535 is outside 12..8192"),
        (b"\x0f\x09\0\x0c" + bytes(8), DecodeError, "type 9"),
        (wire.frame(0x0F, 0, b"\x01\x7f", track=0), DecodeError, "unknown control 0x017f"),
        (wire.frame(0x0F, 0, b"\x02\x0a\x01", track=0), DecodeError, "session.completed: "),
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


@pytest.mark.parametrize("code", [0x6301, 0x090B, 0x0A08, 0x0400, 0x010A])
@pytest.mark.parametrize("role", Role)
def test_an_unknown_command_is_an_event_in_its_turn(role: Role, code: int) -> None:
    """Its frames are in order: it is the session that ends (execution.exception), not a broken connection."""
    one = at(role, State.OPEN)
    unknown = wire.assembly(code.to_bytes(2) + b"\x01\x00\xff\xff", b"header", b"body")
    events = one.receive_data(RESULT + unknown + RESULT)
    assert [type(event) for event in events] == [CommandReceived, CommandUnknown, CommandReceived]
    assert events[1] == CommandUnknown(0, code)
    assert one.state is State.OPEN
    assert sent(one) == []


def test_completions_inside_one_message_are_bounded() -> None:
    """They are kept until it has ended, and what they need is many times what they are on the wire."""
    us = client()
    pump(us, server())
    command, header, body = wire.frames_of(wire.transfer(b"", b"x"))
    completed = control(spec.SessionCompleted(commands=[(0, 0)]))
    assert us.receive_data(command + header) == []
    us.receive_data(completed * 10_000)
    assert us.state is State.OPEN
    assert isinstance(error_of(us.receive_data(completed + body)), LimitExceeded)


def test_completions_inside_a_message_come_behind_it() -> None:
    us = client()
    pump(us, server())
    command, header, body = wire.frames_of(wire.transfer(b"", b"x"))
    completed = control(spec.SessionCompleted(commands=[(0, 0)]))
    events = us.receive_data(command + header + completed * 3 + body)
    assert [type(event) for event in events] == [TransfersReceived, *[ControlReceived] * 3]
