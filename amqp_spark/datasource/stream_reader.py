"""What Spark calls of a streaming query, in the order of its engine, mapped to the receiver.

In the reader process on the driver: ``latestOffset(start)`` is the accept signal for everything up to ``start`` and
plans the next batch; ``partitions`` hands out a planned range, identified by its end. On executors: ``read`` turns the
bytes of a partition into Arrow batches, as often as Spark likes, without broker I/O. The object travels pickled from a
planning process to the executors, so it holds nothing until the first call and leaves the credentials behind.
"""

from __future__ import annotations

import json
import logging
import os
import random
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from amqp_spark import crashpoints
from amqp_spark.compat import (
    DataSourceStreamReader,
    InputPartition,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from amqp_spark.datasource import driver_env
from amqp_spark.datasource.connect import connect
from amqp_spark.datasource.link import LinkOptions
from amqp_spark.datasource.partitions import (
    SMALL_BATCH_BYTES,
    InlinePartition,
    PullPartition,
    Range,
    inline_partitions,
    pull_partitions,
)
from amqp_spark.datasource.pull import Endpoint, PullServer, fetch, report_rejects
from amqp_spark.datasource.receiver import Receiver
from amqp_spark.errors import OffsetError, TransferError, UnsupportedModeError
from amqp_spark.executor_env import spare_collections
from amqp_spark.offsets import VERSION, QueueOffset, dump_offsets, initial_offsets, parse_offsets
from amqp_spark.options import AT_MOST_ONCE, REJECT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from amqp_spark.columns import ColumnPlan
    from amqp_spark.datasource.broker import Connector
    from amqp_spark.options import SourceOptions

_log = logging.getLogger(__name__)

IDLE_CALL_SECONDS: Final = 0.05
"""Calls closer than this with nothing new: the engine polls."""
IDLE_WAIT_SECONDS: Final = 0.025
"""While it polls, a call waits so long for news: a message is seen at once, and fewer calls are made."""


class AmqpStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one streaming query."""

    def __init__(self, options: SourceOptions, columns: ColumnPlan, *, connector: Connector = connect) -> None:
        self._options = options
        self._columns = columns
        self._connector = connector
        self._run: _Run | None = None

    def __repr__(self) -> str:
        return f"AmqpStreamReader(queues={', '.join(self._options.queues)})"

    def __getstate__(self) -> dict[str, object]:
        """What executors get: how to decode, and no credentials."""
        return {"_options": self._options.for_executors(), "_columns": self._columns, "_connector": None, "_run": None}

    # --- in the reader process

    def initialOffset(self) -> dict:  # type: ignore[type-arg]  # noqa: N802  Spark's name and type
        """The constant start of every query over these queues."""
        return dump_offsets(initial_offsets(self._options.queues))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """One bound of the two that are enforced; Spark carries one only, and shows it."""
        if self._options.max_messages_per_trigger is not None:
            return ReadMaxRows(self._options.max_messages_per_trigger)
        return ReadMaxBytes(self._options.max_bytes_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read what is there now, then end."""
        if self._run is None:
            self._run = _Run(self._options, self._connector, bounded=True)

    def latestOffset(self, start: dict, limit: ReadLimit) -> dict:  # type: ignore[type-arg]  # noqa: N802
        """Accept all up to ``start``, which is in Spark's commit log; then plan, or offer again what is planned."""
        if isinstance(limit, ReadAllAvailable):
            raise UnsupportedModeError(
                "Trigger.Once makes no call after its batch, so its messages could never be accepted: "
                "use Trigger.AvailableNow (availableNow=True)"
            )
        return self._running().latest_offset(start)

    def partitions(self, start: dict, end: dict) -> Sequence[InputPartition]:  # type: ignore[type-arg]
        """The planned range that ends at ``end``; nothing for a range of an earlier epoch, which the broker resends."""
        return self._running().partitions(start, end)

    def commit(self, end: dict) -> None:  # type: ignore[type-arg]
        """The same signal as ``latestOffset(end)``; idempotent."""
        if self._run is not None:
            self._run.commit(end)

    def reportLatestOffset(self) -> dict | None:  # type: ignore[type-arg]  # noqa: N802
        """What was received and what waits on the broker, from memory; shown as ``sources[].latestOffset``."""
        return None if self._run is None else self._run.report()

    def stop(self) -> None:
        """Close in order; what was not accepted goes back to the broker."""
        if self._run is not None:
            self._run.stop()
            self._run = None

    def _running(self) -> _Run:
        if self._run is None:
            self._run = _Run(self._options, self._connector, bounded=False)
        return self._run

    # --- on executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition; the same rows however often it is called."""
        crashpoints.reached(crashpoints.READ_STARTED)
        if isinstance(partition, PullPartition):
            where = partition.endpoint
            frames = fetch(
                where, queue=partition.queue, epoch=partition.epoch, begin=partition.begin, end=partition.end
            )
            yield from self._rows(frames, partition.queue, partition.epoch, partition.begin, where)
        elif isinstance(partition, InlinePartition):
            for part in partition.slices:
                yield from self._rows(part.frames, part.queue, part.epoch, part.begin, partition.endpoint)
        else:
            raise TypeError(f"a partition of another source: {type(partition).__name__}")
        spare_collections()

    def _rows(
        self, frames: Iterable[bytes], queue: str, epoch: int, begin: int, endpoint: Endpoint | None
    ) -> Iterator[pa.RecordBatch]:
        on_reject = None
        if self._options.mode == REJECT and endpoint is not None:
            on_reject = partial(_report, endpoint, queue, epoch)
        for batch in self._columns.batches(frames, queue=queue, first_position=begin, on_reject=on_reject):
            yield batch
            crashpoints.reached(crashpoints.READ_MID)


def _report(endpoint: Endpoint, queue: str, epoch: int, positions: list[int], text: str) -> None:
    report_rejects(endpoint, queue=queue, epoch=epoch, positions=positions, text=text)


def new_epoch() -> int:
    """A number that no other run has: milliseconds since 1970 and 20 random bits, so that later runs are greater."""
    return time.time_ns() // 1_000_000 << 20 | random.SystemRandom().getrandbits(20)


class _Run:
    """The life of a reader in the reader process, from the first call of Spark on."""

    def __init__(self, options: SourceOptions, connector: Connector, *, bounded: bool) -> None:
        self._options = options
        self._bounded = bounded
        self._settings = driver_env.spark_settings()
        self._watch = driver_env.watch_parent(os.getppid())
        self._receiver = Receiver(
            options.queues,
            LinkOptions(
                connect=options.connect_options(),
                exclusive=options.exclusive,
                selector=options.selector,
                accept=options.delivery_guarantee != AT_MOST_ONCE,
                declare=options.declare == "ifMissing",
                bind=options.bind,
                max_attempts=options.retry_max_attempts,
                max_delay=options.retry_max_delay,
            ),
            epoch=new_epoch(),
            buffer_bytes=options.buffer_bytes,
            connector=connector,
        )
        self._pull: PullServer | None = None
        self._uncommitted: set[str] = set()
        """Ends that were offered and not committed."""
        self._last_idle = float("-inf")
        self._receiver.start(bounded=bounded)

    def latest_offset(self, start: Mapping[str, object]) -> dict:  # type: ignore[type-arg]
        receiver, options = self._receiver, self._options
        receiver.touch()
        offsets = parse_offsets(start, options.queues)
        ours = self._ours(offsets)
        receiver.accept(ours)
        if self._planned_after(ours):
            return self._offer(offsets, ours)
        max_messages, max_bytes = options.max_messages_per_trigger, options.max_bytes_per_trigger
        while True:
            if self._bounded:
                receiver.wait_for_batch(max_messages=max_messages, max_bytes=max_bytes)
            elif time.monotonic() - self._last_idle < IDLE_CALL_SECONDS:
                receiver.wait_for_news(IDLE_WAIT_SECONDS)
            # First, since other queues may have something at every call: nobody would hear that this one is dead.
            self._raise_failure()
            if receiver.plan(max_messages=max_messages, max_bytes=max_bytes):
                return self._offer(offsets, ours)
            if not self._bounded or receiver.sync():
                break
            self._raise_failure()
            if receiver.all_taken() and not receiver.waiting():
                _log.warning("the broker did not confirm in time that it took the last accept: it may send those again")
                break
            # The connection broke before the broker had the accept: what it sends again is read again.
        self._last_idle = time.monotonic()
        return dict(start)

    def partitions(self, start: Mapping[str, object], end: Mapping[str, object]) -> list[InputPartition]:
        crashpoints.reached(crashpoints.LOGGED_BEFORE_PARTITIONS)
        self._receiver.touch()
        starts = parse_offsets(start, self._options.queues)
        ends = parse_offsets(end, self._options.queues)
        if start != end and _key(starts) in self._uncommitted:
            raise UnsupportedModeError(
                "this query goes on to the next batch without having committed the one before: that is asynchronous "
                "progress tracking (option asyncProgressTrackingEnabled), where the position that Spark passes may not "
                "be in its log, so that messages could be accepted and lost: switch it off"
            )
        ranges = []
        for queue, offset in ends.items():
            if offset.epoch != self._receiver.epoch or offset == starts[queue]:
                continue
            ranges.append(Range(queue, self._receiver.begin_of(queue, offset.position), offset.position))
        size = sum(self._receiver.bytes_of(each.queue, each.begin, each.end) for each in ranges)
        pieces = self._options.num_partitions
        partitions: list[InputPartition]
        if self._pulls(size):
            partitions = list(pull_partitions(self._receiver, ranges, pieces=pieces, endpoint=self._endpoint()))
        else:
            endpoint = self._endpoint() if self._options.mode == REJECT and ranges else None
            partitions = list(inline_partitions(self._receiver, ranges, pieces=pieces, endpoint=endpoint))
        crashpoints.reached(crashpoints.PARTITIONS_RETURNED)
        return partitions

    def commit(self, end: Mapping[str, object]) -> None:
        offsets = parse_offsets(end, self._options.queues)
        self._uncommitted.discard(_key(offsets))
        self._receiver.accept(self._ours(offsets))

    def report(self) -> dict:  # type: ignore[type-arg]
        epoch = self._receiver.epoch
        report = {}
        for queue, (position, backlog) in sorted(self._receiver.report().items()):
            entry: dict[str, object] = {"epoch": epoch, "position": position, "version": VERSION}
            report[queue] = entry if backlog is None else entry | {"backlog": backlog}
        return report

    def stop(self) -> None:
        self._receiver.stop()
        if self._pull is not None:
            self._pull.close()

    def _raise_failure(self) -> None:
        failure = self._receiver.failure()
        if failure is not None:
            raise failure

    def _ours(self, offsets: Mapping[str, QueueOffset]) -> dict[str, int]:
        """The positions that are of this epoch. An earlier epoch's messages are on the broker, or were accepted."""
        planned = self._receiver.planned()
        ours = {queue: offset.position for queue, offset in offsets.items() if offset.epoch == self._receiver.epoch}
        for queue, position in ours.items():
            if position > planned[queue]:
                raise OffsetError(
                    f"queue {queue!r}: Spark is at position {position} of this run, which planned only {planned[queue]}"
                )
        return ours

    def _planned_after(self, ours: Mapping[str, int]) -> bool:
        return any(position > ours.get(queue, 0) for queue, position in self._receiver.planned().items())

    def _offer(self, offsets: Mapping[str, QueueOffset], ours: Mapping[str, int]) -> dict:  # type: ignore[type-arg]
        end = dict(offsets)
        for queue, position in self._receiver.planned().items():
            if position > ours.get(queue, 0):
                end[queue] = QueueOffset(position, self._receiver.epoch)
        self._uncommitted.add(_key(end))
        crashpoints.reached(crashpoints.END_RETURNED_UNLOGGED)
        return dump_offsets(end)

    def _pulls(self, size: int) -> bool:
        if self._options.transfer == "auto" and size < SMALL_BATCH_BYTES:
            return False
        return size > 0 and self._may_pull()

    def _may_pull(self) -> bool:
        transfer = self._options.transfer
        return transfer == "pull" or (transfer == "auto" and not driver_env.is_encrypted(self._settings))

    def _endpoint(self) -> Endpoint:
        if self._pull is None:
            host = self._options.transfer_host or driver_env.driver_host(self._settings)
            bind = driver_env.bind_address(host)
            ranges = self._receiver if self._may_pull() else _RejectsOnly(self._receiver)
            self._pull = PullServer(ranges, bind=bind, port=self._options.transfer_port, advertise=host)
        return self._pull.endpoint


class _RejectsOnly:
    """What the endpoint of a query may do whose bytes shall not travel in clear."""

    def __init__(self, receiver: Receiver) -> None:
        self.reject = receiver.reject

    def parts(self, queue: str, epoch: int, begin: int, end: int) -> Sequence[memoryview]:
        raise TransferError(f"queue {queue!r}: this query ships its batches inside partitions and serves none")


def _key(offsets: Mapping[str, QueueOffset]) -> str:
    return json.dumps(dump_offsets(offsets))
