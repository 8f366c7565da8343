"""The connection machine of 0-9-1: two against each other, what they agree on, strangers, refusals, every method."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_core.address import ConnectOptions
from amqp_core.connection_states import Ended, Opened, Redirected, Role, State
from amqp_core.errors import (
    AmqpError,
    AuthenticationFailed,
    ConnectionClosed,
    DecodeError,
    EncodeError,
    LimitReached,
    NotAllowed,
    NotImplementedByPeer,
    ProtocolError,
    UnauthorizedAccess,
    UsageError,
    VersionRefused,
    VirtualHostRefused,
)
from amqp_core.protocol_header import HEADERS_0_9
from amqp_core.sasl import SaslLogin
from amqp_core.v0_9 import spec
from amqp_core.v0_9._codec import encode_header, encode_method
from amqp_core.v0_9.connection_events import (
    CLIENT_TRANSITIONS,
    SERVER_TRANSITIONS,
    Blocked,
    DeliveriesReceived,
    FrameReceived,
    SecretUpdated,
)
from amqp_core.v0_9.framing import BODY, HEADER, HEARTBEAT_FRAME, METHOD, Frame, encode_frame
from amqp_core.v0_9.messages import Message, each_message
from tests.support.machines_0_9 import START, TUNE, Login, at, client, error_of, method, pump, sent, server

if TYPE_CHECKING:
    from amqp_core.v0_9.connection import Connection

RABBITMQ: dict[str, object] = {"product": "RabbitMQ", "capabilities": {"authentication_failure_close": True}}


# ---------------------------------------------------------------------------------------------------------- both sides
@pytest.mark.parametrize("version", HEADERS_0_9)
def test_two_connections_open_and_close(version: str) -> None:
    login = Login()
    us = client(version=version, login=login, heartbeat=30, client_properties={"product": "us"}, max_frame_size=8192)
    them = server(version=version, heartbeat=20, server_properties={"product": "them"}, channel_max=7)
    assert pump(us, them) == ([Opened()], [Opened()])
    assert us.peer_properties == {"product": "them"}
    assert them.peer_properties == {"product": "us"}
    assert (us.heartbeat_s, them.heartbeat_s) == (20, 20)
    assert (us.max_frame_size, them.max_frame_size) == (8192, 8192)
    assert (us.channel_max, them.channel_max) == (7, 7)
    assert them.virtual_host == "vh"
    assert login.offered == ["PLAIN"]

    us.close(200, "bye")
    ours, theirs = pump(us, them)
    assert ours == [Ended(None)]
    closed = error_of(theirs)
    assert isinstance(closed, ConnectionClosed)
    assert (closed.reply_code, closed.reply_text) == (200, "bye")
    assert (us.state, them.state) == (State.CLOSED, State.CLOSED)
    us.close()
    assert us.data_to_send() == b""
    assert us.receive_data(b"anything") == []


def test_both_sides_close_at_once() -> None:
    us, them = client(), server()
    pump(us, them)
    us.close()
    them.close()
    ours, theirs = pump(us, them)
    assert isinstance(error_of(ours), ConnectionClosed)
    assert isinstance(error_of(theirs), ConnectionClosed)


def test_challenges_go_back_and_forth() -> None:
    login = Login()
    responses: list[bytes] = []

    def authenticate(_: str, response: bytes) -> bytes | None:
        responses.append(response)
        return b"challenge %d" % len(responses) if len(responses) < 3 else None

    us, them = client(login=login), server(authenticate=authenticate)
    assert pump(us, them) == ([Opened()], [Opened()])
    assert login.challenges == [b"challenge 1", b"challenge 2"]
    assert responses == [b"\0u\0p", b"re:challenge 1", b"re:challenge 2"]


@pytest.mark.parametrize(("ours", "theirs", "agreed"), [(30, 60, 30), (60, 30, 30), (0, 60, 0), (30, 0, 30)], ids=str)
def test_the_heartbeat_is_the_lower_one_and_the_clients_where_the_server_wishes_none(
    ours: int, theirs: int, agreed: int
) -> None:
    us, them = client(heartbeat=ours), server(heartbeat=theirs)
    pump(us, them)
    assert (us.heartbeat_s, them.heartbeat_s) == (agreed, agreed)


@pytest.mark.parametrize(
    ("wished", "offered", "answer"),
    [(None, 131072, 131072), (None, 0, 131072), (8192, 131072, 8192), (1 << 20, 131072, 131072), (1 << 20, 0, 1 << 20)],
)
def test_the_answer_to_tune_is_never_above_the_offer_nor_zero(wished: int | None, offered: int, answer: int) -> None:
    us = client(max_frame_size=wished)
    us.receive_data(method(START))
    sent(us)
    us.receive_data(method(spec.ConnectionTune(channel_max=0, frame_max=offered, heartbeat=60)))
    tuned, opened = sent(us)
    assert tuned == spec.ConnectionTuneOk(channel_max=2047, frame_max=answer, heartbeat=0)
    assert opened == spec.ConnectionOpen(virtual_host="vh")


def test_without_a_wish_no_frame_may_be_larger_than_a_message() -> None:
    us = client(max_message_bytes=1 << 20)
    us.receive_data(method(START))
    us.receive_data(method(spec.ConnectionTune(channel_max=0, frame_max=0xFFFFFFFF, heartbeat=60)))
    us.receive_data(method(spec.ConnectionOpenOk()))
    assert us.max_frame_size == 1 << 20
    assert us.state is State.OPEN
    (ended,) = us.receive_data(bytes((METHOD, 0, 3)) + (0xFFFFFFF0).to_bytes(4))
    assert isinstance(ended, Ended)
    assert isinstance(ended.error, DecodeError)


def test_a_secret_is_replaced_and_the_broker_blocks_and_unblocks() -> None:
    us, them = client(), server()
    pump(us, them)
    us.update_secret(b"new", "expired")
    assert pump(us, them)[0] == [SecretUpdated()]
    them.send_method(0, spec.ConnectionBlocked(reason="low on memory"))
    them.send_method(0, spec.ConnectionBlocked())
    them.send_method(0, spec.ConnectionUnblocked())
    assert pump(us, them)[0] == [Blocked("low on memory"), Blocked("no reason given"), Blocked(None)]
    with pytest.raises(UsageError, match="not open"):
        client().update_secret(b"", "")


def test_a_redirect() -> None:
    us, them = client(version="0-9"), server(version="0-9")
    while Opened() not in them.receive_data(us.data_to_send()):
        us.receive_data(them.data_to_send())
    them.redirect("elsewhere:5")
    assert us.receive_data(them.data_to_send()) == [Redirected("elsewhere:5")]
    assert us.state is State.CLOSED


def test_time_passes() -> None:
    us, them = client(heartbeat=10), server(heartbeat=10)
    pump(us, them)
    assert us.tick(0.0) == (5.0, False)
    assert us.tick(9.0) == (10.0, False)
    us.tick(10.0)
    beat = us.data_to_send()
    assert beat == HEARTBEAT_FRAME
    assert them.receive_data(beat) == []
    assert us.tick(21.0)[1], "the peer was silent for two intervals"


# ------------------------------------------------------------------------------------------------------------ refusals
def test_a_server_that_repeats_the_password() -> None:
    text = "no user 'u' with 's3cret'"
    for is_open in (False, True):
        us = client(login=SaslLogin(ConnectOptions(hosts=(("h", 1),), username="u", password="s3cret"), loopback=True))
        us.receive_data(method(START))
        if is_open:
            us.receive_data(method(TUNE) + method(spec.ConnectionOpenOk()))
        error = error_of(us.receive_data(method(spec.ConnectionClose(403, text))))
        assert isinstance(error, ConnectionClosed if is_open else AuthenticationFailed)
        assert "s3cret" not in str(error)
        assert "its text is not shown" in str(error)


def test_a_refused_login() -> None:
    def refuse(mechanism: str, response: bytes) -> bytes | None:
        raise AuthenticationFailed("wrong")

    us, them = client(client_properties=RABBITMQ), server(authenticate=refuse)
    ours, theirs = pump(us, them)
    assert isinstance(error_of(theirs), AuthenticationFailed)
    refused = error_of(ours)
    assert isinstance(refused, AuthenticationFailed)
    assert "refused the login (PLAIN): 403 ACCESS_REFUSED - Login was refused using" in str(refused)

    us, them = client(), server(authenticate=refuse)  # one that does not expect a method then
    ours, theirs = pump(us, them)
    assert isinstance(error_of(theirs), AuthenticationFailed)
    assert (ours, them.state) == ([], State.CLOSED)


def checking() -> Connection:
    """A server that has a login checked."""
    them = server(authenticate=lambda *_: State.CHECKING)
    pump(client(client_properties=RABBITMQ), them)
    assert them.state is State.CHECKING
    return them


def test_a_login_that_is_checked_meanwhile() -> None:
    us, them = client(client_properties=RABBITMQ), server(authenticate=lambda *_: State.CHECKING)
    assert pump(us, them) == ([], [])
    assert them.receive_data(HEARTBEAT_FRAME) == []
    assert them.login_checked(None) == []
    assert pump(us, them) == ([Opened()], [Opened()])
    assert them.login_checked(None) == [], "once"

    us, them = client(client_properties=RABBITMQ), server(authenticate=lambda *_: State.CHECKING)
    pump(us, them)
    assert isinstance(error_of(them.login_checked(AuthenticationFailed("wrong"))), AuthenticationFailed)
    ours, _ = pump(us, them)
    assert "refused the login (PLAIN): 403" in str(error_of(ours))


def test_a_client_has_to_wait_while_its_login_is_checked() -> None:
    for early in (spec.ConnectionSecureOk(b"x"), spec.ConnectionTuneOk(), spec.ConnectionStartOk(mechanism="PLAIN")):
        them = checking()
        assert isinstance(error_of(them.receive_data(method(early))), ProtocolError)
        assert them.login_checked(None) == []
        assert them.state is State.CLOSED
    them = checking()
    assert isinstance(error_of(them.receive_data(method(spec.ConnectionClose(200, "bye")))), ConnectionClosed)
    assert them.login_checked(None) == []


def test_a_virtual_host_that_is_there_and_not_for_this_login() -> None:
    us = client()
    them = server(forbids_virtual_host=lambda name: f"not {name}" if name == "vh" else None)
    ours, _ = pump(us, them)
    assert isinstance(error_of(ours), VirtualHostRefused)
    assert "530 NOT_ALLOWED - not vh" in str(error_of(ours))
    assert pump(client(virtual_host="other"), server(forbids_virtual_host=lambda _: None)) == ([Opened()], [Opened()])


@pytest.mark.parametrize(
    ("properties", "means"),
    [({"product": "RabbitMQ"}, AuthenticationFailed), (RABBITMQ, None), ({"product": "other"}, None)],
)
def test_a_server_that_closes_without_a_word_after_the_login(
    properties: dict[str, object], means: type[Exception] | None
) -> None:
    us = client()
    us.receive_data(method(spec.ConnectionStart(0, 9, properties, b"PLAIN", b"en_US")))
    explained = us.explain_loss()
    ended = us.receive_eof()
    if means is None:
        assert (explained, ended) == (None, [])
    else:
        assert isinstance(explained, means)
        assert isinstance(error_of(ended), means)


@pytest.mark.parametrize("code", [320, 541])
def test_a_server_that_stops_or_fails_during_the_login_has_not_refused_it(code: int) -> None:
    us = at(Role.CLIENT, State.SECURE_OR_TUNE)
    error = error_of(us.receive_data(method(spec.ConnectionClose(code, "shutdown"))))
    assert isinstance(error, ConnectionClosed)
    assert error.retryable


@pytest.mark.parametrize("code", [320, 504, 541])
def test_a_broker_that_ends_the_connection_for_what_may_pass(code: int) -> None:
    """Although it names a method: the same one may be taken on a new connection."""
    us = at(Role.CLIENT, State.OPEN)
    error = error_of(us.receive_data(method(spec.ConnectionClose(code, "because", 60, 80))))
    assert isinstance(error, ConnectionClosed)
    assert error.retryable


@pytest.mark.parametrize("code", [402, 403, 404, 530])
def test_a_refused_virtual_host(code: int) -> None:
    us = at(Role.CLIENT, State.OPEN_OK)
    error = error_of(us.receive_data(method(spec.ConnectionClose(code, "NOT_ALLOWED - vhost vh not found", 10, 40))))
    assert isinstance(error, VirtualHostRefused)
    assert f"'vh': {code} NOT_ALLOWED" in str(error)
    assert sent(us) == [spec.ConnectionCloseOk()]


@pytest.mark.parametrize(
    ("state", "text", "numbers"),
    [
        (State.OPEN_OK, "connection refused: node connection limit (9) is reached", (10, 40)),
        (State.OPEN_OK, "connection refused for user 'u': user connection limit (9) is reached", (10, 40)),
        (State.OPEN_OK, "access to vhost '/' refused for user 'u': connection limit (9) is reached", (10, 40)),
        (State.OPEN, "number of channels opened for user 'u' has reached the maximum allowed user limit of 9", (0, 0)),
        (State.OPEN, "number of channels opened on node 'r@h' has reached the maximum allowed limit of 9", (20, 10)),
    ],
)
def test_a_limit_of_connections_or_channels_may_have_room_later(
    state: State, text: str, numbers: tuple[int, int]
) -> None:
    us = at(Role.CLIENT, state)
    error = error_of(us.receive_data(method(spec.ConnectionClose(530, f"NOT_ALLOWED - {text}", *numbers))))
    assert type(error) is LimitReached
    assert error.retryable
    assert f"530 NOT_ALLOWED - {text}. Close others" in str(error)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details", AuthenticationFailed),
        ("ACCESS_REFUSED", AuthenticationFailed),
        ("NOT_ALLOWED - vhost vh not found", VirtualHostRefused),
        ("NOT_ALLOWED - access to vhost 'vh' refused for user 'u'", VirtualHostRefused),
        ("NOT_ALLOWED - access to vhost 'vh' refused for user 'u': connection limit (9) is reached", LimitReached),
        ("INTERNAL_ERROR - access to vhost 'vh' refused for user 'u': vhost 'vh' is down", ConnectionClosed),
    ],
)
def test_a_proxy_tells_what_its_broker_refused_once_the_connection_is_open(text: str, kind: type[AmqpError]) -> None:
    """AMQProxy logs in at the broker when the first channel is opened, and answers any refusal with 403."""
    us = at(Role.CLIENT, State.OPEN)
    error = error_of(us.receive_data(method(spec.ConnectionClose(403, text, 0, 0))))
    assert type(error) is kind
    assert error.retryable is (kind in (LimitReached, ConnectionClosed))
    assert text in str(error)


def test_403_for_a_method_of_an_open_connection_is_no_refused_login() -> None:
    us = at(Role.CLIENT, State.OPEN)
    close = spec.ConnectionClose(403, "ACCESS_REFUSED - Login was refused", 60, 20)
    assert type(error_of(us.receive_data(method(close)))) is UnauthorizedAccess


def test_a_virtual_host_that_is_down_may_come_up() -> None:
    us = at(Role.CLIENT, State.OPEN_OK)
    error = error_of(us.receive_data(method(spec.ConnectionClose(541, "vhost is down", 10, 40))))
    assert isinstance(error, ConnectionClosed)
    assert error.retryable


@pytest.mark.parametrize(("code", "kind"), [(540, NotImplementedByPeer), (530, NotAllowed)])
def test_a_method_that_closes_the_connection_is_named(code: int, kind: type[Exception]) -> None:
    us = at(Role.CLIENT, State.OPEN)
    error = error_of(us.receive_data(method(spec.ConnectionClose(code, "no", 60, 10))))
    assert isinstance(error, kind)
    assert "basic.qos" in str(error)


def test_a_start_ok_larger_than_frame_min_size_is_not_sent() -> None:
    us = client(client_properties={"product": "p" * 5000})
    error = error_of(us.receive_data(method(START)))
    assert isinstance(error, EncodeError)
    assert "connection.start-ok" in str(error)


@pytest.mark.parametrize(
    ("product", "version", "taken"),
    [
        ("RabbitMQ", "4.3.6", True),
        ("RabbitMQ", "4.1.0", True),
        ("RabbitMQ", "4.0.5", False),
        ("RabbitMQ", "3.10.8", False),
        ("RabbitMQ", "", False),
        ("other", "4.3.6", False),
    ],
)
def test_a_long_token_is_sent_to_a_server_that_takes_it(product: str, version: str, *, taken: bool) -> None:
    for size in (6000, 9000):
        us = client(client_properties={"token": "t" * size})
        start = spec.ConnectionStart(0, 9, {"product": product, "version": version}, b"PLAIN", b"en_US")
        events = us.receive_data(method(start))
        if taken and size == 6000:
            assert events == []
        else:
            assert isinstance(error_of(events), EncodeError)


def test_an_offer_of_too_small_frames() -> None:
    us = at(Role.CLIENT, State.SECURE_OR_TUNE)
    error = error_of(us.receive_data(method(spec.ConnectionTune(0, 4095, 0))))
    assert isinstance(error, ProtocolError)
    with pytest.raises(UsageError, match="4096"):
        client(max_frame_size=4095)


@pytest.mark.parametrize("answer", [spec.ConnectionTuneOk(9, 1 << 20, 0), spec.ConnectionTuneOk(4000, 4096, 0)])
def test_a_client_that_asks_for_more_than_was_offered(answer: spec.ConnectionTuneOk) -> None:
    them = at(Role.SERVER, State.TUNE_OK)
    assert isinstance(error_of(them.receive_data(method(answer))), ProtocolError)


# ----------------------------------------------------------------------------------------------------------- strangers
@pytest.mark.parametrize(
    ("answer", "offered"),
    [
        (b"AMQP\x00\x00\x09\x01", "AMQP 0-9-1"),
        (b"AMQP\x01\x01\x00\x0a", "AMQP 0-10"),
        (b"AMQP\x03\x01\x00\x00", "AMQP 1.0 with SASL"),
        (b"HTTP/1.1 400 Bad Request", "HTTP"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "TLS"),
    ],
)
def test_a_peer_that_answers_with_another_protocol(answer: bytes, offered: str) -> None:
    whole, bytewise = client(version="0-9"), client(version="0-9")
    refused = error_of(whole.receive_data(answer))
    events = [event for byte in answer for event in bytewise.receive_data(bytes([byte]))]
    for error in (refused, error_of(events)):
        assert isinstance(error, VersionRefused)
        assert error.offered.startswith(offered)
        assert error.expected == "AMQP 0-9"


def test_a_peer_that_closes_inside_its_answer() -> None:
    us = client()
    assert us.receive_data(b"AMQP\x01") == []
    assert isinstance(error_of(us.receive_eof()), VersionRefused)
    assert client().receive_eof() == []


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 40])
def test_a_server_that_closes_inside_connection_start_has_not_refused_the_version(size: int) -> None:
    us = client()
    assert us.receive_data(method(START)[:size]) == []
    assert us.receive_eof() == [], "a lost connection, which is tried again"


def test_a_server_answers_a_strange_header_with_its_own() -> None:
    them = server()
    assert isinstance(error_of(them.receive_data(b"AMQP\x01\x01\x00\x0a")), VersionRefused)
    assert them.data_to_send() == HEADERS_0_9["0-9-1"]


def test_a_server_that_starts_another_version() -> None:
    us = client()
    error = error_of(us.receive_data(method(spec.ConnectionStart(8, 0, {}, b"PLAIN", b"en_US"))))
    assert isinstance(error, VersionRefused)
    assert error.offered == "AMQP 8-0"


# -------------------------------------------------------------------------------------------------------------- frames
def test_a_frame_larger_than_agreed_ends_the_connection() -> None:
    us, them = client(max_frame_size=4096), server()
    pump(us, them)
    error = error_of(us.receive_data(encode_frame(BODY, 1, bytes(4096))))
    assert isinstance(error, DecodeError)
    assert "4104 bytes is larger than 4096" in str(error)
    assert sent(us) == [spec.ConnectionClose(501, "DecodeError")]


def test_a_content_header_larger_than_agreed_is_taken() -> None:
    us, them = client(max_frame_size=4096, scan_deliveries=True), server()
    pump(us, them)
    header = encode_header(spec.BasicProperties(headers={"h": "x" * 9000}), 0)
    frames = [(METHOD, encode_method(spec.BasicReturn(312))), (HEADER, header)]
    events = us.receive_data(b"".join(encode_frame(kind, 2, payload) for kind, payload in frames))
    assert events == [FrameReceived(Frame(kind, 2, payload)) for kind, payload in frames]


def test_before_the_agreement_a_server_gets_frames_of_frame_min_size_at_most() -> None:
    them = server()
    assert them.receive_data(HEADERS_0_9["0-9-1"]) == []
    error = error_of(them.receive_data(encode_frame(1, 0, bytes(4096))[:7]))
    assert isinstance(error, DecodeError)
    assert "4104 bytes is larger than 4096" in str(error)


def test_connection_start_may_be_larger_than_frame_min_size() -> None:
    """Servers do not heed it: their properties and mechanisms have no bound."""
    us = client()
    properties: dict[str, object] = {"product": "p" * 60_000}
    data = method(spec.ConnectionStart(0, 9, properties, b"PLAIN", b"en_US"))
    assert us.receive_data(data[:50_000]) == us.receive_data(data[50_000:]) == []
    assert us.peer_properties == properties
    assert isinstance(sent(us)[-1], spec.ConnectionStartOk)
    error = error_of(client().receive_data(encode_frame(1, 0, bytes(131072))[:7]))
    assert isinstance(error, DecodeError)
    assert "131080 bytes is larger than 131072" in str(error)


def test_deliveries_are_blocks_and_other_frames_are_frames() -> None:
    us, them = client(max_frame_size=4096), server()
    pump(us, them)
    bodies = [b"a", b"", bytes(10000)]
    for tag, body in enumerate(bodies, 1):
        them.send_method(1, spec.BasicDeliver("c", tag, routing_key="k"), spec.BasicProperties(message_id="m"), body)
    them.send_method(1, spec.BasicCancel("c"))
    them.send_method(2, spec.BasicAck(7))
    events = pump(us, them)[0]
    blocks = [event.block for event in events if isinstance(event, DeliveriesReceived)]
    found = [message for block in blocks for message in each_message(block)]
    assert all(isinstance(message, Message) for message in found)
    assert [message.body for message in found if isinstance(message, Message)] == bodies
    assert blocks[0].first_id == 1
    assert [event.frame.channel for event in events if isinstance(event, FrameReceived)] == [1, 2]


def test_frames_of_channels_before_the_connection_is_open() -> None:
    us = at(Role.CLIENT, State.OPEN_OK)
    assert isinstance(error_of(us.receive_data(method(spec.BasicAck(1), 2))), ProtocolError)


def test_content_on_channel_0() -> None:
    us = at(Role.CLIENT, State.OPEN)
    assert isinstance(error_of(us.receive_data(encode_frame(BODY, 0, b"x"))), ProtocolError)


# -------------------------------------------------------------------------------------------------------- every method
CLIENT_STATES = [State.START, State.SECURE_OR_TUNE, State.OPEN_OK, State.OPEN, State.CLOSE_OK, State.CLOSED]
SERVER_STATES = [
    *(State.START_OK, State.SECURE_OK, State.TUNE_OK, State.OPEN_FROM_CLIENT, State.OPEN),
    *(State.CLOSE_OK, State.CLOSED),
]
EVERY_STATE = [(Role.CLIENT, state) for state in CLIENT_STATES] + [(Role.SERVER, state) for state in SERVER_STATES]
PLAUSIBLE: dict[type, spec.Method] = {
    spec.ConnectionStart: START,
    spec.ConnectionTune: TUNE,
    spec.ConnectionTuneOk: spec.ConnectionTuneOk(9, 131072, 0),
    spec.ConnectionClose: spec.ConnectionClose(320, "forced"),
    spec.ConnectionRedirect: spec.ConnectionRedirect("elsewhere"),
}


@pytest.mark.parametrize(("role", "state"), EVERY_STATE, ids=lambda value: value.name.lower())
def test_a_method_leads_where_the_table_says_or_ends_the_connection(role: Role, state: State) -> None:
    for cls in spec.METHOD_TYPES.values():
        check_that_it_leads_where_the_table_says(role, state, cls)


def check_that_it_leads_where_the_table_says(role: Role, state: State, cls: type[spec.Method]) -> None:
    connection = at(role, state)
    events = connection.receive_data(method(PLAUSIBLE.get(cls, cls())))
    table = CLIENT_TRANSITIONS if role is Role.CLIENT else SERVER_TRANSITIONS
    following = table.get((state, cls))
    if state is State.CLOSED:
        assert events == []
    elif cls is spec.ConnectionClose:
        assert sent(connection) == [spec.ConnectionCloseOk()]
        assert connection.state is State.CLOSED
    elif following is not None:
        assert connection.state in (following, State.SECURE_OK, State.TUNE_OK)
        assert not any(isinstance(event, Ended) and event.error for event in events)
    elif state is State.CLOSE_OK:
        assert events == []
    else:
        assert isinstance(error_of(events), ProtocolError)
        assert connection.state is State.CLOSED
