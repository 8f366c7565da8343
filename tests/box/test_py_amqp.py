"""A client that no one here wrote: py-amqp, over 0-9-1, with the features that kombu and Celery use of it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import amqp
import pytest
from amqp.exceptions import (
    AccessRefused,
    AMQPNotImplementedError,
    ConsumerCancelled,
    MessageNacked,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
)

import amqp_spark
from tests.support.box_process import BoxProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from amqp_core.broker import Broker


class ConnectAmqp(Protocol):
    """Connects py-amqp."""

    def __call__(self, **options: Any) -> amqp.Connection: ...


@pytest.fixture
def connect(amqp_broker: Broker, vhost: str) -> Iterator[ConnectAmqp]:
    """A function that connects py-amqp."""
    with ExitStack() as stack:

        def make(**options: Any) -> amqp.Connection:
            connection = amqp.Connection(f"127.0.0.1:{amqp_broker.port}", **({"virtual_host": vhost} | options))
            connection.connect()
            stack.callback(connection.close)
            return connection

        yield make


@pytest.fixture
def channel(connect: ConnectAmqp) -> amqp.Channel:
    return connect().channel()


def publish(channel: amqp.Channel, *bodies: str, key: str = "q", exchange: str = "", **more: Any) -> None:
    for body in bodies:
        channel.basic_publish(amqp.Message(body), exchange, key, **more)


def taken(channel: amqp.Channel, queue: str = "q") -> list[str]:
    """What a queue has, taken for good."""
    found: list[str] = []
    while (message := channel.basic_get(queue, no_ack=True)) is not None:
        found.append(message.body)
    return found


def drain(channel: amqp.Channel, until: Callable[[], object]) -> None:
    """Process events until something is so."""
    while not until():
        channel.connection.drain_events(timeout=30)


def test_what_is_published_is_consumed_in_order(channel: amqp.Channel) -> None:
    assert tuple(channel.queue_declare("q", auto_delete=False)) == ("q", 0, 0)
    publish(channel, *map(str, range(100)))
    channel.basic_qos(0, 7, a_global=False)
    found: list[str] = []

    def take(message: amqp.Message) -> None:
        found.append(message.body)
        channel.basic_ack(message.delivery_tag)

    tag = channel.basic_consume("q", callback=take)
    drain(channel, lambda: len(found) == 100)
    channel.basic_cancel(tag)
    assert found == [str(number) for number in range(100)]
    assert taken(channel) == []


def test_confirms(connect: ConnectAmqp) -> None:
    channel = connect(confirm_publish=True).channel()
    channel.queue_declare("q", arguments={"x-max-length": 2, "x-overflow": "reject-publish"}, auto_delete=False)
    confirmed: list[int] = []
    channel.events["basic_ack"].add(lambda tag, _multiple: confirmed.append(tag))
    publish(channel, "1", "2")
    with pytest.raises(MessageNacked):
        publish(channel, "3")
    assert confirmed == [1, 2]
    assert taken(channel) == ["1", "2"]


def test_returns(channel: amqp.Channel) -> None:
    returned: list[tuple[int, str, str, str, str]] = []
    channel.events["basic_return"].add(
        lambda error, exchange, key, message: returned.append(
            (error.reply_code, error.reply_text, exchange, key, message.body)
        )
    )
    publish(channel, "back", key="nowhere", exchange="amq.direct", mandatory=True)
    drain(channel, lambda: returned)
    assert returned == [(312, "NO_ROUTE", "amq.direct", "nowhere", "back")]


def test_transactions(connect: ConnectAmqp) -> None:
    channel, other = connect().channel(), connect().channel()
    channel.queue_declare("q", auto_delete=False)
    publish(other, "old")
    channel.tx_select()
    channel.basic_ack(channel.basic_get("q").delivery_tag)
    publish(channel, "undone")
    channel.tx_rollback()
    channel.basic_recover(requeue=True)
    publish(channel, "1", "2")
    assert taken(other) == ["old"]
    channel.tx_commit()
    assert taken(other) == ["1", "2"]


def test_reject_and_recover(channel: amqp.Channel) -> None:
    channel.queue_declare("q", auto_delete=False)
    publish(channel, "1", "2")
    first = channel.basic_get("q")
    assert (first.body, first.delivery_info["message_count"], first.delivery_info["redelivered"]) == ("1", 1, False)
    channel.basic_reject(first.delivery_tag, requeue=True)
    again = channel.basic_get("q")
    assert (again.body, again.delivery_info["redelivered"]) == ("1", True)
    channel.basic_recover(requeue=True)
    assert channel.basic_get("q").body == "1"
    channel.basic_recover_async(requeue=True)
    assert taken(channel) == ["1", "2"]


def test_exchanges(channel: amqp.Channel) -> None:
    channel.exchange_declare("first", "topic", durable=True, auto_delete=False)
    channel.exchange_declare("second", "fanout", auto_delete=False)
    channel.exchange_bind("second", "first", "a.#")
    name = channel.queue_declare("", exclusive=True).queue
    channel.queue_bind(name, "second")
    publish(channel, "1", exchange="first", key="a.b")
    publish(channel, "2", exchange="first", key="b")
    channel.exchange_unbind("second", "first", "a.#")
    publish(channel, "3", exchange="first", key="a.b")
    assert taken(channel, name) == ["1"]
    assert channel.queue_purge(name) == 0
    assert channel.queue_delete(name) == 0
    with pytest.raises(PreconditionFailed):
        channel.exchange_declare("first", "direct", durable=True, auto_delete=False)


def test_properties(channel: amqp.Channel) -> None:
    properties = {
        "content_type": "text/plain", "content_encoding": "utf-8", "delivery_mode": 2, "priority": 3,
        "correlation_id": "c", "reply_to": "r", "expiration": "60000", "message_id": "m", "timestamp": 1_700_000_000,
        "type": "t", "user_id": "guest", "app_id": "a", "cluster_id": "cl",
        "application_headers": {"i": 1, "l": 1 << 40, "f": 0.5, "s": "é", "b": True, "n": None, "a": [1, {"d": "x"}]},
    }  # fmt: skip
    channel.queue_declare("q", auto_delete=False)
    channel.basic_publish(amqp.Message("x" * 300_000, **properties), routing_key="q")
    found = channel.basic_get("q", no_ack=True)
    assert found.properties == properties
    assert found.body == "x" * 300_000


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda channel: channel.queue_declare("missing", passive=True), NotFound),
        (lambda channel: channel.queue_declare("q", durable=True, auto_delete=False), PreconditionFailed),
        (lambda channel: channel.exchange_declare("amq.own", "direct"), AccessRefused),
        (lambda channel: (channel.basic_ack(99), channel.queue_declare("q", passive=True)), PreconditionFailed),
        (lambda channel: channel.queue_declare("locked", passive=True), ResourceLocked),
    ],
)
def test_errors_of_a_channel(
    connect: ConnectAmqp, call: Callable[[amqp.Channel], object], error: type[Exception]
) -> None:
    other = connect().channel()
    other.queue_declare("locked", exclusive=True)
    channel = connect().channel()
    channel.queue_declare("q", auto_delete=False)
    with pytest.raises(error):
        call(channel)
    assert channel.connection.connected
    again = channel.connection.channel()
    publish(again, "1")
    assert taken(again) == ["1"]


def test_errors_of_a_connection(connect: ConnectAmqp) -> None:
    with pytest.raises(AMQPNotImplementedError):
        connect().channel().basic_qos(1, 1, a_global=False)  # prefetch-size
    with pytest.raises(NotAllowed):
        connect(virtual_host="missing")
    with pytest.raises(AccessRefused):
        connect(password="wrong")


@pytest.mark.parametrize("method", ["PLAIN", "AMQPLAIN"])
def test_logins(connect: ConnectAmqp, method: str) -> None:
    connection = connect(login_method=method)
    assert connection.server_properties["product"] == "amqp_core broker"
    assert connection.server_properties["version"] == amqp_spark.__version__
    assert connection.server_capabilities["publisher_confirms"]


def test_a_consumer_is_told_that_its_queue_is_deleted(connect: ConnectAmqp) -> None:
    channel = connect().channel()
    cancelled: list[str] = []
    channel.queue_declare("q")
    tag = channel.basic_consume("q", callback=lambda _: None, on_cancel=cancelled.append)
    connect().channel().queue_delete("q")
    drain(channel, lambda: cancelled)
    assert cancelled == [tag]
    channel.queue_declare("q")
    channel.basic_consume("q", callback=lambda _: None)
    connect().channel().queue_delete("q")
    with pytest.raises(ConsumerCancelled):
        drain(channel, lambda: False)


def test_heartbeats_of_three_seconds(connect: ConnectAmqp) -> None:
    connection = connect(heartbeat=3)  # a busy machine may stop both sides for a second or two
    assert connection.heartbeat == 3
    received = connection.bytes_recv
    silent = 0
    while connection.bytes_recv < received + 2:  # frames of the broker, which has nothing else to say
        connection.heartbeat_tick(rate=2)
        try:
            connection.drain_events(timeout=0.5)
        except TimeoutError:
            silent += 1
        assert silent < 100
    assert connection.channel().queue_declare("q").queue == "q"


def test_the_broker_comes_back_with_queue_and_messages() -> None:
    with BoxProcess() as broker:

        def connect() -> amqp.Connection:
            connection = amqp.Connection(f"{broker.host}:{broker.port}", confirm_publish=True)
            connection.connect()
            return connection

        connection = connect()
        channel = connection.channel()
        channel.queue_declare("q", durable=True, auto_delete=False)
        channel.basic_publish(amqp.Message("kept", delivery_mode=2), routing_key="q")
        channel.basic_publish(amqp.Message("lost", delivery_mode=1), routing_key="q")
        broker.restart()
        with pytest.raises((*connection.connection_errors, *connection.recoverable_connection_errors)):
            channel.queue_declare("q", passive=True)
        connection.collect()
        connection = connect()
        channel = connection.channel()
        assert channel.queue_declare("q", passive=True).message_count == 1
        assert taken(channel) == ["kept"]
        connection.close()
