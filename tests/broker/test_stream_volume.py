"""A hundred thousand messages of mixed size with every property, on both kinds of virtual host."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pytest

from amqp_core.v0_10.messages import Message
from amqp_core.v0_10.spec import DeliveryProperties, MessageProperties, ReplyTo
from tests.broker.stream_support import Stream, depth

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from amqp_core.v0_10.client import Client
    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.broker, pytest.mark.spark]

COUNT = 100_000
LARGE = dict.fromkeys(range(5_000, 100_000, 9_000), 65_537) | dict.fromkeys((10_000, 50_001, 99_999), 5_000_000)
SCHEMA = """
    position BIGINT, body BINARY, redelivered BOOLEAN, priority TINYINT, delivery_mode TINYINT, timestamp TIMESTAMP,
    exchange STRING, routing_key STRING, message_id STRING, correlation_id BINARY,
    reply_to STRUCT<exchange STRING, routing_key STRING>, content_type STRING, content_encoding STRING,
    app_id BINARY, application_headers STRUCT<n BIGINT, symbol STRING, price DOUBLE, live BOOLEAN, raw BINARY>
"""


def body(number: int) -> bytes:
    """Empty, one byte, some hundred bytes, and a few large ones."""
    size = LARGE.get(number, (0, 1, 300)[number % 3])
    return (b"%d|" % number * (size // 2 + 1))[:size]


def message(number: int, queue: str, *, persistent: bool) -> Message:
    delivery = DeliveryProperties(
        routing_key=queue, priority=number % 10, delivery_mode=2 if persistent else 1, timestamp=1_700_000_000 + number
    )
    properties = MessageProperties(
        message_id=UUID(int=number),
        correlation_id=b"c%d" % number,
        reply_to=ReplyTo(exchange="answers", routing_key=f"k{number % 7}"),
        content_type="application/octet-stream",
        content_encoding="identity",
        app_id=b"\x00\xff",
        application_headers={
            "n": number,
            "symbol": f"S{number % 100}",
            "price": number / 4,
            "live": number % 2 == 0,
            "raw": b"\xfe\xff",
        },
    )
    return Message(body(number), delivery, properties)


def expected(number: int, queue: str, *, persistent: bool) -> dict[str, Any]:
    """The row of a message, without what depends on time."""
    return {
        "position": number,
        "size": len(body(number)),
        "checksum": zlib.crc32(body(number)),
        "redelivered": False,
        "priority": number % 10,
        "delivery_mode": 2 if persistent else 1,
        "timestamp": 1_700_000_000 + number,
        "exchange": None,  # the default exchange
        "routing_key": queue,
        "message_id": str(UUID(int=number)),
        "correlation_id": b"c%d" % number,
        "reply_to": {"exchange": "answers", "routing_key": f"k{number % 7}"},
        "content_type": "application/octet-stream",
        "content_encoding": "identity",
        "app_id": b"\x00\xff",
        "application_headers": {
            "n": number,
            "symbol": f"S{number % 100}",
            "price": number / 4,
            "live": number % 2 == 0,
            "raw": b"\xfe\xff",
        },
    }


def publish_all(client: Client, queue: str, *, persistent: bool) -> None:
    for number in range(COUNT):
        client.publish(message(number, queue, persistent=persistent), routing_key=queue)
    client.confirm()


@pytest.mark.parametrize("vhost", ["default", "durable"])
def test_counts_and_contents_of_a_hundred_thousand_messages(
    spark: SparkSession, broker: Broker, connect: Connect, tmp_path: Path, request: pytest.FixtureRequest, vhost: str
) -> None:
    queue: str = request.getfixturevalue("queue" if vhost == "default" else "durable_queue")
    client = connect(vhost, heartbeat=0)
    persistent = vhost == "durable"
    publish_all(client, queue, persistent=persistent)
    stream = Stream(spark, broker, tmp_path)
    tables: list[pa.Table] = []

    def collect(frame: DataFrame, batch: int) -> None:
        short = frame.selectExpr(
            "position", "length(body) AS size", "crc32(body) AS checksum", "redelivered", "priority", "delivery_mode",
            "CAST(timestamp AS LONG) AS timestamp", "exchange", "routing_key", "message_id", "correlation_id",
            "reply_to", "content_type", "content_encoding", "app_id", "application_headers",
        )  # fmt: skip
        tables.append(short.toArrow())

    stream.drain(stream.frame(queue, SCHEMA, vhost=vhost, maxBytesPerTrigger="8m"), collect)
    found = pa.concat_tables(tables).to_pylist()
    assert len(found) == COUNT
    for number, row in enumerate(found):
        assert row == expected(number, queue, persistent=persistent)
    assert depth(client, queue) == 0
