"""The source in a real Spark over RabbitMQ (classic and quorum queues) and over Broker-J with AMQP 0-9-1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.v0_9.messages import Message
from amqp_core.v0_9.spec import BasicProperties
from amqp_spark.errors import UnsupportedModeError
from tests.broker.source_0_9_support import Place, numbers
from tests.broker.stream_support import Stream
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture(params=["classic", "quorum", "brokerj"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    name = "brokerj_0_9" if request.param == "brokerj" else "rabbitmq"
    broker = request.getfixturevalue(name)
    queue_type = None if request.param == "brokerj" else request.param
    found = Place(broker.url("durable"), broker.username, broker.password, queue_type)
    found.declare()
    yield found
    found.close()


@pytest.fixture
def stream(spark: SparkSession, place: Place, tmp_path: Path) -> Stream:
    return Stream(spark, place, tmp_path)


def test_a_query_reads_all_columns_and_leaves_an_empty_queue(stream: Stream, place: Place) -> None:
    with place.connect() as client:
        properties = BasicProperties(headers={"symbol": "A", "qty": 5}, message_id="m-1", type="tick", delivery_mode=2)
        for body in numbers(1000):
            client.publish(Message(body, properties), routing_key=place.queue)
        client.confirm()
    stream.drain(stream.frame(place.queue, protocol="0-9-1"))
    assert stream.bodies() == numbers(1000)
    first = stream.rows[0]
    assert [row["position"] for row in stream.rows] == list(range(1000))
    assert (first["queue"], first["routing_key"], first["message_id"], first["type"]) == (
        place.queue, place.queue, "m-1", "tick",
    )  # fmt: skip
    assert first["application_headers"] == {"symbol": "A", "qty": "5"}
    assert place.count() == (0, 0)


def test_a_running_query_drains_and_a_restarted_one_goes_on(stream: Stream, place: Place) -> None:
    frame = stream.frame(place.queue, "body BINARY, position BIGINT", protocol="0-9-1")
    query = stream.start(frame)
    try:
        for round_ in range(3):
            place.publish(numbers(50, 50 * round_))
            wait_until(lambda: len(stream.rows) >= 50 * round_ + 50, "every row")  # noqa: B023  called here only
    finally:
        query.stop()
    place.publish(numbers(50, 150))
    stream.drain(frame)
    assert set(stream.bodies()) == set(numbers(200))
    wait_until(lambda: place.count() == (0, 0), "nothing is left")


def test_large_batches_are_pulled(stream: Stream, place: Place) -> None:
    sent = [number + b"x" * 2000 for number in numbers(2000)]
    place.publish(sent)
    options: dict[str, Any] = {"protocol": "0-9-1", "transfer": "pull", "maxBytesPerTrigger": "2m", "numPartitions": 3}
    frame = stream.frame(place.queue, "body BINARY, position BIGINT", **options)
    stream.drain(frame)
    assert stream.bodies() == sent
    assert place.count() == (0, 0)


def test_a_batch_read_is_refused(spark: SparkSession, place: Place) -> None:
    options = {"url": place.address, "username": place.username, "password": place.password, "queue": place.queue}
    frame = spark.read.format("amqp").options(**options, protocol="0-9-1").load()
    with pytest.raises(Exception, match="A batch read is not supported: with AMQP 0-9-1") as raised:
        frame.collect()
    assert UnsupportedModeError.__name__ in str(raised.value)
