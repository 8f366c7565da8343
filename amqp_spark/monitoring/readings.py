"""What one progress event of Spark says about a query: a reading. Numbers that it does not have are None.

The reader of ``format("amqp")`` puts what it counts into ``sources[].latestOffset``. Other sources have something else
there, or nothing, and are passed over.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql.streaming.listener import StreamingQueryProgress

Number = int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReading:
    """Numbers of one queue, or of one stream of RabbitMQ, when the batch was planned; counts are since the reader
    began."""

    queue: str
    backlog: Number | None = None
    waiting: Number | None = None
    oldest_s: Number | None = None
    held_bytes: Number | None = None
    buffer_bytes: Number | None = None
    credit: Number | None = None
    received: Number | None = None
    received_bytes: Number | None = None
    redelivered: Number | None = None
    repeated: Number | None = None
    rejected: Number | None = None
    lost_sessions: Number | None = None
    owned_batches: Number | None = None
    committed: Number | None = None
    rolled_back: Number | None = None
    spool_bytes: Number | None = None


COUNTS: Final = (
    "received",
    "received_bytes",
    "redelivered",
    "repeated",
    "rejected",
    "lost_sessions",
    "committed",
    "rolled_back",
)
"""Fields of a :class:`QueueReading` that only grow while a reader runs."""

_KEYS: Final = {
    "waiting": "waiting",
    "oldest_s": "oldestSeconds",
    "held_bytes": "heldBytes",
    "buffer_bytes": "bufferBytes",
    "credit": "credit",
    "received": "received",
    "received_bytes": "receivedBytes",
    "redelivered": "redelivered",
    "repeated": "repeated",
    "rejected": "rejected",
    "lost_sessions": "lostSessions",
    "owned_batches": "ownedBatches",
    "committed": "committed",
    "rolled_back": "rolledBack",
    "spool_bytes": "spoolBytes",
}
"""Field -> its key in the object ``metrics`` of a queue."""
_MOST: Final = 1 << 53
"""A greater number is not of this connector; sums of many such ones still fit into a DataFrame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One batch of a query. ``phases``: seconds by Spark's names; ``rows_out``: None if its sink does not count."""

    query: str
    query_id: str
    run_id: str
    batch: int
    time: datetime
    rows_in: int
    rows_in_per_s: float | None
    rows_out: int | None
    batch_s: float
    phases: Mapping[str, float]
    queues: tuple[QueueReading, ...]


def label_of(query_id: object, name: str | None) -> str:
    """The name under which a query is kept: its own, or its id."""
    return _text(name or str(query_id))


def _text(name: str) -> str:
    """A name that every output can encode: with half of a surrogate pair, which JSON may have, each scrape fails."""
    return name.encode(errors="backslashreplace").decode()


def read_progress(progress: StreamingQueryProgress) -> Reading:
    """Take the numbers of a progress event; from classic Spark and Spark Connect."""
    phases = {name: milliseconds / 1000 for name, milliseconds in progress.durationMs.items()}
    rows_out = progress.sink.numOutputRows
    return Reading(
        query=label_of(progress.id, progress.name),
        query_id=str(progress.id),
        run_id=str(progress.runId),
        batch=progress.batchId,
        time=_time(progress.timestamp),
        rows_in=progress.numInputRows or 0,
        rows_in_per_s=_finite(progress.inputRowsPerSecond),
        rows_out=rows_out if rows_out >= 0 else None,
        batch_s=phases.get("triggerExecution", progress.batchDuration / 1000),
        phases=phases,
        queues=_merged(queue for source in progress.sources for queue in _queues(source.latestOffset)),
    )


def backlog_of(sources: Iterable[object]) -> Number | None:
    """Messages that are in no batch yet, over the ``sources`` of a progress event; as :func:`whole_backlog`."""
    return whole_backlog(queue for source in sources for queue in _queues(getattr(source, "latestOffset", None)))


def whole_backlog(queues: Iterable[QueueReading]) -> Number | None:
    """Messages that are in no batch yet, over all queues; None if one backlog is not known."""
    return _whole([queue.backlog for queue in queues])


def _time(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _queues(latest: object) -> Iterator[QueueReading]:
    if isinstance(latest, str):
        try:
            latest = json.loads(latest)
        except (ValueError, RecursionError):
            return
    if not isinstance(latest, dict):
        return
    for queue, entry in latest.items():
        if isinstance(entry, dict) and (found := _queue(_text(queue), entry)) is not None:
            yield found


def _queue(queue: str, entry: dict[str, Any]) -> QueueReading | None:
    """None: it is no entry of this connector."""
    metrics = entry.get("metrics")
    if not isinstance(metrics, dict):
        metrics = {}
        if "backlog" not in entry and "lag" not in entry:  # streams of RabbitMQ have a lag
            return None
    numbers = {field: _number(field, metrics.get(key)) for field, key in _KEYS.items()}
    return QueueReading(queue=queue, backlog=_number("backlog", entry.get("backlog", entry.get("lag"))), **numbers)


def _number(field: str, value: object) -> Number | None:
    """A value as the field may have it, else None: other sources may have anything under the same keys."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
        return None
    return value if isinstance(value, int) or field == "oldest_s" else None


def _merged(queues: Iterator[QueueReading]) -> tuple[QueueReading, ...]:
    """One reading for each name: several sources of a query may read queues of the same name on different brokers."""
    found: dict[str, QueueReading] = {}
    for each in queues:
        found[each.queue] = _both(found[each.queue], each) if each.queue in found else each
    return tuple(found.values())


def _both(one: QueueReading, other: QueueReading) -> QueueReading:
    numbers: dict[str, Number | None] = {}
    for field in fields(QueueReading):
        if field.name != "queue":
            values = getattr(one, field.name), getattr(other, field.name)
            if field.name == "oldest_s":
                numbers[field.name] = max(known(values), default=None)
            else:
                numbers[field.name] = _whole(values) if field.name == "backlog" else total(values)
    return QueueReading(queue=one.queue, **numbers)


def known(values: Any) -> list[Number]:
    """The values that are not None."""
    return [value for value in values if value is not None]


def total(values: Any) -> Number | None:
    """The sum of the values that are known; None if none is."""
    found = known(values)
    return sum(found) if found else None


def _whole(values: Sequence[Number | None]) -> Number | None:
    """The sum of all values; None if one is not known: the sum of the others would look like that of all."""
    return None if None in values else total(values)
