"""At-least-once delivery of one task's rows: encode, ask for routes, publish, and start again when a connection breaks.

:class:`Delivery` is the policy; connections, routes and the publisher know nothing of it, so that another one can stand
beside it.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from amqp_core.errors import AmqpError, CommandFailed, OutcomeUnknown
from amqp_core.v0_10.spec import MessageRejectCode
from amqp_spark import crashpoints
from amqp_spark.errors import PublishFailed, Unroutable, place_text
from amqp_spark.options import DISCARD
from amqp_spark.sink.connections import shared
from amqp_spark.sink.routes import Routes
from amqp_spark.sink.runs import Origin, origin_of, run_of, without_accept
from amqp_spark.sink.statistics import Statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from amqp_core.v0_10.publisher import Publisher
    from amqp_core.v0_10.transfers import Rejected, Transfers
    from amqp_spark.options import SinkOptions
    from amqp_spark.sink.connections import Connections, Lease
    from amqp_spark.sink.encoding.messages import EncodedBlock, Encoder, MessagePlan, Place

_log = logging.getLogger("amqp_spark.sink")

FIRST_DELAY_SECONDS: Final = 0.2
_UNBOUND: Final = (
    "no queue is bound for it: create the queue or the binding, or let option onUnroutable=discard drop such messages"
)
_REJECTED: Final = (
    "no queue is bound for it (create the queue or the binding, or let option onUnroutable=discard drop such "
    "messages), or a queue is full"
)


class _Link(NamedTuple):
    """One connection and what hangs on it."""

    lease: Lease
    publisher: Publisher
    routes: Routes


class Delivery:
    """Publishes the rows of one task; use it once.

    Parameters:
        plan: how rows become messages.
        options: of the sink.
        place: which task this is, for errors and stamped headers.
        connections: the pool; by default that of the process.
        sleep: waits some seconds between two attempts to connect.
    """

    def __init__(
        self,
        plan: MessagePlan,
        options: SinkOptions,
        place: Place,
        *,
        connections: Connections | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._plan = plan
        self._options = options
        self._place = place
        self._connections = connections or shared()
        self._sleep = sleep
        self._discards = options.on_unroutable == DISCARD
        self._link: _Link | None = None
        self._encoder: Encoder | None = None
        self._accept_mode = 0
        """What the frames carry; it suits one kind of broker."""
        self._waiting: deque[Transfers] = deque()
        """What the current connection was not given yet, in order."""
        self._attempt = 0
        """How many connections were lost in a row without any progress."""
        self._unknown = 0
        """Transfers at the front of ``_waiting`` that were sent before, and were not completed."""
        self._rows = 0
        self._nbytes = 0
        self._retries = 0
        self._resent = 0
        self._discarded = 0
        self._counted_rows = 0
        """Rows before this one were asked for already: what of them is unroutable was counted."""
        self._blocks = 0

    def run(self, batches: Iterable[pa.RecordBatch]) -> Statistics:
        """Publish every row and return when the broker has completed all of them. No rows: nothing is connected.

        Raises:
            RowError: a row cannot be sent; nothing of it was.
            PublishFailed, Unroutable: a missing exchange, or the broker refused or rejected messages.
            OutcomeUnknown: the attempts to connect again are used up, and transfers that were sent may be enqueued.
            AmqpError: no connection can be made, and nothing that was sent is in doubt.
        """
        started, clock = time.time(), time.monotonic()
        try:
            self._publish(batches)
        except BaseException:
            if self._link is not None:
                self._link.lease.abort()
            raise
        return Statistics(
            messages=self._rows - self._discarded,
            nbytes=self._nbytes,
            seconds=time.monotonic() - clock,
            retries=self._retries,
            resent=self._resent,
            discarded=self._discarded,
            started=started,
        )

    def _publish(self, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in self._arriving(batches):
            for block in self._encoded(batch):
                self._waiting.append(run_of(block, self._options, keep=self._discards))
                self._nbytes += block.ends[-1]
                self._drive()
            self._rows += batch.num_rows
        if self._link is not None:
            crashpoints.reached(crashpoints.ALL_SENT)
            self._drive(finish=True)
            crashpoints.reached(crashpoints.SYNCED)
            link, self._link = self._link, None
            link.lease.give_back()

    def _arriving(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches that have rows; the connection is looked after by others while Spark computes the next one."""
        iterator = iter(batches)
        while True:
            if self._link is None:
                batch = next(iterator, None)
            else:
                with self._link.lease.resting():
                    batch = next(iterator, None)
            if batch is None:
                return
            if batch.num_rows:
                yield batch

    def _encoded(self, batch: pa.RecordBatch) -> Iterator[EncodedBlock]:
        if self._encoder is None:
            crashpoints.reached(crashpoints.TASK_STARTED)
            self._drive()  # connects: what the frames look like depends on the broker
            assert self._link is not None
            publisher = self._link.publisher
            self._accept_mode = publisher.accept_mode
            self._encoder = self._plan.encoder(
                accept_mode=self._accept_mode, max_frame_size=publisher.max_frame_size, place=self._place
            )
        yield from self._encoder.blocks(batch, self._rows)

    # --- connections

    def _drive(self, *, finish: bool = False) -> None:
        """Send what waits, over as many connections as that takes; with ``finish`` until all of it is completed."""
        while True:
            try:
                link = self._linked()
                while self._waiting:
                    self._check_routes(link, self._waiting[0])
                    link.publisher.send(self._waiting.popleft())
                    self._blocks += 1
                    if self._blocks == 1:
                        crashpoints.reached(crashpoints.BLOCK_SENT)
                if finish:
                    link.publisher.finish()
                self._judge(link.publisher.take_rejected())
            except PublishFailed:
                raise
            except AmqpError as error:
                self._lost(error)
            else:
                if not self._waiting:
                    return

    def _linked(self) -> _Link:
        if self._link is None:
            lease = self._connections.lease(self._options.connect_options())
            try:
                publisher = lease.client.publisher(max_in_flight=self._options.max_in_flight)
                if self._encoder is not None:
                    self._check_same_kind(publisher)
            except BaseException:
                lease.abort()
                raise
            self._link = _Link(lease, publisher, Routes(lease.client, publisher.finish))
        return self._link

    def _lost(self, error: AmqpError) -> None:
        """Take back what the broker has not completed, and wait for the next attempt; or raise why there is none."""
        link, self._link = self._link, None
        counts = True
        if link is not None:
            publisher = link.publisher
            if isinstance(error, CommandFailed):
                self._link = link  # run() ends it
                self._refused(error, publisher)
            again = publisher.unfinished()
            in_doubt = publisher.in_flight
            link.lease.abort()
            self._judge(publisher.take_rejected())
            self._waiting.extendleft(reversed(again))
            self._resent += in_doubt
            # those of an earlier connection are the first to be sent again
            self._unknown = in_doubt + max(0, self._unknown - publisher.sent.transfers)
            if publisher.completed.transfers:
                self._attempt = 0
            # a kept connection may have broken while nobody used it: that shows at its first use
            counts = bool(publisher.completed.transfers) or not link.lease.reused
        if counts:
            self._attempt += 1
        if not error.retryable or self._attempt > self._options.retry_max_attempts:
            self._give_up(error)
        self._retries += 1
        delay = self._delay() if counts else 0.0
        where = place_text(self._place.partition, self._place.batch_id)
        _log.warning(
            "%s: %s; attempt %d of %d to connect again follows in %.1f s; %d transfers are sent and not completed",
            where, error, self._attempt, self._options.retry_max_attempts, delay, self._unknown,
        )  # fmt: skip
        crashpoints.reached(crashpoints.CONNECTION_LOST)
        self._sleep(delay)

    def _delay(self) -> float:
        longest = min(self._options.retry_max_delay, FIRST_DELAY_SECONDS * 2.0 ** min(self._attempt - 1, 30))
        return longest * random.uniform(0.5, 1.0)  # noqa: S311  jitter, not a secret

    def _give_up(self, error: AmqpError) -> NoReturn:
        if not self._unknown:
            raise error
        where = place_text(self._place.partition, self._place.batch_id)
        row = origin_of(self._waiting[0]).row(self._waiting[0].first)
        raise OutcomeUnknown(
            f"{where}: {self._unknown:,} messages were sent and not completed by the broker, so that they may be in "
            f"their queues or not (the first is row {row}); {self._attempt} connection(s) in a row were lost or could "
            f"not be made (retry.maxAttempts={self._options.retry_max_attempts}), the last one because: {error}"
        ) from error

    def _check_same_kind(self, publisher: Publisher) -> None:
        """What is encoded already must suit the broker that took over."""
        encoder = self._encoder
        assert encoder is not None
        if publisher.accept_mode != self._accept_mode or publisher.max_frame_size < encoder.max_frame_size:
            raise PublishFailed(
                "the connection was lost, and the broker that took over is of another kind or takes smaller frames "
                f"({publisher.max_frame_size} bytes instead of {encoder.max_frame_size}): the task has to start again",
                partition=self._place.partition,
                batch_id=self._place.batch_id,
            )

    # --- what cannot be published

    def _check_routes(self, link: _Link, transfers: Transfers) -> None:
        """Ask for what the broker would not tell afterwards; nothing of the run was sent."""
        origin = origin_of(transfers)
        start, stop = transfers.first, transfers.first + len(transfers)
        missing = link.routes.missing(origin.exchange, start, stop)
        if missing is not None:
            reason = "there is no such exchange: create it, or name another one (option exchange"
            reason += ", column exchange)" if self._options.exchange_from_column else ")"
            raise self._failed(reason, origin, missing[0], routing_key=False)
        if link.lease.client.is_qpidd:
            unbound = link.routes.unbound(origin.exchange, origin.routing_key, start, stop)
            if unbound and not self._discards:
                raise self._failed(_UNBOUND, origin, unbound[0], kind=Unroutable)
            new = [index for index in unbound if origin.row(index) >= self._counted_rows]
            self._discarded += len(new)  # sent all the same: an alternate exchange may get them
        self._counted_rows = max(self._counted_rows, origin.row(stop))

    def _judge(self, rejected: list[Rejected]) -> None:
        """What the broker has rejected fails the task, unless it could not be routed and that is allowed.

        For a full queue Broker-J gives the same code as for no queue. What may be discarded is therefore sent once more
        in the way that makes a full queue show; what could not be routed is dropped then, and what was bound meanwhile
        arrives.
        """
        allowed: list[Rejected] = []
        others: list[Rejected] = []
        for one in rejected:
            # frames are kept only of what was not sent so before: no broker shall keep us busy for ever
            unroutable = one.code == MessageRejectCode.UNROUTABLE and origin_of(one).frames is not None
            (allowed if self._discards and unroutable else others).append(one)
        if others:
            self._reject(others)
        self._discarded += len(allowed)
        self._waiting.extendleft(reversed(without_accept(allowed)))

    def _reject(self, rejected: list[Rejected]) -> NoReturn:
        first = min(rejected, key=lambda one: origin_of(one).row(one.index))
        told = f"the broker rejected it with code {first.code} ({first.text or 'no reason given'})"
        kind = PublishFailed
        if first.code == MessageRejectCode.UNROUTABLE:
            kind, told = Unroutable, f"{told}: {_REJECTED}"
        raise self._failed(told, origin_of(first), first.index, kind=kind, count=len(rejected))

    def _refused(self, error: CommandFailed, publisher: Publisher) -> NoReturn:
        """The broker raised execution.exception: the session is over, and trying again would end in the same way."""
        found = None if error.command_id is None else publisher.locate(error.command_id)
        if found is not None and isinstance(found[0], Origin):
            raise self._failed(str(error), found[0], found[1]) from error
        raise PublishFailed(
            str(error),
            partition=self._place.partition,
            batch_id=self._place.batch_id,
            exchange=None if self._options.exchange_from_column else self._options.exchange,
        ) from error

    def _failed(
        self,
        reason: str,
        origin: Origin,
        index: int,
        *,
        kind: type[PublishFailed] = PublishFailed,
        routing_key: bool = True,
        count: int | None = None,
    ) -> PublishFailed:
        """The error for transfer ``index`` of a block."""
        exchange, key = origin.target(index)
        return kind(
            reason,
            partition=self._place.partition,
            batch_id=self._place.batch_id,
            row=origin.row(index),
            exchange=exchange,
            routing_key=key if routing_key else None,
            count=count,
        )
