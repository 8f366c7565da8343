"""A stream reader in the reader process, from the first call of Spark on; its policy keeps the delivery guarantee."""

from __future__ import annotations

import json
import logging
import os
import time
from functools import cached_property
from typing import TYPE_CHECKING, Final, Protocol

from amqp_spark import crashpoints
from amqp_spark.datasource import consumer_setup, driver_env, encryption
from amqp_spark.datasource.block_server import BlockServer
from amqp_spark.datasource.partitions import SMALL_BATCH_BYTES, PlannedRanges, inline_partitions, pull_partitions
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import TransferError, UnsupportedModeError
from amqp_spark.offsets import VERSION, dump_offsets, parse_offsets
from amqp_spark.options import REJECT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.datasource import InputPartition

    from amqp_spark.arrow.decode import Chunk
    from amqp_spark.datasource.block_server import Endpoint
    from amqp_spark.datasource.partitions import Range
    from amqp_spark.datasource.receive_buffer import QueueBuffer
    from amqp_spark.datasource.receiver import Receiver
    from amqp_spark.offsets import QueueOffset
    from amqp_spark.options import SourceOptions

_log = logging.getLogger(__name__)

IDLE_CALL_SECONDS: Final = 0.05
"""Consecutive calls without new messages closer than this mean that the engine polls."""
IDLE_WAIT_SECONDS: Final = 0.025
"""While it polls, each call waits so long for messages: a message is seen at once, and fewer calls are made."""


class DeliveryPolicy(Protocol):
    """How a delivery guarantee is kept: when messages are accepted, and where planned batches are until Spark commits.

    Attributes:
        receiver: receives the messages.
        unconfirmed: warning for an AvailableNow query that ends before the broker has confirmed its last commands.
    """

    receiver: Receiver
    unconfirmed: str

    def expect(self, offsets: Mapping[str, QueueOffset]) -> None:
        """Take offsets of Spark before anything is received: what does not fit them is not received."""

    def committed(self, offsets: Mapping[str, QueueOffset]) -> None:
        """Settle everything up to these offsets, which Spark has committed; the first call has its start position."""

    def uncommitted(self, offsets: Mapping[str, QueueOffset]) -> dict[str, QueueOffset]:
        """The ends, per queue, of the first planned batch after these offsets; empty if there is none."""

    def plan(self, *, max_messages: int | None, max_bytes: int) -> bool:
        """Plan the next batch from the received messages; return whether there is one."""

    def most_messages(self, max_messages: int | None) -> int | None:
        """Most messages of the next batch, by the option and by what the guarantee allows."""

    def ranges(self, starts: Mapping[str, QueueOffset], ends: Mapping[str, QueueOffset]) -> list[Range]:
        """The planned ranges of a batch that Spark has logged."""

    def buffer_of(self, queue: str, epoch: int, end: int) -> QueueBuffer:
        """The buffer that holds a planned range, which ends at or after ``end``. Called under the receiver's lock."""

    def epoch_of(self, queue: str) -> int | None:
        """The current epoch of a queue; None as long as it is not known."""

    def metrics_of(self, queue: str) -> dict[str, object]:
        """What the guarantee counts of a queue, besides :meth:`.QueueCounters.report`."""

    def assure(self) -> None:
        """Return if planned ranges may be served now; else raise an AmqpError."""

    def asked(self) -> None:
        """Spark asks for a batch."""

    def answered(self, *, batch: bool) -> None:
        """Spark gets a batch, or none, as the answer."""

    def sync(self) -> bool:
        """Wait, for a bounded time, until everything committed is settled for good; return whether it is."""

    def stop(self, uncommitted: set[str]) -> None:
        """Close the connections cleanly. ``uncommitted``: :func:`key` of the ends offered and not committed."""


class MicroBatchStream:
    """One run of a reader. Used by one thread; the pull endpoint calls its policy and its ranges from others.
    ``settings``, ``watch``: settings of Spark and the watch of the parent process, where that is not Spark's driver."""

    def __init__(
        self,
        options: SourceOptions,
        policy: DeliveryPolicy,
        *,
        bounded: bool,
        settings: Mapping[str, str] | None = None,
        watch: driver_env.ParentWatch | None = None,
    ) -> None:
        self._options = options
        self._policy = policy
        self._receiver = policy.receiver
        self._planned = PlannedRanges(policy.receiver.held.changed, policy.buffer_of)
        self._bounded = bounded
        self._settings = driver_env.spark_settings() if settings is None else settings
        self._watch = driver_env.watch_parent(os.getppid()) if watch is None else watch
        if options.query_checkpoint is not None:
            driver_env.stop_in_order()
        self._connecting_s = consumer_setup.longest_seconds(options)
        self._pull: BlockServer | None = None
        self._uncommitted: set[str] = set()
        """Ends that were offered to Spark and not committed."""
        self._last_idle = float("-inf")
        self._last_batch = time.monotonic()
        self._begins = True
        """Whether Spark has not yet asked for new messages."""

    def begin(self, offsets: Mapping[str, object]) -> None:
        """Begin to receive, at offsets of Spark, which has no other call yet: what is there now counts as such."""
        self._start(parse_offsets(offsets, self._options.queues))

    def latest_offset(self, start: Mapping[str, object]) -> dict:  # type: ignore[type-arg]
        """See :meth:`AmqpStreamReader.latestOffset`."""
        receiver, options, policy = self._receiver, self._options, self._policy
        policy.asked()
        offsets = parse_offsets(start, options.queues)
        self._start(offsets)
        policy.committed(offsets)
        if news := policy.uncommitted(offsets):
            return self._offer(offsets, news)
        max_bytes = options.max_bytes_per_trigger
        while True:
            max_messages = policy.most_messages(options.max_messages_per_trigger)
            if self._bounded:
                receiver.wait_for_batch(max_messages=max_messages, max_bytes=max_bytes)
            elif self._begins:
                receiver.wait_for_begin(self._connecting_s, max_messages=max_messages, max_bytes=max_bytes)
                self._begins = False
            elif time.monotonic() - self._last_idle < IDLE_CALL_SECONDS:
                receiver.wait_for_news(
                    IDLE_WAIT_SECONDS, min_messages=options.min_messages_per_trigger, max_bytes=max_bytes
                )
            # First: other queues may have messages at every call, which would hide the failure of this one forever.
            receiver.raise_failure()
            if self._is_due() and policy.plan(max_messages=max_messages, max_bytes=max_bytes):
                return self._offer(offsets, policy.uncommitted(offsets))
            if not self._bounded:
                break
            if receiver.finished():
                if policy.sync():
                    break
                receiver.raise_failure()
                if receiver.finished():
                    _log.warning(policy.unconfirmed)
                    break
            # The connection broke before the broker had the accept, or the transaction: the messages that it sends
            # again are read again.
        policy.answered(batch=False)
        self._last_idle = time.monotonic()
        return dict(start)

    def partitions(self, start: Mapping[str, object], end: Mapping[str, object]) -> list[InputPartition]:
        """See :meth:`AmqpStreamReader.partitions`."""
        crashpoints.reached(crashpoints.LOGGED_BEFORE_PARTITIONS)
        starts = parse_offsets(start, self._options.queues)
        ends = parse_offsets(end, self._options.queues)
        self._start(ends)
        if start != end and key(starts) in self._uncommitted:
            raise early_batch()
        planned = self._planned
        ranges = self._policy.ranges(starts, ends)
        sizes = [planned.bytes_of(each.queue, each.epoch, each.begin, each.end) for each in ranges]
        pieces = self._options.num_partitions
        partitions: list[InputPartition]
        if self._pulls(sum(sizes)):
            partitions = list(pull_partitions(planned, ranges, sizes, pieces=pieces, endpoint=self._endpoint()))
        else:
            endpoint = self._endpoint() if self._options.mode == REJECT and ranges else None
            partitions = list(inline_partitions(planned, ranges, sizes, pieces=pieces, endpoint=endpoint))
        crashpoints.reached(crashpoints.PARTITIONS_RETURNED)
        self._policy.assure()
        return partitions

    def commit(self, end: Mapping[str, object]) -> None:
        """See :meth:`AmqpStreamReader.commit`."""
        offsets = parse_offsets(end, self._options.queues)
        self._start(offsets)
        self._uncommitted.discard(key(offsets))
        self._policy.committed(offsets)

    def report(self) -> dict | None:  # type: ignore[type-arg]
        """See :meth:`AmqpStreamReader.reportLatestOffset`."""
        report = {}
        for queue, (position, backlog, counts) in sorted(self._receiver.report().items()):
            epoch = self._policy.epoch_of(queue)
            if epoch is None:
                return None
            metrics = counts | self._policy.metrics_of(queue)
            entry: dict[str, object] = {"epoch": epoch, "metrics": metrics, "position": position, "version": VERSION}
            report[queue] = entry if backlog is None else entry | {"backlog": backlog}
        return report

    def stop(self) -> None:
        """See :meth:`AmqpStreamReader.stop`."""
        self._watch.pause_for(driver_env.STOPPING_SECONDS)
        self._policy.stop(self._uncommitted)
        if self._pull is not None:
            self._pull.close()

    # --- inside

    def _start(self, offsets: Mapping[str, QueueOffset]) -> None:
        """Receive from the first call on whose offsets are valid: receiving may leave durable state, or lose what the
        broker forgets."""
        if self._options.transfer_port and (self._options.mode == REJECT or self._may_pull()):
            self._endpoint()  # report a port in use at once, and not with the first large batch
        if not self._receiver.started:
            self._policy.expect(offsets)
        self._receiver.start(bounded=self._bounded)
        self._receiver.touch()

    def _is_due(self) -> bool:
        """Whether a batch need not wait for more messages. True with AvailableNow: the last ones would wait forever."""
        options = self._options
        return (
            self._bounded
            or options.min_messages_per_trigger == 1
            or time.monotonic() - self._last_batch >= options.max_trigger_delay
            or self._receiver.has_enough(
                min_messages=options.min_messages_per_trigger, max_bytes=options.max_bytes_per_trigger
            )
        )

    def _offer(self, offsets: Mapping[str, QueueOffset], news: Mapping[str, QueueOffset]) -> dict:  # type: ignore[type-arg]
        self._last_batch = time.monotonic()
        end = {**offsets, **news}
        self._uncommitted.add(key(end))
        crashpoints.reached(crashpoints.END_RETURNED_UNLOGGED)
        self._policy.answered(batch=True)
        return dump_offsets(end)

    def _pulls(self, size: int) -> bool:
        if self._options.transfer == "auto" and size < SMALL_BATCH_BYTES:
            return False
        return size > 0 and self._may_pull()

    def _may_pull(self) -> bool:
        transfer = self._options.transfer
        return transfer == "pull" or (transfer == "auto" and (not self._place.encrypt or encryption.available()))

    @cached_property
    def _place(self) -> driver_env.PullPlace:
        return driver_env.pull_place(self._settings, self._options.transfer_host)

    def _endpoint(self) -> Endpoint:
        if self._pull is None:
            place = self._place
            self._pull = BlockServer(
                self._planned if self._may_pull() else _RejectsOnly(self._planned),
                bind=place.bind,
                port=self._options.transfer_port,
                advertise=place.host,
                encrypt=place.encrypt,
                assure=self._policy.assure,
            )
        return self._pull.endpoint


class _RejectsOnly:
    """Ranges for the endpoint of a query whose bytes are sent inside partitions: it only takes rejects."""

    def __init__(self, planned: PlannedRanges) -> None:
        self.reject = planned.reject

    def chunks(self, queue: str, epoch: int, begin: int, end: int) -> Sequence[Chunk]:
        reason = f"queue {queue!r}: this query ships its batches inside partitions and serves none"
        raise TransferError(SparkCondition.TRANSFER_REFUSED(reason=reason))


def early_batch() -> UnsupportedModeError:
    """The error for a batch that begins at an end which Spark has not committed."""
    return UnsupportedModeError(
        SparkCondition.MODE_UNSUPPORTED(
            mode="Asynchronous progress tracking",
            reason="the query begins a batch before the one before is committed, so messages could be lost",
            alternative="asyncProgressTrackingEnabled=false",
        )
    )


def key(offsets: Mapping[str, QueueOffset]) -> str:
    """Offsets as text, to be kept in a set."""
    return json.dumps(dump_offsets(offsets))
