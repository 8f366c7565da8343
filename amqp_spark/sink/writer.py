"""``df.write`` and ``writeStream`` with ``format("amqp")``: every task publishes, the driver counts and logs.

The options travel to executors inside the pickled writer, including the credentials, since tasks connect to the broker;
they appear in no plan, log or ``repr``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from amqp_spark import crashpoints
from amqp_spark.arrow.encode import TaskId
from amqp_spark.compat import DataSourceStreamArrowWriter
from amqp_spark.python_workers import Portable, spare_collections
from amqp_spark.sink.at_least_once import AtLeastOnce
from amqp_spark.sink.reports import Fates, report_batch
from amqp_spark.sink.statistics import Statistics, log_batch, log_failure
from amqp_spark.sink.task_writer import TaskWriter
from amqp_spark.state.xids import Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from amqp_spark.arrow.encode import MessagePlan
    from amqp_spark.options import SinkOptions
    from amqp_spark.sink.prepared_transactions import PreparedBranch


NOTHING_PUBLISHED: Final = "nothing was published"
REPEATED: Final = "; it had been published, and these were rolled back"
"""What :func:`decide` notes of a batch that was repeated."""


class Published(Portable, WriterCommitMessage):
    """Report of a task to the driver: the broker has completed all of its transfers. With exactly-once, ``prepared`` is
    the branch that holds its rows. ``query_id``: of the streaming query; Spark gives it to tasks only."""

    def __init__(
        self, statistics: Statistics, prepared: PreparedBranch | None = None, *, query_id: str | None = None
    ) -> None:
        self.statistics = statistics
        self.prepared = prepared
        self.query_id = query_id


class _Writer(Portable):
    """Common part of both writers."""

    def __init__(self, options: SinkOptions, plan: MessagePlan) -> None:
        self._options = options
        self._plan = plan
        self._run = Run.new()
        """Spark makes one writer per run of a batch and sends it to all tasks; another instance commits a stream."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(exchange={self._options.exchange!r})"

    def _commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None) -> None:
        crashpoints.reached(crashpoints.MESSAGE_RETURNED)
        prepared = _prepared(messages)
        note = decide(self._options, prepared, batch_id)
        sent = total(messages)
        log_batch(sent, batch_id, note)
        report_batch(_query_of(messages), batch_id, published(sent, note), fates(prepared, note))

    def _abort(
        self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None, run: Run | None = None
    ) -> None:
        if self._options.exactly_once:
            prepared = _prepared(messages)
            undo(self._options, prepared, batch_id, run=run)
            report_batch(_query_of(messages), batch_id, Statistics(), fates(prepared, REPEATED), failed=True)
        else:
            done = [message for message in messages if isinstance(message, Published)]
            text = "%d of %d tasks had published %s; published messages stay, and come twice if the batch runs again"
            log_failure(batch_id, text, len(done), len(messages), total(done))
            report_batch(_query_of(messages), batch_id, total(done), Fates(), failed=True)


class AmqpBatchWriter(_Writer, DataSourceArrowWriter):
    """Writes a static frame."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:  # type: ignore[override]
        """Publish the rows of one task; see :meth:`TaskWriter.run` for the errors."""
        task_id = current_task_id(self._options.batch_id)
        return Published(*publish(self._plan, self._options, task_id, iterator, run=self._run))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """With exactly-once decide and commit. Log one line: everything is published."""
        self._commit(messages, self._options.batch_id)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """With exactly-once roll back. Otherwise log one line: messages published so far stay published."""
        self._abort(messages, self._options.batch_id, run=self._run)


class AmqpStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:  # type: ignore[override]
        """Publish the rows of one task; see :meth:`TaskWriter.run` for the errors."""
        task_id = current_task_id()  # the option batchId is for batch writes: a batch of a stream has Spark's id
        done = publish(self._plan, self._options, task_id, iterator, run=self._run)
        return Published(*done, query_id=task_id.query_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """With exactly-once decide and commit. Log one line; Spark writes its commit log after this."""
        self._commit(messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """With exactly-once roll back. Otherwise log one line: messages published so far stay published."""
        self._abort(messages, batchId)


def publish(
    plan: MessagePlan, options: SinkOptions, task_id: TaskId, batches: Iterable[pa.RecordBatch], *, run: Run
) -> tuple[Statistics, PreparedBranch | None]:
    """Publish the rows of one task, in each of the three ways to write; return its statistics and, with exactly-once,
    its prepared branch. ``run``: of the batch, as begun by the driver."""
    if options.exactly_once:
        from amqp_spark.sink.commit_coordinator import sweep_once  # noqa: PLC0415
        from amqp_spark.sink.exactly_once import ExactlyOnce  # noqa: PLC0415 - nothing that other guarantees need

        context = TaskContext.get()
        attempt = 0 if context is None else context.attemptNumber()
        before = partial(sweep_once, options)
        policy = ExactlyOnce(options, task_id, attempt=attempt, run=run, before=before)
        statistics, prepared = TaskWriter(plan, policy).run(batches), policy.prepared
    else:
        statistics, prepared = TaskWriter(plan, AtLeastOnce(options, task_id)).run(batches), None
    spare_collections()
    return statistics, prepared


def decide(options: SinkOptions, tasks: Sequence[PreparedBranch], batch_id: int | None, *, alone: bool = False) -> str:
    """With exactly-once, decide a batch whose tasks are done (:meth:`CommitCoordinator.commit`); return a note for the
    log.

    ``alone``: this process decides all batches; Spark may spread those of a writer over several workers.
    """
    if not options.exactly_once:
        return ""
    from amqp_spark.sink.commit_coordinator import CommitCoordinator  # noqa: PLC0415 - nothing that other guarantees need

    assert batch_id is not None
    # Spark runs at least one task, also for a batch without rows
    fresh = not tasks or CommitCoordinator(options, alone=alone).commit(tasks, batch_id)
    return ", exactly once" if fresh else REPEATED


def undo(
    options: SinkOptions,
    tasks: Sequence[PreparedBranch],
    batch_id: int | None,
    *,
    query_id: str | None = None,
    run: Run | None = None,
) -> None:
    """With exactly-once, undo a failed batch; see :meth:`CommitCoordinator.abort`."""
    from amqp_spark.sink.commit_coordinator import CommitCoordinator  # noqa: PLC0415 - nothing that other guarantees need

    assert batch_id is not None
    transactional = CommitCoordinator(options).abort(tasks, batch_id, query_id=query_id, run=run)
    fate = "its prepared transactions are rolled back unless it was decided" if transactional else NOTHING_PUBLISHED
    log_failure(batch_id, fate)


def current_task_id(batch_id: int | None = None, query_id: str | None = None) -> TaskId:
    """Identify the current task by the properties that Spark gives its Python worker; the arguments are used outside
    streaming queries, and where Spark gives them elsewhere."""
    context = TaskContext.get()
    if context is None:
        return TaskId(query_id, batch_id, 0)
    query_id = query_id or context.getLocalProperty("sql.streaming.queryId")
    streamed = context.getLocalProperty("streaming.sql.batchId")
    if batch_id is None and streamed is not None:
        batch_id = int(streamed)
    return TaskId(query_id, batch_id, context.partitionId())


def total(messages: Iterable[WriterCommitMessage | None]) -> Statistics:
    """Sum of the statistics that tasks returned; ``None`` stands for a failed task."""
    done = [message.statistics for message in messages if isinstance(message, Published)]
    return sum(done, Statistics())


def published(sent: Statistics, note: str) -> Statistics:
    """What of a batch's messages was published, by what :func:`decide` has noted of it: nothing of a repetition."""
    return Statistics() if note == REPEATED else sent


def fates(tasks: Iterable[PreparedBranch], note: str) -> Fates:
    """How many transactions of a batch were committed and rolled back, by what :func:`decide` has noted of it; tasks
    without rows have none."""
    count = sum(bool(task.xid) for task in tasks)
    return Fates(rolled_back=count) if note == REPEATED else Fates(committed=count)


def _query_of(messages: Iterable[WriterCommitMessage | None]) -> str | None:
    return next((each.query_id for each in messages if isinstance(each, Published)), None)


def _prepared(messages: Iterable[WriterCommitMessage | None]) -> list[PreparedBranch]:
    return [each.prepared for each in messages if isinstance(each, Published) and each.prepared is not None]
