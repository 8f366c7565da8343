"""The history of queries as pandas DataFrames: a row per batch, or per batch and queue.

The columns are declared here, with type, unit and meaning; ``docs/monitoring.md`` lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pandas as pd

from amqp_spark.monitoring.readings import total
from amqp_spark.monitoring.series import most

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from amqp_spark.monitoring.readings import QueueReading
    from amqp_spark.monitoring.series import Batch

TEXT, WHOLE, REAL, TIME = "string", "Int64", "float64", "datetime64[ns, UTC]"
"""dtypes of columns; a number that is not known is NA in a whole one and NaN in a real one."""


class Column(NamedTuple):
    """A column: its dtype, its unit, its meaning, and how to get its value."""

    dtype: str
    unit: str
    meaning: str
    value: Callable[[Any], object]


def _sum(name: str) -> Callable[[Batch], object]:
    return lambda batch: total(getattr(queue, name) for queue in batch.queues)


def _most(name: str) -> Callable[[Batch], object]:
    return lambda batch: most(batch.queues, name)


def _sink(key: str) -> Callable[[Batch], object]:
    return lambda batch: batch.sink.get(key)


def _phases(*names: str) -> Callable[[Batch], object]:
    return lambda batch: total(batch.reading.phases.get(name) for name in names)


def _rate(count: int | None, seconds: float) -> float | None:
    return None if count is None or not seconds else count / seconds


def _share(part: object, whole: object) -> float | None:
    return part / whole if isinstance(part, int | float) and isinstance(whole, int | float) and whole else None


def _both(batch: Batch, mine: str, sinks: str) -> object:
    return total((total(getattr(queue, mine) for queue in batch.queues), batch.sink.get(sinks)))


_WHEN: Final[dict[str, Column]] = {
    "query": Column(TEXT, "", "name of the query, or its id if it has none", lambda b: b.reading.query),
    "query_id": Column(TEXT, "", "id of the query, which stays the same over restarts", lambda b: b.reading.query_id),
    "run_id": Column(TEXT, "", "id of this run of the query", lambda b: b.reading.run_id),
    "batch": Column(WHOLE, "", "Spark's number of the batch", lambda b: b.reading.batch),
    "time": Column(TIME, "UTC", "when the batch began", lambda b: b.reading.time),
}

COLUMNS: Final[dict[str, Column]] = {
    **_WHEN,
    "rows_in": Column(WHOLE, "rows", "rows read", lambda b: b.reading.rows_in),
    "rows_in_per_s": Column(
        REAL, "rows/s", "rows read, since the trigger before", lambda b: b.reading.rows_in_per_s
    ),
    "rows_out": Column(WHOLE, "rows", "rows written, where the sink counts them", lambda b: b.rows_out),
    "rows_out_per_s": Column(
        REAL, "rows/s", "rows written, over the duration of the batch", lambda b: _rate(b.rows_out, b.reading.batch_s)
    ),
    "backlog": Column(
        WHOLE,
        "messages",
        "in no batch yet, when this one was planned; NA if one queue does not tell",
        lambda b: b.backlog,
    ),
    "backlog_per_s": Column(
        REAL, "messages/s", "growth of the backlog over 5 minutes; negative: it shrinks", lambda b: b.backlog_per_s
    ),
    "drain_s": Column(REAL, "s", "until the backlog is gone; infinite: it does not shrink", lambda b: b.drain_s),
    "oldest_s": Column(
        REAL, "s", "since the reader received the oldest message that is not accepted", _most("oldest_s")
    ),
    "batch_s": Column(REAL, "s", "duration of the batch", lambda b: b.reading.batch_s),
    "offset_s": Column(
        REAL, "s", "of which to accept the batch before and plan this one (latestOffset, getBatch)",
        _phases("latestOffset", "getBatch"),
    ),
    "planning_s": Column(REAL, "s", "of which Spark's query planning", _phases("queryPlanning")),
    "work_s": Column(REAL, "s", "of which to read, compute and write (addBatch)", _phases("addBatch")),
    "log_s": Column(
        REAL, "s", "of which the checkpoint (walCommit, commitOffsets)", _phases("walCommit", "commitOffsets")
    ),
    "held_bytes": Column(WHOLE, "bytes", "held by the reader", _sum("held_bytes")),
    "buffer_bytes": Column(WHOLE, "bytes", "option bufferBytes, which bounds it", _most("buffer_bytes")),
    "credit": Column(WHOLE, "messages", "that the broker may still send", _sum("credit")),
    "lost_sessions": Column(WHOLE, "sessions", "lost, each followed by a reconnect", _sum("lost_sessions")),
    "received": Column(WHOLE, "messages", "received from the broker", _sum("received")),
    "redelivered_share": Column(
        REAL, "0 to 1", "estimated share of the received messages that had been delivered before",
        lambda b: _share(_sum("redelivered")(b), _sum("received")(b)),
    ),
    "duplicates_possible": Column(
        WHOLE, "messages", "read or published twice, perhaps (at-least-once)", lambda b: _both(b, "repeated", "resent")
    ),
    "rejected": Column(WHOLE, "messages", "rejected, since they did not fit the schema", _sum("rejected")),
    "discarded": Column(WHOLE, "messages", "discarded by the sink as unroutable", _sink("discarded")),
    "retries": Column(WHOLE, "attempts", "reconnects of tasks of the sink", _sink("retries")),
    "published": Column(WHOLE, "messages", "published by the sink", _sink("messages")),
    "published_bytes": Column(WHOLE, "bytes", "published by the sink, with headers", _sink("bytes")),
    "owned_batches": Column(
        WHOLE, "batches", "of exactly-once, accepted from the broker and not finished in Spark", _sum("owned_batches")
    ),
    "committed": Column(
        WHOLE, "transactions", "committed, of source and sink", lambda b: _both(b, "committed", "committed")
    ),
    "rolled_back": Column(
        WHOLE, "transactions", "rolled back, of source and sink", lambda b: _both(b, "rolled_back", "rolledBack")
    ),
    "spool_bytes": Column(WHOLE, "bytes", "of messages in the spool of exactly-once", _sum("spool_bytes")),
}  # fmt: skip
"""Columns of :func:`frame`. Counts are of the time since the row before, so that the sum of a column is a total."""


def _of_queue(name: str) -> Callable[[tuple[Batch, QueueReading]], object]:
    return lambda pair: getattr(pair[1], name)


def _when(column: Column) -> Column:
    return column._replace(value=lambda pair: column.value(pair[0]))


QUEUE_COLUMNS: Final[dict[str, Column]] = {
    **{name: _when(column) for name, column in _WHEN.items()},
    "queue": Column(TEXT, "", "name of the queue or stream", _of_queue("queue")),
    "backlog": Column(WHOLE, "messages", "in no batch yet", _of_queue("backlog")),
    "waiting": Column(WHOLE, "messages", "of the backlog that the reader holds", _of_queue("waiting")),
    "oldest_s": Column(REAL, "s", "as above", _of_queue("oldest_s")),
    "held_bytes": Column(WHOLE, "bytes", "held by the reader", _of_queue("held_bytes")),
    "credit": Column(WHOLE, "messages", "that the broker may still send", _of_queue("credit")),
    "received": Column(WHOLE, "messages", "received from the broker", _of_queue("received")),
    "received_bytes": Column(WHOLE, "bytes", "received from the broker, with headers", _of_queue("received_bytes")),
    "redelivered": Column(WHOLE, "messages", "delivered before, estimated", _of_queue("redelivered")),
    "repeated": Column(
        WHOLE, "messages", "that come again, although a batch had them, since a session was lost", _of_queue("repeated")
    ),
    "rejected": Column(WHOLE, "messages", "rejected", _of_queue("rejected")),
    "lost_sessions": Column(WHOLE, "sessions", "lost", _of_queue("lost_sessions")),
    "owned_batches": Column(WHOLE, "batches", "as above", _of_queue("owned_batches")),
    "committed": Column(WHOLE, "transactions", "of the source", _of_queue("committed")),
    "rolled_back": Column(WHOLE, "transactions", "of the source", _of_queue("rolled_back")),
    "spool_bytes": Column(WHOLE, "bytes", "in the spool", _of_queue("spool_bytes")),
}
"""Columns of :func:`queue_frame`."""


def frame(batches: Iterable[Batch]) -> pd.DataFrame:
    """A row for each batch; see :data:`COLUMNS`."""
    return _frame(COLUMNS, list(batches))


def queue_frame(batches: Iterable[Batch]) -> pd.DataFrame:
    """A row for each batch and queue; see :data:`QUEUE_COLUMNS`."""
    return _frame(QUEUE_COLUMNS, [(batch, queue) for batch in batches for queue in batch.queues])


def _frame(columns: dict[str, Column], rows: list[Any]) -> pd.DataFrame:
    return pd.DataFrame(
        {name: pd.Series([column.value(row) for row in rows], dtype=column.dtype) for name, column in columns.items()}
    )
