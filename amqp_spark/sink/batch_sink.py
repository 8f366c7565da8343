"""``writeStream.foreachBatch(AmqpBatchSink(...))``: publishes each micro-batch from inside a user function."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from amqp_spark import crashpoints
from amqp_spark.arrow.encode import MessagePlan
from amqp_spark.arrow.without_pandas import from_numpy, single
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import UnsupportedModeError
from amqp_spark.options import SinkOptions
from amqp_spark.sink.errors import MOST_TASKS, too_many_tasks
from amqp_spark.sink.prepared_transactions import PreparedBranch
from amqp_spark.sink.reports import report_batch
from amqp_spark.sink.statistics import Statistics, log_batch
from amqp_spark.sink.writer import REPEATED, current_task_id, decide, fates, publish, published, undo
from amqp_spark.state.xids import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame

_COUNTS: Final = (
    "messages BIGINT, nbytes BIGINT, seconds DOUBLE, retries BIGINT, resent BIGINT, discarded BIGINT, started DOUBLE"
)
_NAMES: Final = tuple(column.split()[0] for column in _COUNTS.split(", "))
_PREPARED: Final = "query_id STRING, batch BIGINT, partition INT, xid STRING, rows BIGINT, digest STRING"
"""Columns that a task adds with exactly-once."""


class AmqpBatchSink:
    """Publishes a micro-batch; for ``foreachBatch``, alone or combined with other work in the same function.

    Not thread-safe: Spark calls it for one batch of a query at a time. Each query needs an object of its own.

    Example::

        sink = AmqpBatchSink(url="amqp://broker/default", username="guest", passwordFile="/run/secrets/amqp",
                             exchange="amq.topic")
        query = frame.writeStream.foreachBatch(sink).option("checkpointLocation", ...).start()

    With ``deliveryGuarantee="exactly-once"`` (and a ``transactionalId``) each batch id is published once, however often
    the sink is called with it; the rows must be the same each time.

    Unlike ``writeStream.format("amqp")`` it starts no process to plan a batch, and its counts can be read:

    Attributes:
        last: statistics of the last batch; zeros if it had been published before (exactly-once).
        total: statistics of all batches published by this object.

    Args:
        options: sink options (``docs/options.md``) whose names are not Python names: ``{"retry.maxDelay": 5}``.
        on_batch: called with the batch id and the statistics after each batch, for example for a display; it runs in
            the process that runs the batch function.
        more: further sink options.

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
        """Publish every row of a frame; return when the broker has completed all of them.

        Args:
            frame: static, as ``foreachBatch`` passes it.
            batch_id: for the log, and for ``stampHeaders``.

        Raises:
            SchemaError: with every column that cannot be sent, before any task runs.
            pyspark.errors.PythonException: a task failed as often as Spark permits; the text holds the error.
            StateError, AmqpError: with exactly-once, the batch must not or cannot be committed.
            UnsupportedModeError: with exactly-once, outside the ``foreachBatch`` of a streaming query.
        """
        plan = MessagePlan.build(frame.schema, self._options)
        query_id, schema = _query_of(frame), _COUNTS
        if self._options.exactly_once:
            if query_id is None:
                raise UnsupportedModeError(SparkCondition.QUERY_UNKNOWN())
            schema = f"{_COUNTS}, {_PREPARED}"
        run = Run.new()
        counted = frame.mapInArrow(_Task(plan, self._options, batch_id, run), schema)
        tasks: list[PreparedBranch] = []
        if not self._options.exactly_once:
            rows, note = _collected(counted), ""
        else:
            assert query_id is not None
            rows, tasks, note = self._exactly_once(counted, query_id, batch_id, run)
        sent = sum((Statistics(**{name: row[name] for name in _NAMES}) for row in rows), Statistics())
        self.last = published(sent, note)
        self.total += self.last
        log_batch(sent, batch_id, note)
        report_batch(query_id, batch_id, self.last, fates(tasks, note))
        if self._on_batch is not None:
            self._on_batch(batch_id, self.last)

    def _exactly_once(
        self, counted: DataFrame, query_id: str, batch_id: int, run: Run
    ) -> tuple[list[dict[str, Any]], list[PreparedBranch], str]:
        """Run the tasks and decide. On any failure, leave none of their branches undecided on the broker."""
        from amqp_spark.sink.commit_coordinator import CommitCoordinator  # noqa: PLC0415 - nothing that other guarantees need

        if CommitCoordinator(self._options).has_few_tasks() and (count := _number_of_tasks(counted)) > MOST_TASKS:
            raise too_many_tasks(batch_id, count)
        tasks: list[PreparedBranch] = []
        try:
            rows = _collected(counted)
            names = [field.name for field in fields(PreparedBranch)]
            tasks = [PreparedBranch(**{name: row[name] for name in names}) for row in rows]
            # a frame without partitions may be a repetition of a decided batch
            decided = tasks or [PreparedBranch(query_id, batch_id, 0)]
            return rows, tasks, decide(self._options, decided, batch_id, alone=True)
        except BaseException:
            undo(self._options, tasks, batch_id, query_id=query_id, run=run)
            report_batch(query_id, batch_id, Statistics(), fates(tasks, REPEATED), failed=True)
            raise


def _number_of_tasks(counted: DataFrame) -> int:
    """Number of tasks; if only a shuffle decides it, this runs the shuffle, and ``collect`` reuses its output."""
    execution = getattr(counted, "_jdf").queryExecution()  # noqa: B009 - not with Spark Connect, which is refused above
    return int(execution.toRdd().getNumPartitions())


def _collected(counted: DataFrame) -> list[dict[str, Any]]:
    rows = [row.asDict() for row in counted.collect()]
    crashpoints.reached(crashpoints.MESSAGE_RETURNED)
    return rows


def _query_of(frame: DataFrame) -> str | None:
    """The id of the query whose batch this is; ``None``: it is none, or that cannot be told (Spark Connect)."""
    context = getattr(getattr(frame, "sparkSession", None), "sparkContext", None)  # None with Spark Connect
    return None if context is None else context.getLocalProperty("sql.streaming.queryId")


class _Task:
    """The function of ``mapInArrow``: rows in, one row of counts out."""

    def __init__(self, plan: MessagePlan, options: SinkOptions, batch_id: int, run: Run) -> None:
        self._plan = plan
        self._options = options
        self._batch_id = batch_id
        self._run = run

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task_id = current_task_id(self._batch_id)
        statistics, prepared = publish(self._plan, self._options, task_id, batches, run=self._run)
        counts: dict[str, Any] = {name: _one(getattr(statistics, name)) for name in _NAMES}
        if prepared is not None:
            counts |= {name: _one(value) for name, value in asdict(prepared).items()}
            counts["partition"] = counts["partition"].cast(pa.int32())
        yield pa.RecordBatch.from_pydict(counts)


def _one(value: float | str) -> pa.Array[Any]:
    """A column of one row."""
    return single(value) if isinstance(value, str) else from_numpy(np.array([value]))
