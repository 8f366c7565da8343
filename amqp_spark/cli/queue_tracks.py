"""What a panel shows of each queue: rate, backlog and its course, time to drain; from Spark's progress events."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from amqp_spark.cli.progress import counted
from amqp_spark.monitoring.readings import read_progress
from amqp_spark.monitoring.series import QuerySeries, Trend, drain_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from amqp_spark.monitoring.readings import Number, QueueReading
    from amqp_spark.monitoring.series import Batch

COURSE: Final = 60
"""Backlogs that are kept of each queue, one for each event."""
FRESH_SECONDS: Final = 5.0
MOST_FRESH_SECONDS: Final = 30.0
"""A rate is shown for so long after its event, since Spark sends none while a query waits for messages: the first, but
longer, up to the second, where events come less often (a trigger), and where batches take longer."""
_LOSSES: Final = {
    "rejected": ("message", "messages", "rejected: outside of the schema"),
    "repeated": ("message", "messages", "read again after a lost session: possible duplicates"),
    "lost_sessions": ("session", "sessions", "lost"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """A queue. Numbers that are not known are ``None``.

    Attributes:
        queue: its name.
        rate: messages received per second, since the event before; 0 if there was no event for a while.
        backlog: messages that are in no batch yet.
        course: the last backlogs, oldest first.
        growth: of the backlog in messages per second, by its trend.
        drain_s: seconds until the backlog is gone, by its trend; infinite if it does not shrink.
    """

    queue: str
    rate: float | None = None
    backlog: Number | None = None
    course: tuple[Number, ...] = ()
    growth: float | None = None
    drain_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastBatch:
    """The last batch that had rows: Spark's number of it, rows read, duration in seconds."""

    number: int
    rows: int
    seconds: float


@dataclass(slots=True)
class _Course:
    rate: float | None = None
    backlogs: deque[Number] = field(default_factory=lambda: deque(maxlen=COURSE))
    trend: Trend = field(default_factory=Trend)
    growth: float | None = None


class QueueTracks:
    """The queues of one query over time. Not thread-safe.

    Args:
        clock: seconds from any beginning.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._fresh_until = clock()
        self._series = QuerySeries("", "", 1)
        self._courses: dict[str, _Course] = {}
        self._at: datetime | None = None
        self.last: LastBatch | None = None
        self.rows = 0
        self.batches = 0

    def add(self, new: Iterable[StreamingQueryProgress]) -> None:
        """Take events, each of them once; their clock may have been set back between two."""
        for progress in new:
            self._add(self._series.add(read_progress(progress)))

    def _add(self, batch: Batch) -> None:
        reading = batch.reading
        if reading.rows_in:
            self.last = LastBatch(number=reading.batch, rows=reading.rows_in, seconds=reading.batch_s)
            self.rows += reading.rows_in
            self.batches += 1
        since = 0.0 if self._at is None else max(0.0, (reading.time - self._at).total_seconds())
        seconds, self._at = since or reading.batch_s, reading.time
        expected = max(2 * reading.batch_s, min(1.5 * since, MOST_FRESH_SECONDS))
        self._fresh_until = self._clock() + max(FRESH_SECONDS, expected)
        for queue in batch.queues:
            course = self._courses.setdefault(queue.queue, _Course())
            course.rate = self._rate(queue, batch, seconds)
            if queue.backlog is not None:
                course.backlogs.append(queue.backlog)
                course.growth = course.trend.add(reading.time, queue.backlog)

    def _rate(self, queue: QueueReading, batch: Batch, seconds: float) -> float | None:
        if queue.received is not None:
            return queue.received / seconds if seconds else None
        return batch.reading.rows_in_per_s if len(batch.queues) == 1 else None  # all rows are of this queue

    def tracks(self) -> tuple[Track, ...]:
        """The queues, in the order of the source."""
        found = (_track(queue, course) for queue, course in self._courses.items())
        if self._clock() <= self._fresh_until:
            return tuple(found)
        return tuple(track if track.rate is None else replace(track, rate=0.0) for track in found)

    def losses(self) -> tuple[str, ...]:
        """What the reader has counted that it should not have to, one text for each."""
        return tuple(
            f"{queue}: {counted(int(counts[name]), one, many)} {text}"
            for queue, counts in self._series.totals.queues.items()
            for name, (one, many, text) in _LOSSES.items()
            if counts.get(name)
        )


def _track(queue: str, course: _Course) -> Track:
    if not course.backlogs:
        return Track(queue=queue, rate=course.rate)
    backlog = course.backlogs[-1]
    return Track(
        queue=queue,
        rate=course.rate,
        backlog=backlog,
        course=tuple(course.backlogs),
        growth=course.growth,
        drain_s=drain_seconds(backlog, course.growth),
    )
