"""Rows with many properties through sink and source over AMQP 0-9-1, compared field by field.

``make test`` writes 12,000 of them to one kind of queue, ``make test-all`` 100,000 to each. And the largest rows.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.broker.sink_0_9_support import Kind, Place
from tests.broker.sink_rows import EPOCH_MS, HEADERS_TYPE, bodies, headers, some
from tests.broker.sink_support import login, same, write
from tests.broker.stream_support import Stream
from tests.support.choice import all_cases
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(600)]

COUNT = 100_000 if all_cases() else 12_000
FRAME = 131_072 - 8
"""Most bytes of a body that is one frame, with RabbitMQ."""
SCHEMA = f"""message_id STRING, routing_key STRING, priority SMALLINT, delivery_mode TINYINT, ttl BIGINT,
    timestamp TIMESTAMP, correlation_id BINARY, reply_to STRUCT<exchange: STRING, routing_key: STRING>,
    content_type STRING, content_encoding STRING, user_id BINARY, app_id BINARY, type STRING, cluster_id STRING,
    body BINARY, application_headers {HEADERS_TYPE}"""


@pytest.fixture
def place(request: pytest.FixtureRequest, kind: Kind) -> Iterator[Place]:
    broker = request.getfixturevalue("brokerj_0_9" if kind == "brokerj" else "rabbitmq")
    with ExitStack() as stack:
        yield Place(broker, kind, stack)


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    rng = np.random.default_rng(2)
    numbers = np.arange(COUNT)
    reply_to = pa.StructArray.from_arrays(
        [pa.nulls(COUNT, pa.string()), pa.array([f"r{n}" for n in numbers])],
        names=["exchange", "routing_key"],
        mask=pa.array(rng.random(COUNT) < 0.5),
    )
    return pa.table(
        {
            "message_id": [f"message {n} ü" for n in numbers],
            "routing_key": [f"k.{n % 5000}" if n % 7 else "" for n in numbers],
            "priority": some(rng, numbers % 256, pa.int16()),
            "delivery_mode": some(rng, numbers % 2 + 1, pa.int8()),
            "ttl": some(rng, 10**9 + numbers, pa.int64(), 0.2),
            "timestamp": some(rng, (EPOCH_MS // 1000 + numbers) * 10**6, pa.timestamp("us", "UTC")),
            "correlation_id": some(rng, [b"\0\xff" + int(n).to_bytes(4) for n in numbers], pa.binary()),
            "reply_to": reply_to,
            "content_type": some(rng, np.where(numbers % 2, "text/plain", "application/octet-stream"), pa.string()),
            "content_encoding": some(rng, ["none"] * COUNT, pa.string()),
            "user_id": some(rng, [b"guest"] * COUNT, pa.binary()),
            "app_id": some(rng, [b"a" * (n % 256) for n in numbers], pa.binary()),
            "type": some(rng, [f"type {n % 9}" for n in numbers], pa.string()),
            "cluster_id": some(rng, ["c"] * COUNT, pa.string()),
            "body": bodies(rng, COUNT, FRAME),
            "application_headers": headers(rng, COUNT),
        }
    )


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["quorum", "classic", "brokerj"])
def test_every_row_comes_back_as_it_was_written(
    place: Place, rows: pa.Table, spark: SparkSession, tmp_path: Path
) -> None:
    exchange = place.exchange("fanout")
    queue = place.queue(bound_to=exchange)
    write(spark.createDataFrame(rows, SCHEMA), login(place.broker, protocol="0-9-1", exchange=exchange))
    # RabbitMQ counts the messages of a quorum queue with a delay; at the end no row is missing, and none came twice
    wait_until(lambda: place.count(queue) >= COUNT, "the queue to have every row")
    assert place.count(queue) == COUNT

    schema = f"{SCHEMA}, exchange STRING, redelivered BOOLEAN, expiration TIMESTAMP"
    stream = spark.readStream.format("amqp").schema(schema)
    frame = stream.options(**login(place.broker, protocol="0-9-1", queue=queue)).load()
    options = {"path": str(tmp_path / "rows"), "checkpointLocation": str(tmp_path / "checkpoint")}
    query = frame.writeStream.format("parquet").options(**options).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(400), "the query did not end"
    finally:
        query.stop()

    found = pq.read_table(tmp_path / "rows")
    assert found["exchange"].unique().to_pylist() == [exchange]
    assert found["redelivered"].unique().to_pylist() == [False]
    if place.kind == "brokerj":  # it takes a time in place of a duration, so that is what it was sent
        wanted = rows.sort_by("message_id")["ttl"].combine_chunks().is_null()
        assert found.sort_by("message_id")["expiration"].combine_chunks().is_null().equals(wanted)
    changed = ["exchange", "redelivered", "expiration"] + ["ttl"] * (place.kind == "brokerj")
    same(found.drop_columns(changed), rows, "message_id")
    wait_until(lambda: place.count(queue) == 0, "the queue to be empty")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("server", "kind", "mebibytes"),
    [
        pytest.param("brokerj_0_9", "brokerj", 64, marks=pytest.mark.thorough),
        ("rabbitmq", "quorum", 15),  # it takes 16
        pytest.param("rabbitmq310", "quorum", 64, marks=pytest.mark.thorough),
        pytest.param("rabbitmq310", "classic", 64, marks=pytest.mark.thorough),
    ],
)
def test_one_large_row(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, server: str, kind: Kind, mebibytes: int
) -> None:
    body = np.random.default_rng(3).bytes(mebibytes << 20)
    pq.write_table(pa.table({"body": [body]}), tmp_path / "row.parquet")
    with ExitStack() as stack:
        place = Place(request.getfixturevalue(server), kind, stack)
        queue = place.queue()
        options = login(place.broker, protocol="0-9-1", routingKey=queue)
        write(spark.read.parquet(str(tmp_path / "row.parquet")), options)
        stream = Stream(spark, place.broker, tmp_path)
        frame = stream.frame(queue, "body BINARY", protocol="0-9-1")
        stream.drain(frame.selectExpr("length(body)", "sha2(body, 256)"))
        assert [tuple(row) for row in stream.rows] == [(len(body), hashlib.sha256(body).hexdigest())]
        wait_until(lambda: place.count(queue) == 0, "the queue to be empty")
