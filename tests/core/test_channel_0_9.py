"""The channel machine of 0-9-1: requests and answers, content, errors that end a channel only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_core import errors
from amqp_core.connection_states import Role, State
from amqp_core.v0_9 import spec
from amqp_core.v0_9.channel import Channel, ChannelState, Received
from amqp_core.v0_9.error_codes import command_failure
from amqp_core.v0_9.framing import BODY, HEADER, Frame, parse_frame
from tests.support.machines_0_9 import at, sent

if TYPE_CHECKING:
    from amqp_core.v0_9.connection import Connection

CLOSED = spec.ChannelClose(404, "NOT_FOUND - no queue 'q' in vhost '/'", 50, 10)


def open_channel(number: int = 3, limit: int = 1 << 20) -> Channel:
    connection = at(Role.CLIENT, State.OPEN)
    channel = Channel(connection, number, limit)
    request = channel.open()
    receive(channel, spec.ChannelOpenOk())
    assert request.answer == Received(spec.ChannelOpenOk(), None)
    assert channel.state is ChannelState.OPEN
    sent(connection)
    return channel


def frames(method: spec.Method, properties: spec.BasicProperties | None = None, body: bytes = b"") -> list[Frame]:
    """A method of the peer as frames."""
    peer = at(Role.SERVER, State.OPEN)
    peer.send_method(3, method, properties, body)
    data, pos, found = peer.data_to_send(), 0, []
    while (parsed := parse_frame(data, pos, 1 << 20)) is not None:
        frame, pos = parsed
        found.append(frame)
    return found


def receive(
    channel: Channel, method: spec.Method, properties: spec.BasicProperties | None = None, body: bytes = b""
) -> list[Received]:
    found = [channel.receive(frame) for frame in frames(method, properties, body)]
    return [received for received in found if received is not None]


def connection_of(channel: Channel) -> Connection:
    return channel._connection


# ------------------------------------------------------------------------------------------------ requests and answers
def test_answers_go_to_their_requests_in_order() -> None:
    channel = open_channel()
    first = channel.request(spec.QueueDeclare(queue="a"))
    second = channel.request(spec.QueueDeclare(queue="b"))
    third = channel.request(spec.BasicGet(queue="b"))
    receive(channel, spec.QueueDeclareOk("a", 1, 2))
    assert (first.is_done, second.is_done) == (True, False)
    receive(channel, spec.QueueDeclareOk("b"))
    receive(channel, spec.BasicGetEmpty())
    assert [request.answer and request.answer.method for request in (first, second, third)] == [
        spec.QueueDeclareOk("a", 1, 2),
        spec.QueueDeclareOk("b"),
        spec.BasicGetEmpty(),
    ]


@pytest.mark.parametrize("asked", [True, False])
def test_an_answer_that_is_not_due(asked: bool) -> None:
    channel = open_channel()
    if asked:
        channel.request(spec.QueueDeclare(queue="a"))
    with pytest.raises(errors.ProtocolError, match=r"basic\.qos-ok arrived on channel 3, where"):
        receive(channel, spec.BasicQosOk())


def test_flow_is_answered_and_remembered() -> None:
    channel = open_channel()
    assert receive(channel, spec.ChannelFlow(active=False)) == []
    assert not channel.active
    assert sent(connection_of(channel)) == [spec.ChannelFlowOk(active=False)]


def test_other_methods_are_returned() -> None:
    channel = open_channel()
    assert receive(channel, spec.BasicAck(3, multiple=True)) == [Received(spec.BasicAck(3, multiple=True), None)]


# ------------------------------------------------------------------------------------------------------------- content
@pytest.mark.parametrize("size", [0, 1, 131072, 400_000])
def test_content_is_joined(size: int) -> None:
    channel = open_channel()
    body, properties = bytes(size), spec.BasicProperties(message_id="m", headers={"a": 1})
    returned = spec.BasicReturn(312, "NO_ROUTE", "x", "k")
    (received,) = receive(channel, returned, properties, body)
    assert received.method == returned
    assert received.content is not None
    assert (received.content.properties, received.content.body) == (properties, body)


def test_content_may_be_an_answer() -> None:
    channel = open_channel()
    request = channel.request(spec.BasicGet(queue="q"))
    assert receive(channel, spec.BasicGetOk(1), body=b"x") == []
    assert request.answer is not None
    assert request.answer.content is not None
    assert request.answer.content.body == b"x"


def test_a_body_beyond_the_limit() -> None:
    channel = open_channel(limit=1000)
    with pytest.raises(errors.LimitExceeded, match="1001 bytes; 1000 are the most"):
        receive(channel, spec.BasicReturn(312, "NO_ROUTE"), body=bytes(1001))


@pytest.mark.parametrize(
    "order",
    [
        [HEADER],
        [BODY],
        ["return", BODY],
        ["return", HEADER, HEADER],
        ["return", "ack"],
        ["return", HEADER, "ack"],
        ["return", HEADER, BODY, BODY],
    ],
    ids=str,
)
def test_frames_out_of_order(order: list[object]) -> None:
    channel = open_channel()
    method, header, body = frames(spec.BasicReturn(312, "NO_ROUTE"), body=b"xy")
    ack = frames(spec.BasicAck(1))[0]
    pieces = {"return": method, HEADER: header, BODY: body, "ack": ack}
    *before, last = [pieces[piece] for piece in order]
    for frame in before:
        channel.receive(frame)
    with pytest.raises(errors.ProtocolError):
        channel.receive(last)


def test_an_empty_or_too_long_body_frame() -> None:
    for payload in (b"", b"xyz"):
        channel = open_channel()
        method, header, _ = frames(spec.BasicReturn(312, "NO_ROUTE"), body=b"xy")
        channel.receive(method)
        channel.receive(header)
        with pytest.raises(errors.ProtocolError, match="lacks 2"):
            channel.receive(Frame(BODY, 3, payload))


# -------------------------------------------------------------------------------------------------------------- endings
def test_a_channel_that_the_peer_closes_can_be_opened_again() -> None:
    channel = open_channel()
    request = channel.request(spec.QueueDeclare(queue="q", passive=True))
    assert receive(channel, CLOSED) == []
    assert isinstance(request.error, errors.NotFound)
    assert request.error is channel.error
    assert "queue.declare with 404: NOT_FOUND - no queue 'q'" in str(request.error)
    with pytest.raises(errors.UsageError, match="channel 3 is closed"):
        channel.send(spec.BasicAck(1))
    assert receive(channel, spec.BasicAck(1)) == [], "Broker-J still confirms what came before"
    again = channel.open()
    assert receive(channel, spec.BasicAck(2)) == []
    assert receive(channel, spec.BasicReturn(312, "NO_ROUTE"), body=b"xy") == []
    receive(channel, spec.ChannelOpenOk())
    assert (again.is_done, again.error) == (True, None)
    assert receive(channel, spec.BasicAck(3)) == [Received(spec.BasicAck(3), None)]
    connection = connection_of(channel)
    assert sent(connection) == [
        spec.QueueDeclare(queue="q", passive=True),
        spec.ChannelCloseOk(),
        spec.ChannelOpen(),
    ]


def test_methods_on_a_channel_that_was_never_opened_are_an_error() -> None:
    with pytest.raises(errors.ProtocolError, match="not open"):
        receive(Channel(at(Role.CLIENT, State.OPEN), 3), spec.BasicAck(1))


def test_a_channel_that_is_refused_when_it_is_opened() -> None:
    connection = at(Role.CLIENT, State.OPEN)
    channel = Channel(connection, 3)
    request = channel.open()
    receive(channel, spec.ChannelClose(504, "CHANNEL_ERROR - no", 20, 10))
    assert isinstance(request.error, errors.ChannelClosed)


def test_content_under_way_when_the_channel_ends_is_forgotten() -> None:
    channel = open_channel()
    method, header, _ = frames(spec.BasicReturn(312, "NO_ROUTE"), body=b"xy")
    channel.close()
    assert channel.receive(method) is None
    assert channel.receive(header) is None
    with pytest.raises(errors.UsageError):
        channel.send(spec.BasicAck(1))
    with pytest.raises(errors.UsageError):
        channel.close()


def test_both_sides_close_a_channel_at_once() -> None:
    channel = open_channel()
    asked = channel.request(spec.BasicQos())
    closing = channel.close()
    assert isinstance(asked.error, errors.UsageError)
    receive(channel, CLOSED)
    assert (channel.state, channel.error) == (ChannelState.CLOSING, None)
    receive(channel, spec.BasicQosOk())
    receive(channel, spec.ChannelCloseOk())
    assert closing.is_done
    assert channel.state is ChannelState.CLOSED


def test_a_server_opens_a_channel_when_it_is_asked() -> None:
    connection = at(Role.SERVER, State.OPEN)
    channel = Channel(connection, 3)
    assert receive(channel, spec.ChannelOpen()) == []
    assert sent(connection) == [spec.ChannelOpenOk()]
    assert receive(channel, spec.BasicAck(1)) == [Received(spec.BasicAck(1), None)]
    with pytest.raises(errors.ProtocolError, match="which is open"):
        receive(channel, spec.ChannelOpen())


# --------------------------------------------------------------------------------------------------------- reply codes
@pytest.mark.parametrize(
    ("code", "text", "method", "kind"),
    [
        (311, "CONTENT_TOO_LARGE", spec.BasicPublish, errors.ResourceLimitExceeded),
        (403, "ACCESS_REFUSED - configure access refused", spec.QueueDeclare, errors.UnauthorizedAccess),
        (403, "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use", spec.BasicConsume, errors.ResourceLocked),
        (404, "NOT_FOUND", spec.QueueBind, errors.NotFound),
        (
            404,
            "NOT_FOUND - home node 'r@h' of durable queue 'q' in vhost '/' is down or inaccessible",
            spec.QueueDeclare,
            errors.InternalError,
        ),
        (
            404,
            "NOT_FOUND - failed to perform operation on queue 'q' in vhost '/' due to timeout",
            spec.QueueDeclare,
            errors.InternalError,
        ),
        (
            404,
            (
                "NOT_FOUND - failed to perform operation on queue 'q' in vhost '/': its leader <0.5.0> may be stopping "
                "or being demoted"
            ),
            spec.BasicConsume,
            errors.InternalError,
        ),
        (405, "RESOURCE_LOCKED", spec.QueueDeclare, errors.ResourceLocked),
        (406, "PRECONDITION_FAILED - unknown delivery tag 7", spec.BasicAck, errors.PreconditionFailed),
        (320, "CONNECTION_FORCED - closed by an administrator", spec.BasicConsume, errors.ChannelClosed),
        (
            406,
            "PRECONDITION_FAILED - inequivalent arg 'x-timeout' for queue 'q' in vhost '/': timed out",
            spec.QueueDeclare,
            errors.DeclaredDifferently,
        ),
        (406, "PRECONDITION_FAILED - Server low on disk space", spec.BasicPublish, errors.ChannelClosed),
        (
            406,
            "PRECONDITION_FAILED - Server low on disk space, can not create queue",
            spec.QueueDeclare,
            errors.ChannelClosed,
        ),
        (504, "CHANNEL_ERROR - expected 'channel.open'", spec.BasicAck, errors.ChannelClosed),
        (506, "RESOURCE_ERROR - too many queues", spec.QueueDeclare, errors.ResourceLimitExceeded),
        (530, "NOT_ALLOWED", spec.ExchangeDeclare, errors.NotAllowed),
        (541, "INTERNAL_ERROR", spec.BasicConsume, errors.InternalError),
        (999, "", spec.BasicConsume, errors.UnknownError),
    ],
)
def test_a_reply_code_has_its_error(
    code: int, text: str, method: type[spec.Method], kind: type[errors.CommandFailed]
) -> None:
    error = command_failure(code, text, method.CODE >> 16, method.CODE & 0xFFFF)
    assert type(error) is kind
    assert (error.wire_code, error.command) == (code, method.NAME)
    assert method.NAME in str(error)


@pytest.mark.parametrize("code", [311, 313, 320, 403, 404, 405, 406, 501, 504, 505, 506, 530, 540, 541, 999])
def test_a_channel_that_is_closed_for_no_method_of_ours_is_tried_again(code: int) -> None:
    """Unless the code says something of a queue or a message."""
    assert command_failure(code, "because", 0, 0).retryable is (code not in (311, 313, 403, 404, 406))


@pytest.mark.parametrize(
    "text", ["delivery acknowledgement on channel 1 timed out", "consumer ack timed out on channel 1", "Ack timeout"]
)
def test_a_delivery_timeout_in_words_of_other_brokers(text: str) -> None:
    assert isinstance(command_failure(406, text, 0, 0), errors.DeliveryTimedOut)
    assert isinstance(command_failure(406, "PRECONDITION_FAILED - consumer timeout", 60, 20), errors.DeliveryTimedOut)


def test_a_method_that_is_not_named_or_not_known() -> None:
    for numbers in ((0, 0), (999, 1)):
        assert command_failure(404, "gone", *numbers).command is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            (
                "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': "
                "received 'false' but current is 'true'"
            ),
            "Queue 'q' exists with another 'durable': 'true', not 'false'.",
        ),
        (
            (
                "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': "
                "received the value 'quorum' of type 'longstr' but current is none"
            ),
            "Queue 'q' exists with another 'x-queue-type': absent, not 'quorum'.",
        ),
        (
            (
                "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'x' in vhost 'v': "
                "received 'topic' but current is 'fanout'"
            ),
            "Exchange 'x' exists with another 'type': 'fanout', not 'topic'.",
        ),
    ],
)
def test_a_declaration_that_differs_says_in_what(text: str, said: str) -> None:
    error = command_failure(406, text, 50, 10)
    assert isinstance(error, errors.PreconditionFailed)
    assert error.condition == "AMQP_DECLARED_DIFFERENTLY"
    assert said in str(error)


@pytest.mark.parametrize(
    ("current", "value"),
    [
        ("none", None),
        ("'true'", True),
        ("'quorum'", "quorum"),
        ("'-1'", -1),
        ("'quor...", None),
        ("'false'", False),
        ("the value 'true' of type 'bool'", True),
        ("the value 'true' of type 'longstr'", "true"),
        ("the value '5' of type 'signedint'", 5),
        ("the value '-5' of type 'long'", -5),
        ("the value '5' of type 'longstr'", "5"),
        ("the value '1.5' of type 'double'", None),
        ("the value 'it''s\n' of type 'longstr'", "it''s\n"),
    ],
)
def test_what_exists_as_a_declaration_takes_it(current: str, value: object) -> None:
    text = (
        f"PRECONDITION_FAILED - inequivalent arg 'x' for queue 'q' in vhost '/': received none but current is {current}"
    )
    error = command_failure(406, text, 50, 10)
    assert isinstance(error, errors.DeclaredDifferently)
    assert (error.argument, error.wanted, error.value) == ("x", "absent", value)
    assert type(error.value) is type(value)


def test_a_difference_whose_text_was_cut_names_the_argument() -> None:
    text = "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'qqqqqqqqqqqqqqqqqqqqqqq..."
    error = command_failure(406, text, 50, 10)
    assert isinstance(error, errors.DeclaredDifferently)
    assert (error.argument, error.value) == ("x-queue-type", None)
    assert error.condition == "AMQP_COMMAND_REFUSED"


@pytest.mark.parametrize(
    "text",
    [
        "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 1800000 ms.",
        "PRECONDITION_FAILED - consumer timeout",
    ],
    ids=["RabbitMQ", "LavinMQ"],
)
def test_a_delivery_timeout_names_the_setting(text: str) -> None:
    error = command_failure(406, text, 0, 0)
    assert isinstance(error, errors.DeliveryTimedOut)
    assert error.retryable
    assert "consumer_timeout" in str(error)


# ------------------------------------------------------------------------------------------- transactions and confirms
def test_a_channel_has_transactions_or_confirms() -> None:
    channel = open_channel()
    for method in (spec.TxCommit(), spec.TxRollback()):
        with pytest.raises(errors.UsageError, match="which is not transactional"):
            channel.request(method)
    assert sent(connection_of(channel)) == []
    channel.request(spec.TxSelect())
    channel.request(spec.TxSelect())
    channel.request(spec.TxCommit())
    channel.request(spec.TxRollback())
    with pytest.raises(errors.UsageError, match="which is transactional"):
        channel.request(spec.ConfirmSelect())
    assert channel.mode.name == "TRANSACTIONS"
    receive(channel, spec.ChannelClose(406, "no", 90, 20))
    channel.open()
    receive(channel, spec.ChannelOpenOk())
    assert channel.mode.name == "PLAIN"
    channel.request(spec.ConfirmSelect())
    with pytest.raises(errors.UsageError, match="which has confirms"):
        channel.request(spec.TxSelect())


def test_a_server_refuses_what_the_mode_does_not_allow() -> None:
    channel = Channel(at(Role.SERVER, State.OPEN), 3)
    receive(channel, spec.ChannelOpen())
    with pytest.raises(errors.ProtocolError, match=r"tx\.commit arrived on channel 3, which is not transactional"):
        receive(channel, spec.TxCommit())
    assert receive(channel, spec.TxSelect()) == [Received(spec.TxSelect(), None)]
    assert receive(channel, spec.TxCommit()) == [Received(spec.TxCommit(), None)]
    with pytest.raises(errors.ProtocolError, match=r"confirm\.select arrived on channel 3, which is transactional"):
        receive(channel, spec.ConfirmSelect())
