"""The outcome of each message on 0-9-1, with scripted peers: confirmed, rejected, returned, refused."""

from __future__ import annotations

import threading

import pytest

from amqp_core.errors import (
    CommandFailed,
    MessageRejected,
    NotFound,
    PreconditionFailed,
    ProtocolError,
    ResourceLimitExceeded,
    ReturnedUnexpectedly,
    UnauthorizedAccess,
    UnroutableDropped,
)
from amqp_core.transfer_ledger import Rejected, Transfers, runs_of
from amqp_core.v0_9 import spec
from amqp_core.v0_9.messages import Message
from tests.core.publisher_support_0_9 import reading_until
from tests.support.fakepeer_0_9 import FakePeer, Peer
from tests.support.runs_0_9 import numbered, numbers_of, run


# ------------------------------------------------------------------------------------------------------------- confirms
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
        rejected = publisher.take_rejected()
        found = [(one.tag, one.index, one.code) for one in rejected]
        assert found == [("a", 1, 0), ("a", 3, 0), ("b", 0, 0), ("b", 1, 0)]
        again = runs_of(rejected)
        assert [(each.tag, each.first, len(each)) for each in again] == [("a", 1, 1), ("a", 3, 1), ("b", 0, 2)]
        assert numbers_of(again) == [1, 3, 4, 5]
        assert not Rejected("a", 1, 0, "").is_unroutable
        assert publisher.take_rejected() == []
        assert publisher.unfinished() == []


def test_a_returned_message_whose_routing_key_is_not_utf_8_is_rejected() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published(3)
        peer.give_back(peer.messages[1])
        peer.ack(3, multiple=True)
        peer.serve()

    with FakePeer(script) as server:
        publisher = server.connect().publisher()
        whole = run([b"a", b"b", b"c"], routing_key="key!", tag="t")
        frames = bytes(whole.frames).replace(b"key!", b"k\xff\xc3!")
        publisher.send(Transfers(frames, whole.ends, whole.tag))
        publisher.finish()
        assert [(one.tag, one.index, one.code) for one in publisher.take_rejected()] == [("t", 1, 312)]


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


# ----------------------------------------------------------------------------- brokers that may drop what is unroutable
ANOTHER: dict[str, object] = {"product": "Another", "capabilities": {"publisher_confirms": True}}


@pytest.mark.parametrize("answer", ["return", "nack", "not found", "access refused"])
def test_an_unknown_broker_that_does_not_drop_the_first_message_publishes(
    answer: str, caplog: pytest.LogCaptureFixture
) -> None:
    peers: list[Peer] = []

    def script(peer: Peer) -> None:
        peers.append(peer)
        peer.open()
        first = peer.published()
        if answer == "return":
            peer.give_back(first)
            peer.ack(1)
        elif answer == "nack":
            peer.nack(1)
        elif answer == "not found":
            peer.refuse(404, "NOT_FOUND - no such queue")
        else:
            peer.refuse(403, "ACCESS_REFUSED - no")
        peer.acking = True
        peer.serve()

    with FakePeer(script, server_properties=ANOTHER) as server:
        client = server.connect()
        for _ in range(2):  # the client asks the broker for its first publisher only
            publisher = client.publisher()
            publisher.send(numbered(2))
            publisher.finish()
            assert publisher.completed.transfers == 2
    (peer,) = peers
    first, *others = peer.messages
    assert (first.method.exchange, first.method.mandatory) == ("", True)
    assert first.method.routing_key.startswith("amqp-spark.no-queue.")
    assert [message.content.body for message in others] == [b"0:", b"1:"] * 2
    assert any("is not known" in each.message for each in caplog.records) == (answer == "access refused")


def test_a_broker_that_drops_what_it_cannot_route_is_not_published_to() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published()
        peer.ack(1)
        peer.serve()

    with FakePeer(script, server_properties=ANOTHER) as server:
        client = server.connect()
        with pytest.raises(UnroutableDropped, match="has not returned a mandatory message") as caught:
            client.publisher()
        assert not caught.value.retryable


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
        (406, "PRECONDITION_FAILED - invalid expiration '9': {value_too_large,9}", PreconditionFailed, 5),
        (403, "write access to topic 'k' in exchange exchange 'gone' in vhost '/' refused", UnauthorizedAccess, 4),
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
        publisher.send(numbered(1, 2, exchange="gone", tag="b"))
        publisher.send(numbered(1, 3, "k", exchange="gone", tag="b"))
        publisher.send(numbered(1, 4, size=1000, tag="c", user_id="me", expiration="9"))
        with pytest.raises(error) as raised:
            publisher.finish()
        assert raised.value.command == "basic.publish"
        assert raised.value.command_id == number
        assert numbers_of(publisher.unfinished()) == [1, 2, 3, 4]
        if number is not None:
            assert publisher.locate(number) == {3: ("b", 0), 4: ("b", 0), 5: ("c", 0)}[number]
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
