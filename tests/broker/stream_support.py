"""Queries over the shared broker, for the tests of the source in a real Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from amqp_core.v0_10.messages import Message
from amqp_core.v0_10.spec import DeliveryProperties, MessageProperties

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from amqp_core.api import Client as AnyClient
    from amqp_core.v0_10.client import Client
    from tests.support.fixtures import Broker


def numbers(count: int, begin: int = 0) -> list[bytes]:
    """Bodies that say which message they are."""
    return [b"%08d" % number for number in range(begin, begin + count)]


def publish(
    client: Client,
    queue: str,
    bodies: Iterable[bytes],
    *,
    headers: dict[str, object] | None = None,
    persistent: bool = False,
) -> None:
    """Send bodies to a queue and wait until the broker has them."""
    delivery = DeliveryProperties(routing_key=queue, delivery_mode=2 if persistent else 1)
    properties = MessageProperties(application_headers=headers)
    for body in bodies:
        client.publish(Message(body, delivery, properties), routing_key=queue)
    client.confirm()


def depth(client: AnyClient, queue: str) -> int:
    """Number of messages by queue.query; Broker-J includes those that consumers hold."""
    found = client.query_queue(queue)
    assert found is not None
    return found.message_count or 0


def subscribers(client: AnyClient, queue: str) -> int:
    """Consumers of a queue."""
    found = client.query_queue(queue)
    assert found is not None
    return found.subscriber_count or 0


@dataclass
class Stream:
    """A query that collects its rows, batch by batch, over a checkpoint of its own."""

    spark: SparkSession
    broker: Broker
    directory: Path
    rows: list[Row] = field(default_factory=list)
    batches: dict[int, list[Row]] = field(default_factory=dict)

    def frame(self, queue: str, schema: str | None = None, *, vhost: str = "default", **options: Any) -> DataFrame:
        """``readStream`` with the options of the broker; ``__`` in a keyword stands for a dot."""
        given = {
            "url": self.broker.url(vhost),
            "username": self.broker.username,
            "password": self.broker.password,
            "queue": queue,
        }
        given |= {key.replace("__", "."): str(value) for key, value in options.items()}
        reader = self.spark.readStream.format("amqp").options(**given)
        return (reader if schema is None else reader.schema(schema)).load()

    def start(
        self,
        frame: DataFrame,
        each: Callable[[DataFrame, int], None] | None = None,
        **trigger: Any,
    ) -> StreamingQuery:
        """Start a query whose batches are collected (or handled by ``each``)."""
        writer = frame.writeStream.foreachBatch(each or self.collect)
        writer = writer.option("checkpointLocation", str(self.directory / "checkpoint"))
        return (writer.trigger(**trigger) if trigger else writer).start()

    def collect(self, frame: DataFrame, batch: int) -> None:
        """The default of ``each``."""
        rows = frame.collect()
        self.batches[batch] = rows
        self.rows += rows

    def drain(
        self, frame: DataFrame, each: Callable[[DataFrame, int], None] | None = None, timeout_s: int = 120
    ) -> StreamingQuery:
        """Run an AvailableNow query to its end."""
        query = self.start(frame, each, availableNow=True)
        try:
            assert query.awaitTermination(timeout_s), "the query did not end"
        finally:
            query.stop()
        return query

    def bodies(self) -> list[bytes]:
        """The ``body`` column of all rows so far."""
        return bodies(self.rows)


def is_drained(client: AnyClient, queue: str, count: int, *streams: Stream) -> bool:
    """Whether so many different bodies have come, and the queue is empty: not every broker counts what is held."""
    # the depth first: to look at the rows is a job of Spark, which takes the cores from the query
    return not depth(client, queue) and len({body for stream in streams for body in stream.bodies()}) >= count


def bodies(rows: Sequence[Row]) -> list[bytes]:
    """The ``body`` column."""
    return [bytes(row["body"]) for row in rows]
