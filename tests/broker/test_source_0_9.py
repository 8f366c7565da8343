"""The source in a real Spark over RabbitMQ (classic and quorum queues) and over Broker-J with AMQP 0-9-1."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.v0_9.messages import Message
from amqp_core.v0_9.spec import BasicProperties
from amqp_spark.errors import UnsupportedModeError
from tests.broker.source_0_9_support import PLACES, Place, numbers, requested
from tests.broker.stream_support import Stream
from tests.support.dial import address, by_way_of
from tests.support.process import wait_until
from tests.support.proxy import FaultProxy
from tests.support.taking import take

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.support.rabbitmq import RabbitMQNode

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with requested(request) as place:
        yield place


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
    place.wait_for_count(0, 0)


@pytest.mark.sampled("place", every=2)
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


@pytest.mark.sampled("place", every=3)
def test_large_batches_are_pulled(stream: Stream, place: Place) -> None:
    sent = [number + b"x" * 2000 for number in numbers(2000)]
    place.publish(sent)
    options: dict[str, Any] = {"protocol": "0-9-1", "transfer": "pull", "maxBytesPerTrigger": "2m", "numPartitions": 3}
    frame = stream.frame(place.queue, "body BINARY, position BIGINT", **options)
    stream.drain(frame)
    assert stream.bodies() == sent
    place.wait_for_count(0, 0)


def test_a_batch_read_is_refused(spark: SparkSession, place: Place) -> None:
    options = {"url": place.address, "username": place.username, "password": place.password, "queue": place.queue}
    frame = spark.read.format("amqp").options(**options, protocol="0-9-1").load()
    with pytest.raises(Exception, match="A batch read is not supported: with AMQP 0-9-1") as raised:
        frame.collect()
    assert UnsupportedModeError.__name__ in str(raised.value)


@pytest.mark.parametrize("release", ["rabbitmq", pytest.param("rabbitmq310", marks=pytest.mark.thorough)])
def test_delivery_count_says_how_often_a_message_was_returned(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, release: str
) -> None:
    node: RabbitMQNode = request.getfixturevalue(release)
    with closing(Place(node.url("durable"), node.username, node.password, "quorum")) as place:
        place.declare()
        place.publish([b"returned twice", b"returned once"])
        for held in (2, 1):
            with place.connect() as client:
                subscription = client.subscribe(place.queue, max_unsettled=held)
                found = [message.body for message in take(subscription, held)]
            assert found == [b"returned twice", b"returned once"][:held]
        place.publish([b"new"])
        wait_until(lambda: place.count() == (3, 0), "what was returned")
        stream = Stream(spark, place, tmp_path)
        stream.drain(stream.frame(place.queue, "body STRING, delivery_count BIGINT, redelivered BOOLEAN"))
    assert {tuple(row) for row in stream.rows} == {
        ("returned twice", 2, True), ("returned once", 1, True), ("new", None, False),
    }  # fmt: skip


@pytest.mark.parametrize("queue_type", [pytest.param("classic", marks=pytest.mark.thorough), "quorum"])
def test_a_query_goes_on_with_a_node_that_was_frozen(
    rabbitmq_private: RabbitMQNode, spark: SparkSession, tmp_path: Path, queue_type: str
) -> None:
    node = rabbitmq_private
    with (
        closing(Place(node.url("durable"), node.username, node.password, queue_type)) as place,
        FaultProxy(address(node), record=False) as proxy,
    ):
        place.declare()
        place.publish(numbers(200))
        stream = Stream(spark, place, tmp_path)
        options: dict[str, Any] = {"url": by_way_of(proxy.port, place.address), "maxMessagesPerTrigger": 50}
        limits: dict[str, Any] = {"heartbeat": 1, "connectTimeout": 1, "retry__maxAttempts": 500}
        frame = stream.frame(place.queue, "body BINARY", protocol="0-9-1", retry__maxDelay=0.2, **options, **limits)
        before = 0

        def freeze_once(rows: DataFrame, batch: int) -> None:
            nonlocal before
            stream.collect(rows, batch)
            if batch == 1:
                before = len(proxy.connections)
                node.pause()

        query = stream.start(frame, freeze_once)
        try:
            wait_until(lambda: before > 0, "the node to be frozen", 60)
            proxy.wait_for_connections(before + 3, 60)  # one at least of source and count was given up twice
            node.resume()
            place.publish(numbers(50, 200))
            wait_until(lambda: set(stream.bodies()) == set(numbers(250)), "every row", 60)
            assert query.isActive
        finally:
            node.resume()
            query.stop()
        stream.drain(frame)  # what was not accepted when the query stopped
        assert set(stream.bodies()) == set(numbers(250))
        wait_until(lambda: place.count() == (0, 0), "nothing is left")
