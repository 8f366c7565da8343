"""A client that shares no code with the embedded broker: pika, over 0-9-1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, NackError, UnroutableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

    from amqp_core.broker import Broker


@pytest.fixture
def channel(pika_connection: Callable[[], BlockingConnection]) -> BlockingChannel:
    return pika_connection().channel()


def publish(channel: BlockingChannel, *bodies: bytes, exchange: str = "", key: str = "q") -> None:
    for body in bodies:
        channel.basic_publish(exchange, key, body)


def taken(channel: BlockingChannel, queue: str = "q") -> list[bytes]:
    """What a queue has, taken for good."""
    found: list[bytes] = []
    while (body := channel.basic_get(queue, auto_ack=True)[2]) is not None:
        found.append(body)
    return found


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_what_is_published_is_consumed_in_order(channel: BlockingChannel) -> None:
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    publish(channel, *numbers(100))
    channel.basic_qos(prefetch_count=7)
    found: list[bytes] = []
    for method, _, body in channel.consume("q"):
        found.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(found) == 100:
            break
    channel.cancel()
    assert found == numbers(100)
    assert taken(channel) == []


def test_what_is_not_acked_comes_again_in_its_place(pika_connection: Callable[[], BlockingConnection]) -> None:
    first, second = pika_connection(), pika_connection()
    channel = first.channel()
    channel.queue_declare("q")
    publish(channel, *numbers(10))
    held = [channel.basic_get("q")[0] for _ in range(5)]
    channel.basic_ack(held[2].delivery_tag)
    channel.basic_nack(held[0].delivery_tag, requeue=True)
    other = second.channel()
    method, _, body = other.basic_get("q", auto_ack=True)
    assert (body, method.redelivered) == (b"0", True)
    first.close()
    assert taken(other) == [b"1", b"3", b"4", *numbers(10)[5:]]


def test_properties_come_through_unchanged(channel: BlockingChannel) -> None:
    properties = pika.BasicProperties(
        content_type="text/plain", content_encoding="utf-8", headers={"a": 1, "b": ["x", {"c": True}], "d": None},
        delivery_mode=2, priority=3, correlation_id="c", reply_to="r", message_id="m", timestamp=1_700_000_000,
        type="t", user_id="guest", app_id="app", cluster_id="cl",
    )  # fmt: skip
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"x" * 300_000, properties)
    _, found, body = channel.basic_get("q", auto_ack=True)
    assert found == properties
    assert body == b"x" * 300_000


@pytest.mark.parametrize(
    ("kind", "keys", "expected"),
    [
        ("direct", {"a": "a", "b": "b"}, {"a": ["a"], "b": ["b"]}),
        ("fanout", {"a": "", "b": "x"}, {"a": ["a", "b", "a.b.c"], "b": ["a", "b", "a.b.c"]}),
        ("topic", {"a": "a.#", "b": "*.b.*"}, {"a": ["a", "a.b.c"], "b": ["a.b.c"]}),
    ],
)
def test_exchanges_route(
    channel: BlockingChannel, kind: str, keys: dict[str, str], expected: dict[str, list[str]]
) -> None:
    channel.exchange_declare("e", kind)
    for queue, key in keys.items():
        channel.queue_declare(queue)
        channel.queue_bind(queue, "e", key)
    for key in ("a", "b", "a.b.c"):
        publish(channel, key.encode(), exchange="e", key=key)
    assert {queue: [body.decode() for body in taken(channel, queue)] for queue in keys} == expected


def test_headers_exchange_and_exchange_to_exchange(channel: BlockingChannel) -> None:
    channel.exchange_declare("h", "headers")
    channel.exchange_declare("f", "fanout")
    channel.exchange_bind("f", "h", arguments={"x-match": "any", "a": 1, "b": 2})
    channel.queue_declare("q")
    channel.queue_bind("q", "f")
    for headers in ({"a": 1}, {"b": 2, "a": 5}, {"a": 2}, {}):
        channel.basic_publish("h", "", repr(headers).encode(), pika.BasicProperties(headers=headers))
    assert taken(channel) == [b"{'a': 1}", b"{'b': 2, 'a': 5}"]


def test_unroutable_messages_are_returned_and_full_queues_refuse(channel: BlockingChannel) -> None:
    channel.confirm_delivery()
    with pytest.raises(UnroutableError):
        channel.basic_publish("", "missing", b"x", mandatory=True)
    channel.queue_declare("q", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    publish(channel, b"1", b"2")
    with pytest.raises(NackError):
        publish(channel, b"3")
    assert taken(channel) == [b"1", b"2"]


def test_a_transaction_is_all_or_nothing(pika_connection: Callable[[], BlockingConnection]) -> None:
    channel, other = pika_connection().channel(), pika_connection().channel()
    channel.queue_declare("q")
    publish(channel, b"old")
    channel.tx_select()
    method, _, _ = channel.basic_get("q")
    channel.basic_ack(method.delivery_tag)
    publish(channel, b"1", b"2")
    assert taken(other) == []
    channel.tx_rollback()
    channel.basic_nack(method.delivery_tag, requeue=True)
    publish(channel, b"3")
    channel.tx_commit()
    assert taken(other) == [b"old", b"3"]


def test_expired_and_rejected_messages_are_dead_lettered(channel: BlockingChannel) -> None:
    channel.queue_declare("dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-message-ttl": 50}
    channel.queue_declare("q", arguments=arguments)
    publish(channel, b"rejected", b"expired")
    method, _, _ = channel.basic_get("q")
    channel.basic_reject(method.delivery_tag, requeue=False)
    found: list[tuple[bytes, str]] = []
    for _, properties, body in channel.consume("dead", auto_ack=True):
        death = properties.headers["x-death"][0]
        found.append((body, death["reason"]))
        assert (death["queue"], death["count"], death["routing-keys"]) == ("q", 1, ["q"])
        if len(found) == 2:
            break
    channel.cancel()
    assert found == [(b"rejected", "rejected"), (b"expired", "expired")]


@pytest.mark.parametrize(
    ("what", "code"),
    [
        (lambda channel: channel.queue_declare("missing", passive=True), 404),
        (lambda channel: channel.basic_get("missing"), 404),
        (lambda channel: channel.queue_bind("q", "missing"), 404),
        (lambda channel: channel.queue_declare("q", durable=True), 406),
        (lambda channel: channel.queue_delete("q", if_empty=True), 406),
        (lambda channel: channel.exchange_declare("amq.own"), 403),
        (lambda channel: channel.exchange_declare("amq.direct", "fanout", durable=True), 406),
        (lambda channel: channel.queue_declare("other", arguments={"x-max-length": -1}), 406),
    ],
)  # fmt: skip
def test_refusals_close_the_channel_and_not_the_connection(
    pika_connection: Callable[[], BlockingConnection], what: Callable[[BlockingChannel], object], code: int
) -> None:
    connection = pika_connection()
    channel = connection.channel()
    channel.queue_declare("q")
    publish(channel, b"1")
    with pytest.raises(ChannelClosedByBroker) as caught:
        what(channel)
    assert caught.value.reply_code == code
    assert taken(connection.channel()) == [b"1"]


def test_errors_of_the_connection_do_not_touch_others(pika_connection: Callable[[], BlockingConnection]) -> None:
    bad, good = pika_connection(), pika_connection().channel()
    good.queue_declare("q")
    channel = bad.channel()
    with pytest.raises(ConnectionClosedByBroker) as caught:
        channel.basic_qos(prefetch_size=5)
    assert caught.value.reply_code == 540
    publish(good, b"1")
    assert taken(good) == [b"1"]


def test_exclusive_queues_belong_to_their_connection(pika_connection: Callable[[], BlockingConnection]) -> None:
    owner, other = pika_connection(), pika_connection()
    name = owner.channel().queue_declare("", exclusive=True).method.queue
    assert name.startswith("amq.gen-")
    with pytest.raises(ChannelClosedByBroker) as caught:
        other.channel().queue_declare(name, passive=True)
    assert caught.value.reply_code == 405
    owner.close()
    with pytest.raises(ChannelClosedByBroker) as caught:
        other.channel().queue_declare(name, passive=True)
    assert caught.value.reply_code == 404


def test_a_consumer_is_told_that_its_queue_is_deleted(pika_connection: Callable[[], BlockingConnection]) -> None:
    connection, other = pika_connection(), pika_connection()
    channel = connection.channel()
    channel.queue_declare("q")
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = channel.basic_consume("q", lambda *_: None)
    other.channel().queue_delete("q")
    for _ in range(100):
        connection.process_data_events(0.1)
        if cancelled:
            break
    assert cancelled == [tag]


def test_direct_reply_to(pika_connection: Callable[[], BlockingConnection]) -> None:
    connection, server = pika_connection(), pika_connection().channel()
    channel, pseudo = connection.channel(), "amq.rabbitmq.reply-to"
    server.queue_declare("q")
    assert channel.queue_declare(pseudo, passive=True).method.queue == pseudo
    answers: list[bytes] = []
    tag = channel.basic_consume(pseudo, lambda *found: answers.append(found[-1]), auto_ack=True)
    request = pika.BasicProperties(reply_to=pseudo, correlation_id="7", headers={"a": 1})
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"question", request)
    _, properties, asked = server.basic_get("q", auto_ack=True)
    assert (properties.correlation_id, properties.headers, asked) == ("7", {"a": 1}, b"question")
    server.basic_publish("", properties.reply_to, b"answer", mandatory=True)
    for _ in range(100):
        connection.process_data_events(0.1)
        if answers:
            break
    assert answers == [b"answer"]
    channel.basic_cancel(tag)
    with pytest.raises(ChannelClosedByBroker) as caught:  # the queue has gone with its consumer
        server.queue_declare(properties.reply_to, passive=True)
    assert caught.value.reply_code == 404


@pytest.mark.parametrize(
    "what",
    [
        lambda channel: channel.basic_consume("amq.rabbitmq.reply-to", lambda *_: None),
        lambda channel: [channel.basic_consume("amq.rabbitmq.reply-to", lambda *_: None, auto_ack=True) for _ in "12"],
        lambda channel: (
            channel.confirm_delivery(),
            channel.basic_publish("", "q", b"", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to")),
        ),
    ],
)
def test_misused_direct_reply_to(channel: BlockingChannel, what: Callable[[BlockingChannel], object]) -> None:
    with pytest.raises(ChannelClosedByBroker) as caught:
        what(channel)
    assert caught.value.reply_code == 406


def test_wrong_login_and_missing_virtual_host(amqp_broker: Broker) -> None:
    login = pika.PlainCredentials("guest", "wrong")
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", amqp_broker.port, credentials=login))
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match=r"530.*vhost 'missing' not found"):
        pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", amqp_broker.port, "missing"))


def test_a_transaction_that_finds_no_room_does_nothing(pika_connection: Callable[[], BlockingConnection]) -> None:
    setting = pika_connection().channel()
    for queue, arguments in (("in", {}), ("free", {}), ("full", {"x-max-length": 1, "x-overflow": "reject-publish"})):
        setting.queue_declare(queue, arguments=arguments)
    for queue in ("in", "full"):
        setting.basic_publish("", queue, b"old")
    moving = pika_connection().channel()
    moving.tx_select()
    found = moving.basic_get("in")[0]
    for queue in ("free", "full"):
        moving.basic_publish("", queue, b"new")
    moving.basic_ack(found.delivery_tag)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=r"PRECONDITION_FAILED.*full"):
        moving.tx_commit()
    counts = [setting.queue_declare(queue, passive=True).method.message_count for queue in ("in", "free", "full")]
    assert counts == [1, 0, 1]
