"""A query from queue to queue while RabbitMQ is out of memory: it blocks those who publish, and no one who receives."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from amqp_spark.sink import AmqpBatchSink
from tests.broker.sink_0_9_support import Place
from tests.broker.sink_support import login
from tests.broker.stream_support import Stream, numbers
from tests.support.dial_0_9 import put
from tests.support.process import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.broker.sink_0_9_support import Kind
    from tests.support.rabbitmq import RabbitMQNode

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.mark.parametrize("kind", [pytest.param("classic", marks=pytest.mark.thorough), "quorum"])
def test_a_query_waits_until_the_broker_has_memory_again(
    rabbitmq: RabbitMQNode, spark: SparkSession, tmp_path: Path, kind: Kind
) -> None:
    node = rabbitmq
    with ExitStack() as stack:
        stack.callback(node.set_memory_alarm, False)
        place = Place(node, kind, stack)
        source, target = place.queue(), place.queue()
        put(place.client, source, *numbers(300))
        sink = AmqpBatchSink(login(node, protocol="0-9-1", routingKey=target))
        blocked: list[str] = []

        def relieve() -> None:
            try:
                states = "rabbit_networking:connection_info_all([state])"
                wait_until(lambda: "blocked" in node.evaluate(states), "the connection of the sink to be blocked")
                blocked.append(node.evaluate(states))
            finally:
                node.set_memory_alarm(False)

        def publish(rows: DataFrame, batch: int) -> None:
            relief = threading.Thread(target=relieve)
            if batch == 1:
                node.set_memory_alarm(True)
                relief.start()
            sink(rows, batch)
            if batch == 1:
                relief.join()

        stream = Stream(spark, node, tmp_path)
        frame = stream.frame(source, "body BINARY", protocol="0-9-1", maxMessagesPerTrigger=100)
        stream.drain(frame, publish)
        assert len(blocked) == 1
        assert "blocking" in blocked[0], "the source does not publish, and receives"
        assert (sink.total.messages, sink.total.retries, sink.total.resent) == (300, 0, 0)
        assert [message.body for message in place.received(target, 300)] == numbers(300)
        wait_until(lambda: place.count(source) == 0, "the messages of the source are accepted")
