"""One query over time: its last batches, and totals over all of them, across its restarts."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from amqp_spark.monitoring.readings import COUNTS, known, whole_backlog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from amqp_spark.monitoring.readings import Number, QueueReading, Reading

TREND_SECONDS: Final = 300.0
"""The trend of a backlog is that of so long a time."""
SPACING_SECONDS: Final = 1.0
"""Least time between two points of a trend, so that they are not too many where batches are short. The reader asks for
the backlog every ten seconds and subtracts what it takes meanwhile: a few short batches alone would always see it
shrink."""
SINK_COUNTS: Final = ("messages", "bytes", "retries", "resent", "discarded", "committed", "rolledBack")
"""Keys of a report of the sink that are counts."""
MOST_RUNS: Final = 4
"""Runs of one query whose last counts are kept: their progress may still come."""
MOST_REPORTS: Final = 1000
"""Most reports of the sink whose batch has not shown yet: where Spark drops events, it never does."""


class Trend:
    """The course of a backlog within :data:`TREND_SECONDS`, and how fast it grows. Not thread-safe."""

    def __init__(self) -> None:
        self._points: deque[tuple[datetime, float]] = deque(maxlen=2 * round(TREND_SECONDS / SPACING_SECONDS))

    def add(self, time: datetime, backlog: Number | None) -> float | None:
        """Add a backlog, None if it is not known; return its growth per second until that time, None if it is not
        known. Times may go back: what lies in the future then does not count."""
        ages = [((then - time).total_seconds(), value) for then, value in self._points]
        found = [(age, value) for age, value in ages if -TREND_SECONDS <= age <= 0]
        if backlog is not None:
            found.append((0.0, float(backlog)))
            if not ages or abs(ages[-1][0]) >= SPACING_SECONDS:
                self._points.append((time, float(backlog)))
        while self._points and abs((self._points[0][0] - time).total_seconds()) > TREND_SECONDS:
            self._points.popleft()
        return slope(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch of a query. Counts of ``queues`` and ``sink`` are since the batch before, not since the beginning.

    Attributes:
        reading: the progress event.
        rows_out: rows that the sink has written; None if it does not count.
        queues: as in the reading, with increments in place of counts.
        sink: what the sink has reported since the batch before; empty: nothing.
        backlog_per_s: growth of the backlog in messages per second; negative while it shrinks.
        drain_s: seconds until the backlog is gone, if it goes on so; infinite if it does not shrink.
    """

    reading: Reading
    rows_out: int | None
    queues: tuple[QueueReading, ...]
    sink: Mapping[str, int]
    backlog_per_s: float | None
    drain_s: float | None

    @property
    def backlog(self) -> Number | None:
        """Messages in no batch yet, over all queues; None if one backlog is not known."""
        return whole_backlog(self.reading.queues)


@dataclass(slots=True)
class Totals:
    """Sums since a query was first seen.

    Attributes:
        queues: counts by queue and field of :class:`QueueReading`.
        sink: counts by key of the sink's reports; empty as long as none has come.
        phases: seconds by phase.
    """

    batches: int = 0
    rows_in: int = 0
    rows_out: int | None = None
    failures: int = 0
    failed_batches: int = 0
    queues: dict[str, dict[str, Number]] = field(default_factory=dict)
    sink: dict[str, int] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)


class QuerySeries:
    """One query. Not thread-safe.

    Attributes:
        label: its name, or its id.
        query_id: its id; another one if a query of the same name has come after it.
        active: whether it runs.
        idle: whether Spark found nothing new since the last batch.
        ended: when it last ended, by the monotonic clock; 0.0: not yet.
        seen: when it last gave a sign of life, in seconds since 1970.
        batches: the last batches, oldest first.
        totals: sums over all batches.
    """

    def __init__(self, label: str, query_id: str, most_batches: int) -> None:
        self.label = label
        self.query_id = query_id
        self.active = True
        self.idle = False
        self.ended = 0.0
        self.seen = 0.0
        self.batches: deque[Batch] = deque(maxlen=most_batches)
        self.totals = Totals()
        self._trend = Trend()
        self._run: str | None = None
        self._begun = False
        """Whether its begin was seen: then no other run than the one that has begun goes on."""
        self._before: dict[str, dict[str, QueueReading]] = {}
        """By run and queue: Spark may deliver events of a run after the next one has begun."""
        self._reports: deque[Mapping[str, Any]] = deque(maxlen=MOST_REPORTS)
        """Those of batches whose progress event has not come yet: Spark may deliver events late."""

    def begin(self, query_id: str, run_id: str) -> None:
        """A run begins."""
        self.query_id, self.active, self.idle, self._run, self._begun = query_id, True, False, run_id, True

    def is_of(self, query_id: str, run_id: str) -> bool:
        """Whether an event of this query and run is about the run that goes on, as far as is known."""
        return self.query_id == query_id and self._run in (None, run_id)

    @property
    def current(self) -> Batch | None:
        """The last batch, if it is of the run that goes on; None before its first one and after its end."""
        last = self.batches[-1] if self.active and self.batches else None
        return last if last is not None and last.reading.run_id == self._run else None

    def add(self, reading: Reading) -> Batch:
        """Add a batch."""
        self.idle = False
        if not self._begun:
            self._run, self.query_id = reading.run_id, reading.query_id
        backlog, sink = whole_backlog(reading.queues), self._reported(reading.batch)
        trend = self._trend.add(reading.time, backlog)
        batch = Batch(
            reading=reading,
            rows_out=reading.rows_out if reading.rows_out is not None else sink.get("messages"),
            queues=tuple(self._since(queue, reading.run_id) for queue in reading.queues),
            sink=sink,
            backlog_per_s=trend,
            drain_s=drain_seconds(backlog, trend),
        )
        self.batches.append(batch)
        self._sum(batch)
        return batch

    def report(self, report: Mapping[str, Any]) -> None:
        """Add a report of the sink (:func:`amqp_spark.sink.reports.report_batch`)."""
        for key in SINK_COUNTS:
            self.totals.sink[key] = self.totals.sink.get(key, 0) + _count(report, key)
        self.totals.failed_batches += bool(report.get("failed"))
        self._reports.append(report)

    def _reported(self, batch: int) -> dict[str, int]:
        """Take the reports up to a batch; return their sums, which are empty without a report."""
        ours = [report for report in self._reports if _count(report, "batch") <= batch]
        for report in ours:
            self._reports.remove(report)
        return {key: sum(_count(report, key) for report in ours) for key in SINK_COUNTS} if ours else {}

    def _since(self, queue: QueueReading, run_id: str) -> QueueReading:
        """The reading with counts since the one before of the same run: each has a reader, which counts from 0."""
        if run_id not in self._before and len(self._before) >= MOST_RUNS:
            del self._before[next(iter(self._before))]
        of_run = self._before.setdefault(run_id, {})
        before, of_run[queue.queue] = of_run.get(queue.queue), queue
        if before is None:
            return queue
        more: dict[str, Any] = {}
        for name in COUNTS:
            new, old = getattr(queue, name), getattr(before, name)
            more[name] = new if new is None or old is None or new < old else new - old
        return replace(queue, **more)

    def _sum(self, batch: Batch) -> None:
        totals, reading = self.totals, batch.reading
        totals.batches += 1
        totals.rows_in += reading.rows_in
        if batch.rows_out is not None:
            totals.rows_out = (totals.rows_out or 0) + batch.rows_out
        for phase, seconds in reading.phases.items():
            totals.phases[phase] = totals.phases.get(phase, 0.0) + seconds
        for queue in batch.queues:
            sums = totals.queues.setdefault(queue.queue, {})
            for name in COUNTS:
                value = getattr(queue, name)
                if value is not None:
                    sums[name] = sums.get(name, 0) + value


def _count(report: Mapping[str, Any], key: str) -> int:
    value = report.get(key)
    return value if isinstance(value, int) else 0


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """The slope of the straight line through points, by least squares; None if they do not give one."""
    if len(points) < 2:
        return None
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if not spread:
        return None
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread


def drain_seconds(backlog: Number | None, growth: float | None) -> float | None:
    """Seconds until a backlog is gone that grows by so many messages per second; None: not known."""
    if backlog is None:
        return None
    if not backlog:
        return 0.0
    if growth is None:
        return None
    return backlog / -growth if growth < 0 else math.inf


def most(queues: Sequence[QueueReading], name: str) -> Number | None:
    """The greatest value that a field has over queues; None if none is known."""
    return max(known(getattr(queue, name) for queue in queues), default=None)
