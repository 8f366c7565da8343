"""``writeStream.foreachBatch(AmqpBatchSink(...))``: publishes each micro-batch from inside a function of the user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from amqp_spark import crashpoints
from amqp_spark.options import SinkOptions
from amqp_spark.sink.encoding.messages import MessagePlan
from amqp_spark.sink.statistics import Statistics
from amqp_spark.sink.writer import log_batch, place_of_task, publish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame

_COUNTS: Final = (
    "messages BIGINT, nbytes BIGINT, seconds DOUBLE, retries BIGINT, resent BIGINT, discarded BIGINT, started DOUBLE"
)


class AmqpBatchSink:
    """Publishes a micro-batch, at least once; for ``foreachBatch``, alone or among other things that are done there.

    Example::

        sink = AmqpBatchSink(url="amqp://broker/default", username="guest", passwordFile="/run/secrets/amqp",
                             exchange="amq.topic")
        query = frame.writeStream.foreachBatch(sink).option("checkpointLocation", ...).start()

    Compared with ``writeStream.format("amqp")`` it starts no process to plan a batch, and its counts can be read:

    Attributes:
        last: what the last batch has published.
        total: what all batches of this object have published.

    Parameters:
        options: those of the sink (``docs/options.md``), for names that are no Python names: ``{"retry.maxDelay": 5}``.
        on_batch: called with the batch id and the statistics after each batch, for a display; it runs where the
            batches run.
        more: options of the sink, too.

    Raises:
        OptionError: with every problem of the options.
    """

    def __init__(
        self,
        options: Mapping[str, object] | None = None,
        /,
        *,
        on_batch: Callable[[int, Statistics], None] | None = None,
        **more: object,
    ) -> None:
        self._options = SinkOptions.parse({**(options or {}), **more})
        self._on_batch = on_batch
        self.last = Statistics()
        self.total = Statistics()

    def __repr__(self) -> str:
        return f"AmqpBatchSink(url={self._options.url!r}, exchange={self._options.exchange!r})"

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Publish every row of a frame and return when the broker has completed all of them.

        Parameters:
            frame: static, as ``foreachBatch`` gives it.
            batch_id: for the log, and for ``stampHeaders``.

        Raises:
            SchemaError: with every column that cannot be sent, before any task runs.
            pyspark.errors.PythonException: a task failed as often as Spark lets it; the text holds the error.
        """
        plan = MessagePlan.build(frame.schema, self._options)
        rows = frame.mapInArrow(_Task(plan, self._options, batch_id), _COUNTS).collect()
        crashpoints.reached(crashpoints.MESSAGE_RETURNED)
        self.last = sum((Statistics(**row.asDict()) for row in rows), Statistics())
        self.total += self.last
        log_batch(self.last, batch_id)
        if self._on_batch is not None:
            self._on_batch(batch_id, self.last)


class _Task:
    """The function of ``mapInArrow``: rows in, one row of counts out."""

    def __init__(self, plan: MessagePlan, options: SinkOptions, batch_id: int) -> None:
        self._plan = plan
        self._options = options
        self._batch_id = batch_id

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        statistics = publish(self._plan, self._options, place_of_task(self._batch_id), batches)
        counts: dict[str, list[Any]] = {
            name: [getattr(statistics, name)]
            for name in ("messages", "nbytes", "seconds", "retries", "resent", "discarded", "started")
        }
        yield pa.RecordBatch.from_pydict(counts)
