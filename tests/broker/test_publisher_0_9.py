"""The publisher of 0-9-1 with real brokers: RabbitMQ, and Broker-J on the same protocol."""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, cast

import pytest

from amqp_core import protocols
from amqp_core.address import ConnectOptions, parse_url
from amqp_core.errors import (
    AmqpError,
    CommandFailed,
    ConnectionFailed,
    ConnectionLost,
    MessageRejected,
    NotFound,
    PreconditionFailed,
    PublishingBlocked,
    ResourceLimitExceeded,
    TlsError,
    VersionRefused,
)
from amqp_core.v0_9.messages import Message, each_message
from amqp_core.v0_9.spec import BasicProperties
from tests.support.brokerj import BrokerConfig, BrokerJ
from tests.support.process import wait_until
from tests.support.runs import number_of
from tests.support.runs_0_9 import numbered, numbers_of, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqp_core.v0_9.client import Client
    from tests.support.fixtures import OwnRabbitMQ
    from tests.support.rabbitmq import RabbitMQNode

    Node = RabbitMQNode | BrokerJ

pytestmark = pytest.mark.broker

DURABLE: dict[str, Any] = {"delivery_mode": 2}


def dial(node: Node, vhost: str = "default", *, call_timeout_s: float = 30.0, **options: Any) -> Client:
    hosts, virtual_host, tls = parse_url(node.url(vhost))
    settings: dict[str, Any] = {
        "hosts": hosts,
        "virtual_host": virtual_host,
        "tls": tls,
        "username": node.username,
        "password": node.password,
        "protocol": "0-9-1",
    }
    return cast("Client", protocols.connect(ConnectOptions(**settings | options), call_timeout_s=call_timeout_s))


@pytest.fixture(scope="module")
def brokerj() -> Iterator[BrokerJ]:
    with BrokerJ(BrokerConfig(protocols=("AMQP_0_10", "AMQP_0_9_1"), heap="512m")) as broker:
        yield broker


@pytest.fixture(params=["rabbitmq", "brokerj"])
def node(request: pytest.FixtureRequest) -> Node:
    return cast("Node", request.getfixturevalue(request.param))


class Connect(Protocol):
    def __call__(self, node: Node, vhost: str = "default", **options: Any) -> Client: ...


@pytest.fixture
def connect() -> Iterator[Connect]:
    with ExitStack() as stack:

        def connect(node: Node, vhost: str = "default", **options: Any) -> Client:
            client = dial(node, vhost, **options)
            stack.callback(client.abort)
            return client

        yield connect


@pytest.fixture
def name() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


def limit(node: Node, messages: int) -> dict[str, object]:
    """Arguments of a queue that rejects further messages."""
    if isinstance(node, BrokerJ):
        return {"qpid.max_count": messages, "qpid.policy_type": "reject"}
    return {"x-max-length": messages, "x-overflow": "reject-publish"}


def drained(client: Client, queue: str, least: int) -> list[int]:
    """Consume all of a queue; return the numbers of its messages, at least so many."""
    subscription = client.subscribe(queue, accept=False)
    found: list[int] = []
    while blocks := subscription.take_blocks(10.0 if len(found) < least else 0.5):
        for block in blocks:
            found += [number_of(one.body) for one in each_message(block) if isinstance(one, Message)]
    return found


# ------------------------------------------------------------------------------------------------------------- confirms
def test_confirms_across_queues(rabbitmq: RabbitMQNode, connect: Connect, name: str) -> None:
    client = connect(rabbitmq)
    kinds = ["classic", "quorum", "stream"]
    for kind in kinds:
        client.declare_queue(f"{name}-{kind}", durable=True, arguments={"x-queue-type": kind})
    publisher = client.publisher(max_in_flight=500)
    for first in range(0, 3000, 100):
        for kind in kinds:
            publisher.send(numbered(100, first, f"{name}-{kind}", **DURABLE))
    publisher.finish()
    assert publisher.completed == publisher.sent
    assert publisher.sent.transfers == 9000
    assert publisher.take_rejected() == []
    for kind in kinds[:2]:
        assert drained(client, f"{name}-{kind}", 3000) == list(range(3000))


@pytest.mark.sampled("node", every=2)
def test_large_messages(node: Node, connect: Connect, name: str) -> None:
    client = connect(node)
    client.declare_queue(name, durable=True)
    publisher = client.publisher(max_bytes_in_flight=1 << 20)
    publisher.send(numbered(3, routing_key=name, size=3 << 20))
    publisher.send(numbered(100, 3, name))
    publisher.finish()
    assert drained(client, name, 103) == list(range(103))


def test_unroutable_among_routable(node: Node, connect: Connect, name: str) -> None:
    client = connect(node)
    client.declare_queue(name)
    publisher = client.publisher()
    publisher.send(numbered(300, 0, name, tag="there"))
    publisher.send(run([b"same"] * 100, routing_key=f"{name}-none", tag="none", headers={"b": 1, "a": "x"}))
    publisher.send(numbered(300, 300, name))
    publisher.send(numbered(100, 600, f"{name}-none", mandatory=False))
    publisher.finish()
    rejected = publisher.take_rejected()
    assert sorted((str(one.tag), one.index) for one in rejected) == [("none", index) for index in range(100)]
    assert {one.code for one in rejected} == {312}
    assert all(one.is_unroutable for one in rejected)
    assert drained(client, name, 600) == list(range(600))


def test_a_queue_that_rejects_what_it_cannot_hold(node: Node, connect: Connect, name: str) -> None:
    client = connect(node)
    client.declare_queue(name, arguments=limit(node, 10))
    publisher = client.publisher()
    publisher.send(numbered(100, 0, name))
    publisher.finish()
    rejected = publisher.take_rejected()
    assert rejected
    assert not any(one.is_unroutable for one in rejected)
    there = drained(client, name, 10)
    assert there == [number for number in range(100) if number not in {one.index for one in rejected}]


def test_publish_confirm_and_publish_to_queue(node: Node, connect: Connect, name: str) -> None:
    client = connect(node)
    client.declare_queue(name)
    client.publish(Message(b"1:", BasicProperties(headers={"n": 1})), routing_key=name)
    client.publish_to_queue(name, b"2:", content_type="text/plain")
    client.confirm()
    client.publish(Message(b"3:"), routing_key=f"{name}-none")
    with pytest.raises(MessageRejected, match="312"):
        client.confirm()
    client.publish(Message(b"4:"), f"{name}-none", name)
    with pytest.raises(NotFound, match=f"{name}-none"):
        client.confirm()
    client.publish(Message(b"5:"), routing_key=name)
    client.confirm()
    assert drained(client, name, 3) == [1, 2, 5]


# ------------------------------------------------------------------------------------------------ errors of the channel
def test_an_exchange_that_is_deleted_meanwhile(node: Node, connect: Connect, name: str) -> None:
    client, other = connect(node), connect(node)
    exchange = f"{name}-exchange"  # Broker-J takes the name of a queue for an exchange, too
    client.declare_exchange(exchange, "fanout")
    client.declare_queue(name)
    client.bind(name, exchange, "")
    publisher = client.publisher()
    publisher.send(numbered(10, 0, exchange=exchange, tag="before"))
    publisher.finish()
    other.delete_exchange(exchange)
    publisher.send(numbered(10, 10, name, tag="fine"))
    publisher.send(numbered(10, 20, exchange=exchange, tag="gone"))
    with pytest.raises(NotFound, match=exchange) as raised:
        publisher.finish()
    assert raised.value.command_id is not None
    assert publisher.locate(raised.value.command_id) == ("gone", 0)
    assert set(range(20, 30)) <= set(numbers_of(publisher.unfinished()))
    assert client.query_queue(name) is not None  # the connection lives
    again = client.publisher()
    again.send(numbered(10, 30, name))
    again.finish()
    assert drained(client, name, 30) == [*range(20), *range(30, 40)]


def test_a_queue_that_is_deleted_meanwhile(node: Node, connect: Connect, name: str) -> None:
    client, other = connect(node), connect(node)
    client.declare_queue(name)
    publisher = client.publisher()
    publisher.send(numbered(10, 0, name))
    publisher.finish()
    other.delete_queue(name)
    publisher.send(numbered(10, 0, name))
    publisher.finish()
    assert [one.index for one in publisher.take_rejected() if one.is_unroutable] == list(range(10))


def test_a_message_larger_than_the_broker_takes(node: Node, connect: Connect, name: str) -> None:
    client = connect(node)
    client.declare_queue(name)
    is_brokerj = isinstance(node, BrokerJ)
    size = (100 << 20) + 1 if is_brokerj else (16 << 20) + 1
    publisher = client.publisher()
    publisher.send(numbered(3, 0, name))

    def publish() -> None:
        publisher.send(run([b"small", bytes(size)], routing_key=name, tag="large"))
        publisher.finish()

    expected: type[CommandFailed] = ResourceLimitExceeded if is_brokerj else PreconditionFailed
    with pytest.raises(expected, match=str(size)) as raised:
        publish()
    assert raised.value.command_id is not None
    assert publisher.locate(raised.value.command_id) == ("large", 1)
    assert client.query_queue(name) is not None


# -------------------------------------------------------------------------------------------------- blocked connections
def test_a_memory_alarm_is_waited_for(rabbitmq_private: RabbitMQNode, connect: Connect, name: str) -> None:
    client = connect(rabbitmq_private)
    client.declare_queue(name)
    publisher = client.publisher(blocked_timeout_s=60)
    rabbitmq_private.set_memory_alarm(True)
    alarm = threading.Timer(2.0, rabbitmq_private.set_memory_alarm, [False])
    try:
        publisher.send(numbered(100, 0, name))
        alarm.start()
        for first in range(100, 1000, 100):
            publisher.send(numbered(100, first, name, size=10_000))
        publisher.finish()
    finally:
        alarm.join()
    assert publisher.completed.transfers == 1000
    assert drained(client, name, 1000) == list(range(1000))


def test_a_memory_alarm_that_stays_fails(rabbitmq_private: RabbitMQNode, connect: Connect, name: str) -> None:
    client = connect(rabbitmq_private, heartbeat=1)
    client.declare_queue(name)
    publisher = client.publisher(blocked_timeout_s=3.0)
    rabbitmq_private.set_memory_alarm(True)
    try:
        publisher.send(numbered(100, 0, name))
        began = time.monotonic()
        with pytest.raises(PublishingBlocked, match="low on memory"):
            publisher.finish()
        assert time.monotonic() - began >= 2.5  # although heartbeats are due each second
        assert numbers_of(publisher.unfinished()) == list(range(100))
        client.discard()
    finally:
        rabbitmq_private.set_memory_alarm(False)


# ------------------------------------------------------------------------------------------------------- ends of a node
def publish_until_it_ends(client: Client, queue: str, at_batch: int, strike: threading.Thread) -> int:
    """Publish numbered messages until the connection ends; return how many are confirmed, from the first on."""
    publisher = client.publisher(max_in_flight=400)
    number = 0
    try:
        while number < 2_000_000:
            if number == at_batch * 100:
                strike.start()
            publisher.send(numbered(100, number, queue, **DURABLE))
            number += 100
    except ConnectionFailed:
        pass
    strike.join()
    return min(numbers_of(publisher.unfinished()))


@pytest.mark.sampled("kind", every=2)
@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_nothing_confirmed_is_lost_when_the_node_is_killed(
    rabbitmq_private: RabbitMQNode, connect: Connect, name: str, kind: str
) -> None:
    node = rabbitmq_private
    client = connect(node, "durable")
    client.declare_queue(name, durable=True, arguments={"x-queue-type": kind})
    old_enough = time.monotonic() + 3.0  # a younger quorum queue may lose what it confirmed
    warm = client.publisher()
    while time.monotonic() < old_enough:
        client.service()
        time.sleep(0.05)
    warm.finish()
    confirmed = publish_until_it_ends(client, name, 50, threading.Thread(target=node.kill9))
    node.start()
    assert confirmed >= 4000

    def back() -> bool:
        with dial(node, "durable") as other:
            try:
                info = other.query_queue(name)
            except AmqpError:
                return False
            return info is not None and info.message_count >= confirmed

    wait_until(back, "every confirmed message", 60.0)
    there = drained(connect(node, "durable"), name, confirmed)
    assert set(range(confirmed)) <= set(there)


@pytest.mark.thorough
@pytest.mark.sampled("size", every=3)
@pytest.mark.parametrize("size", [1, 20, 200])
def test_what_was_finished_survives_an_orderly_stop(brokerj: BrokerJ, connect: Connect, name: str, size: int) -> None:
    client = connect(brokerj, "durable")
    client.declare_queue(name, durable=True)
    publisher = client.publisher()
    end = threading.Thread(target=brokerj.stop)
    finished = 0
    try:
        while finished < 1_000_000:
            if finished == 10 * size:
                end.start()
            publisher.send(numbered(size, finished, name, **DURABLE))
            publisher.finish()
            finished += size
    except ConnectionFailed:
        pass
    end.join()
    brokerj.start()
    there = drained(connect(brokerj, "durable"), name, finished)
    assert finished >= 10 * size
    assert there[:finished] == list(range(finished))


def test_a_frozen_node_is_lost_after_two_heartbeats(
    rabbitmq_private: RabbitMQNode, connect: Connect, name: str
) -> None:
    client = connect(rabbitmq_private, heartbeat=1)
    client.declare_queue(name)
    publisher = client.publisher()
    publisher.send(numbered(100, 0, name))
    publisher.finish()
    rabbitmq_private.pause()
    try:
        with pytest.raises(ConnectionLost, match="silent for two heartbeat intervals"):
            publisher.send(numbered(2000, 100, name, size=10_000))
        assert min(numbers_of(publisher.unfinished())) >= 100
    finally:
        rabbitmq_private.resume()


# -------------------------------------------------------------------------------------------- protocol and virtual host
@pytest.mark.parametrize("path", ["", "/", "/%2F", "/default"])
def test_virtual_hosts_of_the_url(rabbitmq: RabbitMQNode, brokerj: BrokerJ, path: str, name: str) -> None:
    for node in (rabbitmq, brokerj):
        hosts, virtual_host, _ = parse_url(f"amqp://{node.host}:{node.port}{path}")
        login = {"username": node.username, "password": node.password}
        options = ConnectOptions(hosts=hosts, virtual_host=virtual_host, protocol="0-9-1", **cast("Any", login))
        with cast("Client", protocols.connect(options)) as client:
            client.declare_queue(name, exclusive=True)
            client.publish_to_queue(name, b"body", content_type="text/plain")
            client.confirm()


def test_auto_takes_what_each_host_speaks(rabbitmq: RabbitMQNode, brokerj: BrokerJ) -> None:
    for first, second, protocol in ((rabbitmq, brokerj, "0-9-1"), (brokerj, rabbitmq, "0-10")):
        hosts = ((first.host, first.port), (second.host, second.port))
        options = ConnectOptions(hosts=hosts, virtual_host="default", username=first.username, password=first.password)
        for _ in range(2):
            with protocols.connect(options) as client:
                assert client.protocol == protocol


def test_tls(own_rabbitmq: OwnRabbitMQ, name: str) -> None:
    node = own_rabbitmq(listeners=("tls",))
    hosts, virtual_host, tls = parse_url(node.url("default", "tls"))
    assert tls
    login = {"username": node.username, "password": node.password, "virtual_host": virtual_host}
    options = ConnectOptions(hosts=hosts, tls=True, tls_ca_file=str(node.tls.ca_file), **cast("Any", login))
    with cast("Client", protocols.connect(options)) as client:
        assert client.protocol == "0-9-1"
        client.declare_queue(name)
        publisher = client.publisher()
        publisher.send(numbered(1000, 0, name, size=1000))
        publisher.finish()
        assert drained(client, name, 1000) == list(range(1000))
    with pytest.raises(TlsError):
        protocols.connect(replace(options, tls_ca_file=str(node.tls.other_ca_file)))
    with pytest.raises(VersionRefused, match=r"does not speak AMQP 0-10 or 0-9-1; it .* TLS .*use amqps://"):
        protocols.connect(replace(options, tls=False, tls_ca_file=None))
    plain = ConnectOptions(hosts=((node.host, node.port),), tls=True, connect_timeout=5.0, **cast("Any", login))
    with pytest.raises(TlsError):
        protocols.connect(plain)
