"""What the sink's encoder makes for 0-9-1 is taken by real brokers as it is meant, and read by pika."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest
from pyspark.sql import types as t

from amqp_core import protocols
from amqp_core.address import ConnectOptions, parse_url
from amqp_core.transfer_ledger import Transfers
from amqp_spark.arrow.encode import FrameFormat, MessagePlan
from amqp_spark.arrow.rows.messages import KEPT_FREE
from tests.spark.message_support import HERE, INT, LONG, OCTETS, TEXT, fields, sink_options, to_batch
from tests.support.peers_0_9 import PikaPeer, Place
from tests.support.peers_0_9.pika_peer import channel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqp_core.v0_9.client import Client
    from tests.support.brokerj import BrokerJ
    from tests.support.peers_0_9 import PeerMessage
    from tests.support.rabbitmq import RabbitMQNode

pytestmark = pytest.mark.broker

HEADERS = fields(
    b=t.BooleanType(),
    i8=t.ByteType(),
    i16=t.ShortType(),
    i32=INT,
    i64=LONG,
    f=t.FloatType(),
    d=t.DoubleType(),
    s=TEXT,
    x=OCTETS,
    dec=t.DecimalType(10, 2),
    at=t.TimestampType(),
    a=t.ArrayType(INT),
    m=t.MapType(TEXT, LONG),
    n=INT,
)
SCHEMA = fields(
    body=OCTETS,
    routing_key=TEXT,
    content_type=TEXT,
    content_encoding=TEXT,
    application_headers=HEADERS,
    priority=t.ShortType(),
    correlation_id=OCTETS,
    reply_to=fields(exchange=TEXT, routing_key=TEXT),
    ttl=LONG,
    message_id=TEXT,
    timestamp=t.TimestampType(),
    type=TEXT,
    user_id=TEXT,
    app_id=TEXT,
    cluster_id=TEXT,
)
AT = datetime(2026, 11, 21, 0, 5, 30, tzinfo=UTC)
ROW: dict[str, Any] = {
    "body": bytes(range(256)),
    "content_type": "text/plain",
    "content_encoding": "none",
    "application_headers": {
        "b": True,
        "i8": -8,
        "i16": -16_000,
        "i32": -32,
        "i64": -(2**63),
        "f": 2.0,
        "d": -4.0,
        "s": "é" * 500,
        "x": b"\xff\x00",
        "dec": Decimal("-1.50"),
        "at": AT,
        "a": [1, None],
        "m": [("k", 1), ("v", None)],
        "n": None,
    },
    "priority": 7,
    "correlation_id": "é".encode(),
    "reply_to": {"exchange": None, "routing_key": "answers"},
    "ttl": 3_600_000,
    "message_id": "any text",
    "timestamp": AT,
    "type": "tick",
    "user_id": "guest",
    "app_id": "app",
    "cluster_id": "c",
}
READ: dict[str, Any] = {
    "b": True,
    "i8": -8,
    "i16": -16_000,
    "i32": -32,
    "i64": -(2**63),
    "f": 2,
    "d": -4,
    "s": "é" * 500,
    "x": b"\xff\x00",
    "dec": "-1.50",
    "at": "2026-11-21T00:05:30.000000Z",
    "a": [1, None],
    "m": {"k": 1, "v": None},
}


class Target(NamedTuple):
    """A queue of a broker, and our client there."""

    client: Client
    place: Place
    queue: str

    def publish(self, schema: t.StructType, rows: list[dict[str, Any]]) -> None:
        """Encode rows for this connection and publish them."""
        publisher = self.client.publisher(max_in_flight=1000)
        plan = MessagePlan.build(schema, sink_options(exchange=""))
        encoder = plan.encoder(FrameFormat.of(self.client, publisher), HERE)
        for block in encoder.blocks(to_batch(schema, [{"routing_key": self.queue, **row} for row in rows]), 0):
            publisher.send(Transfers(memoryview(block.frames), block.ends), timeout_s=60)
        publisher.finish(timeout_s=60)
        assert publisher.take_rejected() == []

    def consume(self, count: int) -> list[PeerMessage]:
        """Take messages with pika."""
        return PikaPeer().consume(self.place, self.queue, count)


@pytest.fixture(params=["classic", "quorum", "Broker-J"])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    kind: str = request.param
    broker: RabbitMQNode | BrokerJ
    if kind == "Broker-J":
        broker_j: BrokerJ = request.getfixturevalue("brokerj_0_9")
        broker, place = broker_j, Place.of(broker_j, url=broker_j.url(listener="plain"))
    else:
        broker = cast("RabbitMQNode", request.getfixturevalue("rabbitmq"))
        place = Place.of(broker)
    hosts, virtual_host, tls = parse_url(broker.url())
    options = ConnectOptions(
        hosts=hosts,
        virtual_host=virtual_host,
        tls=tls,
        username=broker.username,
        password=broker.password,
        protocol="0-9-1",
    )
    queue = f"test-{uuid.uuid4().hex[:12]}"
    with cast("Client", protocols.connect(options)) as client:
        client.declare_queue(queue, durable=True, arguments={} if kind == "Broker-J" else {"x-queue-type": kind})
        yield Target(client, place, queue)
    with channel(place) as opened:
        opened.queue_delete(queue)


def test_every_property_and_header_arrives(target: Target) -> None:
    before = time.time_ns() // 1_000_000
    bare = {**dict.fromkeys(ROW), "body": b""}
    target.publish(SCHEMA, [ROW, bare])
    full, empty = target.consume(2)
    expected = {
        "content_type": "text/plain",
        "content_encoding": "none",
        "headers": READ,
        "priority": 7,
        "correlation_id": "é",
        "reply_to": "answers",
        "message_id": "any text",
        "timestamp": int(AT.timestamp()),
        "type": "tick",
        "user_id": "guest",
        "app_id": "app",
        "cluster_id": "c",
        "delivery_mode": 2,
    }
    assert full.body == ROW["body"]
    found = dict(full.properties)
    lives = int(str(found.pop("expiration")))
    if target.client.capabilities.expiration_is_absolute:
        assert 3_600_000 <= lives - before <= 3_600_000 + 60_000
    else:
        assert lives == 3_600_000
    assert found == expected
    assert empty.body == b""
    assert {name: value for name, value in empty.properties.items() if value != {}} == {"delivery_mode": 2}


def test_bodies_of_all_sizes_arrive(target: Target) -> None:
    room = target.client.publisher(max_in_flight=1).max_frame_size - 8
    sizes = [0, 1, room - 1, room, room + 1, 2 * room, 3 * room + 1, 0, 4 << 20]
    bodies = [bytes([65 + number]) * size for number, size in enumerate(sizes)]
    target.publish(fields(body=OCTETS, routing_key=TEXT), [{"body": body} for body in bodies])
    assert [message.body for message in target.consume(len(bodies))] == bodies


def test_the_largest_header_arrives_even_when_the_broker_adds_to_it(target: Target) -> None:
    """A quorum queue adds ``x-delivery-count`` to what it delivers again."""
    size = target.client.publisher(max_in_flight=1).max_frame_size
    schema = fields(body=OCTETS, routing_key=TEXT, application_headers=t.MapType(TEXT, TEXT))
    value = "v" * (size - 8 - KEPT_FREE - 14 - 1 - 4 - 7)
    target.publish(schema, [{"body": b"", "application_headers": [("k", value)]}])
    with channel(target.place) as opened:
        method, _, _ = opened.basic_get(target.queue)
        assert method is not None  # the end of the channel returns it
    (message,) = target.consume(1)
    assert message.headers["k"] == value
