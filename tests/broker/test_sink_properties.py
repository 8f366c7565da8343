"""Every property column and every option of the sink, seen by this project's client.

Broker-J does not pass on discard-unroutable, immediate, resume-id and resume-ttl: they can be written, and that is all
that can be seen here. It sets exchange, redelivered, and the expiration of what has a time to live.
"""

from __future__ import annotations

import copy
import time
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.v0_10 import spec
from amqp_spark.arrow.rows.message_ids import NAMESPACE
from amqp_spark.sink import AmqpBatchSink
from tests.broker.sink_support import login, write
from tests.broker.stream_support import depth
from tests.support.capabilities import needs
from tests.support.taking import take

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from amqp_core.v0_10.messages import Message
    from tests.support.capabilities import Capabilities
    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.spark, pytest.mark.broker]

MESSAGE_ID = uuid.UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6")
AT = datetime(2026, 11, 21, 0, 5, 30, 123_987, UTC)
AT_MS, AT_S = 1_795_219_530_123, 1_795_219_530
FAR_MS = 4_000_000_000_000

DELIVERY = spec.DeliveryProperties(
    priority=9, delivery_mode=1, ttl=10**12, timestamp=AT_MS, expiration=FAR_MS, routing_key="köln.1"
)
PROPERTIES = spec.MessageProperties(
    content_length=4,
    message_id=MESSAGE_ID,
    correlation_id=b"order-1",
    reply_to=spec.ReplyTo("amq.direct", "antwört"),
    content_type="text/plain",
    content_encoding="none",
    user_id=b"guest",
    app_id="prüfung".encode(),
    application_headers={"symbol": "ÄBC", "qty": 5},
)
BY_TYPE: dict[str, tuple[str, Any]] = {
    "discard_unroutable": ("BOOLEAN", False),
    "immediate": ("BOOLEAN", False),
    "priority": ("TINYINT", 9),
    "delivery_mode": ("TINYINT", 1),
    "ttl": ("BIGINT", 10**12),
    "timestamp": ("TIMESTAMP", AT),
    "expiration": ("TIMESTAMP", datetime.fromtimestamp(FAR_MS / 1000, UTC)),
    "routing_key": ("STRING", "köln.1"),
    "resume_id": ("STRING", "r-1"),
    "resume_ttl": ("BIGINT", 1000),
    "content_length": ("BIGINT", 4),
    "message_id": ("STRING", str(MESSAGE_ID)),
    "correlation_id": ("BINARY", b"order-1"),
    "reply_to": ("STRUCT<exchange: STRING, routing_key: STRING>", {"exchange": "amq.direct", "routing_key": "antwört"}),
    "content_type": ("STRING", "text/plain"),
    "content_encoding": ("STRING", "none"),
    "user_id": ("BINARY", b"guest"),
    "app_id": ("BINARY", "prüfung".encode()),
    "application_headers": ("STRUCT<symbol: STRING, qty: INT>", {"symbol": "ÄBC", "qty": 5}),
    "body": ("BINARY", b"body"),
}
"""Every column that can be set, in the type in which the source reads it by default (but the headers)."""

OTHER_TYPES: dict[str, tuple[str, Any]] = BY_TYPE | {
    "priority": ("INT", 9),
    "delivery_mode": ("BIGINT", 1),
    "timestamp": ("BIGINT", AT_MS),
    "expiration": ("TIMESTAMP_NTZ", datetime.fromtimestamp(FAR_MS / 1000, UTC).replace(tzinfo=None)),
    "routing_key": ("BINARY", "köln.1".encode()),
    "resume_id": ("BINARY", b"r-1"),
    "resume_ttl": ("INT", 1000),
    "content_length": ("INT", 4),
    "message_id": ("BINARY", MESSAGE_ID.bytes),
    "correlation_id": ("STRING", "order-1"),
    "reply_to": (
        "STRUCT<ROUTING_KEY: STRING, Exchange: STRING>",
        {"ROUTING_KEY": "antwört", "Exchange": "amq.direct"},
    ),
    "content_type": ("BINARY", b"text/plain"),
    "content_encoding": ("BINARY", b"none"),
    "user_id": ("STRING", "guest"),
    "app_id": ("STRING", "prüfung"),
    "body": ("STRING", "body"),
}
"""The same in other types that are allowed."""


def frame_of(spark: SparkSession, columns: dict[str, tuple[str, Any]]) -> DataFrame:
    """One row."""
    schema = ", ".join(f"{name} {kind}" for name, (kind, _) in columns.items())
    return spark.createDataFrame([tuple(value for _, value in columns.values())], schema)


def publish_and_take(
    frame: DataFrame, connect: Connect, broker: Broker, names: Iterator[str], **options: Any
) -> list[Message]:
    """Write through a fanout exchange, whatever the routing keys are, and take what arrives at its queue."""
    client, name = connect(heartbeat=0), next(names)
    client.declare_exchange(name, "fanout")
    client.declare_queue(name)
    client.bind(name, name, "")
    write(frame, login(broker, exchange=name, **options))
    subscription = client.subscribe(name)
    count = depth(client, name)
    subscription.grant(count)
    messages = take(subscription, count)
    for message in messages:
        assert message.delivery.exchange == name
        assert not message.delivery.redelivered
        message.delivery.exchange = None
        message.delivery.redelivered = False
    return messages


def without_its_own(
    found: spec.DeliveryProperties, wanted: spec.DeliveryProperties, capabilities: Capabilities
) -> spec.DeliveryProperties:
    """The delivered messages without the properties that brokers change or do not pass on."""
    found = copy.copy(found)
    if capabilities.keeps_resume_id and found.resume_id is not None:
        assert (found.resume_id, found.resume_ttl) == ("r-1", 1000)
        found.resume_id = found.resume_ttl = None
    if not capabilities.keeps_ttl and found.ttl is not None and wanted.ttl is not None:
        assert 0 <= wanted.ttl - found.ttl < 60_000
        found.ttl = wanted.ttl
    return found


@needs("takes_any_user_id")
@pytest.mark.parametrize("columns", [BY_TYPE, OTHER_TYPES], ids=["types of the source", "other types"])
def test_every_property_goes_out_as_its_column_says(
    columns: dict[str, tuple[str, Any]],
    spark: SparkSession,
    broker: Broker,
    connect: Connect,
    fresh_names: Iterator[str],
    capabilities: Capabilities,
) -> None:
    (message,) = publish_and_take(frame_of(spark, columns), connect, broker, fresh_names)
    assert without_its_own(message.delivery, DELIVERY, capabilities) == DELIVERY
    assert message.properties == PROPERTIES
    assert message.body == b"body"


def test_null_is_absent_in_every_column(
    spark: SparkSession, broker: Broker, connect: Connect, fresh_names: Iterator[str]
) -> None:
    nothing = {name: (kind, None) for name, (kind, _) in BY_TYPE.items()} | {"body": ("BINARY", b"")}
    empty = nothing | {"reply_to": (BY_TYPE["reply_to"][0], {"exchange": None, "routing_key": ""})}
    frame = frame_of(spark, nothing).unionAll(frame_of(spark, empty))
    found = publish_and_take(frame, connect, broker, fresh_names)
    assert sorted(repr(message.properties.reply_to) for message in found) == [
        repr(None),
        repr(spec.ReplyTo(None, "")),
    ]
    for message in found:
        message.properties.reply_to = None
        assert message.properties == spec.MessageProperties()
        assert message.delivery == spec.DeliveryProperties()
        assert message.body == b""


def test_without_columns_a_message_is_persistent_and_has_its_length(
    spark: SparkSession, broker: Broker, connect: Connect, fresh_names: Iterator[str]
) -> None:
    (message,) = publish_and_take(frame_of(spark, {"BODY": ("STRING", "ü")}), connect, broker, fresh_names)
    assert message.delivery == spec.DeliveryProperties(delivery_mode=2)
    assert message.properties == spec.MessageProperties(content_length=2)
    assert message.body == "ü".encode()


@needs("takes_any_user_id")
def test_an_option_overrides_its_column(
    spark: SparkSession, broker: Broker, connect: Connect, fresh_names: Iterator[str], capabilities: Capabilities
) -> None:
    options = {"deliveryMode": "non-persistent", "ttl": 10**13, "priority": 0, "contentType": "x/y", "routingKey": "ö"}
    columns = BY_TYPE | {"delivery_mode": ("TINYINT", 2), "priority": ("TINYINT", None), "expiration": ("BIGINT", 5)}
    columns["expiration"] = ("BIGINT", FAR_MS)
    (message,) = publish_and_take(frame_of(spark, columns), connect, broker, fresh_names, **options)
    wanted = {name: getattr(DELIVERY, name) for name in spec.DeliveryProperties.__slots__}
    wanted |= {"delivery_mode": 1, "ttl": 10**13, "priority": 0, "routing_key": "ö"}
    delivery = spec.DeliveryProperties(**wanted)
    assert without_its_own(message.delivery, delivery, capabilities) == delivery
    wanted = {name: getattr(PROPERTIES, name) for name in spec.MessageProperties.__slots__}
    assert message.properties == spec.MessageProperties(**wanted | {"content_type": "x/y"})
    (message,) = publish_and_take(frame_of(spark, columns), connect, broker, fresh_names, deliveryMode="persistent")
    assert message.delivery.delivery_mode == 2


@pytest.mark.parametrize(("unit", "number"), [("auto", AT_MS), ("ms", AT_MS), ("s", AT_S)])
def test_times_have_the_unit_of_the_option(
    unit: str, number: int, spark: SparkSession, broker: Broker, connect: Connect, fresh_names: Iterator[str]
) -> None:
    columns = {"body": BY_TYPE["body"], "timestamp": ("TIMESTAMP", AT), "expiration": ("BIGINT", FAR_MS + 1)}
    (message,) = publish_and_take(frame_of(spark, columns), connect, broker, fresh_names, timestampUnit=unit)
    assert message.delivery.timestamp == number  # rounded down
    assert message.delivery.expiration == FAR_MS + 1  # as it is


def test_a_message_expires_after_its_time_to_live(
    spark: SparkSession, broker: Broker, connect: Connect, queue: str, capabilities: Capabilities
) -> None:
    client = connect(heartbeat=0)
    frame = frame_of(spark, {"body": BY_TYPE["body"], "routing_key": ("STRING", queue)})
    before = time.time() * 1000
    write(frame, login(broker, ttl=3_600_000))
    write(frame, login(broker, ttl=1))
    write(frame, login(broker))
    subscription = client.subscribe(queue)
    subscription.grant(3)
    lasting, endless = take(subscription, 2)  # what has expired is not delivered
    wanted = spec.DeliveryProperties(ttl=3_600_000)
    assert without_its_own(lasting.delivery, wanted, capabilities).ttl == 3_600_000
    assert endless.delivery.ttl is None
    if capabilities.stamps_expiration:
        assert before <= (lasting.delivery.expiration or 0) - 3_600_000 <= time.time() * 1000
    assert endless.delivery.expiration is None


# ---- stamps


def stamps(messages: list[Message]) -> list[dict[str, object]]:
    """The headers of all messages, in the order of the rows."""

    def place(headers: dict[str, Any]) -> tuple[int, int]:
        return headers["amqp-spark.partition"], headers["amqp-spark.row"]

    return sorted((message.headers for message in messages), key=place)


def test_stamps_of_a_batch_write(
    spark: SparkSession, broker: Broker, connect: Connect, fresh_names: Iterator[str]
) -> None:
    frame = spark.range(0, 10, 1, 2).selectExpr("map('n', id) AS application_headers", "'' AS body")
    found = publish_and_take(frame, connect, broker, fresh_names, stampHeaders=True, batchId=77)
    place = {"amqp-spark.batch-id": 77}
    assert stamps(found) == [
        {"n": 5 * p + row} | place | {"amqp-spark.partition": p, "amqp-spark.row": row}
        for p in range(2)
        for row in range(5)
    ]
    (bare,) = publish_and_take(frame.limit(1).select("body"), connect, broker, fresh_names, stampHeaders=True)
    assert bare.headers == {"amqp-spark.partition": 0, "amqp-spark.row": 0}


@pytest.mark.parametrize("entry", ["stream", "foreachBatch"])
def test_stamps_of_a_stream_name_query_and_batch(
    entry: str, spark: SparkSession, broker: Broker, connect: Connect, queue: str, tmp_path: Path
) -> None:
    def run() -> StreamingQuery:
        stream = spark.readStream.schema("body STRING").parquet(str(tmp_path / "rows")).writeStream
        stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        options = login(broker, routingKey=queue, stampHeaders=True, stableMessageId=True)
        if entry == "stream":
            query = stream.format("amqp").options(**options).start()
        else:
            query = stream.foreachBatch(AmqpBatchSink(**options)).start()  # type: ignore[arg-type]
        assert query.awaitTermination(120)
        return query

    ids = []
    for _ in range(2):  # a batch each
        spark.createDataFrame([("a",), ("b",)], "body STRING").coalesce(1).write.mode("append").parquet(
            str(tmp_path / "rows")
        )
        ids.append(run().id)
    client = connect(heartbeat=0)
    subscription = client.subscribe(queue)
    subscription.grant(4)
    found = take(subscription, 4)
    assert [m.headers for m in found] == [
        {
            "amqp-spark.query-id": ids[batch],
            "amqp-spark.batch-id": batch,
            "amqp-spark.partition": 0,
            "amqp-spark.row": row,
        }
        for batch in range(2)
        for row in range(2)
    ]
    texts = [f"{ids[batch]}-{batch}-0-{row}" for batch in range(2) for row in range(2)]
    assert [m.properties.message_id for m in found] == [uuid.uuid5(NAMESPACE, text) for text in texts]
