"""Calls of Spark for a streaming query, in the order of its engine, mapped to the receiver.

In the reader process on the driver: ``latestOffset(start)`` accepts everything up to ``start`` and plans the next
batch; ``partitions`` returns a planned range, identified by its end. On executors: ``read`` turns the bytes of a
partition into Arrow batches, as often as Spark asks, without broker I/O. The object is pickled in a planning process
and sent to the executors, so it opens nothing before the first call and is pickled without credentials.
"""

from __future__ import annotations

import shlex
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from amqp_spark import crashpoints
from amqp_spark.compat import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow
from amqp_spark.connect import connect
from amqp_spark.datasource.at_least_once import AtLeastOncePolicy
from amqp_spark.datasource.block_server import Endpoint, fetch, report_rejects
from amqp_spark.datasource.micro_batch_stream import MicroBatchStream
from amqp_spark.datasource.partitions import InlinePartition, PullPartition
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import MessageFormatError, UnsupportedModeError
from amqp_spark.offsets import dump_offsets, initial_offsets
from amqp_spark.options import AT_MOST_ONCE, EXACTLY_ONCE, REJECT
from amqp_spark.python_workers import spare_collections
from amqp_spark.state.names import CONSUMER, Names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from amqp_spark.arrow.decode import Chunk, ColumnPlan
    from amqp_spark.connect import Connector
    from amqp_spark.datasource.divided_stream import DividedStream
    from amqp_spark.datasource.micro_batch_stream import DeliveryPolicy
    from amqp_spark.datasource.partitions import Range, Slice
    from amqp_spark.options import SourceOptions


class AmqpStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one streaming query."""

    def __init__(self, options: SourceOptions, columns: ColumnPlan, *, connector: Connector = connect) -> None:
        self._options = options
        self._columns = columns
        self._connector = connector
        self._stream: MicroBatchStream | DividedStream | None = None

    def __repr__(self) -> str:
        return f"AmqpStreamReader(queues={', '.join(self._options.queues)})"

    def __getstate__(self) -> dict[str, object]:
        """State for executors: the decoding options, without credentials."""
        return {
            "_options": self._options.for_executors(),
            "_columns": self._columns,
            "_connector": None,
            "_stream": None,
        }

    # --- in the reader process

    def initialOffset(self) -> dict:  # type: ignore[type-arg]  # noqa: N802  Spark's name and type
        """The constant start of every query over these queues."""
        return dump_offsets(initial_offsets(self._options.queues))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """One of the two bounds that are enforced; Spark takes only one, for display."""
        if self._options.max_messages_per_trigger is not None:
            return ReadMaxRows(self._options.max_messages_per_trigger)
        return ReadMaxBytes(self._options.max_bytes_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read the messages that are there now, then end."""
        if self._stream is None:
            self._stream = self._new_stream(bounded=True)

    def latestOffset(self, start: dict, limit: ReadLimit) -> dict:  # type: ignore[type-arg]  # noqa: N802
        """Accept all up to ``start``, which is in Spark's commit log; then plan a batch, or offer the planned one."""
        if isinstance(limit, ReadAllAvailable):
            raise UnsupportedModeError(
                SparkCondition.MODE_UNSUPPORTED(
                    mode="Trigger.Once",
                    reason="it makes no call after its batch, so its messages could never be accepted",
                    alternative="Trigger.AvailableNow (availableNow=True)",
                )
            )
        return self._running().latest_offset(start)

    def partitions(self, start: dict, end: dict) -> Sequence[InputPartition]:  # type: ignore[type-arg]
        """Return the partitions of the batch that ends at ``end``.

        A range of an earlier run comes from the spool, or is empty, as the broker sends it again.
        """
        return self._running().partitions(start, end)

    def commit(self, end: dict) -> None:  # type: ignore[type-arg]
        """The same signal as ``latestOffset(end)``; idempotent."""
        if self._stream is not None:
            self._stream.commit(end)

    def reportLatestOffset(self) -> dict | None:  # type: ignore[type-arg]  # noqa: N802
        """Received positions and broker backlog, from memory; shown as ``sources[].latestOffset``."""
        return None if self._stream is None else self._stream.report()

    def stop(self) -> None:
        """Close cleanly; messages not accepted go back to the broker."""
        if self._stream is not None:
            self._stream.stop()
            self._stream = None

    def _running(self) -> MicroBatchStream | DividedStream:
        if self._stream is None:
            self._stream = self._new_stream(bounded=False)
        return self._stream

    def _new_stream(self, *, bounded: bool) -> MicroBatchStream | DividedStream:
        if self._options.readers > 1:
            from amqp_spark.datasource.divided_stream import DividedStream  # noqa: PLC0415  others do not pay for it

            return DividedStream(self._options, self._connector, bounded=bounded)
        policy: DeliveryPolicy
        if self._options.exactly_once:
            from amqp_spark.datasource.exactly_once.policy import ExactlyOncePolicy  # noqa: PLC0415  others do not pay for it

            policy = ExactlyOncePolicy(self._options, self._connector)
        else:
            policy = AtLeastOncePolicy(self._options, self._connector)
        return MicroBatchStream(self._options, policy, bounded=bounded)

    # --- on executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition; the same rows however often it is called."""
        crashpoints.reached(crashpoints.READ_STARTED)
        if isinstance(partition, PullPartition):
            for each in partition.ranges:
                chunks = fetch(partition.endpoint, queue=each.queue, epoch=each.epoch, begin=each.begin, end=each.end)
                yield from self._rows(chunks, each, partition.endpoint)
        elif isinstance(partition, InlinePartition):
            for part in partition.slices:
                yield from self._rows((part.chunk,), part, partition.endpoint)
        else:
            raise TypeError(f"a partition of another source: {type(partition).__name__}")
        spare_collections()

    def _rows(
        self, chunks: Iterable[Chunk], part: Slice | Range, endpoint: Endpoint | None
    ) -> Iterator[pa.RecordBatch]:
        on_reject = None
        if self._options.mode == REJECT and endpoint is not None:
            on_reject = partial(_report, endpoint, part.queue, part.epoch)
        protocol = "0-10"

        def noted() -> Iterator[Chunk]:
            nonlocal protocol
            for chunk in chunks:
                protocol = chunk.protocol
                yield chunk

        batches = self._columns.batches(
            noted(), queue=part.queue, first_position=part.begin, on_reject=on_reject, skipped=part.skipped
        )
        try:
            for batch in batches:
                yield batch
                crashpoints.reached(crashpoints.READ_MID)
        except MessageFormatError as error:
            raise error.with_advice(advice(self._options, error, part.epoch, protocol)) from None


def _report(endpoint: Endpoint, queue: str, epoch: int, positions: list[int], text: str) -> None:
    report_rejects(endpoint, queue=queue, epoch=epoch, positions=positions, text=text)


def advice(options: SourceOptions, error: MessageFormatError, epoch: int, protocol: str) -> str:
    """Text that continues the message of the error; ``epoch``: that of its position; ``protocol``: that over which the
    message came."""
    is_0_9 = protocol != "0-10"
    if options.delivery_guarantee == AT_MOST_ONCE:
        return "; a restarted query goes on behind the message, which was accepted when it was transferred"
    if options.delivery_guarantee == EXACTLY_ONCE:
        assert options.consumer_id is not None
        queue = shlex.quote(error.queue) if error.queue.isprintable() else "QUEUE"
        action = f"--queue {queue} --skip {epoch}:{error.position} --to FILE"
        tool = Names(CONSUMER, options.consumer_id).tool(action)
        where = ", with Broker-J only," if is_0_9 else ""
        return f", or{where} leave the message in the spool out while the query is stopped: {tool}"
    if is_0_9:
        return ", or, with RabbitMQ, with mode=REJECT (the queue's dead-letter exchange gets it)"
    return ", or with mode=REJECT (the queue's alternate exchange gets it)"
