"""Several receivers on one queue inside Spark, and rejects on a durable store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from tests.broker.stream_support import Stream, depth, numbers, publish, subscribers
from tests.support.capabilities import needs
from tests.support.process import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture
def stream(spark: SparkSession, broker: Broker, tmp_path: Path) -> Stream:
    return Stream(spark, broker, tmp_path)


def test_two_loads_of_one_queue_start_two_receivers_that_share_it(stream: Stream, connect: Connect, queue: str) -> None:
    client = connect(heartbeat=0)
    one, two = stream.frame(queue, "body BINARY"), stream.frame(queue, "body BINARY")
    query = stream.start(one.union(two))
    try:
        wait_until(lambda: subscribers(client, queue) == 2, "two receivers", 60)
        publish(client, queue, numbers(2000))
        wait_until(lambda: len(stream.rows) >= 2000, "every message", 60)
        wait_until(lambda: depth(client, queue) == 0, "every accept", 60)
    finally:
        query.stop()
    assert sorted(stream.bodies()) == numbers(2000)


@pytest.mark.thorough
def test_two_loads_of_one_queue_are_refused_where_it_is_exclusive(stream: Stream, queue: str) -> None:
    frames = [stream.frame(queue, "body BINARY", exclusive="true", heartbeat=1) for _ in range(2)]
    with pytest.raises(StreamingQueryException, match="ResourceLocked"):
        stream.drain(frames[0].union(frames[1]))


@needs("alternate_exchange")
def test_rejects_on_a_durable_store(stream: Stream, connect: Connect, durable_queue: str) -> None:
    client = connect("durable", heartbeat=0)
    exchange, dead, source = (f"{durable_queue}-{part}" for part in ("x", "dead", "source"))
    client.declare_exchange(exchange, "fanout", durable=True)
    client.declare_queue(dead, durable=True)
    client.bind(dead, exchange, "")
    client.declare_queue(source, durable=True, alternate_exchange=exchange)
    try:
        bodies = [b"\xff" if number % 100 == 7 else b"%d" % number for number in range(1000)]
        publish(client, source, bodies, persistent=True)
        stream.drain(stream.frame(source, "body STRING", vhost="durable", mode="REJECT"))
        assert sorted(row["body"] for row in stream.rows) == sorted(b.decode() for b in bodies if b != b"\xff")
        assert depth(client, source) == 0
        assert depth(client, dead) == 10
    finally:
        for name in (source, dead):
            wait_until(lambda name=name: not subscribers(client, name), "the reader has gone", 60)  # type: ignore[misc]
            client.delete_queue(name)
        client.delete_exchange(exchange)
