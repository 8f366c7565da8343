"""A task of the sink with at-least-once against the scripted broker, and its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StructType

from amqp_spark.arrow.encode import MessagePlan, TaskId
from amqp_spark.options import SinkOptions
from amqp_spark.sink.at_least_once import AtLeastOnce
from amqp_spark.sink.connections import Connections
from amqp_spark.sink.task_writer import TaskWriter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqp_spark.sink.statistics import Statistics
    from tests.support.fake_broker import FakeBroker

PLAIN = StructType().add("body", "string").add("routing_key", "string")
ROUTED = StructType().add("body", "string").add("routing_key", "string").add("exchange", "string")


def rows(count: int, begin: int = 0, **columns: list[str | None]) -> pa.RecordBatch:
    """A batch whose bodies say which row they are."""
    bodies = [f"row-{number:04}" for number in range(begin, begin + count)]
    arrays = {"body": pa.array(bodies), "routing_key": pa.array(["k"] * count)}
    arrays |= {name: pa.array(values, pa.string()) for name, values in columns.items()}
    return pa.RecordBatch.from_pydict(arrays)


class Task:
    """One task against a broker, with the waits that it made."""

    def __init__(
        self,
        broker: FakeBroker,
        dotted: dict[str, object] | None = None,
        *,
        schema: StructType = PLAIN,
        **options: object,
    ) -> None:
        self.broker = broker
        given = {"url": "amqp://broker", "exchange": "amq.direct"} | options | (dotted or {})
        self.options = SinkOptions.parse(given)
        self.plan = MessagePlan.build(schema, self.options)
        self.pool = Connections(broker.connect)
        self.waits: list[float] = []

    def run(self, *batches: pa.RecordBatch) -> Statistics:
        return self.run_from(batches)

    def run_from(self, batches: Iterable[pa.RecordBatch]) -> Statistics:
        place = TaskId(None, 12, 3)
        policy = AtLeastOnce(self.options, place, connections=self.pool, sleep=self.waits.append)
        return TaskWriter(self.plan, policy).run(batches)

    @property
    def bodies(self) -> list[int]:
        return [int(frame[frame.rindex(b"row-") + 4 :][:4]) for frame in self.broker.taken]
