"""Calls of Spark for a streaming query over logs.

In the reader process on the driver offsets are planned; executors read their ranges themselves. Nothing is accepted: a
batch is replayed by reading its ranges again, so that the query is exactly-once with any sink that is.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from amqp_core.errors import NotFound, ResourceDeleted
from amqp_spark import crashpoints
from amqp_spark.compat import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow
from amqp_spark.connect import connect
from amqp_spark.datasource import driver_env
from amqp_spark.datasource.log.broker import LogBroker
from amqp_spark.datasource.log.offsets import LogOffset, dump_log_offsets, parse_log_offsets
from amqp_spark.datasource.log.pace import Pace
from amqp_spark.datasource.log.planner import LogRange, cut, shares
from amqp_spark.datasource.log.positions import difference, first_of, marked, report, resolve, start_or_first
from amqp_spark.datasource.log.range_reader import LogPartition, RangeReader, partition_of
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import LogTooShort, UnsupportedModeError
from amqp_spark.options.log_positions import Edge, position_of
from amqp_spark.python_workers import spare_collections

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from amqp_spark.arrow.decode import ColumnPlan
    from amqp_spark.connect import Connector
    from amqp_spark.datasource.log.probe import LogProbe
    from amqp_spark.errors import LogError
    from amqp_spark.options import SourceOptions

T = TypeVar("T")

_log = logging.getLogger(__name__)

IDLE_SECONDS: Final = 0.025
"""How long a call waits for messages while there are none."""
SETTLED_SECONDS: Final = 1.0
"""A query that had no batch for so long has time for a question whose answer delays messages by some milliseconds."""


class AmqpLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one streaming query over logs."""

    def __init__(self, options: SourceOptions, columns: ColumnPlan, *, connector: Connector = connect) -> None:
        self._options = options
        self._columns = columns
        self._connector = connector
        self._broker: LogBroker | None = None
        self._watch: driver_env.ParentWatch | None = None
        self._ends: dict[str, int] = {}
        """Per log, the latest known offset behind its last message."""
        self._bounded = False
        self._planned: dict[str, LogOffset] = {}
        """The end of the latest batch that this process has planned."""
        self._short: set[str] = set()
        """Logs that stayed too short until the retries were used up: they are other ones. Only without
        failOnDataLoss."""
        self._watched_from: dict[str, LogOffset] = {}
        """Where the logs were found to be the same since they are watched."""
        self._verified = 0
        """The connection over which the logs were found to be those of the checkpoint."""
        self._last_batch = time.monotonic()
        self._pace = Pace(time.monotonic)
        self._turn = 0

    def __repr__(self) -> str:
        return f"AmqpLogStreamReader(streams={', '.join(self._options.queues)})"

    def __getstate__(self) -> dict[str, object]:
        """State for executors, which connect to the broker."""
        return {**self.__dict__, "_broker": None, "_watch": None, "_pace": None}

    # --- in the reader process

    def initialOffset(self) -> dict:  # type: ignore[type-arg]  # noqa: N802  Spark's name and type
        """The constant start of every query: all streams join with its first batch, which has no rows.

        So it is logged once where the query begins (``startingOffsets``), even if no message comes before a restart.
        """
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """One of the two bounds; Spark takes only one, for display."""
        if self._options.max_messages_per_trigger is not None:
            return ReadMaxRows(self._options.max_messages_per_trigger)
        return ReadMaxBytes(self._options.max_bytes_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read the messages that are there now, then end."""
        self._bounded, self._ends = True, {}
        try:
            self._find_ends(known=False)
        except (NotFound, ResourceDeleted) as error:
            # The broker may have just started. Spark says next whether there is a checkpoint, which knows the logs.
            _log.info("%s; the next call asks again, and waits for the stream if there is a checkpoint", error)

    def latestOffset(self, start: dict, limit: ReadLimit) -> dict:  # type: ignore[type-arg]  # noqa: N802
        """Plan the next batch; return ``start`` if there is none."""
        if isinstance(limit, ReadAllAvailable):
            raise UnsupportedModeError(
                SparkCondition.MODE_UNSUPPORTED(
                    mode="Trigger.Once",
                    reason="the first batch of a query over streams only records where it begins",
                    alternative="Trigger.AvailableNow (availableNow=True)",
                )
            )
        starts = parse_log_offsets(start, self._options.queues)
        self._find_ends(known=bool(starts))
        self._pace.begun({log: each.offset for log, each in starts.items()})
        ends = self._ask(lambda probe: self._plan(probe, starts), known=bool(starts))
        if ends == starts:
            return start
        self._last_batch = time.monotonic()
        self._planned = ends
        self._pace.planned({log: end.offset for log, end in ends.items()})
        crashpoints.reached(crashpoints.END_RETURNED_UNLOGGED)
        return dump_log_offsets(ends)

    def partitions(self, start: dict, end: dict) -> Sequence[InputPartition]:  # type: ignore[type-arg]
        """Return the ranges of the batch, each for one task. A log that is not in ``start`` joins with this batch."""
        crashpoints.reached(crashpoints.LOGGED_BEFORE_PARTITIONS)
        starts, ends = (parse_log_offsets(each, self._options.queues) for each in (start, end))
        if ends != self._planned:  # a batch that was logged before a restart
            self._find_ends(known=True)
            starts = self._ask(lambda probe: self._readable(probe, starts, ends), known=True)
        ranges = [LogRange(log, starts[log].offset, ends[log].offset) for log in starts if log in ends]
        pieces = [piece for each in ranges if each.messages > 0 for piece in cut(each, self._options.num_partitions)]
        crashpoints.reached(crashpoints.PARTITIONS_RETURNED)
        return [partition_of(each, ends[each.log]) for each in pieces]

    def commit(self, end: dict) -> None:  # type: ignore[type-arg]
        """Nothing is accepted."""

    def reportLatestOffset(self) -> dict | None:  # type: ignore[type-arg]  # noqa: N802
        """Per log the latest known end, how many messages wait there, and the recent rows per second; shown as
        ``sources[].latestOffset``."""
        rates = self._pace.rates()
        return {
            log: {"lag": self._pace.lag(log, end), "offset": end, "rowsPerSecond": rates.get(log, 0.0)}
            for log, end in sorted(self._ends.items())
        } or None

    def stop(self) -> None:
        """Close the connection."""
        if self._broker is not None:
            self._broker.close()
            self._broker = None

    def _find_ends(self, *, known: bool) -> None:
        """Find the ends at which AvailableNow ends, unless they were found; ``known``: as in :meth:`.LogBroker.ask`."""
        if self._bounded and not self._ends:
            queues = self._options.queues
            self._ends = self._ask(lambda probe: {log: probe.end(log, certain=True) for log in queues}, known=known)

    def _ask(self, question: Callable[[LogProbe], T], *, known: bool = False) -> T:
        if self._broker is None:
            self._watch = driver_env.watch_parent()
            self._broker = LogBroker(self._options, self._connector)
        while True:
            try:
                return self._broker.ask(question, known=known)
            except LogTooShort as error:
                if self._options.fail_on_data_loss:
                    raise
                self._short.add(error.log)  # so the question does not raise this for it again

    def _starts(self, probe: LogProbe, logs: Sequence[str]) -> dict[str, LogOffset]:
        positions = self._options.starting_offsets
        return {
            log: marked(probe, log, resolve(probe, log, position_of(positions, log, Edge.LATEST), "startingOffsets"))
            for log in logs
        }

    def _verify(self, probe: LogProbe, starts: dict[str, LogOffset]) -> dict[str, LogOffset]:
        """Where to go on in each log; looked at for each connection, since the stream may be another one now."""
        assert self._broker is not None
        if self._verified == self._broker.sessions:
            return starts
        fail = self._options.fail_on_data_loss
        found = starts | self._restarted(probe, starts, starts)
        for log, start in starts.items():
            if found[log] == start:
                found[log] = start_or_first(probe, log, start, fail=fail)
                # A node that lags behind, as that of the connection before, may have told an end before the start.
                if found[log] != start or (self._bounded and self._ends.get(log, 0) < start.offset):
                    self._forget_end(probe, log)
                elif not self._bounded:
                    self._ends.pop(log, None)  # at this node, or of a new log, it may be less
        self._verified = self._broker.sessions
        return found

    def _difference(self, probe: LogProbe, log: str, mark: LogOffset) -> LogError | None:
        """What shows that a log is another one than that of a mark: also that it is shorter, where all attempts have
        found that."""
        try:
            return difference(probe, log, mark)
        except LogTooShort as error:
            if log in self._short:
                return error
            raise

    def _readable(
        self, probe: LogProbe, starts: dict[str, LogOffset], ends: dict[str, LogOffset]
    ) -> dict[str, LogOffset]:
        """The starts of a batch without logs that were made again since: what it had of them is gone.

        The end is looked at, too: every log is the same one before its first message.
        """
        same: dict[str, LogOffset] = {}
        for log, start in starts.items():
            marks = dict.fromkeys((start, ends.get(log, start)))
            other = next(filter(None, (self._difference(probe, log, mark) for mark in marks)), None)
            if other is None:
                same[log] = start
                continue
            report(other, fail=self._options.fail_on_data_loss)
            self._verified = 0  # the next batch begins with the first message of the new one
        return same

    def _restarted(self, probe: LogProbe, begins: dict[str, LogOffset], logs: Iterable[str]) -> dict[str, LogOffset]:
        """Where logs begin that were made again since the batch before; nothing else tells while messages wait."""
        found: dict[str, LogOffset] = {}
        for log in logs:
            other = self._difference(probe, log, begins[log])
            if other is not None:
                report(other, fail=self._options.fail_on_data_loss)
                self._forget_end(probe, log)
                found[log] = LogOffset(first_of(probe, log))
        self._short.clear()
        return found

    def _restarted_before_watch(self, probe: LogProbe, begins: dict[str, LogOffset]) -> dict[str, LogOffset]:
        """Where logs begin that were made again while the last batch ran; asked once when nothing waits any more.

        Nothing else tells, if the new log is shorter: nothing arrives behind its end. From now on the logs are watched,
        and the broker says when it deletes one.
        """
        if self._bounded or self._watched_from == begins or time.monotonic() - self._last_batch < SETTLED_SECONDS:
            return {}
        found = self._restarted(probe, begins, begins)
        self._watched_from = begins
        return found

    def _forget_end(self, probe: LogProbe, log: str) -> None:
        """A log was made again: it ends elsewhere."""
        self._ends[log] = probe.end(log, certain=self._bounded)

    def _plan(self, probe: LogProbe, starts: dict[str, LogOffset]) -> dict[str, LogOffset]:
        joining = [log for log in self._options.queues if log not in starts]
        if joining:  # where they begin is logged before any of their messages is read
            return starts | self._starts(probe, joining)
        begins = self._verify(probe, starts)
        if begins != starts:  # as is where a log goes on that has lost messages
            return begins
        self._look(probe, begins)
        waiting = {log: max(0, self._ends.get(log, 0) - begin.offset) for log, begin in begins.items()}
        total = sum(waiting.values())
        most = self._most(probe, waiting)
        if not total:
            return begins | self._restarted_before_watch(probe, begins)
        if not self._is_due(total, most):
            return starts
        self._turn += 1
        taken = shares(waiting, most, self._turn)
        ends = {log: marked(probe, log, begins[log].offset + count) for log, count in taken.items()}
        # Asked last: a log that was made again before its end was marked would pass for the one that was read.
        return begins | (self._restarted(probe, begins, taken) or ends)

    def _look(self, probe: LogProbe, begins: dict[str, LogOffset]) -> None:
        """Look for messages behind the known ends, unless many wait, or only what was there at the start is read."""
        if self._bounded:
            return
        known = {log: max(begin.offset, self._ends.get(log, 0)) for log, begin in begins.items()}
        waiting = {log: known[log] - begin.offset for log, begin in begins.items()}
        if sum(waiting.values()) >= self._most(probe, waiting):
            return
        news = [log for log, end in known.items() if probe.has_news(log, end)]
        if not news and known == {log: begin.offset for log, begin in begins.items()}:
            probe.wait_for_news(IDLE_SECONDS)
            news = [log for log, end in known.items() if probe.has_news(log, end)]
        self._ends = known | {log: max(known[log] + 1, probe.end(log, certain=False)) for log in news}

    def _most(self, probe: LogProbe, waiting: Mapping[str, int]) -> int:
        """Most messages of a batch, of so many that wait in each log; its bytes are estimated from the messages that
        were seen."""
        by_bytes = max(1, self._options.max_bytes_per_trigger // probe.sizes.mean(waiting))
        return min(by_bytes, self._options.max_messages_per_trigger or by_bytes)

    def _is_due(self, waiting: int, most: int) -> bool:
        options = self._options
        if self._bounded or waiting >= min(most, options.min_messages_per_trigger):
            return True
        return time.monotonic() - self._last_batch >= options.max_trigger_delay

    # --- on executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a range; the same rows however often it is called."""
        crashpoints.reached(crashpoints.READ_STARTED)
        if not isinstance(partition, LogPartition):
            raise TypeError(f"a partition of another source: {type(partition).__name__}")
        for batch in RangeReader(partition, self._options, self._columns, self._connector).batches():
            yield batch
            crashpoints.reached(crashpoints.READ_MID)
        spare_collections()
