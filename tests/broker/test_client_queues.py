"""Queues, exchanges and bindings of a real broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_core.errors import IllegalArgument, ResourceLocked
from amqp_core.v0_10 import spec
from amqp_core.v0_10.messages import Message
from tests.support.capabilities import needs
from tests.support.dial import address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.fixtures import Broker, Connect

pytestmark = pytest.mark.broker


def test_a_queue_lives_and_dies(connect: Connect, fresh_names: Iterator[str]) -> None:
    name = next(fresh_names)
    client = connect("durable")
    assert client.query_queue(name) is None
    client.declare_queue(name, durable=True, alternate_exchange="amq.fanout")
    client.declare_queue(name, durable=True)
    client.declare_queue(name, passive=True)
    info = client.query_queue(name)
    assert info is not None
    assert (info.queue, info.durable, info.exclusive, info.auto_delete) == (name, True, False, False)
    assert (info.message_count, info.subscriber_count) == (0, 0)
    for _ in range(3):
        client.publish(Message(b"x"), routing_key=name)
    client.confirm()
    subscription = client.subscribe(name)
    info = client.query_queue(name)
    assert info is not None
    assert (info.message_count, info.subscriber_count) == (3, 1)
    subscription.cancel()
    client.purge_queue(name)
    info = client.query_queue(name)
    assert info is not None
    assert (info.message_count, info.subscriber_count) == (0, 0)
    client.delete_queue(name, if_empty=True, if_unused=True)
    assert client.query_queue(name) is None


def test_an_exclusive_queue_belongs_to_its_session(connect: Connect, fresh_names: Iterator[str]) -> None:
    name = next(fresh_names)
    owner = connect()
    owner.declare_queue(name, exclusive=True, auto_delete=True)
    with pytest.raises(ResourceLocked):
        connect().subscribe(name)
    owner.subscribe(name)
    owner.close()
    assert connect().query_queue(name) is None


@needs("refuses_unknown_arguments")
def test_an_argument_that_the_broker_does_not_take(connect: Connect, fresh_names: Iterator[str]) -> None:
    with pytest.raises(IllegalArgument, match="531"):
        connect().declare_queue(next(fresh_names), arguments={"no.such.argument": 1})


def test_an_exchange_lives_and_dies(connect: Connect, fresh_names: Iterator[str]) -> None:
    name, queue = next(fresh_names), next(fresh_names)
    client = connect()
    assert client.query_exchange(name) is None
    client.declare_exchange(name, "topic")
    client.declare_exchange(name, "topic", passive=True)
    info = client.query_exchange(name)
    assert info is not None
    assert (info.type, info.durable) == ("topic", False)
    client.declare_queue(queue)
    bound = client.bound(name, queue=queue, binding_key="a.*")
    assert bound.queue_not_matched
    client.bind(queue, name, "a.*")
    bound = client.bound(name, queue=queue, binding_key="a.*")
    assert not any((bound.exchange_not_found, bound.queue_not_found, bound.queue_not_matched, bound.key_not_matched))
    for key in ("a.b", "b.a", "a.c"):
        client.publish(Message(key.encode(), spec.DeliveryProperties(discard_unroutable=True)), name, key)
    client.confirm()
    subscription = client.subscribe(queue)
    subscription.grant(10)
    subscription.flush()
    assert [(m.body, m.routing_key, m.delivery.exchange) for m in subscription.take(2)] == [
        (b"a.b", "a.b", name),
        (b"a.c", "a.c", name),
    ]
    client.unbind(queue, name, "a.*")
    assert client.bound(name, queue=queue).queue_not_matched
    client.delete_exchange(name, if_unused=True)
    assert client.query_exchange(name) is None
    assert client.bound(name).exchange_not_found
    assert client.bound("amq.topic", queue="no-such-queue").queue_not_found


def test_headers_exchange(connect: Connect, queue: str) -> None:
    client = connect()
    client.bind(queue, "amq.match", "any", {"x-match": "any", "colour": "red", "size": 5})
    headers: list[dict[str, object]] = [{"colour": "red"}, {"colour": "blue"}, {"size": 5}, {}]
    for one in headers:
        properties = spec.MessageProperties(application_headers=one)
        delivery = spec.DeliveryProperties(discard_unroutable=True)
        client.publish(Message(repr(one).encode(), delivery, properties), "amq.match", "x")
    client.confirm()
    subscription = client.subscribe(queue)
    subscription.grant(10)
    subscription.flush()
    assert [message.headers for message in subscription.take(2)] == [headers[0], headers[2]]


@needs("is_broker_j")
def test_what_the_broker_says_of_itself(broker: Broker, connect: Connect) -> None:
    client = connect()
    assert "Broker-J" in str(client.server_properties["product"])
    assert "qpid.jms-selector" in client.features
    assert not client.is_qpidd
    assert client.peer == "{}:{}".format(*address(broker))
