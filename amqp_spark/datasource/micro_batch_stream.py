"""A stream reader in the reader process, from the first call of Spark on: at-least-once and at-most-once."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import time
from functools import cached_property
from typing import TYPE_CHECKING, Final

from amqp_spark import crashpoints
from amqp_spark.datasource import commit_log, consumer_setup, driver_env, encryption
from amqp_spark.datasource.block_server import BlockServer
from amqp_spark.datasource.partitions import SMALL_BATCH_BYTES, Range, inline_partitions, pull_partitions
from amqp_spark.datasource.receive_buffer import ConsumerOptions
from amqp_spark.datasource.receiver import Receiver
from amqp_spark.errors import OffsetError, TransferError, UnsupportedModeError
from amqp_spark.offsets import VERSION, QueueOffset, dump_offsets, parse_offsets
from amqp_spark.options import AT_MOST_ONCE, REJECT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from amqp_spark.arrow.decode import Chunk
    from amqp_spark.compat import InputPartition
    from amqp_spark.connect import Connector
    from amqp_spark.datasource.block_server import Endpoint
    from amqp_spark.options import SourceOptions

_log = logging.getLogger(__name__)

IDLE_CALL_SECONDS: Final = 0.05
"""Consecutive calls without new messages closer than this mean that the engine polls."""
IDLE_WAIT_SECONDS: Final = 0.025
"""While it polls, each call waits so long for messages: a message is seen at once, and fewer calls are made."""


def new_epoch() -> int:
    """A number unique to this run: milliseconds since 1970 and 20 random bits, so that later runs have greater ones."""
    return time.time_ns() // 1_000_000 << 20 | random.SystemRandom().getrandbits(20)


class MicroBatchStream:
    """One run of a reader."""

    starts_late = False
    """Receive only from the first call on whose offsets are valid, since receiving leaves durable state."""

    def __init__(self, options: SourceOptions, connector: Connector, *, bounded: bool) -> None:
        self._options = options
        self._bounded = bounded
        self._settings = driver_env.spark_settings()
        self._watch = driver_env.watch_parent(os.getppid())
        if options.query_checkpoint is not None:
            driver_env.stop_in_order()
        consumer_options = _consumer_options(options)
        self._connecting_s = consumer_setup.longest_seconds(consumer_options)
        self._receiver = self._new_receiver(consumer_options, connector)
        self._pull: BlockServer | None = None
        self._uncommitted: set[str] = set()
        """Ends that were offered to Spark and not committed."""
        self._last_idle = float("-inf")
        self._last_batch = time.monotonic()
        self._begins = True
        """Whether Spark has not yet asked for new messages."""
        if not self.starts_late:
            self._start()

    def latest_offset(self, start: Mapping[str, object]) -> dict:  # type: ignore[type-arg]
        """See :meth:`AmqpStreamReader.latestOffset`."""
        receiver, options = self._receiver, self._options
        offsets = parse_offsets(start, options.queues)
        self._start()
        self._processed(offsets)
        if news := self._planned_after(offsets):
            return self._offer(offsets, news)
        max_messages, max_bytes = options.max_messages_per_trigger, options.max_bytes_per_trigger
        while True:
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
            self._raise_failure()
            if self._is_due() and receiver.plan(max_messages=max_messages, max_bytes=max_bytes):
                return self._offer(offsets, self._planned_after(offsets))
            if not self._bounded:
                break
            if receiver.finished():
                if receiver.sync():
                    break
                self._raise_failure()
                if receiver.finished():
                    self._unconfirmed()
                    break
            # The connection broke before the broker had the accept, or the transaction: the messages that it sends
            # again are read again.
        receiver.nothing_to_plan()
        self._last_idle = time.monotonic()
        return dict(start)

    def partitions(self, start: Mapping[str, object], end: Mapping[str, object]) -> list[InputPartition]:
        """See :meth:`AmqpStreamReader.partitions`."""
        crashpoints.reached(crashpoints.LOGGED_BEFORE_PARTITIONS)
        starts = parse_offsets(start, self._options.queues)
        ends = parse_offsets(end, self._options.queues)
        self._start()
        if start != end and _key(starts) in self._uncommitted:
            raise UnsupportedModeError(
                "this query goes on to the next batch without having committed the one before: that is asynchronous "
                "progress tracking (option asyncProgressTrackingEnabled), where the position that Spark passes may not "
                "be in its log, so that messages could be accepted and lost: switch it off"
            )
        holder = self._receiver
        ranges = self._ranges(starts, ends)
        size = sum(holder.bytes_of(each.queue, each.epoch, each.begin, each.end) for each in ranges)
        pieces = self._options.num_partitions
        partitions: list[InputPartition]
        if self._pulls(size):
            partitions = list(pull_partitions(holder, ranges, pieces=pieces, endpoint=self._endpoint()))
        else:
            endpoint = self._endpoint() if self._options.mode == REJECT and ranges else None
            partitions = list(inline_partitions(holder, ranges, pieces=pieces, endpoint=endpoint))
        crashpoints.reached(crashpoints.PARTITIONS_RETURNED)
        return partitions

    def commit(self, end: Mapping[str, object]) -> None:
        """See :meth:`AmqpStreamReader.commit`."""
        offsets = parse_offsets(end, self._options.queues)
        self._start()
        self._uncommitted.discard(_key(offsets))
        self._processed(offsets)

    def report(self) -> dict | None:  # type: ignore[type-arg]
        """See :meth:`AmqpStreamReader.reportLatestOffset`."""
        report = {}
        for queue, (position, backlog) in sorted(self._receiver.report().items()):
            epoch = self._receiver.epoch_of(queue)
            if epoch is None:
                return None
            entry: dict[str, object] = {"epoch": epoch, "position": position, "version": VERSION}
            report[queue] = entry if backlog is None else entry | {"backlog": backlog}
        return report

    def stop(self) -> None:
        """See :meth:`AmqpStreamReader.stop`."""
        self._watch.pause_for(driver_env.STOPPING_SECONDS)
        self._accept_committed()
        self._receiver.stop()
        if self._pull is not None:
            self._pull.close()

    def _accept_committed(self) -> None:
        """Accept the last batch if the checkpoint records its commit: Spark makes no further call when it stops."""
        location = self._options.query_checkpoint
        if location is None or self._options.exactly_once or not self._uncommitted:
            return
        for end in commit_log.last_committed(location):
            # Epochs are unique per run: no other query's log contains an end that this run has offered.
            with contextlib.suppress(OffsetError):
                offsets = parse_offsets(end, self._options.queues)
                if _key(offsets) in self._uncommitted:
                    self._processed(offsets)

    # --- overridden per delivery guarantee

    def _new_receiver(self, options: ConsumerOptions, connector: Connector) -> Receiver:
        return Receiver(
            self._options.queues,
            options,
            epoch=new_epoch(),
            buffer_bytes=self._options.buffer_bytes,
            connector=connector,
        )

    def _processed(self, offsets: Mapping[str, QueueOffset]) -> None:
        """Accept everything up to these offsets, which are in Spark's commit log."""
        self._receiver.accept(self._ours(offsets))

    def _planned_after(self, offsets: Mapping[str, QueueOffset]) -> dict[str, QueueOffset]:
        """The ends, per queue, of the batch that is planned and not in the log."""
        ours = self._ours(offsets)
        return {
            queue: QueueOffset(position, self._receiver.epoch)
            for queue, position in self._receiver.planned().items()
            if position > ours.get(queue, 0)
        }

    def _ranges(self, starts: Mapping[str, QueueOffset], ends: Mapping[str, QueueOffset]) -> list[Range]:
        """The ranges of a batch. A range of an earlier epoch is empty: the broker sends it again."""
        _refuse_owned(ends)
        return [
            Range(queue, self._receiver.epoch, self._receiver.begin_of(queue, offset.position), offset.position)
            for queue, offset in ends.items()
            if offset.epoch == self._receiver.epoch and offset != starts[queue]
        ]

    def _assure(self) -> None:
        """Return if planned ranges may be served now; else raise an AmqpError."""

    def _unconfirmed(self) -> None:
        """AvailableNow: handle the end of the query without the broker's confirmation."""
        _log.warning("the broker did not confirm in time that it took the last accept: it may send those again")

    def _raise_failure(self) -> None:
        failure = self._receiver.failure()
        if failure is not None:
            raise failure

    # --- inside

    def _start(self) -> None:
        if self._options.transfer_port and (self._options.mode == REJECT or self._may_pull()):
            self._endpoint()  # report a port in use at once, and not with the first large batch
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

    def _ours(self, offsets: Mapping[str, QueueOffset]) -> dict[str, int]:
        """The positions of this epoch. Messages of an earlier epoch are on the broker, or were accepted."""
        _refuse_owned(offsets)
        planned = self._receiver.planned()
        ours = {queue: offset.position for queue, offset in offsets.items() if offset.epoch == self._receiver.epoch}
        for queue, position in ours.items():
            if position > planned[queue]:
                raise OffsetError(
                    f"queue {queue!r}: Spark is at position {position} of this run, which planned only {planned[queue]}"
                )
        return ours

    def _offer(self, offsets: Mapping[str, QueueOffset], news: Mapping[str, QueueOffset]) -> dict:  # type: ignore[type-arg]
        self._last_batch = time.monotonic()
        end = {**offsets, **news}
        self._uncommitted.add(_key(end))
        crashpoints.reached(crashpoints.END_RETURNED_UNLOGGED)
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
                self._receiver if self._may_pull() else _RejectsOnly(self._receiver),
                bind=place.bind,
                port=self._options.transfer_port,
                advertise=place.host,
                encrypt=place.encrypt,
                assure=self._assure,
            )
        return self._pull.endpoint


class _RejectsOnly:
    """Ranges for the endpoint of a query whose bytes are sent inside partitions: it only takes rejects."""

    def __init__(self, receiver: Receiver) -> None:
        self.reject = receiver.reject

    def chunks(self, queue: str, epoch: int, begin: int, end: int) -> Sequence[Chunk]:
        raise TransferError(f"queue {queue!r}: this query ships its batches inside partitions and serves none")


def _consumer_options(options: SourceOptions) -> ConsumerOptions:
    return ConsumerOptions(
        connect=options.connect_options(),
        exclusive=options.exclusive,
        selector=options.selector,
        accept=options.delivery_guarantee != AT_MOST_ONCE,
        declare=options.declare == "ifMissing",
        bind=options.bind,
        max_attempts=options.retry_max_attempts,
        max_delay=options.retry_max_delay,
    )


def _refuse_owned(offsets: Mapping[str, QueueOffset]) -> None:
    """Refuse offsets of exactly-once: their messages are in the spool, and the broker does not send them again."""
    for queue, offset in offsets.items():
        if offset.is_owned:
            raise OffsetError(
                f"queue {queue!r}: the checkpoint was written with deliveryGuarantee=exactly-once, and messages of it "
                "may be in the spool and nowhere else. Set the option back until nothing is owned any more "
                "(python -m amqp_spark.transactions shows it), then use a new checkpoint location for another guarantee"
            )


def _key(offsets: Mapping[str, QueueOffset]) -> str:
    return json.dumps(dump_offsets(offsets))
