"""Calls a stream reader as Spark 4.3 calls it, without a JVM: same order, offsets through JSON, the rest pickled.

One trigger: ``latestOffset`` - (offset log) - ``commit`` of the batch before - ``partitions`` - ``read`` in another
copy of the reader - (commit log). Observed on Spark 4.3.
"""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.datasource_internal import ReadLimitRegistry

from amqp_spark.datasource.micro_batch_stream import MicroBatchStream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqp_spark.datasource.stream_reader import AmqpStreamReader

Offset = dict[str, Any]
Row = tuple[str, int, bytes]


def through_json(offset: Offset) -> Offset:
    """Return an offset as Spark passes it back."""
    loaded: Offset = json.loads(json.dumps(offset))
    return loaded


def through_pickle(value: Any) -> Any:
    """Return an object as it arrives in another process."""
    return pickle.loads(dumps(value))


def dumps(value: object) -> bytes:
    """Pickle as Spark does."""
    pickled: bytes = CloudPickleSerializer().dumps(value)  # type: ignore[no-untyped-call]
    return pickled


def running(reader: AmqpStreamReader) -> MicroBatchStream | None:
    """The stream of a reader that receives itself, as soon as it was called."""
    stream = reader._stream
    assert stream is None or isinstance(stream, MicroBatchStream)
    return stream


class Driver:
    """One run of a query over a checkpoint: lists of logged and of committed offsets."""

    def __init__(
        self, reader: AmqpStreamReader, checkpoint: Driver | None = None, *, available_now: bool = False
    ) -> None:
        self.reader = reader
        self.offsets: list[Offset] = [] if checkpoint is None else list(checkpoint.offsets)
        self.commits: int = 0 if checkpoint is None else checkpoint.commits
        self.last_partitions: Sequence[Any] = ()
        self.batches: list[list[Row]] = []
        if available_now:
            reader.prepareForTriggerAvailableNow()
        self.initial = through_json(reader.initialOffset())
        limit = reader.getDefaultReadLimit()
        self.limit = ReadLimitRegistry().get({**vars(limit), "_type": type(limit).__name__})

    @property
    def start(self) -> Offset:
        """The offset up to which batches are in the commit log."""
        return self.offsets[self.commits - 1] if self.commits else self.initial

    def latest(self) -> Offset:
        """Only the first call of a trigger."""
        end = through_json(self.reader.latestOffset(through_json(self.start), self.limit))
        report = self.reader.reportLatestOffset()
        assert report is None or json.dumps(report)
        return end

    def restart_batch(self) -> list[Row] | None:
        """Start as a restarted query does: with the batch that was logged and not committed, if there is one."""
        if len(self.offsets) == self.commits:
            return None
        if self.commits == 0:
            self.reader.initialOffset()
        return self._run(self.start, self.offsets[self.commits], commit_log=True)

    def trigger(self, *, fail: bool = False) -> list[Row] | None:
        """One trigger: the rows of its batch, or None when nothing is new. ``fail``: the batch is not committed."""
        start = self.start
        end = self.latest()
        if end == start:
            return None
        self.offsets.append(end)
        if self.commits:
            self.reader.commit(through_json(start))
        return self._run(start, end, commit_log=not fail)

    def until(self, condition: Callable[[list[Row]], bool], attempts: int = 2000) -> list[Row]:
        """Trigger until the rows of all batches so far satisfy a condition."""
        rows = [row for batch in self.batches for row in batch]
        for _ in range(attempts):
            if condition(rows):
                return rows
            rows += self.trigger() or []
        raise AssertionError(f"{len(rows)} rows after {attempts} triggers do not satisfy the condition")

    def rows(self, count: int) -> list[Row]:
        """Trigger until there are so many rows."""
        return self.until(lambda rows: len(rows) >= count)

    def trigger_until_rows(self) -> list[Row]:
        """Trigger until there is a batch, and return its rows."""
        while (rows := self.trigger()) is None:
            pass
        return rows

    def read(self, partitions: Sequence[Any]) -> list[Row]:
        """Do the work of tasks: with copies of the reader and of each partition, as in another process."""
        rows: list[Row] = []
        for partition in partitions:
            reader = through_pickle(self.reader)
            copy = through_pickle(partition)
            for batch in reader.read(copy):
                rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        return rows

    def _run(self, start: Offset, end: Offset, *, commit_log: bool) -> list[Row]:
        self.last_partitions = self.reader.partitions(through_json(start), through_json(end))
        rows = self.read(self.last_partitions)
        if commit_log:
            self.commits += 1
            self.batches.append(rows)
        return rows


def bodies(rows: Sequence[Row]) -> list[bytes]:
    """The body column."""
    return [row[2] for row in rows]
