"""The connection machine: every control in every state, and time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_core.connection_states import Ended, Redirected, Role, State
from amqp_core.errors import (
    AmqpError,
    AuthenticationFailed,
    ConnectionClosed,
    LimitReached,
    ProtocolError,
    VersionRefused,
    VirtualHostRefused,
)
from amqp_core.v0_10 import spec
from amqp_core.v0_10.connection_events import CLIENT_TRANSITIONS, SERVER_TRANSITIONS, CommandReceived, ControlReceived
from tests.support import wire
from tests.support.machines import HEARTBEAT, RESULT, at, client, control, error_of, pump, sent, server

if TYPE_CHECKING:
    from amqp_core.v0_10.connection import Connection

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


# ------------------------------------------------------------------------------------------------- every other control
@pytest.mark.parametrize(("role", "state"), EVERY_STATE, ids=lambda value: value.name.lower())
def test_a_control_leads_where_the_table_says_or_ends_the_connection(role: Role, state: State) -> None:
    for cls in EVERY_CONTROL:
        check_that_it_leads_where_the_table_says(role, state, cls)


def check_that_it_leads_where_the_table_says(role: Role, state: State, cls: type[spec.Control]) -> None:
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


@pytest.mark.parametrize(("role", "state"), EVERY_STATE, ids=lambda value: value.name.lower())
def test_the_first_frame_of_a_command_before_the_connection_is_open_ends_it(role: Role, state: State) -> None:
    """Else a stranger could have the peer keep a message of any size, frame by frame."""
    connection = at(role, state)
    begun = wire.frame(0x0A, 1, bytes(3000))
    events = connection.receive_data(begun)
    assert events == [] or state not in (State.OPEN, State.CLOSE_OK, State.CLOSED)
    assert (connection.unfinished_bytes >= 3000) == (state is State.OPEN)
    if state not in (State.OPEN, State.CLOSE_OK):
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
        (State.OPEN_OK, 541, ConnectionClosed, "closed the connection: 541 forced"),
        (State.SECURE_OR_TUNE, 541, ConnectionClosed, "closed the connection: 541 forced"),
        (State.START, 320, ConnectionClosed, "closed the connection: 320 forced"),
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


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("User connection denied by configured limit", LimitReached),
        ("Transient failure, try again", ConnectionClosed),
        ("Unable to perform authentication", ConnectionClosed),
        ("Authentication failed", AuthenticationFailed),
    ],
)
def test_what_qpidd_says_during_the_login_may_pass(text: str, error: type[AmqpError]) -> None:
    us = at(Role.CLIENT, State.SECURE_OR_TUNE)
    found = error_of(us.receive_data(control(spec.ConnectionClose(reply_code=320, reply_text=text))))
    assert type(found) is error
    assert found.retryable == (error is not AuthenticationFailed)
    assert text in str(found)


def test_redirect_names_the_other_host() -> None:
    us = at(Role.CLIENT, State.OPEN_OK)
    events = us.receive_data(control(spec.ConnectionRedirect(host="other:5673", known_hosts=["x"])))
    assert events == [Redirected("other:5673")]
    assert us.state is State.CLOSED


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


def test_silence_proves_nothing_while_reading_is_paused() -> None:
    us = open_with_heartbeat(10)
    us.tick(0.0)
    for now in range(10, 200, 10):
        assert us.tick(float(now), reading=False)[1] is False
    assert us.tick(205.0)[1] is False
    assert us.tick(211.0)[1] is True
