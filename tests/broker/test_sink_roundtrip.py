"""Rows with many properties through each entry of the sink, read back and compared field by field.

``make test`` does without: ``test_sink_types`` and ``test_sink_properties`` have a few rows of each kind.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from tests.broker.sink_rows import EPOCH_MS, HEADERS_TYPE, bodies, headers, some
from tests.broker.sink_support import ENTRIES, Entry, browse, login, publish, same
from tests.broker.stream_support import depth
from tests.support.capabilities import needs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.capabilities import Capabilities
    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(600)]

COUNT = 100_000
FRAME = 65_535 - 12
"""Most octets of a body that is one frame."""
SCHEMA = f"""message_id STRING, routing_key STRING, priority TINYINT, delivery_mode TINYINT, ttl BIGINT,
    timestamp TIMESTAMP, content_length BIGINT, correlation_id BINARY,
    reply_to STRUCT<exchange: STRING, routing_key: STRING>, content_type STRING, content_encoding STRING,
    user_id BINARY, app_id BINARY, body BINARY,
    application_headers {HEADERS_TYPE}"""


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    rng = np.random.default_rng(1)
    numbers = np.arange(COUNT)
    body = bodies(rng, COUNT, FRAME)
    lengths = np.diff(np.frombuffer(body.buffers()[1], np.int32))  # type: ignore[call-overload]
    reply_to = pa.StructArray.from_arrays(
        [some(rng, ["amq.direct"] * COUNT, pa.string()), some(rng, [f"r{n}" for n in numbers], pa.string())],
        names=["exchange", "routing_key"],
        mask=pa.array(rng.random(COUNT) < 0.5),
    )
    return pa.table(
        {
            "message_id": [str(uuid.UUID(int=n << 64 | n)) for n in range(COUNT)],
            "routing_key": some(rng, [f"k.{n % 5000}" for n in numbers], pa.string(), 0.9),
            "priority": some(rng, numbers % 10, pa.int8()),
            "delivery_mode": some(rng, numbers % 2 + 1, pa.int8()),
            "ttl": some(rng, 10**9 + numbers, pa.int64(), 0.2),
            "timestamp": some(rng, (EPOCH_MS + numbers) * 1000, pa.timestamp("us", "UTC")),
            "content_length": some(rng, lengths, pa.int64()),
            "correlation_id": some(rng, [b"\0\xff" + int(n).to_bytes(4) for n in numbers], pa.binary()),
            "reply_to": reply_to,
            "content_type": some(rng, np.where(numbers % 2, "text/plain", "application/octet-stream"), pa.string()),
            "content_encoding": some(rng, ["none"] * COUNT, pa.string()),
            "user_id": some(rng, [b"user %d" % n for n in numbers], pa.binary()),
            "app_id": some(rng, [b"\xfe" * (n % 300) for n in numbers], pa.binary()),
            "body": body,
            "application_headers": headers(rng, COUNT),
        }
    )


@pytest.mark.thorough
@needs("takes_any_user_id")
@pytest.mark.parametrize("entry", ENTRIES)
def test_every_row_comes_back_as_it_was_written(
    entry: Entry,
    rows: pa.Table,
    spark: SparkSession,
    broker: Broker,
    connect: Connect,
    queue: str,
    fresh_names: Iterator[str],
    tmp_path: Path,
    capabilities: Capabilities,
) -> None:
    client = connect(heartbeat=0)
    exchange = next(fresh_names)
    client.declare_exchange(exchange, "fanout")
    client.bind(queue, exchange, "")
    frame = spark.createDataFrame(rows, SCHEMA)

    before = datetime.now(UTC)
    publish(entry, frame, tmp_path, login(broker, exchange=exchange))

    assert depth(client, queue) == COUNT  # no row is missing, none came twice
    schema = f"{SCHEMA}, exchange STRING, redelivered BOOLEAN, expiration TIMESTAMP"
    found = browse(spark, broker, queue, schema).toArrow()
    assert found["exchange"].unique().to_pylist() == [exchange]
    # Broker-J computes the expiration of what has a time to live; of others there is none.
    if capabilities.stamps_expiration:
        expiration = found["expiration"].combine_chunks()
        assert expiration.is_null().equals(found["ttl"].combine_chunks().is_null())
        assert min(filter(None, expiration.to_pylist())) > before
    changed = ["exchange", "redelivered", "expiration"] + ["ttl"] * (not capabilities.keeps_ttl)
    same(found.drop_columns(changed), rows, "message_id")
