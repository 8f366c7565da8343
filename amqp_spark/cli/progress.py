"""Progress of a query on the terminal."""

from __future__ import annotations

import importlib
import json
import time
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

    from amqp_spark.monitoring.readings import Number

_TASKS_SECONDS = 10  # between two lines about tasks


class Display(Protocol):
    """What shows the progress in place of lines."""

    def show(self, new: Iterable[StreamingQueryProgress], /) -> None:
        """Take the progress events that are new."""

    def tasks(self, done: int, total: int, /) -> None:
        """Show the progress of an action that has no batches."""

    def say(self, text: str, /) -> None:
        """Show a permanent line."""

    def close(self) -> None:
        """End it."""


class Progress:
    """Batches, rows, rows/s and backlog: a live line on a terminal, otherwise one line per batch.

    ``rows`` counts rows read, ``written`` rows that the sink reports as written; ``None`` if it reports none.
    ``on_batch`` gets Spark's own record of every batch that had rows, once. ``missed`` says that the counts lack
    batches: Spark keeps the last 100 events, and a terminal that takes no more text for a while holds this up. Without
    ``live`` there are lines on a terminal, too; a ``display`` shows everything in place of them.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        quiet: bool = False,
        live: bool = True,
        display: Display | None = None,
        on_batch: Callable[[StreamingQueryProgress], None] | None = None,
    ) -> None:
        self.batches = 0
        self.rows = 0
        self.written: int | None = None
        self.missed = False
        self._stream = stream
        self._quiet = quiet
        self._on_batch = on_batch
        self._started = time.monotonic()
        self._seen = -1
        self._last: tuple[int, str] | None = None
        """Number and time of the last event."""
        self._backlog: Number | None = None
        self._tasks = (time.monotonic(), 0)
        self._display = display
        self._bar = _bar(stream) if live and not quiet and display is None and stream.isatty() else None

    def update(self, query: StreamingQuery) -> None:
        """Process the batches that have finished since the last call."""
        from amqp_spark.monitoring.readings import backlog_of  # noqa: PLC0415 - --help must not wait for Spark, pandas

        new = self._new(query)
        if self._display is not None:
            self._display.show(new)
        for each in new:
            self._backlog = backlog_of(each.sources)
            rows = each.numInputRows
            if each.batchId <= self._seen or rows == 0:
                continue
            self._seen = each.batchId
            self.batches += 1
            self.rows += rows
            if self._on_batch is not None:
                self._on_batch(each)
            written = each.sink.numOutputRows
            if written >= 0:  # -1: this sink does not count
                self.written = written + (self.written or 0)
            self._batch(each.batchId, rows, each.processedRowsPerSecond, _written(rows, written))
        if self._bar is not None:
            self._bar.set_postfix_str(f"{_batches(self.batches)}{_also(self._backlog)}", refresh=True)

    def _new(self, query: StreamingQuery) -> Sequence[StreamingQueryProgress]:
        """The events behind the last one of the call before, by their places: the clock may have been set back.

        ``query.recentProgress`` reads the last 100 events at each call, which takes five seconds with 200 queues. So of
        old events only the name is read, where there is a JVM (not with Spark Connect).
        """
        java = getattr(query, "_jsq", None)
        recent = query.recentProgress if java is None else list(java.recentProgress())
        name = _name if java is None else _java_name
        first = len(recent)
        while first and name(recent[first - 1]) != self._last:
            first -= 1
        if recent:
            self.missed = self.missed or (not first and self._last is not None)
            self._last = name(recent[-1])
        new = recent[first:]
        return new if java is None else [_read(each) for each in new]

    def _batch(self, batch_id: int, rows: int, rate: float | None, written: str) -> None:
        if self._bar is not None:
            self._bar.update(rows)
        elif not self._quiet and self._display is None:
            per_second = "" if rate is None else f", {rate:,.0f} rows/s"
            self.say(f"batch {batch_id}: {rows:,} rows{per_second}{written}{_also(self._backlog)}")

    def tasks(self, done: int, total: int) -> None:
        """Show the progress of an action that has no batches."""
        if self._display is not None:
            self._display.tasks(done, total)
            return
        if self._bar is not None:
            self._bar.set_postfix_str(f"{done:,} of {total:,} tasks", refresh=True)
            return
        last, before = self._tasks
        if not self._quiet and done > before and time.monotonic() - last >= _TASKS_SECONDS:
            self._tasks = (time.monotonic(), done)
            self.say(f"{done:,} of {total:,} tasks are done")

    def say(self, text: str) -> None:
        """Print one permanent line."""
        if self._display is not None:
            self._display.say(text)
            return
        if self._bar is not None:
            self._bar.clear()
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def close(self) -> None:
        """End the live line, or the display."""
        if self._display is not None:
            self._display.close()
            self._display = None
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def summary(self) -> str:
        """Totals for the last line."""
        written = "" if self.written is None else _written(self.rows, self.written)
        counts = f"{self.rows:,} rows{written} in {_batches(self.batches)}"
        missed = " and others that were not counted, as this job was held up" if self.missed else ""
        return f"{counts}{missed}, {self.seconds:.1f} s"

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started


def _name(event: StreamingQueryProgress) -> tuple[int, str]:
    return event.batchId, event.timestamp


def _java_name(event: Any) -> tuple[int, str]:
    return event.batchId(), event.timestamp()


def _read(event: Any) -> StreamingQueryProgress:
    from pyspark.sql.streaming.listener import StreamingQueryProgress  # noqa: PLC0415 - as above

    return StreamingQueryProgress.fromJson(json.loads(event.json()))


def _bar(stream: TextIO) -> Any:
    """A bar of tqdm, which is not a requirement; None without it."""
    try:
        tqdm = importlib.import_module("tqdm").tqdm
        return tqdm(unit=" rows", unit_scale=True, file=stream, dynamic_ncols=True)
    except ImportError:
        return None


def counted(count: int, one: str, many: str) -> str:
    """A number and its noun in singular or plural."""
    return f"{count:,} {one if count == 1 else many}"


def _batches(count: int) -> str:
    return counted(count, "batch", "batches")


def _written(rows: int, written: int) -> str:
    """Count of written rows, if it differs from the rows read."""
    return "" if written in {rows, -1} else f", {written:,} written"


def _also(backlog: Number | None) -> str:
    return "" if backlog is None else f", backlog {backlog:,}"
