"""The client of 0-9-1 with real brokers: RabbitMQ, and Broker-J on the same protocol."""

from __future__ import annotations

import time
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.errors import (
    AuthenticationFailed,
    ConnectionClosed,
    ConnectionFailed,
    ConnectionLost,
    DeadlineExceeded,
    EncodeError,
    InvalidArgument,
    NotFound,
    PreconditionFailed,
    ResourceDeleted,
    ResourceLimitExceeded,
    ResourceLocked,
    UsageError,
    VirtualHostRefused,
)
from amqp_core.v0_9 import spec
from amqp_core.v0_9.connection import CONSUMING
from amqp_core.v0_9.driver import PUBLISHING
from amqp_core.v0_9.framing import BODY, encode_frame
from tests.support.brokerj import BrokerConfig, BrokerJ
from tests.support.dial_0_9 import dial_0_9, dialling, put
from tests.support.process import wait_until
from tests.support.proxy import FaultProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from amqp_core.v0_9.client import Client
    from amqp_core.v0_9.messages import Message
    from amqp_core.v0_9.subscription import Subscription
    from tests.support.dial_0_9 import Connect
    from tests.support.fixtures import OwnRabbitMQ
    from tests.support.rabbitmq import RabbitMQNode

    Node = RabbitMQNode | BrokerJ

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def brokerj() -> Iterator[BrokerJ]:
    with BrokerJ(BrokerConfig(protocols=("AMQP_0_10", "AMQP_0_9_1", "AMQP_0_9"), heap="512m")) as broker:
        yield broker


@pytest.fixture(params=["rabbitmq", "brokerj"])
def node(request: pytest.FixtureRequest) -> Node:
    found: Node = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def connect(node: Node) -> Iterator[Connect]:
    with dialling(node) as connect:
        yield connect


@pytest.fixture
def queue(connect: Connect) -> Iterator[str]:
    """The name of a new, empty, durable queue."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    connect().declare_queue(name, durable=True)
    yield name
    client = connect()
    if client.query_queue(name) is not None:
        client.delete_queue(name)


def take(subscription: Subscription, count: int) -> list[Message]:
    """Wait for so many messages."""
    found: list[Message] = []
    deadline = time.monotonic() + 30
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
        found += subscription.take(count - len(found), timeout=5)
    return found


def is_rabbitmq(client: Client) -> bool:
    return client.server_properties["product"] == "RabbitMQ"


def announced(node: RabbitMQNode) -> object:
    with dial_0_9(node) as client:
        return client.server_properties["capabilities"]


def test_rabbitmq_announces_the_capabilities_of_the_facts(rabbitmq: RabbitMQNode) -> None:
    assert announced(rabbitmq) == dict.fromkeys(spec.Capability, True)


def test_rabbitmq_3_10_announces_the_capabilities_of_the_facts(rabbitmq310: RabbitMQNode) -> None:
    assert announced(rabbitmq310) == dict.fromkeys(spec.Capability, True)


# --------------------------------------------------------------------------------------------------- what it is for
@pytest.mark.parametrize("protocol", ["0-9-1", "0-9"])
def test_messages_are_declared_published_consumed_and_settled(connect: Connect, queue: str, protocol: str) -> None:
    client = connect(protocol=protocol)
    assert client.protocol == protocol
    sizes = [0, 1, 70_000, 300_000]
    properties: dict[str, Any] = {
        "message_id": "m-1",
        "content_type": "text/plain",
        "correlation_id": "c",
        "priority": 3,
        "headers": {"number": 7, "text": "ä", "list": [1, "x"], "table": {"a": True}, "raw": b"\xff"},
    }
    put(client, queue, *map(bytes, sizes), **properties)
    subscription = client.subscribe(queue, max_unsettled=10)
    messages = take(subscription, len(sizes))
    assert [len(message.body) for message in messages] == sizes
    assert [message.transfer_id for message in messages] == [1, 2, 3, 4]
    for message in messages:
        assert (message.exchange, message.routing_key, message.redelivered) == ("", queue, False)
        assert message.headers == properties["headers"]
        assert message.properties.message_id == "m-1"
        assert message.properties.delivery_mode == 2
    assert subscription.credit == 6
    client.accept([(1, 2), (4, 4)])
    client.accept([(1, 4)], sync=True)  # those that are settled already are left out
    assert subscription.credit == 10
    subscription.cancel()
    info = client.query_queue(queue)
    assert info is not None
    assert (info.queue, info.message_count, info.subscriber_count) == (queue, 0, 0)


def test_headers_larger_than_the_frames_of_this_connection_come(connect: Connect, queue: str) -> None:
    """Brokers cut bodies only. Such a message must not end every session of its reader."""
    client = connect()
    headers = {"h": "x" * 60_000}
    put(client, queue, b"a", headers=headers)
    put(client, queue, b"b")
    small = connect(max_frame_size=8192)
    first = small.get(queue)
    assert first is not None
    assert (first.body, first.headers) == (b"a", headers)
    small.release([(1, 1)], sync=True)
    messages = take(small.subscribe(queue, max_unsettled=10), 2)
    assert [(message.body, message.headers) for message in messages] == [(b"a", headers), (b"b", {})]


def test_no_more_messages_come_than_may_be_unsettled(connect: Connect, queue: str) -> None:
    client = connect()
    put(client, queue, *(b"%d" % number for number in range(10)))
    subscription = client.subscribe(queue, max_unsettled=3)
    messages = take(subscription, 3)
    client.sync()
    assert (subscription.credit, subscription.take_arrived()) == (0, [])
    client.accept([(message.transfer_id, message.transfer_id) for message in messages[1:]])
    more = take(subscription, 2)
    client.accept([(1, more[-1].transfer_id)])
    rest = take(subscription, 3)
    assert [int(message.body) for message in messages + more + rest] == list(range(8))


def test_messages_that_were_not_settled_come_back(connect: Connect, queue: str) -> None:
    client = connect()
    put(client, queue, b"a", b"b", b"c")
    take(client.subscribe(queue, max_unsettled=5), 3)
    client.accept([(1, 1)], sync=True)
    client.close()
    again = take(connect().subscribe(queue, max_unsettled=5), 2)
    assert [(message.body, message.redelivered) for message in again] == [(b"b", True), (b"c", True)]


def test_released_messages_come_again(connect: Connect, queue: str) -> None:
    client = connect()
    put(client, queue, *(b"%d" % number for number in range(6)))
    subscription = client.subscribe(queue, max_unsettled=4)
    take(subscription, 4)
    client.release([(1, 2), (4, 4)], sync=True)
    again = take(subscription, 3)
    assert sorted(message.body for message in again) == [b"0", b"1", b"3"]
    assert all(message.redelivered for message in again)


def test_rejected_messages_go_to_the_dead_letter_exchange_or_are_refused(connect: Connect, queue: str) -> None:
    client = connect()
    if not is_rabbitmq(client):
        put(client, queue, b"a")
        take(client.subscribe(queue, max_unsettled=4), 1)
        assert not client.capabilities.rejections
        with pytest.raises(UsageError, match="AMQP_NOT_SUPPORTED"):
            client.reject([(1, 1)])
        return
    source = f"{queue}-source"
    client.declare_queue(source, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue})
    put(client, source, *(b"%d" % number for number in range(5)))
    take(client.subscribe(source, max_unsettled=5), 5)
    client.reject([(1, 3), (5, 5)], text="not wanted", sync=True)
    dead = take(client.subscribe(queue, max_unsettled=5), 4)
    assert [message.body for message in dead] == [b"0", b"1", b"2", b"4"]
    client.delete_queue(source)


def test_messages_that_need_no_settlement(connect: Connect, queue: str) -> None:
    client = connect()
    put(client, queue, b"a", b"b")
    subscription = client.subscribe(queue, accept=False)
    assert len(take(subscription, 2)) == 2
    client.accept([(1, 2)], sync=True)  # nothing is sent: it would close the channel
    client.close()
    info = connect().query_queue(queue)
    assert info is not None
    assert info.message_count == 0


def test_one_message_is_got(connect: Connect, queue: str) -> None:
    client = connect()
    assert client.get(queue) is None
    put(client, queue, b"a", b"b", message_id="m")
    first, second = client.get(queue), client.get(queue)
    assert first is not None
    assert second is not None
    assert (first.body, first.properties.message_id, first.routing_key) == (b"a", "m", queue)
    client.release([(first.transfer_id, first.transfer_id)], sync=True)
    client.accept([(0, second.transfer_id)], sync=True)
    again = client.get(queue)
    assert again is not None
    assert (again.body, again.redelivered) == (b"a", True)


def test_two_subscriptions_of_one_client(connect: Connect, queue: str) -> None:
    client = connect()
    other = f"{queue}-other"
    client.declare_queue(other)
    first, second = client.subscribe(queue, max_unsettled=50), client.subscribe(other, max_unsettled=50)
    for number in range(20):
        put(client, queue if number % 3 else other, b"%d" % number)
    ours, theirs = take(first, 13), take(second, 7)
    assert [int(message.body) for message in ours] == [number for number in range(20) if number % 3]
    assert [int(message.body) for message in theirs] == list(range(0, 20, 3))
    assert sorted(message.transfer_id for message in ours + theirs) == list(range(1, 21))
    client.accept([(1, 20)], sync=True)
    assert (first.credit, second.credit) == (50, 50)
    client.delete_queue(other)


def test_exchanges_and_bindings(connect: Connect, queue: str) -> None:
    client = connect()
    exchange = f"{queue}-x"
    client.declare_exchange(exchange, "topic")
    assert client.exists_exchange(exchange)
    client.bind(queue, exchange, "a.#")
    put(client, "a.b", b"1", exchange=exchange)
    client.unbind(queue, exchange, "a.#")
    put(client, "a.b", b"2", exchange=exchange)
    info = client.query_queue(queue)
    assert info is not None
    assert info.message_count == 1
    assert client.purge_queue(queue) == 1
    targets = [("", "no-such-queue"), (exchange, None), ("", queue), ("no-such", None), ("", queue), (exchange, "a")]
    routes = client.query_routes(targets)
    assert [route.exists for route in routes.answers()] == [False, True, True, False, True, False]
    assert routes.arrived
    if is_rabbitmq(client):
        client.bind_exchange("amq.fanout", exchange, "k")
        client.unbind_exchange("amq.fanout", exchange, "k")
    else:
        with pytest.raises(UsageError, match="AMQP_NOT_SUPPORTED"):
            client.bind_exchange("amq.fanout", exchange, "k")
    client.delete_exchange(exchange)
    assert not client.exists_exchange(exchange)


def test_a_login_with_every_mechanism(node: Node) -> None:
    offered = ("PLAIN", "AMQPLAIN") if not isinstance(node, BrokerJ) else ("CRAM-MD5", "SCRAM-SHA-1", "SCRAM-SHA-256")
    for mechanism in offered:
        with dial_0_9(node, sasl_mechanisms=(mechanism,)) as client:
            assert client.query_queue("no-such-queue") is None
        with pytest.raises(AuthenticationFailed, match=f"AMQP_LOGIN_REFUSED.*{mechanism}"):
            dial_0_9(node, sasl_mechanisms=(mechanism,), password="wrong")


def test_a_secret_is_replaced_where_the_broker_can(connect: Connect, node: Node) -> None:
    client = connect()
    if is_rabbitmq(client):
        client.update_secret(node.password, "a test")
        assert client.query_queue("no-such-queue") is None
    else:
        with pytest.raises(UsageError, match="AMQP_NOT_SUPPORTED"):
            client.update_secret("x")


def test_what_the_protocol_does_not_have_is_refused(connect: Connect, queue: str) -> None:
    client = connect()
    for settings in ({"acquire": False}, {"selector": "a = 1"}):
        with pytest.raises(UsageError, match="AMQP_NOT_SUPPORTED"):
            client.subscribe(queue, **settings)
    for most in (0, 65536):
        with pytest.raises(UsageError, match="max_unsettled"):
            client.subscribe(queue, max_unsettled=most)
    with pytest.raises(UsageError, match="without accept"):
        client.subscribe(queue, max_unsettled=1, accept=False)
    for call in (
        client.transactions.dtx_select,
        client.transactions.recover,
    ):
        with pytest.raises(UsageError, match="AMQP_NOT_SUPPORTED"):
            call()
    assert not client.transactions.is_local
    subscription = client.subscribe(queue, max_unsettled=65535)
    calls: list[Callable[[], None]] = [subscription.flush, subscription.probe]
    calls += [partial(subscription.grant, 1), partial(subscription.renew, 1)]
    for refused in calls:
        with pytest.raises(UsageError, match="AMQP_CALL_NOT_ALLOWED"):
            refused()


# ------------------------------------------------------------------------------------------------------------ refusals
def test_a_password_that_is_a_long_token_is_checked(rabbitmq: RabbitMQNode) -> None:
    with pytest.raises(AuthenticationFailed, match=r"refused the login \(PLAIN\): 403"):
        dial_0_9(rabbitmq, password="t" * 7000)
    with pytest.raises(EncodeError, match=r"connection\.start-ok"):
        dial_0_9(rabbitmq, password="t" * 9000)


def test_a_virtual_host_that_does_not_exist(node: Node) -> None:
    with pytest.raises(VirtualHostRefused, match="'no-such-host'"):
        dial_0_9(node, "no-such-host")


def test_a_queue_that_does_not_exist_ends_the_client_when_it_is_consumed(connect: Connect) -> None:
    client = connect()
    with pytest.raises(NotFound, match=r"basic\.consume with 404") as refused:
        client.subscribe("no-such-queue")
    with pytest.raises(NotFound) as again:
        client.query_queue("another-queue")
    assert again.value is refused.value


def test_a_refused_question_ends_nothing(connect: Connect, queue: str) -> None:
    client = connect()
    subscription = client.subscribe(queue, max_unsettled=1)
    with pytest.raises(NotFound, match=r"queue\.bind with 404"):
        client.bind(queue, "no-such-exchange", "k")
    assert client.query_queue("no-such-queue") is None
    put(client, queue, b"a")
    assert take(subscription, 1)[0].body == b"a"


def test_a_queue_of_another_connection(connect: Connect) -> None:
    name = f"test-{uuid.uuid4().hex[:12]}"
    connect().declare_queue(name, exclusive=True)
    for call in ("query_queue", "declare_queue"):
        with pytest.raises(ResourceLocked):
            getattr(connect(), call)(name)


def test_an_exclusive_subscription(connect: Connect, queue: str) -> None:
    connect().subscribe(queue, exclusive=True)
    with pytest.raises(ResourceLocked, match=r"basic\.consume with 403"):
        connect().subscribe(queue)


def test_a_queue_that_exists_with_other_properties(connect: Connect, queue: str) -> None:
    client = connect()
    if is_rabbitmq(client):
        with pytest.raises(PreconditionFailed, match=r"AMQP_DECLARED_DIFFERENTLY.*'durable': 'true', not 'false'"):
            client.declare_queue(queue)
        with pytest.raises(PreconditionFailed, match=r"AMQP_DECLARED_DIFFERENTLY.*'x-max-length': absent, not '5'"):
            client.declare_queue(queue, durable=True, arguments={"x-max-length": 5})
        assert client.query_queue(queue) is not None
    else:
        with pytest.raises(InvalidArgument, match="x-queue-type"):
            client.declare_queue(f"{queue}-2", arguments={"x-queue-type": "quorum"})


def test_an_unknown_delivery_tag_is_never_sent_but_would_end_the_client(connect: Connect, queue: str) -> None:
    client = connect()
    client.subscribe(queue)
    client.accept([(1, 1000)], sync=True)
    if is_rabbitmq(client):
        client._driver.send(CONSUMING, spec.BasicAck(77))
        with pytest.raises(PreconditionFailed, match="unknown delivery tag 77"):
            client.sync()


def test_an_unknown_exchange_ends_the_publishing_channel_only(connect: Connect, queue: str) -> None:
    client = connect()
    subscription = client.subscribe(queue, max_unsettled=1)
    with pytest.raises(NotFound, match="404"):
        put(client, "k", b"a", exchange="no-such-exchange")
    put(client, queue, b"b")
    assert take(subscription, 1)[0].body == b"b"


def test_a_deleted_queue(connect: Connect, queue: str) -> None:
    client = connect()
    put(client, queue, b"a", b"b")
    subscription = client.subscribe(queue, max_unsettled=5)
    connect().delete_queue(queue)
    if not is_rabbitmq(client):  # Broker-J does not tell its consumers
        assert len(take(subscription, 2)) == 2
        return

    def cancelled() -> bool:
        client.sync()
        return subscription.credit == 0

    wait_until(cancelled, "basic.cancel")
    assert [message.body for message in take(subscription, 2)] == [b"a", b"b"]
    with pytest.raises(ResourceDeleted, match=f"AMQP_CONSUMER_CANCELLED.*{queue}"):
        subscription.take(1)
    subscription.cancel()


@pytest.mark.thorough
def test_a_broker_with_few_channels_which_stops(own_rabbitmq: OwnRabbitMQ) -> None:
    node = own_rabbitmq(settings={"channel_max": "2"})
    with dial_0_9(node) as client:
        with pytest.raises(ResourceLimitExceeded, match=r"AMQP_CHANNELS_EXHAUSTED.*2 channel"):
            client.query_queue("q")
        client.sync()
        node.stop()
        with pytest.raises((ConnectionClosed, ConnectionLost)):
            client.sync()


def test_frames_that_are_larger_than_agreed(connect: Connect, queue: str) -> None:
    client = connect()
    with pytest.raises(EncodeError, match="content header"):
        put(client, queue, b"a", headers={"long": "x" * 300_000})
    client = connect()
    put(client, queue, b"a")
    client._driver.write(memoryview(encode_frame(BODY, PUBLISHING, bytes(client._driver.connection.max_frame_size))))
    with pytest.raises(ConnectionFailed):
        client.sync()


# --------------------------------------------------------------------------------------------------------- bad networks
@pytest.mark.parametrize("how", ["fin", "reset"])
def test_a_connection_that_is_cut(node: Node, connect: Connect, queue: str, how: Any) -> None:
    put(connect(), queue, *(b"%d" % number for number in range(100)))
    with FaultProxy((node.host, node.port)) as proxy:
        client = dial_0_9(node, hosts=(proxy.address,))
        subscription = client.subscribe(queue, max_unsettled=100)
        take(subscription, 100)
        client.accept([(1, 50)], sync=True)
        proxy.cut_all(how)
        with pytest.raises(ConnectionLost):
            subscription.take(1)
        with pytest.raises(ConnectionLost):
            client.accept([(51, 100)])
    again = take(connect().subscribe(queue, max_unsettled=100), 50)
    assert [int(message.body) for message in again] == list(range(50, 100))


def test_a_broker_that_falls_silent_is_noticed_by_its_heartbeats(rabbitmq_private: RabbitMQNode) -> None:
    with dial_0_9(rabbitmq_private, heartbeat=1) as client:
        assert client.heartbeat_s == 1
        client.declare_queue("silence", durable=True)
        subscription = client.subscribe("silence", max_unsettled=1)
        rabbitmq_private.pause()
        try:
            with pytest.raises(ConnectionLost, match="silent for two heartbeat intervals"):
                subscription.take(1, timeout=60)
        finally:
            rabbitmq_private.resume()


def test_a_broker_that_does_not_answer(rabbitmq_private: RabbitMQNode) -> None:
    client = dial_0_9(rabbitmq_private, heartbeat=0)
    assert client.exists_exchange("amq.topic")  # the channel stays open
    client._driver.call_timeout_s = 0.5
    rabbitmq_private.pause()
    try:
        with pytest.raises(DeadlineExceeded, match=r"the answer to queue\.declare"):
            client.declare_queue("q")
    finally:
        rabbitmq_private.resume()
    with pytest.raises(DeadlineExceeded):
        client.query_queue("q")


def test_a_killed_broker_keeps_what_was_not_settled(rabbitmq_private: RabbitMQNode) -> None:
    node = rabbitmq_private
    client = dial_0_9(node)
    name = f"killed-{uuid.uuid4().hex[:8]}"
    client.declare_queue(name, durable=True)
    put(client, name, *(b"%d" % number for number in range(20)))
    subscription = client.subscribe(name, max_unsettled=20)
    take(subscription, 20)
    node.restart(kill=True)
    with pytest.raises(ConnectionLost):
        subscription.take(1)
    client.close()
    with dial_0_9(node) as again:
        found = take(again.subscribe(name, max_unsettled=20), 20)
        assert sorted(int(message.body) for message in found) == list(range(20))
        again.delete_queue(name)


def test_a_broker_that_is_low_on_memory_blocks_a_publisher(rabbitmq_private: RabbitMQNode) -> None:
    client = dial_0_9(rabbitmq_private, call_timeout_s=30.0)
    driver = client._driver
    client.declare_queue("blocked")
    rabbitmq_private.set_memory_alarm(on=True)
    try:
        driver.open_channel(PUBLISHING)
        driver.send(PUBLISHING, spec.BasicPublish(routing_key="blocked"), None, b"a")
        driver.wait_for(lambda: driver.endpoint.blocked is not None, "connection.blocked")
        with dial_0_9(rabbitmq_private) as other:  # one that does not publish is served
            assert other.query_queue("blocked") is not None
    finally:
        rabbitmq_private.set_memory_alarm(on=False)
    driver.wait_for(lambda: driver.endpoint.blocked is None, "connection.unblocked")
    driver.endpoint.blocked = "low on memory"
    with pytest.raises(DeadlineExceeded, match="the broker has blocked this connection: low on memory"):
        driver.give_up("an answer")
