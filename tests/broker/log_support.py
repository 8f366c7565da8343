"""Streams of RabbitMQ, and readers of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as t

from amqp_spark.arrow.decode import ColumnPlan
from amqp_spark.connect import connect
from amqp_spark.datasource.log.batch_reader import AmqpLogBatchReader
from amqp_spark.datasource.log.positions import first_of
from amqp_spark.datasource.log.probe import LogProbe
from amqp_spark.datasource.log.stream_reader import AmqpLogStreamReader
from amqp_spark.options import SourceOptions
from tests.broker.source_0_9_support import Place
from tests.spark.driver import Driver
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from tests.support.query_process import Query, QueryProcess

SCHEMA = t.StructType(
    [
        t.StructField("stream", t.StringType()),
        t.StructField("offset", t.LongType()),
        t.StructField("body", t.BinaryType()),
        t.StructField("position", t.LongType()),
    ]
)

_FORGETFUL: dict[str, object] = {"x-max-length-bytes": 200_000, "x-stream-max-segment-size-bytes": 50_000}


def log_plan(schema: t.StructType = SCHEMA) -> ColumnPlan:
    """The plan of columns of a stream."""
    return ColumnPlan.build(schema, mode="FAILFAST", timestamp_unit="auto")


def offsets_of(rows: Iterable[Any]) -> list[int]:
    """The offsets of rows."""
    return [row[1] for row in rows]


def bodies_of(rows: Iterable[Any]) -> list[bytes]:
    """The bodies of rows."""
    return [row[2] for row in rows]


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

    def make_forgetful(self) -> None:
        """Make the stream again, such that it removes old messages soon."""
        with self.connect() as client:
            client.delete_queue(self.queue)
            client.declare_queue(self.queue, durable=True, arguments={"x-queue-type": "stream", **_FORGETFUL})

    def forget(self) -> int:
        """Publish until the stream has removed its first messages; return its first offset."""
        for _ in range(40):
            self.publish([bytes(5000)] * 40)
        wait_until(lambda: self.first() > 50, "old segments are removed")
        found = -1
        while found != (found := self.first()):  # it may still be removing some
            time.sleep(0.5)
        return found

    def first(self) -> int:
        """The first offset of the stream."""
        with self.connect() as client:
            return first_of(LogProbe(client), self.queue)

    def close(self, *others: str) -> None:
        for reader in self.made:
            reader.stop()
        super().close(*others)


def judge(each: Query, expected: dict[str, list[bytes]], before: dict[int, pa.Table]) -> None:
    """Every message is there once, in order; batches that were written before have the same rows."""
    found: dict[str, list[tuple[int, bytes]]] = {}
    for row in each.rows():
        found.setdefault(row["stream"], []).append((row["offset"], row["body"].encode()))
    assert {log: sorted(rows) for log, rows in found.items()} == {
        log: list(enumerate(bodies)) for log, bodies in expected.items()
    }
    for batch, table in before.items():
        assert each.tables()[batch].equals(table), f"batch {batch} has other rows than before"


def replayed(driver: QueryProcess, each: Query, expected: dict[str, list[bytes]]) -> None:
    """The last batch of a query that has ended is written again, byte for byte, when its commit is not in the log."""
    before = each.tables()
    last = each.checkpoint / "commits" / str(max(before))
    for path in (last, last.with_name(f".{last.name}.crc")):
        path.unlink(missing_ok=True)
    (each.sink / f"{last.name}.parquet").unlink()
    driver.drain([each])
    judge(each, expected, before)
