"""``spark.read.format("amqp")``: browse the messages that the queues hold now, without consuming them.

One task per queue browses it with a connection of its own (acquire-mode not-acquired, accept-mode none), so the
options travel to executors with the credentials inside the pickled reader; they appear in no plan, log or ``repr``.
Memory is bounded: transfers stream through in rounds of credit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from amqp_core.errors import NotFound
from amqp_spark.arrow.decode import Chunk
from amqp_spark.connect import connect, require, require_for_option
from amqp_spark.datasource.credit import CreditWindow
from amqp_spark.datasource.kept_alive import KeptAlive
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import UnsupportedModeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from amqp_core.api import Block, Client, Subscription
    from amqp_spark.arrow.decode import ColumnPlan
    from amqp_spark.connect import Connector
    from amqp_spark.options import SourceOptions

QUIET_SECONDS: Final = 0.1
EMPTY_ROUNDS: Final = 2
"""Consecutive empty answers that prove the end: Broker-J may end one early while others consume from the queue."""
ROUND_BYTES: Final = 16 << 20
"""Bytes of transfers that a browser requests before it decodes those received."""


@dataclass(frozen=True)
class BrowsePartition(InputPartition):
    """Browse at most ``count`` messages of a queue; None: the broker does not report the count."""

    queue: str
    count: int | None

    value = None


class AmqpBatchReader(DataSourceReader):
    """Reads at most the messages that are in the queues when the query is planned."""

    def __init__(self, options: SourceOptions, columns: ColumnPlan, *, connector: Connector = connect) -> None:
        self._options = options
        self._columns = columns
        self._connector = connector

    def __repr__(self) -> str:
        return f"AmqpBatchReader(queues={', '.join(self._options.queues)})"

    def partitions(self) -> list[BrowsePartition]:
        """One per queue. Queries the message count of each queue, so a missing queue is reported here.

        Raises UnsupportedModeError if the broker lacks a capability that browsing needs.
        """
        client = self._connector(self._options.connect_options())
        try:
            if not client.capabilities.browse:
                raise UnsupportedModeError(
                    SparkCondition.MODE_UNSUPPORTED(
                        mode="A batch read",
                        reason=f"with AMQP {client.protocol} messages cannot be read without being consumed",
                        alternative="readStream with Trigger.AvailableNow, or protocol=0-10 where the broker speaks it",
                    )
                )
            require(client, "A batch read", "credit")
            if self._options.selector is not None:
                allowed = "no selector; filter the rows in Spark"
                require_for_option(client, "selector", self._options.selector, "selectors", allowed)
            return [BrowsePartition(queue, _count(client, queue, self._options)) for queue in self._options.queues]
        finally:
            client.close()

    def read(self, partition: BrowsePartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The rows of a queue. Each call browses again: a queue is not a log, so the rows may differ."""
        client = self._connector(self._options.connect_options())
        try:
            subscription = client.subscribe(
                partition.queue, accept=False, acquire=False, exclusive=False, selector=self._options.selector
            )
            position = 0
            with KeptAlive(client) as kept:
                for blocks in _browse(subscription, partition.count):
                    chunks = [Chunk.of(block.frames, block.ends, protocol=client.protocol) for block in blocks]
                    for batch in self._columns.batches(chunks, queue=partition.queue, first_position=position):
                        with kept.rest():  # Spark may work on it for long
                            yield batch
                    position += sum(len(block.ends) for block in blocks)
        finally:
            client.close()


def _count(client: Client, queue: str, options: SourceOptions) -> int | None:
    info = client.query_queue(queue)
    if info is None:
        text = SparkCondition.QUEUE_NOT_FOUND(queue=queue, vhost=options.virtual_host or "(default)", alternative="")
        raise NotFound(404, None, text, "queue.query")
    return info.message_count


def _browse(subscription: Subscription, count: int | None) -> Iterator[Sequence[Block]]:
    """Grant credit in rounds until the count is reached or probes show the end of the queue."""
    left = count
    window = CreditWindow()
    empty = 0
    while (left is None or left > 0) and empty < EMPTY_ROUNDS:
        credit = max(1, window.wanted(ROUND_BYTES))
        if left is not None:
            credit = min(credit, left)
        subscription.renew(credit, ROUND_BYTES)
        blocks = subscription.take_blocks(QUIET_SECONDS)
        if not blocks:
            subscription.probe()
            blocks = subscription.take_blocks(0)
        empty = 0 if blocks else empty + 1
        while blocks:
            for block in blocks:
                window.arrived(len(block.ends), block.largest)
            if left is not None:
                left -= sum(len(block.ends) for block in blocks)
            yield blocks
            blocks = subscription.take_blocks(QUIET_SECONDS) if subscription.credit > 0 else ()
