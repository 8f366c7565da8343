"""``df.write`` and ``writeStream`` with ``format("amqp")``: every task publishes, the driver counts and logs.

The options travel to executors inside the pickled writer, with the credentials, since tasks connect to the broker; they
appear in no plan, log or ``repr``.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext

from amqp_spark import crashpoints
from amqp_spark.compat import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from amqp_spark.executor_env import spare_collections
from amqp_spark.pyfiles import Portable
from amqp_spark.sink.delivery import Delivery
from amqp_spark.sink.encoding.messages import Place
from amqp_spark.sink.statistics import Statistics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from amqp_spark.options import SinkOptions
    from amqp_spark.sink.encoding.messages import MessagePlan

LOGGER: Final = "amqp_spark.sink"
_log = logging.getLogger(LOGGER)


class Published(Portable, WriterCommitMessage):
    """What a task tells the driver: the broker has completed all of it."""

    def __init__(self, statistics: Statistics) -> None:
        self.statistics = statistics


class _Writer(Portable):
    """What both writers have in common."""

    def __init__(self, options: SinkOptions, plan: MessagePlan) -> None:
        self._options = options
        self._plan = plan

    def __repr__(self) -> str:
        return f"{type(self).__name__}(exchange={self._options.exchange!r})"

    def _publish(self, batches: Iterable[pa.RecordBatch]) -> Published:
        place = place_of_task(self._options.batch_id)
        return Published(publish(self._plan, self._options, place, batches))


class AmqpBatchWriter(_Writer, DataSourceArrowWriter):
    """Writes a static frame."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:  # type: ignore[override]
        """Publish the rows of one task; see :meth:`Delivery.run` for the errors."""
        return self._publish(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log one line: everything is published."""
        crashpoints.reached(crashpoints.MESSAGE_RETURNED)
        log_batch(total(messages), self._options.batch_id)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log one line: what was published stays published."""
        log_abort(messages, self._options.batch_id)


class AmqpStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:  # type: ignore[override]
        """Publish the rows of one task; see :meth:`Delivery.run` for the errors."""
        return self._publish(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """Log one line: the batch is published; Spark writes its commit log after this."""
        crashpoints.reached(crashpoints.MESSAGE_RETURNED)
        log_batch(total(messages), batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log one line: what was published stays published."""
        log_abort(messages, batchId)


def publish(plan: MessagePlan, options: SinkOptions, place: Place, batches: Iterable[pa.RecordBatch]) -> Statistics:
    """What a task does, in each of the three ways to write."""
    statistics = Delivery(plan, options, place).run(batches)
    spare_collections()
    return statistics


def place_of_task(batch_id: int | None = None, query_id: str | None = None) -> Place:
    """Which task this is, by what Spark tells its Python worker.

    Parameters:
        batch_id, query_id: for what is no streaming query, or what tells it otherwise.
    """
    context = TaskContext.get()
    if context is None:
        return Place(query_id, batch_id, 0)
    query_id = query_id or context.getLocalProperty("sql.streaming.queryId")
    streamed = context.getLocalProperty("streaming.sql.batchId")
    if batch_id is None and streamed is not None:
        batch_id = int(streamed)
    return Place(query_id, batch_id, context.partitionId())


def total(messages: Iterable[WriterCommitMessage | None]) -> Statistics:
    """The sum of what tasks returned; ``None`` stands for one that failed."""
    published = [message.statistics for message in messages if isinstance(message, Published)]
    return sum(published, Statistics())


def log_batch(statistics: Statistics, batch_id: int | None) -> None:
    """One line in the driver's log for everything that a batch has published."""
    _be_heard()
    _log.info("%s: %s", _name(batch_id), statistics)


def log_abort(messages: Sequence[WriterCommitMessage | None], batch_id: int | None) -> None:
    """One line for a batch that failed."""
    _be_heard()
    done = sum(isinstance(message, Published) for message in messages)
    _log.warning(
        "%s: failed; %d of %d tasks had published %s; what is published stays published, and comes twice if the "
        "batch is run again",
        _name(batch_id), done, len(messages), total(messages),
    )  # fmt: skip


def _name(batch_id: int | None) -> str:
    return "batch write" if batch_id is None else f"batch {batch_id}"


def _be_heard() -> None:
    """In a Python worker of Spark, where nobody has configured logging: let the line reach the driver's stderr.

    Spark calls ``commit`` in a worker beside the driver. Processes of users configure their logging themselves.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is None or not spec.name.startswith("pyspark."):
        return
    if not _log.handlers and not _log.isEnabledFor(logging.INFO) and sys.__stderr__ is not None:
        handler = logging.StreamHandler(sys.__stderr__)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        _log.addHandler(handler)
        _log.setLevel(logging.INFO)
        _log.propagate = False  # the handler of last resort would say warnings twice
