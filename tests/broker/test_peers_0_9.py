"""The clients that other tests compare ours with understand each other, on RabbitMQ and on Broker-J."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from tests.support.peers_0_9 import PEERS, Peer, PeerFailed, PeerMessage, Place
from tests.support.peers_0_9.pika_peer import channel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.brokerj import BrokerJ

pytestmark = pytest.mark.broker

# Floats are exact in single precision, which aio-pika writes; its decimals are not negative.
HEADERS: dict[str, object] = {
    "bool": True,
    "int8": -5,
    "int16": -300,
    "int32": 70_000,
    "int64": -(2**40),
    "float": 1.5,
    "decimal": Decimal("12.34"),
    "text": "Grüße, 世界 🚀",
    "raw": b"\x00\xff",
    "time": datetime(2024, 2, 29, 12, 30, 15, tzinfo=UTC),
    "nothing": None,
    "list": [1, "two", [None, False]],
    "map": {"a": {"b": [{"c": 3}]}},
}
PROPERTIES: dict[str, object] = {
    "content_type": "text/plain",
    "content_encoding": "utf-8",
    "headers": HEADERS,
    "delivery_mode": 2,
    "priority": 7,
    "correlation_id": "order-ä-1",
    "reply_to": "replies",
    "message_id": "m-1",
    "timestamp": 1_700_000_000,
    "type": "tick",
    "user_id": "guest",
    "app_id": "tests",
    "cluster_id": "c",
}


@pytest.fixture(params=["RabbitMQ", "Broker-J"])
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def place(request: pytest.FixtureRequest, kind: str) -> Place:
    if kind == "RabbitMQ":
        return Place.of(request.getfixturevalue("rabbitmq"))
    broker: BrokerJ = request.getfixturevalue("brokerj_0_9")
    return Place.of(broker, url=broker.url(listener="plain"))


@pytest.fixture
def queues(place: Place) -> Iterator[list[str]]:
    """One queue for each peer."""
    names = [f"test-{uuid.uuid4().hex[:12]}" for _ in PEERS]
    with channel(place) as opened:
        for name in names:
            opened.queue_declare(name)
    yield names
    with channel(place) as opened:
        for name in names:
            opened.queue_delete(name)


@pytest.fixture
def expiration(kind: str) -> str:
    """One that no message of a test reaches, in milliseconds: Broker-J counts them since 1970."""
    return "86400000" if kind == "RabbitMQ" else "4000000000000"


def messages_of(peer: Peer, expiration: str) -> list[PeerMessage]:
    """What ``peer`` publishes."""
    headers = {name: value for name, value in HEADERS.items() if type(value) not in peer.cannot_write}
    properties = {name: value for name, value in PROPERTIES.items() if name not in peer.cannot_set}
    properties |= {"headers": headers, "expiration": expiration}
    full = PeerMessage(body=bytes(range(256)) * 1000, properties=properties)
    # aio-pika makes up a message-id, and Broker-J lets messages that are not persistent overtake those that are.
    return [full, PeerMessage(properties={"message_id": "m-2", "delivery_mode": 2})]


def test_each_peer_reads_what_each_writes(place: Place, queues: list[str], expiration: str) -> None:
    expected: list[PeerMessage] = []
    for peer in PEERS:
        messages = messages_of(peer, expiration)
        peer.publish(place, [replace(message, routing_key=queue) for queue in queues for message in messages])
        expected += [message.with_properties(**{**peer.always_sets, **message.properties}) for message in messages]
    for reader, queue in zip(PEERS, queues, strict=True):
        received = reader.consume(place, queue, len(expected))
        assert received == [reader.reading_of(replace(message, routing_key=queue)) for message in expected], reader.name


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_message_that_is_returned_is_an_error(place: Place, peer: Peer) -> None:
    with pytest.raises(PeerFailed):
        peer.publish(place, [PeerMessage(routing_key="no such queue")])
