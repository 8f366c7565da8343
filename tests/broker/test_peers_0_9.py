"""The clients that other tests compare ours with understand each other, on RabbitMQ and on Broker-J."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.support.peers_0_9 import PEERS, Peer, PeerFailed, PeerMessage, Place
from tests.support.peers_0_9.pika_peer import channel
from tests.support.peers_0_9.samples import (
    BROKER_J_EXPIRATION,
    RABBITMQ_EXPIRATION,
    full_message_of,
    small_message,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.brokerj import BrokerJ

pytestmark = [pytest.mark.broker, pytest.mark.thorough]  # test_interop_0_9 shows the same in make test


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


def messages_of(peer: Peer, kind: str) -> list[PeerMessage]:
    """What ``peer`` publishes."""
    expiration = RABBITMQ_EXPIRATION if kind == "RabbitMQ" else BROKER_J_EXPIRATION
    return [full_message_of(peer, expiration, bytes(range(256)) * 1000), small_message()]


def test_each_peer_reads_what_each_writes(place: Place, queues: list[str], kind: str) -> None:
    expected: list[PeerMessage] = []
    for peer in PEERS:
        messages = messages_of(peer, kind)
        peer.publish(place, [replace(message, routing_key=queue) for queue in queues for message in messages])
        expected += [message.with_properties(**{**peer.always_sets, **message.properties}) for message in messages]
    for reader, queue in zip(PEERS, queues, strict=True):
        received = reader.consume(place, queue, len(expected))
        assert received == [reader.reading_of(replace(message, routing_key=queue)) for message in expected], reader.name


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_message_that_is_returned_is_an_error(place: Place, peer: Peer) -> None:
    with pytest.raises(PeerFailed):
        peer.publish(place, [PeerMessage(routing_key="no such queue")])
