"""Streams of RabbitMQ, and readers of them."""

from __future__ import annotations

from typing import Any

from pyspark.sql import types as t

from amqp_spark.arrow.decode import ColumnPlan
from amqp_spark.connect import connect
from amqp_spark.datasource.log.batch_reader import AmqpLogBatchReader
from amqp_spark.datasource.log.stream_reader import AmqpLogStreamReader
from amqp_spark.options import SourceOptions
from tests.broker.source_0_9_support import Place
from tests.spark.driver import Driver

SCHEMA = t.StructType(
    [
        t.StructField("stream", t.StringType()),
        t.StructField("offset", t.LongType()),
        t.StructField("body", t.BinaryType()),
        t.StructField("position", t.LongType()),
    ]
)


def log_plan(schema: t.StructType = SCHEMA) -> ColumnPlan:
    """The plan of columns of a stream."""
    return ColumnPlan.build(schema, mode="FAILFAST", timestamp_unit="auto")


class Streams(Place):
    """A place whose queues are streams."""

    def __init__(self, address: str, username: str, password: str) -> None:
        super().__init__(address, username, password, "stream")
        self.made: list[Any] = []

    def options(self, **given: Any) -> SourceOptions:
        fixed = {"url": self.address, "username": self.username, "password": self.password, "retry.maxDelay": 0.1}
        fixed |= {"queue": self.queue, "queueType": "stream", "startingOffsets": "earliest"}
        return SourceOptions.parse(fixed | {key.replace("__", "."): str(value) for key, value in given.items()})

    def plan(self, schema: t.StructType = SCHEMA) -> ColumnPlan:
        return log_plan(schema)

    def log_driver(self, checkpoint: Driver | None = None, *, available_now: bool = False, **given: Any) -> Driver:
        reader: Any = AmqpLogStreamReader(self.options(**given), self.plan(), connector=connect)
        self.made.append(reader)
        driver = Driver(reader, checkpoint, available_now=available_now)
        if checkpoint is None:
            assert driver.trigger() == [], "the first batch says where the query begins"
            driver.batches.clear()
        return driver

    def read(self, **given: Any) -> list[tuple[str, int, bytes]]:
        """All rows of a batch read."""
        reader = AmqpLogBatchReader(self.options(**given), self.plan(), connector=connect)
        rows: list[tuple[str, int, bytes]] = []
        for partition in reader.partitions():
            for batch in reader.read(partition):
                rows += zip(*(batch.column(number).to_pylist() for number in range(3)), strict=True)
        return rows

    def remade(self) -> None:
        """Delete the stream and make it again."""
        with self.connect() as client:
            client.delete_queue(self.queue)
        self.declare()

    def close(self, *others: str) -> None:
        for reader in self.made:
            reader.stop()
        super().close(*others)
