"""Rows that say which they are, written over connections that fail; and what of them is in the queue afterwards."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from amqp_core.v0_10 import spec
from amqp_spark.sink import AmqpBatchSink
from tests.broker.stream_support import depth
from tests.support.taking import bodies
from tests.support.triggers import Frame, Trigger, frame, operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from amqp_core.v0_10.client import Client
    from tests.support.fixtures import Broker

BODY = "CAST(id AS STRING) AS body"


def rows(spark: SparkSession, count: int, *, partitions: int = 1, size: int = 0) -> DataFrame:
    """Rows 0 to ``count``: a number as the body, padded by blanks to at least ``size`` bytes."""
    body = BODY if not size else f"lpad(CAST(id AS STRING), {size}, ' ') AS body"
    return spark.range(0, count, 1, partitions).selectExpr(body)


def put_file(directory: Path, begin: int, end: int) -> None:
    """One more Parquet file with rows ``begin`` to ``end`` for a stream of files; each file is one partition."""
    directory.mkdir(parents=True, exist_ok=True)
    part = directory / f".{begin:09d}.part"
    pq.write_table(pa.table({"id": pa.array(range(begin, end), pa.int64())}), part)
    part.rename(directory / f"{begin:09d}.parquet")


def first_rows_and_then(until: Path, then: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow``: passes five batches on; when the file is there, raises ``then``, or goes on if it is empty.

    The last of them stay in buffers of Spark.
    """

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in range(5):
            yield next(batches)
        deadline = time.monotonic() + 60
        while not until.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        if then:
            raise RuntimeError(then)
        yield from batches

    return pass_on


def taken(client: Client, queue: str) -> Counter[int]:
    """Empty a queue; how often each row was in it."""
    count = depth(client, queue)
    if not count:
        return Counter()
    subscription = client.subscribe(queue, accept=False)
    subscription.grant(count)
    found = Counter(map(int, bodies(subscription, count)))
    subscription.cancel()
    return found


def duplicates(found: Counter[int], count: int) -> int:
    """How many of rows 0 to ``count`` came once more than they should; fails unless each came at all, and no other."""
    missing = sorted(set(range(count)) - set(found))
    strange = sorted(set(found) - set(range(count)))
    assert not missing, f"{len(missing)} of {count} rows are lost, the first is {missing[0]}"
    assert not strange, f"{len(strange)} rows were never written, the first is {strange[0]}"
    return found.total() - count


@dataclass(frozen=True)
class Target:
    """A queue to publish to, through the default exchange."""

    broker: Broker
    queue: str
    vhost: str = "default"

    def options(self, **options: Any) -> dict[str, str]:
        """Those of the sink; ``__`` in a keyword stands for a dot."""
        given: dict[str, Any] = {
            "url": self.broker.url(self.vhost),
            "username": self.broker.username,
            "password": self.broker.password,
            "routingKey": self.queue,
            "retry.maxDelay": "0.2",
        }
        given |= {key.replace("__", "."): value for key, value in options.items()}
        return {key: str(value) for key, value in given.items()}

    def sink(self, **options: Any) -> AmqpBatchSink:
        """The sink for ``foreachBatch``, which takes static frames as well."""
        given: dict[str, Any] = {**self.options(**options)}
        return AmqpBatchSink(**given)


def transfer(nth: int = 1, *, past: bool = False, inside: int = 0) -> Trigger:
    """At the frame of the command of the ``nth`` transfer on a connection."""
    return operation(spec.MessageTransfer.CODE, nth=nth, past=past, inside=inside)


def body_frame(nth: int = 1, *, past: bool = False, inside: int = 0) -> Trigger:
    """At the ``nth`` frame with a piece of a body."""
    return frame(lambda found: found.kind == spec.SegmentType.BODY, nth=nth, past=past, inside=inside)


def sync(nth: int = 1, *, past: bool = False, inside: int = 0) -> Trigger:
    """At the ``nth`` execution.sync."""
    return operation(spec.ExecutionSync.CODE, nth=nth, past=past, inside=inside)


def completion_of(command_id: int) -> Trigger:
    """Before the session.completed that says it of this command and all before it."""

    def wanted(found: Frame) -> bool:
        return found.code == spec.SessionCompleted.CODE and int.from_bytes(found.payload[-4:]) >= command_id

    return frame(wanted)
