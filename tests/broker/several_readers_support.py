"""Three queues of a broker, and readers of them with several processes; without Spark."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, cast

import psutil

from amqp_spark.connect import connect as connector
from amqp_spark.datasource.divided_stream import DividedStream, _Reader
from amqp_spark.datasource.stream_reader import AmqpStreamReader
from amqp_spark.options import SourceOptions
from tests.broker.sink_support import login
from tests.broker.stream_support import depth
from tests.spark.reader_support import BodyPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_core.v0_10.client import Client
    from amqp_spark.arrow.decode import ColumnPlan
    from tests.spark.driver import Driver, Row
    from tests.support.fixtures import Broker


class Place:
    """Three queues on the broker, and readers of them."""

    def __init__(self, broker: Broker, client: Client) -> None:
        self.broker = broker
        self.client = client
        run = uuid.uuid4().hex[:8]
        self.queues = [f"readers-{run}-{name}" for name in "abc"]
        for queue in self.queues:
            client.declare_queue(queue)
        self.made: list[AmqpStreamReader] = []

    @property
    def options(self) -> dict[str, str]:
        """Those of a query over the three queues with two processes."""
        return login(self.broker, queue=",".join(self.queues), numReaders=2)

    def reader(self, **options: Any) -> AmqpStreamReader:
        """A reader with these options and others."""
        plan = cast("ColumnPlan", BodyPlan())
        self.made.append(AmqpStreamReader(SourceOptions.parse(self.options | options), plan, connector=connector))
        return self.made[-1]

    def close(self) -> None:
        """Stop what runs."""
        for reader in self.made:
            reader.stop()
        for queue in self.queues:
            self.client.delete_queue(queue)

    def left(self) -> int:
        """Messages on the broker."""
        return sum(depth(self.client, queue) for queue in self.queues)


def readers_of(reader: AmqpStreamReader) -> list[_Reader]:
    """What the first process has of the further ones, in the order of their queues."""
    stream = reader._stream
    assert isinstance(stream, DividedStream)
    return stream._readers


def processes(reader: AmqpStreamReader) -> list[psutil.Process]:
    """The processes that receive, in that order."""
    return [psutil.Process(each._process.pid) for each in readers_of(reader)]


def all_rows(driver: Driver) -> list[Row]:
    """The rows of all batches."""
    return [row for batch in driver.batches for row in batch]


def of_queue(rows: Sequence[Row], queue: str) -> list[bytes]:
    """The bodies of a queue, by position."""
    return [body for _position, body in sorted((row[1], row[2]) for row in rows if row[0] == queue)]
