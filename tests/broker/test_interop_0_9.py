"""What our client of AMQP 0-9-1 writes pika, aio-pika and the Java client of RabbitMQ read, and the other way round."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from amqp_core.typed_values import Datetime, Typed
from amqp_core.v0_9 import spec, type_codes
from amqp_core.v0_9.messages import Message
from tests.support.peers_0_9 import PEERS, Peer, PeerMessage, Place
from tests.support.peers_0_9.ours import Ours
from tests.support.peers_0_9.samples import (
    BROKER_J_EXPIRATION,
    PROPERTIES,
    RABBITMQ_EXPIRATION,
    full_message_of,
    small_message,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.brokerj import BrokerJ
    from tests.support.rabbitmq import RabbitMQNode

pytestmark = pytest.mark.broker

MIB = 1 << 20
OURS = Ours()

# Every letter that brokers keep: what it is written from, and what a peer reads.
TYPES: dict[str, tuple[Typed, object]] = {
    "boolean": (Typed(type_codes.BOOLEAN, True), True),
    "int8": (Typed(type_codes.INT8, -128), -128),
    "uint8": (Typed(type_codes.UINT8, 255), 255),
    "int16": (Typed(type_codes.INT16, -32768), -32768),
    "uint16": (Typed(type_codes.UINT16, 65535), 65535),
    "int32": (Typed(type_codes.INT32, -(2**31)), -(2**31)),
    "uint32": (Typed(type_codes.UINT32, 2**32 - 1), 2**32 - 1),
    "int64": (Typed(type_codes.INT64, -(2**63)), -(2**63)),
    "float": (Typed(type_codes.FLOAT, -1.5), -1.5),
    "double": (Typed(type_codes.DOUBLE, 0.1), 0.1),
    "decimal": (Typed(type_codes.DECIMAL, Decimal("21474836.47")), Decimal("21474836.47")),
    "long string": (Typed(type_codes.LONG_STRING, "Grüße, 世界 🚀"), "Grüße, 世界 🚀"),
    "long string that is no text": (Typed(type_codes.LONG_STRING, b"\xff\x00"), b"\xff\x00"),
    "binary": (Typed(type_codes.BINARY, bytes(range(256))), bytes(range(256))),
    "timestamp": (Typed(type_codes.TIMESTAMP, Datetime(1_709_209_815)), datetime(2024, 2, 29, 12, 30, 15, tzinfo=UTC)),
    "void": (Typed(type_codes.VOID, None), None),
    "array": (
        Typed(type_codes.ARRAY, [Typed(type_codes.INT8, 1), Typed(type_codes.ARRAY, []), Typed(type_codes.VOID, None)]),
        [1, [], None],
    ),
    "table": (
        Typed(type_codes.TABLE, {"größe": Typed(type_codes.TABLE, {"": Typed(type_codes.UINT8, 7)})}),
        {"größe": {"": 7}},
    ),
}


@dataclass(frozen=True)
class Server:
    """A broker to meet at.

    Args:
        place: a virtual host of it.
        expiration: one that no message of a test reaches.
        largest: size of the largest content that is sent through it here, in bytes.
        not_kept: names of ``TYPES`` that are not sent through it.
    """

    place: Place
    expiration: str
    largest: int
    not_kept: tuple[str, ...] = ()


def of_rabbitmq(node: RabbitMQNode, largest: int) -> Server:
    return Server(Place.of(node), RABBITMQ_EXPIRATION, largest)


@pytest.fixture
def server_4(rabbitmq: RabbitMQNode) -> Server:
    return of_rabbitmq(rabbitmq, 15 * MIB)  # its limit is 16 MiB


@pytest.fixture
def server_310(rabbitmq310: RabbitMQNode) -> Server:
    return of_rabbitmq(rabbitmq310, 64 * MIB)


@pytest.fixture
def server_j(brokerj_0_9: BrokerJ) -> Server:
    place = Place.of(brokerj_0_9, url=brokerj_0_9.url(listener="plain"))
    # Every half minute it looks at all messages, and removes those with such a string without a word.
    return Server(place, BROKER_J_EXPIRATION, 64 * MIB, ("long string that is no text",))


@pytest.fixture(params=["server_4", "server_j", pytest.param("server_310", marks=pytest.mark.thorough)])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def queue(server: Server) -> Iterator[str]:
    """A queue, bound to amq.topic by its name and all that follows."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    with OURS.connect(server.place) as client:
        client.declare_queue(name)
        client.bind(name, "amq.topic", f"{name}.#")
        yield name
        client.delete_queue(name)


def contents(largest: int) -> Iterator[bytes]:
    """Contents that end before, at and after the end of a frame of either broker; the largest is of random bytes."""
    for frame_max in (131_072, 262_136):
        fits = frame_max - 8
        for size in (fits - 1, fits, fits + 1, 2 * fits, 2 * fits + 1):
            yield bytes(range(256)) * (size // 256) + bytes(size % 256)
    yield b"\xce"  # a byte that ends frames
    yield (uuid.uuid4().bytes * (largest // 16 + 1))[:largest]


def messages_of(writer: Peer, server: Server, queue: str) -> list[PeerMessage]:
    """What ``writer`` sends to ``queue``."""
    full = full_message_of(writer, server.expiration, b"full")
    sized = [replace(small_message(body), routing_key=queue) for body in contents(server.largest)]
    return [
        replace(small_message(), routing_key=queue),
        replace(full, exchange="amq.topic", routing_key=f"{queue}.größe"),
        *sized,
    ]


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_what_a_peer_writes_we_read(server: Server, queue: str, peer: Peer) -> None:
    messages = messages_of(peer, server, queue)
    peer.publish(server.place, messages)
    expected = [message.with_properties(**{**peer.always_sets, **message.properties}) for message in messages]
    assert_same(OURS.consume(server.place, queue, len(messages)), expected)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_what_we_write_a_peer_reads(server: Server, queue: str, peer: Peer) -> None:
    types = {name: pair for name, pair in TYPES.items() if name not in server.not_kept}
    typed = {name: value for name, (value, _) in types.items()}
    read = {name: value for name, (_, value) in types.items()}
    properties = PROPERTIES | {"expiration": server.expiration}
    messages = messages_of(OURS, server, queue)
    every_type = PeerMessage(body=b"types", routing_key=queue, properties=properties | {"headers": typed})
    OURS.publish(server.place, [*messages, every_type])
    expected = [*messages, every_type.with_properties(headers=read)]
    received = peer.consume(server.place, queue, len(expected))
    assert_same(received, [peer.reading_of(message) for message in expected])


def test_a_message_without_any_property(server: Server, queue: str) -> None:
    with OURS.connect(server.place) as client:
        client.publish(Message(routing_key=queue))
        client.confirm()
        (received,) = client.subscribe(queue).take(timeout=30)
    assert received.body == b""
    assert received.properties == spec.BasicProperties()


def assert_same(received: list[PeerMessage], expected: list[PeerMessage]) -> None:
    """Compare the messages one by one: a difference in megabytes of content is not to be printed."""
    assert [len(message.body) for message in received] == [len(message.body) for message in expected]
    for found, wanted in zip(received, expected, strict=True):
        assert replace(found, body=b"") == replace(wanted, body=b"")
        same = found.body == wanted.body
        assert same, f"the contents of {wanted.properties} differ"
