"""Exactly-once from a queue in a real Spark, on a real broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from amqp_spark.state.names import CONSUMER, Names
from amqp_spark.state.records import ConsumerState
from tests.broker.stream_support import Stream, depth, numbers, publish
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from amqp_core.v0_10.client import Client
    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.broker, pytest.mark.spark]

BODY = "body BINARY, position BIGINT, queue STRING"


class Consumer:
    """A consumerId on the broker, its spool, and a client to look with."""

    def __init__(self, connect: Connect, directory: Path, vhost: str) -> None:
        self.consumer_id = f"test {uuid4()}"
        self.spool = directory / "spool"
        self.vhost = vhost
        self._connect = connect
        self.client: Client = connect(vhost, heartbeat=0)

    def options(self, **more: Any) -> dict[str, Any]:
        return {
            "deliveryGuarantee": "exactly-once",
            "consumerId": self.consumer_id,
            "spoolLocation": str(self.spool),
            **more,
        }

    def files(self) -> list[str]:
        return sorted(path.name for path in self.spool.glob("*.spool"))

    def state(self, index: int = 0) -> ConsumerState:
        """The state when no query holds it."""
        client = self._connect(self.vhost)
        subscription = client.subscribe(Names(CONSUMER, self.consumer_id, index).state)
        subscription.grant(1)
        message = subscription.take_one(timeout=30)
        assert message is not None
        assert message.command_id is not None
        client.release([(message.command_id, message.command_id)], sync=True)
        client.close()
        return ConsumerState.load(message.body)

    def forget(self) -> None:
        client = self._connect(self.vhost)
        for index in range(3):
            name = Names(CONSUMER, self.consumer_id, index).state
            if client.query_queue(name) is not None:
                client.delete_queue(name)


@pytest.fixture
def consumer(connect: Connect, tmp_path: Path) -> Iterator[Consumer]:
    consumer = Consumer(connect, tmp_path, "durable")
    yield consumer
    consumer.forget()


@pytest.fixture
def stream(spark: SparkSession, broker: Broker, tmp_path: Path) -> Stream:
    return Stream(spark, broker, tmp_path)


def frame(stream: Stream, consumer: Consumer, queue: str, **more: Any) -> DataFrame:
    return stream.frame(queue, BODY, vhost=consumer.vhost, **consumer.options(**more))


def test_several_batches_of_a_durable_queue(stream: Stream, consumer: Consumer, durable_queue: str) -> None:
    publish(consumer.client, durable_queue, numbers(5000), persistent=True)
    stream.drain(frame(stream, consumer, durable_queue, maxMessagesPerTrigger=1200))
    assert stream.bodies() == numbers(5000)
    assert len(stream.batches) == 5
    assert depth(consumer.client, durable_queue) == 0
    assert consumer.files() == []
    state = consumer.state()
    assert state.owned == ()
    assert state.finished is not None
    assert state.finished.position == 5000


def test_a_running_query_leaves_nothing_behind_when_it_is_idle(
    stream: Stream, consumer: Consumer, durable_queue: str
) -> None:
    query = stream.start(frame(stream, consumer, durable_queue))
    try:
        for begin in range(0, 3000, 1000):
            publish(consumer.client, durable_queue, numbers(1000, begin), persistent=True)
            wait_until(lambda begin=begin: len(stream.rows) >= begin + 1000, "rows", 60)  # type: ignore[misc]
        wait_until(lambda: not consumer.files(), "the files are deleted", 60)
        assert depth(consumer.client, durable_queue) == 0
    finally:
        query.stop()
    assert stream.bodies() == numbers(3000)
    assert consumer.state().owned == ()
