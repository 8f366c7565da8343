"""Publishes the rows of one task: encodes them, and passes them to the policy that keeps the delivery guarantee."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from amqp_spark import crashpoints
from amqp_spark.sink.origins import run_of
from amqp_spark.sink.statistics import Statistics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from amqp_core.transfer_ledger import Transfers
    from amqp_spark.arrow.encode import Encoder, MessagePlan
    from amqp_spark.sink.sender import Link, Sender


class CommitPolicy(Protocol):
    """Keeps the delivery guarantee of one task; use it once, in one thread.

    :class:`amqp_spark.sink.at_least_once.AtLeastOnce` and :class:`amqp_spark.sink.exactly_once.ExactlyOnce` implement
    it. Order of use: :meth:`connect`, :meth:`send` for each run, :meth:`finish`, :meth:`commit`; after any error
    :meth:`abandon`.
    """

    @property
    def sender(self) -> Sender:
        """Holds the messages and the current connection of the task."""

    def connect(self) -> Link:
        """Connect; return the connection, on whose broker the format of the frames depends."""

    def send(self, transfers: Transfers) -> None:
        """Send a run, connecting again if the guarantee permits it."""

    def finish(self) -> None:
        """Return when the broker has completed everything that was sent."""

    def commit(self) -> None:
        """End the task after :meth:`finish`, and give the connection back."""

    def abandon(self) -> None:
        """End the connection of a failed task, if there is one."""


class TaskWriter:
    """Publishes the rows of one task with a policy made for it; use it once, in one thread."""

    def __init__(self, plan: MessagePlan, policy: CommitPolicy) -> None:
        self._plan = plan
        self._policy = policy
        self._sender = policy.sender

    def run(self, batches: Iterable[pa.RecordBatch]) -> Statistics:
        """Publish every row; return when the broker has completed all of them. Without rows no connection is made.

        Raises:
            RowError: a row cannot be sent; nothing of it was.
            PublishFailed, Unroutable: a missing exchange, or the broker refused or rejected messages.
            OutcomeUnknown: at-least-once: the reconnection attempts are used up, and sent messages may be enqueued.
                With any other connection error the outcome of every sent message is known.
            StateError: exactly-once: the login lacks a permission, or the broker refuses the timeout.
            AmqpError: the error of the last connection, or of the last attempt to connect.
        """
        started, clock = time.time(), time.monotonic()
        try:
            self._publish(batches)
        except BaseException:
            self._policy.abandon()
            raise
        sender = self._sender
        return Statistics(
            messages=sender.rows - sender.discarded,
            nbytes=sender.nbytes,
            seconds=time.monotonic() - clock,
            retries=sender.retries,
            resent=sender.resent,
            discarded=sender.discarded,
            started=started,
        )

    def _publish(self, batches: Iterable[pa.RecordBatch]) -> None:
        sender, policy = self._sender, self._policy
        encoder: Encoder | None = None
        for batch in self._arriving(batches):
            encoder = encoder or self._connected()
            for block in encoder.blocks(batch, sender.rows):
                policy.send(run_of(block, sender.options, keep=sender.keeps_frames))
        if encoder is not None:
            crashpoints.reached(crashpoints.ALL_SENT)
            policy.finish()
            crashpoints.reached(crashpoints.SYNCED)
            policy.commit()

    def _arriving(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches that have rows; the pool keeps the connection alive while Spark computes the next one."""
        iterator = iter(batches)
        while True:
            if self._sender.link is None:
                batch = next(iterator, None)
            else:
                with self._sender.link.lease.resting():
                    batch = next(iterator, None)
            if batch is None:
                return
            if batch.num_rows:
                yield batch

    def _connected(self) -> Encoder:
        """Connect, and make the encoder for this broker."""
        crashpoints.reached(crashpoints.TASK_STARTED)
        link = self._policy.connect()
        self._sender.frame_format = link.frame_format
        return self._plan.encoder(link.frame_format, self._sender.task_id)
