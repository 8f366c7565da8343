"""Publishing with confirms on 0-9-1, with scripted peers: acks and nacks in any order, returns, blocked connections."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

from amqp_core.errors import (
    CommandFailed,
    ConnectionClosed,
    ConnectionLost,
    DeadlineExceeded,
    MessageRejected,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    ProtocolError,
    PublishingBlocked,
    ResourceLimitExceeded,
    ReturnedUnexpectedly,
    UsageError,
)
from amqp_core.transfer_ledger import Rejected
from amqp_core.v0_9 import spec
from amqp_core.v0_9._codec import decode_method
from amqp_core.v0_9.framing import METHOD, Frame
from amqp_core.v0_9.messages import Message
from tests.support.fakepeer_0_9 import FakePeer, Peer, serve
from tests.support.process import wait_until
from tests.support.runs_0_9 import numbered, numbers_of, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.v0_9.client import Client

BLOCKED = spec.ConnectionBlocked(reason="low on memory")


def reading_until(client: Client, condition: Callable[[], bool], what: str) -> None:
    """Let a client read until a condition holds."""

    def holds() -> bool:
        client.service()
        return condition()

    wait_until(holds, what)


# ------------------------------------------------------------------------------------------------------------- confirms
def test_messages_are_written_unchanged_and_confirmed() -> None:
    def script(peer: Peer) -> None:
        serve(peer)
        seen.extend(peer.messages)
        methods.extend(type(method) for _, method in peer.methods)

    seen, methods = [], []  # type: ignore[var-annotated]
    with FakePeer(script) as server:
        client = server.connect()
        publisher = client.publisher()
        assert publisher.max_frame_size == 131072
        assert publisher.send(numbered(3)) == 1
        assert publisher.send(numbered(2, 3, size=300_000)) == 4
        assert publisher.send(numbered(0)) == 6
        publisher.finish()
        assert publisher.in_flight == 0
        assert publisher.completed == publisher.sent
        assert publisher.sent.transfers == 5
        assert publisher.unfinished() == []
        publisher.finish()
        client.close()
    assert methods[:2] == [spec.ConfirmSelect, spec.BasicPublish]
    assert [message.content.body.partition(b":")[0] for message in seen] == [b"0", b"1", b"2", b"3", b"4"]
    assert len(seen[4].content.body) == 300_002


def test_confirms_may_come_in_any_order() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published(10)
        peer.ack(7)
        peer.ack(3, multiple=True)
        peer.ack(10)
        peer.ack(8, multiple=True)
        go_on.wait(10)
        peer.ack(9, multiple=True)
        peer.ack(9, multiple=True)  # of nothing
        peer.serve()

    go_on = threading.Event()
    with FakePeer(script) as server:
        client = server.connect()
        publisher = client.publisher()
        publisher.send(numbered(6))
        publisher.send(numbered(4, 6))

        reading_until(client, lambda: publisher.in_flight == 1, "nine confirms")
        assert numbers_of(publisher.unfinished()) == [8]
        assert publisher.completed.transfers == 9
        go_on.set()
        publisher.finish()
        assert publisher.completed == publisher.sent


@pytest.mark.parametrize(
    ("tags", "text"),
    [
        ([(3, False)], r"basic\.ack confirms message 3; 2 were sent"),
        ([(3, True)], r"basic\.ack confirms message 3; 2 were sent"),
        ([(0, False)], r"basic\.ack confirms message 0; 2 were sent"),
        ([(0, True)], r"basic\.ack with delivery tag 0 does not say which of 2 messages it confirms"),
        ([(1, False), (1, False)], r"basic\.ack confirms message 1 a second time"),
        ([(2, False), (2, False)], r"basic\.ack confirms message 2 a second time"),
    ],
)
def test_confirms_that_cannot_be_true_end_the_connection(tags: list[tuple[int, bool]], text: str) -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published(2)
        for tag, multiple in tags:
            peer.ack(tag, multiple=multiple)
        peer.silent()

    with FakePeer(script) as server:
        publisher = server.connect().publisher()
        publisher.send(numbered(2))
        with pytest.raises(ProtocolError, match=text):
            publisher.finish()


def test_a_method_that_does_not_belong_there() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published()
        peer.send(spec.BasicCancel(consumer_tag="s1"))
        peer.silent()

    with FakePeer(script) as server:
        publisher = server.connect().publisher()
        publisher.send(numbered(1))
        with pytest.raises(ProtocolError, match=r"basic\.cancel arrived on the channel that publishes"):
            publisher.finish()


def test_the_window_holds_messages_back() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        for number in range(10):
            peer.published(10)
            assert len(peer.messages) == 10 * (number + 1)
            peer.ack(10 * (number + 1), multiple=True)
        peer.serve()

    with FakePeer(script) as server:
        publisher = server.connect().publisher(max_in_flight=10)
        publisher.send(numbered(100))
        publisher.finish()
        assert publisher.completed.transfers == 100


def test_the_window_counts_bytes_and_lets_a_larger_message_pass_alone() -> None:
    most = 0

    def script(peer: Peer) -> None:
        nonlocal most
        peer.open()
        for number in range(1, 21):
            peer.published()
            most = max(most, len(peer.messages) - number)
            peer.ack(number)
        peer.serve()

    with FakePeer(script) as server:
        publisher = server.connect().publisher(max_bytes_in_flight=250_000)
        publisher.send(numbered(10, size=100_000))
        publisher.send(numbered(10, 10, size=1_000_000))
        publisher.finish()
        assert publisher.completed.transfers == 20
    assert most <= 1


def test_a_long_life_leaves_nothing_behind() -> None:
    with FakePeer(serve) as server:
        publisher = server.connect().publisher(max_in_flight=20)
        most = 0
        for number in range(200):
            publisher.send(numbered(20, number, tag=number))
            most = max(most, len(publisher._ledger._parts))
        assert most < 60
        assert publisher.locate(4000) == (199, 19)
        publisher.finish()
        assert publisher._ledger._parts == []
        assert publisher._confirmed.ranges() == [(1, 4000)]
        assert publisher.locate(3) is None
        assert publisher.completed.transfers == 4000


def test_a_second_publisher_continues_on_the_channel() -> None:
    with FakePeer(serve) as server:
        client = server.connect()
        first = client.publisher()
        first.send(numbered(5))
        with pytest.raises(UsageError, match="is not finished"):
            client.publisher()
        first.finish()
        second = client.publisher(max_in_flight=3)
        with pytest.raises(UsageError, match="another publisher was made"):
            first.send(numbered(1))
        assert second.send(numbered(7)) == 6
        second.finish()
        assert (second.in_flight, second.sent.transfers, second.completed.transfers) == (0, 7, 7)


# ---------------------------------------------------------------------------------------------------- nacks and returns
def test_nacks_reject() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published(8)
        peer.nack(2)
        peer.ack(3, multiple=True)
        peer.nack(6, multiple=True)
        peer.ack(8, multiple=True)
        peer.serve()

    with FakePeer(script) as server:
        publisher = server.connect().publisher()
        publisher.send(numbered(4, tag="a"))
        publisher.send(numbered(4, 4, tag="b"))
        publisher.finish()
        found = [(one.tag, one.index, one.code) for one in publisher.take_rejected()]
        assert found == [("a", 1, 0), ("a", 3, 0), ("b", 0, 0), ("b", 1, 0)]
        assert not Rejected("a", 1, 0, "").is_unroutable
        assert publisher.take_rejected() == []
        assert publisher.unfinished() == []


@pytest.mark.parametrize("verdict", ["ack after it", "nack after it", "nack before it"])
@pytest.mark.parametrize("order", [[2, 5, 6], [6, 2, 5]])
def test_a_returned_message_is_rejected_as_unroutable(verdict: str, order: list[int]) -> None:
    """RabbitMQ acks behind the return, Broker-J nacks before it."""

    def script(peer: Peer) -> None:
        peer.open()
        peer.published(8)
        for tag in order:
            if verdict == "nack before it":
                peer.nack(tag)
            peer.give_back(peer.messages[tag - 1])
            if verdict != "nack before it":
                getattr(peer, verdict.partition(" ")[0])(tag)
        peer.ack(8, multiple=True)
        peer.serve()

    with FakePeer(script) as server:
        publisher = server.connect().publisher()
        publisher.send(numbered(8, tag="a"))
        publisher.finish()
        expected = [Rejected("a", tag - 1, 312, "NO_ROUTE") for tag in order]
        assert publisher.take_rejected() == expected
        assert all(one.is_unroutable for one in expected)


def test_a_nack_that_is_not_proved_leaves_the_message_in_doubt() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published(3)
        peer.ack(1)
        peer.nack(2)
        peer.nack(3)
        assert peer.read_raw(1)  # of the question, which is not answered

    with FakePeer(script) as server:
        publisher = server.connect().publisher()
        publisher.send(numbered(3))
        with pytest.raises(ConnectionLost):
            publisher.finish()
        assert numbers_of(publisher.unfinished()) == [1, 2]
        assert publisher.take_rejected() == []


def test_of_equal_messages_the_first_in_flight_is_the_returned_one() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published(6)
        peer.ack(1)
        for tag in (3, 2):
            peer.give_back(peer.messages[tag])
        peer.give_back(peer.messages[4])
        peer.ack(6, multiple=True)
        peer.serve()

    with FakePeer(script) as server:
        publisher = server.connect().publisher()
        publisher.send(run([b"same"] * 4 + [b"other"] * 2))
        publisher.finish()
        assert [one.index for one in publisher.take_rejected()] == [1, 2, 4]


def test_properties_tell_returned_messages_apart() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published(4)
        peer.give_back(peer.messages[2])
        # written in another way: no order of headers is kept
        peer.give_back(peer.messages[1], properties=spec.BasicProperties(headers={"b": 2, "a": 1}))
        # with what the broker adds
        peer.give_back(peer.messages[3], properties=spec.BasicProperties(headers={"added": True}))
        peer.ack(4, multiple=True)
        peer.serve()

    with FakePeer(script) as server:
        publisher = server.connect().publisher()
        publisher.send(run([b"body"], headers={"n": 0}))
        publisher.send(run([b"body"], headers={"a": 1, "b": 2}, tag="second"))
        publisher.send(run([b"body"], headers={"n": 2}, tag="third"))
        publisher.send(run([b"unique"], headers={"n": 3}, tag="fourth"))
        publisher.finish()
        assert [one.tag for one in publisher.take_rejected()] == ["third", "second", "fourth"]


def test_a_message_that_is_not_mandatory_does_not_return() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published()
        peer.give_back(peer.messages[0])
        peer.silent()

    with FakePeer(script) as server:
        publisher = server.connect().publisher()
        publisher.send(run([b"body"], mandatory=False))
        with pytest.raises(ProtocolError, match="not in flight"):
            publisher.finish()


@pytest.mark.parametrize(
    "changes", [{"body": b"another"}, {"exchange": "x"}, {"routing_key": "k"}], ids=["body", "exchange", "key"]
)
def test_a_return_of_what_is_not_in_flight_ends_the_connection(changes: dict[str, object]) -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published(2)
        peer.ack(1)
        peer.give_back(peer.messages[0], **changes)
        peer.silent()

    with FakePeer(script) as server:
        publisher = server.connect().publisher()
        publisher.send(run([b"one", b"two"]))
        with pytest.raises(ReturnedUnexpectedly, match=r"has a message to exchange '.*' that is not in flight"):
            publisher.finish()
        assert publisher.in_flight == 1


@pytest.mark.parametrize("confirmed", [1, 2])
def test_a_message_that_returns_after_its_ack_is_an_error_that_a_retry_cannot_help(confirmed: int) -> None:
    """Also behind the last ack: the message is nowhere, and the broker has confirmed it."""

    def script(peer: Peer) -> None:
        peer.open()
        peer.published(2)
        peer.ack(confirmed, multiple=True)
        peer.give_back(peer.messages[0])
        peer.serve()

    with FakePeer(script) as server:
        publisher = server.connect().publisher()
        publisher.send(numbered(2))
        with pytest.raises(ReturnedUnexpectedly, match="not in flight") as caught:
            publisher.finish()
        assert not caught.value.retryable


def test_confirm_does_not_pass_over_a_message_that_returns_after_its_ack() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        message = peer.published()
        peer.ack(1)
        peer.give_back(message)
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        client.publish(Message(b"x"), "x", "k")
        with pytest.raises(ReturnedUnexpectedly):
            client.confirm()


def test_a_broker_that_does_not_answer_behind_the_last_ack_is_given_up() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published()
        peer.ack(1)
        peer.silent()

    with FakePeer(script) as server:
        publisher = server.connect(call_timeout_s=0.2).publisher()
        publisher.send(numbered(1))
        with pytest.raises(DeadlineExceeded, match="behind the last confirm"):
            publisher.finish()


def test_a_channel_that_stays_stopped_is_given_up() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published()
        peer.ack(1)
        peer.flow(active=False)
        peer.silent()

    with FakePeer(script) as server:
        client = server.connect()
        publisher = client.publisher(blocked_timeout_s=0.1)
        publisher.send(numbered(1))
        reading_until(client, lambda: not publisher._channel.active, "channel.flow")
        with pytest.raises(DeadlineExceeded, match="allow publishing again"):
            publisher.send(numbered(1, 1))


def test_a_broker_that_blocks_the_connection_behind_the_last_ack_need_not_answer() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published(2)
        peer.ack(2, multiple=True)
        peer.send(BLOCKED, channel=0)
        peer.silent()

    with FakePeer(script) as server:
        publisher = server.connect().publisher(blocked_timeout_s=60.0)
        publisher.send(numbered(2))
        publisher.finish()
        assert publisher.completed == publisher.sent


def test_many_returns_among_routable_messages() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        for _ in range(4):
            peer.published(500)
            batch = peer.messages[-500:]
            for message in batch[::2]:
                peer.give_back(message)
            peer.ack(batch[-1].tag, multiple=True)
        peer.serve()

    with FakePeer(script) as server:
        publisher = server.connect().publisher(max_in_flight=500)
        for number in range(4):
            publisher.send(numbered(500, 500 * number))
            publisher.finish()
            assert [one.index for one in publisher.take_rejected()] == list(range(0, 500, 2))
        assert len(publisher._returned._numbers) <= 2000


# ------------------------------------------------------------------------------------------------ errors of the channel
@pytest.mark.parametrize(
    ("code", "text", "error", "number"),
    [
        (404, "NOT_FOUND - no exchange 'gone' in vhost '/'", NotFound, 3),
        (404, "NOT_FOUND - no exchange 'never' in vhost '/'", NotFound, None),
        (406, "PRECONDITION_FAILED - message size 1002 is larger than configured max size 999", PreconditionFailed, 5),
        (404, "Unknown exchange name: 'gone'", NotFound, 3),
        (311, "Message size of 1002 greater than allowed maximum of 999", ResourceLimitExceeded, 5),
        (406, "user_id property set to 'me' but authenticated user was 'guest'", PreconditionFailed, 5),
        (406, "user_id property set to 'you' but authenticated user was 'guest'", PreconditionFailed, None),
        (406, "PRECONDITION_FAILED - something else", PreconditionFailed, None),
    ],
)
def test_a_channel_error_leaves_all_in_doubt_and_names_the_message_if_it_can(
    code: int, text: str, error: type[CommandFailed], number: int | None
) -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published(5)
        peer.ack(1)
        peer.refuse(code, text)
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        publisher = client.publisher()
        publisher.send(numbered(2, tag="a"))
        publisher.send(numbered(2, 2, exchange="gone", tag="b"))
        publisher.send(numbered(1, 4, size=1000, tag="c", user_id="me"))
        with pytest.raises(error) as raised:
            publisher.finish()
        assert raised.value.command == "basic.publish"
        assert raised.value.command_id == number
        assert numbers_of(publisher.unfinished()) == [1, 2, 3, 4]
        if number is not None:
            assert publisher.locate(number) == {3: ("b", 0), 5: ("c", 0)}[number]
        with pytest.raises(error):
            publisher.send(numbered(1))
        assert client.query_queue is not None
        client.service()  # the connection lives


def test_a_new_publisher_opens_the_channel_again() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published(2)
        peer.refuse(404, "NOT_FOUND - no exchange 'x' in vhost '/'")
        peer.expect(spec.ConfirmSelect)
        peer.acking = True
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        first = client.publisher()
        first.send(numbered(2))
        with pytest.raises(NotFound):
            first.finish()
        second = client.publisher()
        assert second.send(numbered(2)) == 1
        second.finish()
        with pytest.raises(NotFound):
            first.finish()


def test_publish_works_again_after_a_refusal() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published()
        peer.refuse(404, "NOT_FOUND - no exchange 'x' in vhost '/'")
        peer.acking = True
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        client.publish(Message(b"lost"), "x", "k")
        with pytest.raises(NotFound, match="no exchange 'x'"):
            client.confirm()
        client.confirm()
        client.publish(Message(b"there", routing_key="q"))
        client.publish_to_queue("q", b"too", content_type="text/plain")
        client.confirm()


def test_confirm_reports_rejected_messages() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published(3)
        peer.give_back(peer.messages[0])
        peer.ack(1)
        peer.nack(2)
        peer.ack(3)
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        for key in ("a", "b", "c"):
            client.publish(Message(b"body"), routing_key=key)
        with pytest.raises(MessageRejected) as raised:
            client.confirm()
        assert (raised.value.count, raised.value.code) == (2, 0)
        client.confirm()


# -------------------------------------------------------------------------------------------------------- losses, waits
def test_a_cut_leaves_what_is_not_confirmed() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published(6)
        peer.ack(2)
        peer.give_back(peer.messages[2])
        peer.ack(4)

    with FakePeer(script) as server:
        client = server.connect()
        publisher = client.publisher()
        publisher.send(numbered(6))
        with pytest.raises(ConnectionLost):
            publisher.finish()
        assert numbers_of(publisher.unfinished()) == [0, 4, 5]
        assert [one.index for one in publisher.take_rejected()] == [2]
        with pytest.raises(ConnectionLost):
            publisher.send(numbered(1, 9))
        assert numbers_of(publisher.unfinished()) == [0, 4, 5, 9]
        with pytest.raises(OutcomeUnknown, match=r"4 published message\(s\) were not confirmed"):
            client.confirm()


def test_an_ack_right_before_the_close_counts() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published(2)
        peer.ack(1)
        peer.send(spec.ConnectionClose(reply_code=320, reply_text="CONNECTION_FORCED"), channel=0)
        peer.silent()

    with FakePeer(script) as server:
        publisher = server.connect().publisher()
        publisher.send(numbered(2))
        with pytest.raises(ConnectionClosed, match="320"):
            publisher.finish()
        assert numbers_of(publisher.unfinished()) == [1]


def test_a_broker_that_confirms_nothing_is_given_up() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.silent()

    def after_select(peer: Peer) -> None:
        peer.open()
        peer.published(3)
        peer.silent()

    with FakePeer(script) as server:
        publisher = server.connect(call_timeout_s=0.2).publisher()
        with pytest.raises(DeadlineExceeded, match=r"channel\.open"):
            publisher.send(numbered(1))
        assert numbers_of(publisher.unfinished()) == [0]
    with FakePeer(after_select) as server:
        publisher = server.connect().publisher()
        publisher.send(numbered(3))
        with pytest.raises(DeadlineExceeded, match="the confirmation of what is published"):
            publisher.finish(timeout_s=0.2)
        assert numbers_of(publisher.unfinished()) == [0, 1, 2]


def test_without_heartbeats_the_broker_is_asked_whether_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqp_core.publishing._ASK_EVERY_S", 0.02)
    asked = 0

    def count(frame: Frame) -> None:
        nonlocal asked
        if frame.type == METHOD and isinstance(decode_method(frame.payload), spec.ChannelFlow):
            asked += 1

    def script(peer: Peer) -> None:
        peer.on_frame = count  # the channel itself answers
        peer.open()
        peer.published()
        peer.until(lambda: asked > 2, "questions")
        peer.ack(1)
        peer.serve()

    with FakePeer(script) as server:
        publisher = server.connect().publisher()
        publisher.send(numbered(1))
        publisher.finish()


def test_without_heartbeats_a_silent_broker_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqp_core.publishing._ASK_EVERY_S", 0.02)
    monkeypatch.setattr("amqp_core.publishing._SILENCE_S", 0.2)

    def script(peer: Peer) -> None:
        peer.open()
        peer.published()
        peer.silent()

    with FakePeer(script) as server:
        publisher = server.connect().publisher()
        publisher.send(numbered(1))
        with pytest.raises(DeadlineExceeded):
            publisher.finish()


def test_a_stopped_channel_is_not_published_on() -> None:
    def script(peer: Peer) -> None:
        peer.acking = True
        peer.open()
        peer.published()
        peer.flow(active=False)
        stopped.set()
        go_on.wait(10)
        seen.append(len(peer.messages))
        peer.flow(active=True)
        peer.serve()

    stopped, go_on = threading.Event(), threading.Event()
    seen: list[int] = []
    with FakePeer(script) as server:
        client = server.connect()
        publisher = client.publisher()
        publisher.send(numbered(1))
        reading_until(client, lambda: not publisher.in_flight, "basic.ack")
        stopped.wait(10)
        reading_until(client, lambda: not publisher._channel.active, "channel.flow")
        threading.Timer(0.05, go_on.set).start()
        publisher.send(numbered(5, 1))
        publisher.finish()
    assert seen == [1]


# -------------------------------------------------------------------------------------------------- blocked connections
def test_a_blocked_connection_is_waited_for_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "amqp_core")

    def script(peer: Peer) -> None:
        peer.open()
        for _ in range(2):
            peer.published(2)
            peer.send(BLOCKED, channel=0)
            go_on.wait(10)
            go_on.clear()
            peer.send(spec.ConnectionUnblocked(), channel=0)
            peer.ack(len(peer.messages), multiple=True)
        peer.serve()

    go_on = threading.Event()
    with FakePeer(script) as server:
        client = server.connect()
        publisher = client.publisher(blocked_timeout_s=60)
        for first in (0, 2):
            publisher.send(numbered(2, first))
            reading_until(client, lambda: client._driver.endpoint.blocked is not None, "connection.blocked")
            timer = threading.Timer(0.1, go_on.set)
            timer.start()
            publisher.finish()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2
    assert "has blocked its publishers (low on memory): 2 message(s) are not confirmed" in warnings[0]
    assert "waiting for at most 60 s" in warnings[0]
    assert sum("accepts messages again" in text for text in caplog.messages) == 2


@pytest.mark.parametrize("waiting", ["send", "finish"])
def test_a_connection_that_stays_blocked_is_given_up(waiting: str) -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published(2)
        peer.send(BLOCKED, channel=0)
        peer.silent()

    with FakePeer(script) as server:
        client = server.connect()
        publisher = client.publisher(blocked_timeout_s=0.2)
        publisher.send(numbered(2))
        reading_until(client, lambda: client._driver.endpoint.blocked is not None, "connection.blocked")
        wait = publisher.finish if waiting == "finish" else partial(publisher.send, numbered(2, 2))
        with pytest.raises(PublishingBlocked, match=r"AMQP_PUBLISHING_BLOCKED.*low on memory") as raised:
            wait()
        assert not raised.value.retryable
        left = [0, 1, 2, 3] if waiting == "send" else [0, 1]
        assert numbers_of(publisher.unfinished()) == left


def test_confirm_of_a_blocked_connection_leaves_the_outcome_unknown() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published()
        peer.send(BLOCKED, channel=0)
        peer.silent()

    with FakePeer(script) as server:
        client = server.connect(call_timeout_s=0.5)
        client.publish(Message(b"body", routing_key="q"))
        with pytest.raises(OutcomeUnknown, match="blocked its publishers"):
            client.confirm()
