"""Read a range of a log, on an executor: the same rows however often it is read."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from amqp_core.errors import AmqpError
from amqp_spark.arrow.decode import Chunk
from amqp_spark.datasource.kept_alive import KeptAlive
from amqp_spark.datasource.log.positions import difference, lost, report
from amqp_spark.datasource.log.probe import FIRST, SURE_SECONDS, LogProbe, subscribe
from amqp_spark.datasource.log.retries import LogRetries
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import LogError, LogTooShort
from amqp_spark.host_order import HostOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from amqp_core.api import Block, Client, LogEntry
    from amqp_spark.arrow.decode import ColumnPlan
    from amqp_spark.connect import Connector
    from amqp_spark.datasource.log.offsets import LogOffset
    from amqp_spark.datasource.log.planner import LogRange
    from amqp_spark.options import SourceOptions

_log = logging.getLogger(__name__)

PREFETCH: Final = 10_000
"""Most messages that the broker sends ahead. What is not read waits in the socket, so their size does not matter. A
task allows no more than its range has: it has to read all that the broker has sent before its connection closes."""
NUDGE_SECONDS: Final = 5.0
"""After so long without a message a task subscribes again, and allows :data:`PREFETCH` messages."""
END_SECONDS: Final = 0.1
"""Pause between two checks whether the subscription has ended."""
SILENT_SECONDS: Final = 60.0
"""A range whose messages do not come for so long is not in the log."""


@dataclass(frozen=True)
class LogPartition(InputPartition):
    """The messages ``[begin, end)`` of a log, and where the batch ends that they are a part of, if that is known."""

    log: str
    begin: int
    end: int
    batch_end: LogOffset | None = None

    value = None


class _Run(NamedTuple):
    """The messages ``[low, high)`` of a block, which have consecutive offsets; ``offset``: that of the first."""

    block: Block
    low: int
    high: int
    offset: int


class RangeReader:
    """Reads one range, with a connection of its own; after a loss it goes on behind the last row."""

    def __init__(self, part: LogPartition, options: SourceOptions, columns: ColumnPlan, connector: Connector) -> None:
        self._log = part.log
        self._at = part.begin
        self._end = part.end
        self._batch_end = part.batch_end
        self._options = options
        self._columns = columns
        self._connector = connector
        self._hosts = HostOrder()
        self._pending: _Run | None = None
        """What follows a gap."""
        self._has_warned = False
        """Of messages that the broker may hide."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of the range.

        Raises:
            LogError: messages of the range are gone, and failOnDataLoss is true; or the queue is no log; or it ends
                before the range, on every node.
            AmqpError: the broker cannot be reached within the allowed attempts.
        """
        retries = LogRetries(f"stream {self._log!r}", self._options, known=True)
        while self._at < self._end:
            before = self._at
            try:
                client = self._hosts.connect(self._connector, self._options.connect_options())
                moved = self._hosts.moved()
                if moved:
                    _log.warning("stream %r: reading from offset %d at %s%s", self._log, self._at, client.peer, moved)
                try:
                    yield from self._session(client)
                finally:
                    client.close()
            except AmqpError as error:
                self._hosts.lost()
                delay = retries.pause_after(error, worked=self._at > before)
                if delay is None:
                    if isinstance(error, LogTooShort) and not self._options.fail_on_data_loss:
                        _log.warning("%s", error)
                        return
                    error.add_note(f"while stream {self._log!r} was read from offset {self._at} on")
                    raise
                time.sleep(delay)

    def _session(self, client: Client) -> Iterator[pa.RecordBatch]:
        if self._is_gone(client):
            self._at = self._end
            return
        runs = self._runs(client)
        self._pending = None
        with KeptAlive(client) as kept:
            while self._at < self._end:
                rows = self._columns.batches(self._chunks(client, runs), queue=self._log, first_position=self._at)
                for batch in rows:
                    with kept.rest():  # Spark may work on it for long
                        yield batch
                    self._at += batch.num_rows
                self._skip_gap()

    def _chunks(self, client: Client, runs: Iterator[_Run]) -> Iterator[Chunk]:
        """Chunks of consecutive messages, up to the end of the range or a gap."""
        at = self._at
        while at < self._end:
            run, self._pending = self._pending or next(runs), None
            if run.offset > at:
                self._pending = run
                return
            low, high = run.low + at - run.offset, min(run.high, run.low + self._end - run.offset)
            if low >= high:
                continue
            ends = run.block.ends
            begin = ends[low - 1] if low else 0
            yield Chunk.of(
                run.block.frames[begin : ends[high - 1]],
                [end - begin for end in ends[low:high]],
                protocol=client.protocol,
            )
            at = run.offset + high - run.low

    def _is_gone(self, client: Client) -> bool:
        """Whether the log was made again since the range was planned; asked over each connection, before its first row.

        Every range of a batch asks for the end of the batch, since only the last range reads up to it.

        Raises:
            LogTooShort: the log ends before it: it was made again, or this node lags behind.
        """
        if self._batch_end is None:
            return False
        other = difference(LogProbe(client), self._log, self._batch_end)
        if other is None:
            return False
        report(other, fail=self._options.fail_on_data_loss)
        return True

    def _runs(self, client: Client) -> Iterator[_Run]:
        """Cut what arrives where offsets are left out."""
        for block in self._blocks(client):
            low, count = 0, len(block.ends)
            while low < count:
                first = self._offset(client, block, low)
                high = count
                if self._offset(client, block, count - 1) != first + count - 1 - low:
                    high = low + bisect_left(range(count - low), first + 1, key=self._shift(client, block, low))
                yield _Run(block, low, high, first)
                low = high

    def _shift(self, client: Client, block: Block, low: int) -> Callable[[int], int]:
        """By how much the offset of a message, counted from ``low`` on, exceeds its number: it never decreases."""
        return lambda index: self._offset(client, block, low + index) - index

    def _blocks(self, client: Client) -> Iterator[Block]:
        """What the broker sends. It is allowed to send as many messages as the range has; each that is settled allows
        another one.

        If no message comes for :data:`NUDGE_SECONDS`, the broker may count messages that it does not send. Then the
        task subscribes again, and allows more.
        """
        left = self._end - self._at
        prefetch = min(PREFETCH, left)
        left -= prefetch
        subscription = subscribe(client, self._log, self._at, prefetch)
        is_bounded, is_ending = True, False
        last: Block | None = None
        heard = time.monotonic()
        while True:
            blocks = subscription.take_blocks(END_SECONDS if is_ending else NUDGE_SECONDS)
            has_ended = is_ending and subscription.ceased  # nothing comes behind these blocks
            if blocks:
                last = blocks[-1]
                for block in blocks:
                    if count := len(block.ends) if not is_bounded else min(left, len(block.ends)):
                        client.accept([(block.first_id, block.first_id + count - 1)])
                        left -= count
                yield from blocks
                heard = time.monotonic()  # not before: Spark may have worked on them for long
            elif client.under_way_bytes:
                heard = time.monotonic()
            elif time.monotonic() - heard >= SILENT_SECONDS:
                raise LogError(
                    SparkCondition.LOG_ENDS_EARLY(stream=self._log, at=self._at, end=self._end, seconds=SILENT_SECONDS)
                )
            elif is_bounded:
                is_bounded, is_ending = False, True
                # Not cancel(): its answer comes behind all that is under way, which it would keep in memory.
                subscription.cease()
            if has_ended:
                is_ending = False
                subscription.cancel()
                at = self._at
                if last is not None:
                    client.accept([(1, last.first_id + len(last.ends) - 1)])
                    at = self._offset(client, last, len(last.ends) - 1) + 1
                subscription = subscribe(client, self._log, at, PREFETCH)

    def _skip_gap(self) -> None:
        """Go on behind a gap. Messages are gone if the log begins behind the place where it begins: else there never
        were any, since a broker may use offsets for records of its own.

        Raises:
            DeadlineExceeded: the broker does not send the first message, although the log has some.
        """
        if self._pending is None:
            return
        following = min(self._pending.offset, self._end)
        options = self._hosts.only_current(self._options.connect_options())  # each node removes messages on its own
        with self._connector(options) as other:  # on the other connection the answer comes behind the prefetch
            probe = LogProbe(other)
            first = probe.entry(self._log, FIRST, SURE_SECONDS)
            if first is None:
                raise probe.unanswered(FIRST, self._log)
        if first.offset > self._at:
            begin = min(first.offset, following)
            report(lost(self._log, self._at, begin), fail=self._options.fail_on_data_loss)
            self._at = begin
        self._warn_of_hidden(following)
        self._at = following

    def _warn_of_hidden(self, following: int) -> None:
        """Say once that offsets before ``following`` may have messages that the broker hides.

        A broker uses an offset of its own alone, as where a segment begins. More than one in a row may be a compressed
        sub-entry of a publisher of the stream protocol. It is no error, since stored offsets of consumers look alike.
        """
        if self._has_warned or following - self._at < 2:
            return
        self._has_warned = True
        _log.warning(
            "stream %r: the broker sends nothing for the offsets %d to %d. They are stored offsets of consumers, or "
            "messages in compressed sub-entries, which cannot be read over AMQP 0-9-1. A task says this once.",
            self._log, self._at, following - 1,
        )  # fmt: skip

    def _offset(self, client: Client, block: Block, index: int) -> int:
        return self._entry(client, block, index).offset

    def _entry(self, client: Client, block: Block, index: int) -> LogEntry:
        found = client.log_entry(block, index)
        if found is None:
            raise LogError(SparkCondition.LOG_IS_QUEUE(queue=self._log))
        return found


def partition_of(part: LogRange, batch_end: LogOffset) -> LogPartition:
    """The partition that reads a range, of a batch that ends there."""
    return LogPartition(part.log, part.begin, part.end, batch_end)
