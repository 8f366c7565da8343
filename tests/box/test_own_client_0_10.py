"""Our own client of AMQP 0-10 against the embedded broker."""

from __future__ import annotations

import random
import socket
import struct
import threading
from typing import TYPE_CHECKING

import pytest

from amqp_core import ConnectOptions, connect
from amqp_core.errors import (
    AuthenticationFailed,
    InvalidArgument,
    MessageRejected,
    NotAllowed,
    NotFound,
    NotImplementedByPeer,
    PreconditionFailed,
    ResourceDeleted,
    ResourceLimitExceeded,
    ResourceLocked,
    VirtualHostRefused,
)
from amqp_core.v0_9.messages import Message as Message09
from amqp_core.v0_10 import spec
from amqp_core.v0_10.framing import PROTOCOL_HEADER
from amqp_core.v0_10.messages import Message, messages_of
from tests.support.runs import numbered, run
from tests.support.taking import take

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_core.broker import Broker
    from amqp_core.v0_10.client import Client
    from amqp_core.v0_10.subscription import Subscription
    from tests.box.conftest import Connect, Connect010


def publish(client: Client, *bodies: bytes, queue: str = "q") -> None:
    """Publish messages to a queue."""
    for body in bodies:
        client.publish(Message(body), routing_key=queue)
    client.confirm()


def drain(subscription: Subscription) -> list[Message]:
    """All messages that wait."""
    subscription.grant(1_000_000)
    subscription.flush()
    return [message for block in subscription.take_blocks(0) for message in messages_of(block)]


def ids(messages: Sequence[Message]) -> list[tuple[int, int]]:
    """The ids of messages, as ranges."""
    return [(message.transfer_id, message.transfer_id) for message in messages]


def count(client: Client, queue: str = "q") -> int | None:
    """Messages of a queue."""
    info = client.query_queue(queue)
    assert info is not None
    return info.message_count


def test_publish_and_consume(connect_0_10: Connect010) -> None:
    client = connect_0_10()
    client.declare_queue("q")
    publish(client, b"1", b"2", b"3")
    assert count(client) == 3
    subscription = client.subscribe("q")
    messages = take(subscription, 3)
    assert [message.body for message in messages] == [b"1", b"2", b"3"]
    client.accept(ids(messages), sync=True)
    assert count(client) == 0


@pytest.mark.parametrize("size", [0, 1, 65_523, 65_524, 5_000_000])
def test_bodies_of_every_size(connect_0_10: Connect010, size: int) -> None:
    client = connect_0_10()
    client.declare_queue("q")
    body = random.Random(size).randbytes(size)
    publish(client, body, b"small", body)
    assert [message.body for message in drain(client.subscribe("q"))] == [body, b"small", body]


def test_many_messages_through_publisher_and_blocks(connect_0_10: Connect010) -> None:
    publisher, consumer = connect_0_10(), connect_0_10()
    publisher.declare_queue("q")
    total = 70_000
    subscription = consumer.subscribe("q", max_unsettled=5_000)
    sending = publisher.publisher()

    def send() -> None:
        for first in range(0, total, 1000):
            sending.send(numbered(1000, first))
        sending.finish()

    thread = threading.Thread(target=send)
    thread.start()
    found: list[int] = []
    while len(found) < total:
        for block in subscription.take_blocks(20.0):
            found += [int(message.body.rstrip(b":")) for message in messages_of(block)]
            consumer.accept([(block.first_id, block.first_id + block.count - 1)])
    consumer.sync()
    thread.join()
    assert found == list(range(total))
    assert count(publisher) == 0


def test_credit_and_flush(connect_0_10: Connect010) -> None:
    client = connect_0_10()
    client.declare_queue("q")
    publish(client, *[b"%d" % number for number in range(10)])
    subscription = client.subscribe("q")
    subscription.grant(3)
    subscription.flush()
    assert [block.count for block in subscription.take_blocks(0)] == [3]
    assert subscription.credit == 0
    assert len(drain(subscription)) == 7


def test_release_reject_and_redelivery(connect_0_10: Connect010) -> None:
    client = connect_0_10()
    client.declare_exchange("dead", "fanout")
    client.declare_queue("graveyard")
    client.bind("graveyard", "dead", "")
    client.declare_queue("q", alternate_exchange="dead")
    publish(client, b"1", b"2", b"3")
    messages = drain(client.subscribe("q"))
    client.release(ids(messages[:1]), set_redelivered=True)
    client.reject(ids(messages[1:2]), code=0, text="bad", sync=True)
    again = client.subscribe("q").take(1)
    assert [(message.body, message.delivery.redelivered) for message in again] == [(b"1", True)]
    (rejected,) = drain(client.subscribe("graveyard"))
    assert (rejected.body, rejected.delivery.exchange or "") == (b"2", "")
    client.abort()
    other = connect_0_10()
    subscription = other.subscribe("q")
    found = [message for _ in range(2) for message in subscription.take(1)]
    assert [(message.body, message.delivery.redelivered) for message in found] == [(b"1", True), (b"3", True)]


def test_browse_and_acquire(connect_0_10: Connect010) -> None:
    client = connect_0_10()
    client.declare_queue("q")
    publish(client, b"1", b"2", b"3")
    messages = drain(client.subscribe("q", acquire=False))
    assert [message.body for message in messages] == [b"1", b"2", b"3"]
    acquired = client.acquire(ids(messages[:2]))
    assert acquired == [(messages[0].transfer_id, messages[1].transfer_id)]
    client.accept(acquired, sync=True)
    assert [message.body for message in drain(client.subscribe("q"))] == [b"3"]


def test_a_long_queue_is_searched_to_its_end(connect_0_10: Connect010) -> None:
    """It takes several turns of the event loop, which come by themselves; a flush waits for all of them."""
    client = connect_0_10()
    client.declare_queue("q")
    for number in range(5_000):
        headers = spec.MessageProperties(application_headers={"n": number})
        client.publish(Message(b"%d" % number, properties=headers), routing_key="q")
    client.confirm()
    assert [message.body for message in drain(client.subscribe("q", selector="n = 4999"))] == [b"4999"]
    subscription = client.subscribe("q", selector="n = 4998")
    subscription.grant(1)
    assert [message.body for message in take(subscription, 1)] == [b"4998"]


def test_selectors(connect_0_10: Connect010) -> None:
    client = connect_0_10()
    client.declare_queue("q")
    for number in range(6):
        properties = spec.MessageProperties(application_headers={"price": number, "name": f"n{number}"})
        client.publish(Message(b"%d" % number, properties=properties), routing_key="q")
    client.confirm()
    browsed = drain(client.subscribe("q", selector="price >= 2 AND name <> 'n4'", acquire=False, accept=False))
    assert [message.body for message in browsed] == [b"2", b"3", b"5"]
    subscription = client.subscribe("q", selector="price * 2 IN (2, 6)")
    messages = drain(subscription)
    assert [message.body for message in messages] == [b"1", b"3"]
    client.release(ids(messages[:1]), sync=True)
    client.accept(ids(messages[1:]), sync=True)
    (again,) = drain(subscription)
    assert again.body == b"1"
    client.release(ids([again]), sync=True)
    subscription.cancel()
    assert [message.body for message in drain(client.subscribe("q"))] == [b"0", b"1", b"2", b"4", b"5"]


def test_queries(connect_0_10: Connect010) -> None:
    client = connect_0_10()
    client.declare_queue("q", durable=True, arguments={"qpid.max_count": 10})
    client.declare_exchange("x", "topic", durable=True)
    client.bind("q", "x", "a.*")
    queue = client.query_queue("q")
    assert queue is not None
    assert (queue.durable, queue.arguments, queue.subscriber_count) == (True, {"qpid.max_count": 10}, 0)
    assert client.query_queue("none") is None
    exchange = client.query_exchange("x")
    assert exchange is not None
    assert (exchange.type, exchange.durable) == ("topic", True)
    assert client.query_exchange("none") is None
    routes = client.query_routes([("x", "a.*"), ("x", "b"), ("", "q"), ("", "none"), ("none", None)]).answers()
    assert [route.exists for route in routes] == [True, False, True, False, False]


def test_errors(connect_0_10: Connect010) -> None:
    def client() -> Client:
        return connect_0_10()

    first = client()
    first.declare_queue("q")
    first.declare_lock("lock")
    first.subscribe("q", exclusive=True)
    with pytest.raises(NotFound, match="none"):
        client().subscribe("none")
    with pytest.raises(NotFound):
        client().declare_queue("none", passive=True)
    with pytest.raises(ResourceLocked):
        client().declare_lock("lock")
    with pytest.raises(ResourceLocked):
        client().subscribe("q")
    with pytest.raises(NotAllowed):
        client().declare_exchange("amq.direct", "topic")
    with pytest.raises(PreconditionFailed):
        client().delete_queue("q", if_unused=True)
    with pytest.raises(NotImplementedByPeer):
        client().declare_queue("stream", arguments={"x-queue-type": "stream"})
    with pytest.raises(InvalidArgument, match=r"character 4.*'='"):
        client().subscribe("q", selector="a == 1")
    publisher = client()
    publisher.publish(Message(b"x"), "none", "k")
    with pytest.raises(NotFound):
        publisher.confirm()
    first.close()
    client().declare_lock("lock")


def test_what_nobody_takes(connect_0_10: Connect010) -> None:
    client = connect_0_10()
    assert client.capabilities.rejects_unroutable, "the client knows that from the name of the product"
    client.declare_queue("q", arguments={"qpid.max_count": 1, "qpid.policy_type": "reject"})
    client.publish(Message(b"1"), routing_key="nowhere")
    with pytest.raises(MessageRejected, match="code 1"):
        client.confirm()
    for body in (b"1", b"2"):
        client.publish(Message(body), routing_key="q")
    with pytest.raises(MessageRejected, match="full"):
        client.confirm()
    client.publish(Message(b"3"), routing_key="q", accept_mode=spec.MessageAcceptMode.NONE)
    with pytest.raises(ResourceLimitExceeded):
        client.confirm()


def test_transactions(connect_0_10: Connect010) -> None:
    client, other = connect_0_10(), connect_0_10()
    client.declare_queue("q")
    publish(client, b"old")
    transactions = client.transactions
    transactions.select()
    (old,) = client.subscribe("q").take(1)
    client.accept(ids([old]))
    client.publish(Message(b"new"), routing_key="q")
    client.confirm()
    assert count(other) == 1
    transactions.rollback()
    client.accept(ids([old]))
    client.publish(Message(b"newer"), routing_key="q")
    transactions.commit()
    client.close()
    assert [message.body for message in drain(other.subscribe("q"))] == [b"newer"]


def test_a_deleted_queue(connect_0_10: Connect010) -> None:
    client, other = connect_0_10(), connect_0_10()
    client.declare_queue("q")
    subscription = client.subscribe("q")
    other.delete_queue("q")
    with pytest.raises(ResourceDeleted):
        subscription.take(1)


def test_a_consumer_that_does_not_read_holds_little_memory_and_loses_nothing(connect_0_10: Connect010) -> None:
    client, slow = connect_0_10(), connect_0_10()
    client.declare_queue("q")
    bodies = [random.Random(number).randbytes(200_000) for number in range(200)]
    subscription = slow.subscribe("q", accept=False)
    subscription.grant(1000)
    slow.sync()
    slow.pause_reading(paused=True)
    publisher = client.publisher()
    publisher.send(run(bodies))
    publisher.finish()
    waiting = count(client)
    assert waiting is not None
    assert waiting > 100, "most wait in the queue, not in the connection"
    slow.pause_reading(paused=False)
    found: list[bytes] = []
    while len(found) < len(bodies):
        found += [message.body for message in subscription.take(10)]
    assert found == bodies


def test_a_wrong_login_and_an_unknown_host(connect_0_10: Connect010) -> None:
    with pytest.raises(AuthenticationFailed):
        connect_0_10(password="wrong")
    with pytest.raises(VirtualHostRefused, match="402"):
        connect_0_10(virtual_host="none")
    assert connect_0_10(virtual_host="").query_exchange("amq.topic"), "an empty name is the host /"


@pytest.mark.parametrize("protocol", ["0-10", "0-9-1"])
def test_the_url_of_another_broker(amqp_broker: Broker, protocol: str) -> None:
    """``/default`` is the virtual host of Broker-J. The error says how to change the URL, or the broker."""
    options = ConnectOptions(
        hosts=(("127.0.0.1", amqp_broker.port),), virtual_host="default", username="guest", password="guest",
        protocol=protocol,
    )  # fmt: skip
    with pytest.raises(VirtualHostRefused, match=r"'default' not found: leave the path out of the URL, .* --virtual"):
        connect(options)


@pytest.mark.parametrize(
    "garbage", [PROTOCOL_HEADER + bytes(100), PROTOCOL_HEADER + b"\x0f\0\0\x0c" + bytes(8) + b"\xff" * 90]
)
def test_garbage_costs_the_others_nothing(amqp_broker: Broker, connect_0_10: Connect010, garbage: bytes) -> None:
    client = connect_0_10()
    client.declare_queue("q")
    with socket.create_connection(("127.0.0.1", amqp_broker.port), timeout=10) as stranger:
        stranger.sendall(garbage)
        stranger.shutdown(socket.SHUT_WR)
        answer = b""
        while part := stranger.recv(1 << 16):
            answer += part
        assert answer.startswith(PROTOCOL_HEADER)
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    publish(client, b"1")
    assert client.subscribe("q").take(1)[0].body == b"1"


def test_both_protocols_on_one_queue(connect: Connect, connect_0_10: Connect010) -> None:
    old, new = connect(), connect_0_10()
    new.declare_queue("q")
    publish(new, b"0-10")
    old.publish(Message09(b"0-9-1"), routing_key="q")
    old.confirm()
    (message,) = old.subscribe("q", max_unsettled=1).take(1)
    assert message.body == b"0-10"
    old.release([(message.transfer_id, message.transfer_id)], sync=True)
    old.close()
    found = drain(new.subscribe("q"))
    assert [(each.body, each.delivery.redelivered) for each in found] == [(b"0-10", True), (b"0-9-1", False)]
