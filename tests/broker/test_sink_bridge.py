"""The sink writes the rows that the source reads: bridges that change nothing but what a broker sets itself.

A broker sets exchange, redelivered, and the expiration of what has a time to live. Broker-J does not pass on
discard-unroutable, immediate, resume-id and resume-ttl, and writes headers again from Java objects
(specs/amqp_0_10/errata.toml): here everything is compared with what the first broker delivers.
"""

from __future__ import annotations

import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f

from amqp_core.v0_10 import spec
from amqp_core.v0_10 import type_codes as code
from amqp_core.v0_10._codec import decode_header
from amqp_core.v0_10.framing import Assembler, parse_frame
from amqp_core.v0_10.messages import Message
from amqp_core.v0_10.type_codes import Datetime, Typed
from amqp_spark.arrow.decode import DEFAULT_SCHEMA
from tests.broker.sink_support import browse, login, same, write
from tests.broker.stream_support import depth
from tests.support.capabilities import needs
from tests.support.frames import assert_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from amqp_core.v0_10.client import Client
    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.spark, pytest.mark.broker]

AT_MS, AT_S, FAR_MS = 1_795_219_530_123, 1_795_219_530, 4_000_000_000_000

RICH: dict[str, object] = {
    "boolean": True,
    "int8": Typed(code.INT8, -128),
    "uint8": Typed(code.UINT8, 255),
    "int16": Typed(code.INT16, -32768),
    "uint32": Typed(code.UINT32, 2**32 - 1),
    "int64": Typed(code.INT64, -(2**63)),
    "uint64": Typed(code.UINT64, 2**63 - 1),
    "float": Typed(code.FLOAT, 0.5),
    "double": 1e300,
    "str8": Typed(code.STR8, "€"),
    "str16": "Grüße 🚀",
    "vbin8": Typed(code.VBIN8, b"\x01"),
    "vbin32": b"\x00\xff",
    "datetime": Datetime(1_700_000_000),
    "uuid": uuid.UUID(int=5),
    "decimal": Decimal("-1.25"),
    "void": None,
    "map": {"a": 1, "l": [1, "x", {"deep": [[]]}]},
    "list": [1, 2, None],
    "array": Typed(code.ARRAY, [Typed(code.INT16, 1), Typed(code.INT16, 2)]),
    "": "no name",
}
"""A header of every kind; Broker-J delivers some of them in other types."""


def rich_messages() -> Iterator[Message]:
    for number in range(200):
        delivery = spec.DeliveryProperties(routing_key=f"k.{number}")
        properties = spec.MessageProperties(content_length=number if number % 3 else None)
        optional: list[tuple[object, str, Any]] = [
            (delivery, "priority", number % 10),
            (delivery, "delivery_mode", number % 2 + 1),
            (delivery, "timestamp", AT_S + number if number % 2 else AT_MS + number),
            (delivery, "expiration", FAR_MS + number),
            (properties, "message_id", uuid.UUID(int=number << 64)),
            (properties, "correlation_id", b"\x00\xff%d" % number),
            (properties, "reply_to", spec.ReplyTo("amq.direct" if number % 2 else None, "r" if number % 5 else None)),
            (properties, "content_type", "text/plain"),
            (properties, "content_encoding", "none"),
            (properties, "user_id", b"\xfe user"),
            (properties, "app_id", b"\xfd app"),
            (properties, "application_headers", {"n": number} | (RICH if number % 2 else {})),
        ]
        for bit, (target, name, value) in enumerate(optional):
            if number * 2_654_435_761 >> (bit + 8) & 1 or number > 195:
                setattr(target, name, value)
        yield Message(b"x" * number, delivery, properties)


def as_delivered(client: Client, queue: str, count: int) -> list[tuple[spec.DeliveryProperties, bytes, bytes]]:
    """Of every message: delivery-properties without what every broker sets, the other struct as octets, the body."""
    subscription = client.subscribe(queue, acquire=False, accept=False)
    subscription.grant(count)
    found: list[tuple[spec.DeliveryProperties, bytes, bytes]] = []
    assembler = Assembler()
    while len(found) < count:
        for block in subscription.take_blocks(60.0):
            position = 0
            while (parsed := parse_frame(block.frames, position, 65_535)) is not None:
                frame, position = parsed
                assembly = assembler.receive(frame)
                if assembly is None or not assembly.header:
                    continue
                delivery, _, _ = decode_header(assembly.header)
                assert delivery is not None
                delivery.exchange, delivery.redelivered = None, False
                size = int.from_bytes(assembly.header[:4])
                rest = assembly.header[4 + size :]
                assert rest[4:6] == b"\x04\x03"  # message-properties
                found.append((delivery, rest, assembly.body or b""))
    subscription.cancel()
    return found


BRIDGED = ", ".join(
    f"{field.name} {'BIGINT' if field.name in ('timestamp', 'expiration') else field.dataType.simpleString()}"
    for field in DEFAULT_SCHEMA
    if field.name != "application_headers"
)


@pytest.mark.thorough
@needs("takes_any_user_id")
def test_a_bridge_with_encoded_headers_changes_nothing_that_a_broker_does_not_set(
    spark: SparkSession, broker: Broker, connect: Connect, fresh_names: Iterator[str], tmp_path: Path
) -> None:
    client = connect(heartbeat=0)
    source, target = next(fresh_names), next(fresh_names)
    for name in (source, target):
        client.declare_queue(name)
        client.declare_exchange(name, "fanout")
        client.bind(name, name, "")
    messages = list(rich_messages())
    for message in messages:
        client.publish(message, source)
    client.confirm()
    before = as_delivered(client, source, len(messages))

    reader = spark.readStream.format("amqp").options(**login(broker, queue=source, numPartitions=1))
    frame = reader.schema(f"{BRIDGED}, application_headers BINARY").load()
    writer = frame.writeStream.format("amqp").options(**login(broker, exchange=target))
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(240)

    after = as_delivered(client, target, len(messages))
    for (delivery, octets, body), (delivery_, octets_, body_) in zip(before, after, strict=True):
        assert delivery_ == delivery
        assert octets_ == octets  # message-properties, byte for byte
        assert body_ == body
    assert depth(client, source) == 0


@needs("takes_any_user_id")
def test_what_the_source_reads_without_a_schema_can_be_written(
    spark: SparkSession, broker: Broker, connect: Connect, fresh_names: Iterator[str]
) -> None:
    client = connect(heartbeat=0)
    source, target = next(fresh_names), next(fresh_names)
    for name in (source, target):
        client.declare_queue(name)
        client.declare_exchange(name, "fanout")
        client.bind(name, name, "")
    for message in rich_messages():
        client.publish(message, source)
    client.confirm()
    ours = [
        field.name for field in DEFAULT_SCHEMA if field.name not in ("queue", "position", "exchange", "redelivered")
    ]

    def read(queue: str) -> DataFrame:
        return spark.read.format("amqp").options(**login(broker, queue=queue)).load()

    write(read(source), login(broker, exchange=target))
    same(read(target).select(ours).toArrow(), read(source).select(ours).toArrow(), "routing_key")
    names = "queue STRING, exchange STRING"
    assert_rows(browse(spark, broker, target, names).distinct(), [(target, target)], names)
    assert read(target).select(f.max("position")).collect() == [(199,)]
