"""Publishes the rows of one task: encodes them, checks their routes, sends them, and examines rejects.

:mod:`at_least_once_writer` and :mod:`transactional_writer` (exactly once) add the handling of broken connections.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from amqp_spark import crashpoints
from amqp_spark.errors import PublishFailed, Unroutable, place_text
from amqp_spark.options import DISCARD
from amqp_spark.sink.origins import Origin, origin_of, run_of, without_accept
from amqp_spark.sink.routes import Routes
from amqp_spark.sink.statistics import Statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from amqp_core.api import Publisher
    from amqp_core.errors import CommandFailed
    from amqp_core.transfer_ledger import Rejected, Transfers
    from amqp_spark.arrow.encode import EncodedBlock, Encoder, MessagePlan, TaskId
    from amqp_spark.options import SinkOptions
    from amqp_spark.sink.connections import Connections, Lease

_log = logging.getLogger("amqp_spark.sink")

_UNBOUND: Final = (
    "no queue is bound for it: create the queue or the binding, or let option onUnroutable=discard drop such messages"
)
_NO_KEY: Final = (
    "its routing key is empty or not UTF-8, and nothing shows that a queue is bound with such a key (this broker "
    "cannot be asked for that): give it a routing key (column routing_key, option routingKey), or let option "
    "onUnroutable=discard send such messages and count them as discarded"
)
_EXCHANGE_GONE: Final = (
    "the exchange was deleted, or made again with another type, while the task published. What was sent for it since "
    "it was last seen may be lost: create the exchange with its bindings again, then run the batch again"
)
_BINDING_GONE: Final = (
    "the queue or its binding was there and is not there any more. What was sent for it since it was last seen may be "
    "lost: create the queue or the binding again, then run the batch again; or let option onUnroutable=discard accept "
    "that"
)
_BINDING_GONE_SINCE: Final = (
    "the queue or its binding was there after the last message for it, and is not there any more: what the queue held "
    "went with it. Create the queue or the binding again, then run the batch again; or let option onUnroutable=discard "
    "accept that"
)
_REJECTED: Final = (
    "no queue is bound for it (create the queue or the binding, or let option onUnroutable=discard drop such "
    "messages), or a queue is full"
)


class Link(NamedTuple):
    """One connection with its publisher and routes."""

    lease: Lease
    publisher: Publisher


def link_of(lease: Lease, max_in_flight: int, routes: Routes) -> Link:
    """Make a publisher for this task on a leased connection; its routes use that connection from now on."""
    publisher = lease.client.publisher(max_in_flight=max_in_flight)
    routes.connected(lease.client, publisher.finish)
    return Link(lease, publisher)


class TaskWriter(ABC):
    """Publishes the rows of one task; use it once.

    Args:
        plan: how rows become messages.
        options: of the sink.
        task_id: which task this is, for errors and stamped headers.
        connections: the pool.
        sleep: waits some seconds between two attempts to connect.
    """

    def __init__(
        self,
        plan: MessagePlan,
        options: SinkOptions,
        task_id: TaskId,
        *,
        connections: Connections,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._plan = plan
        self._options = options
        self._task_id = task_id
        self._where = place_text(task_id.partition, task_id.batch_id)
        self._connections = connections
        self._sleep = sleep
        self._discards = options.on_unroutable == DISCARD
        self._link: Link | None = None
        self._routes = self._new_routes()
        self._encoder: Encoder | None = None
        self._accept_mode = 0
        """Accept-mode of the encoded frames; it depends on the kind of broker."""
        self._waiting: deque[Transfers] = deque()
        """Runs not yet passed to the current connection, in order."""
        self._rows = 0
        self._nbytes = 0
        self._retries = 0
        self._resent = 0
        self._discarded = 0
        self._counted_rows = 0
        """Rows before this one were queried already, and the unroutable ones among them counted."""
        self._blocks = 0

    def run(self, batches: Iterable[pa.RecordBatch]) -> Statistics:
        """Publish every row; return when the broker has completed all of them. Without rows no connection is made.

        Args:
            batches: the rows of the task, as record batches of the planned schema.

        Raises:
            RowError: a row cannot be sent; nothing of it was.
            PublishFailed, Unroutable: a missing exchange, or the broker refused or rejected messages.
            AmqpError: the error of the last connection, or of the last attempt to connect.
        """
        started, clock = time.time(), time.monotonic()
        try:
            self._publish(batches)
        except BaseException:
            if self._link is not None:
                self._abandon(self._link)
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

    def _new_routes(self) -> Routes:
        """Routes without any answer yet."""
        return Routes()

    @abstractmethod
    def _drive(self, *, finish: bool = False) -> None:
        """Send the waiting runs, connecting if needed; with ``finish`` return when all of them are completed."""

    @abstractmethod
    def _complete(self, link: Link) -> None:
        """Finish the task after all transfers are completed, and give the connection back."""

    def _abandon(self, link: Link) -> None:
        """End the connection of a failed task."""
        link.lease.abort()

    def _publish(self, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in self._arriving(batches):
            for block in self._encoded(batch):
                self._made(run_of(block, self._options, keep=self._discards))
                self._nbytes += block.ends[-1]
                self._drive()
            self._rows += batch.num_rows
        if self._link is not None:
            crashpoints.reached(crashpoints.ALL_SENT)
            self._drive(finish=True)
            crashpoints.reached(crashpoints.SYNCED)
            self._complete(self._link)
            self._link = None

    def _made(self, transfers: Transfers) -> None:
        """Queue an encoded run for sending."""
        self._waiting.append(transfers)

    def _arriving(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches that have rows; the pool keeps the connection alive while Spark computes the next one."""
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
            self._drive()  # connects: the frame format depends on the broker
            assert self._link is not None
            publisher = self._link.publisher
            self._accept_mode = publisher.accept_mode
            self._encoder = self._plan.encoder(
                accept_mode=self._accept_mode, max_frame_size=publisher.max_frame_size, task_id=self._task_id
            )
        yield from self._encoder.blocks(batch, self._rows)

    def _check_same_kind(self, publisher: Publisher) -> None:
        """Check that runs encoded already suit the broker of the new connection."""
        encoder = self._encoder
        if encoder is None:
            return
        if publisher.accept_mode != self._accept_mode or publisher.max_frame_size < encoder.max_frame_size:
            raise PublishFailed(
                "the connection was lost, and the broker that took over is of another kind or takes smaller frames "
                f"({publisher.max_frame_size} bytes instead of {encoder.max_frame_size}): the task has to start again",
                partition=self._task_id.partition,
                batch_id=self._task_id.batch_id,
            )

    def _send_waiting(self, link: Link, *, finish: bool) -> None:
        """Send the waiting runs on this connection and examine rejects, which may add waiting runs."""
        while self._waiting:
            self._check_routes(link, self._waiting[0])
            link.publisher.send(self._waiting.popleft())
            self._blocks += 1
            if self._blocks == 1:
                crashpoints.reached(crashpoints.BLOCK_SENT)
        if finish:
            link.publisher.finish()
        self._judge(link.publisher.take_rejected())
        if finish and not self._waiting:
            self._routes.verify()
            self._judge_gone()

    # --- messages that cannot be published

    def _check_routes(self, link: Link, transfers: Transfers) -> None:
        """Query routes whose absence the broker would not report later; nothing of the run was sent yet."""
        origin, routes = origin_of(transfers), self._routes
        start, stop = transfers.first, transfers.first + len(transfers)
        routes.look_again()
        missing = routes.missing(origin.exchange, start, stop)
        if missing is not None:
            reason = "there is no such exchange: create it, or name another one (option exchange"
            reason += ", column exchange)" if self._options.exchange_from_column else ")"
            raise self._failed(reason, origin, missing[0], routing_key=False)
        unbound = routes.unbound(origin.exchange, origin.routing_key, start, stop)
        self._judge_gone()
        if unbound and not self._discards:
            reason = _UNBOUND if origin.target(unbound[0])[1] else _NO_KEY
            raise self._failed(reason, origin, unbound[0], kind=Unroutable)
        new = [index for index in unbound if origin.row(index) >= self._counted_rows]
        self._discarded += len(new)  # sent all the same: an alternate exchange may get them
        self._counted_rows = max(self._counted_rows, origin.row(stop))
        routes.sent(origin.exchange, origin.routing_key, start, stop, origin.first_row)

    def _judge_gone(self) -> None:
        """Fail the task if the target of sent messages is missing now, unless they may be discarded.

        A missing exchange always fails the task: it is no matter of routing.
        """
        for gone in self._routes.take_gone():
            is_exchange = gone.routing_key is None
            binding_gone = _BINDING_GONE if gone.rows else _BINDING_GONE_SINCE
            failed = (PublishFailed if is_exchange else Unroutable)(
                _EXCHANGE_GONE if is_exchange else binding_gone,
                partition=self._task_id.partition,
                batch_id=self._task_id.batch_id,
                row=gone.first if gone.rows else None,
                exchange=gone.exchange,
                routing_key=gone.routing_key,
                count=gone.rows or None,
            )
            if is_exchange or not self._discards:
                raise failed
            _log.warning("%s", failed)

    def _judge(self, rejected: list[Rejected]) -> None:
        """Fail the task for rejected messages, unless they were unroutable and may be discarded.

        Broker-J gives the same code for a full queue as for a missing one. Messages that may be discarded are therefore
        sent once more in a way that reveals a full queue; unroutable ones are dropped then, and those bound meanwhile
        arrive.
        """
        allowed: list[Rejected] = []
        others: list[Rejected] = []
        for one in rejected:
            # only runs not yet resent keep their frames: a broker must not cause endless repetition
            unroutable = one.is_unroutable and origin_of(one).frames is not None
            (allowed if self._discards and unroutable else others).append(one)
        if others:
            self._reject(others)
        self._discarded += len(allowed)
        self._waiting.extendleft(reversed(without_accept(allowed)))

    def _reject(self, rejected: list[Rejected]) -> NoReturn:
        first = min(rejected, key=lambda one: origin_of(one).row(one.index))
        told = f"the broker rejected it with code {first.code} ({first.text or 'no reason given'})"
        kind = PublishFailed
        if first.is_unroutable:
            kind, told = Unroutable, f"{told}: {_REJECTED}"
        raise self._failed(told, origin_of(first), first.index, kind=kind, count=len(rejected))

    def _refused(self, error: CommandFailed, publisher: Publisher) -> NoReturn:
        """Raise for execution.exception: the session is over, and a retry would end in the same way."""
        found = None if error.command_id is None else publisher.locate(error.command_id)
        if found is not None and isinstance(found[0], Origin):
            raise self._failed(str(error), found[0], found[1]) from error
        raise PublishFailed(
            str(error),
            partition=self._task_id.partition,
            batch_id=self._task_id.batch_id,
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
            partition=self._task_id.partition,
            batch_id=self._task_id.batch_id,
            row=origin.row(index),
            exchange=exchange,
            routing_key=key if routing_key else None,
            count=count,
        )
