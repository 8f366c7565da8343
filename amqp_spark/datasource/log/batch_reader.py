"""``spark.read.format("amqp")`` with ``queueType=stream``: a range of each log, exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader

from amqp_spark.connect import connect
from amqp_spark.datasource.log.broker import LogBroker
from amqp_spark.datasource.log.planner import LogRange, cut
from amqp_spark.datasource.log.positions import marked, resolve
from amqp_spark.datasource.log.range_reader import LogPartition, RangeReader, partition_of
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import LogError
from amqp_spark.options.log_positions import Edge, position_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from amqp_spark.arrow.decode import ColumnPlan
    from amqp_spark.connect import Connector
    from amqp_spark.datasource.log.offsets import LogOffset
    from amqp_spark.datasource.log.probe import LogProbe
    from amqp_spark.options import SourceOptions


class AmqpLogBatchReader(DataSourceReader):
    """Reads from ``startingOffsets`` (default: earliest) to ``endingOffsets`` (default: what is there now)."""

    def __init__(self, options: SourceOptions, columns: ColumnPlan, *, connector: Connector = connect) -> None:
        self._options = options
        self._columns = columns
        self._connector = connector

    def __repr__(self) -> str:
        return f"AmqpLogBatchReader(streams={', '.join(self._options.queues)})"

    def partitions(self) -> list[LogPartition]:
        """The ranges, each for one task.

        Raises:
            LogError: an offset is outside of its stream, or a queue is no stream.
        """
        broker = LogBroker(self._options, self._connector)
        try:
            ranges, ends = broker.ask(self._planned)
        finally:
            broker.close()
        pieces = [piece for each in ranges if each.messages for piece in cut(each, self._options.num_partitions)]
        # An empty one, if there is no other: in place of none, Spark would have one of its own read.
        return [partition_of(each, ends[each.log]) for each in pieces or ranges[:1]]

    def _planned(self, probe: LogProbe) -> tuple[list[LogRange], dict[str, LogOffset]]:
        """The ranges, and their ends, by which tasks notice that a log was made again."""
        ranges = [self._range(probe, log) for log in self._options.queues]
        return ranges, {each.log: marked(probe, each.log, each.end) for each in ranges}

    def _range(self, probe: LogProbe, log: str) -> LogRange:
        options = self._options
        begin = resolve(probe, log, position_of(options.starting_offsets, log, Edge.EARLIEST), "startingOffsets")
        end = resolve(probe, log, position_of(options.ending_offsets, log, Edge.LATEST), "endingOffsets")
        if end < begin:
            raise LogError(SparkCondition.LOG_RANGE_REVERSED(stream=log, begin=begin, end=end))
        return LogRange(log, begin, end)

    def read(self, partition: LogPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The rows of a range."""
        yield from RangeReader(partition, self._options, self._columns, self._connector).batches()
