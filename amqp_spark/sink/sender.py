"""Sends the messages of one task over one connection at a time: checks their routes, and examines rejects."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from amqp_spark import crashpoints
from amqp_spark.errors import PublishFailed, Unroutable, place_text
from amqp_spark.options import DISCARD
from amqp_spark.sink.origins import Origin, origin_of, without_accept
from amqp_spark.sink.routes import Routes

if TYPE_CHECKING:
    from amqp_core.api import Publisher
    from amqp_core.errors import CommandFailed
    from amqp_core.transfer_ledger import Rejected, Transfers
    from amqp_spark.arrow.encode import TaskId
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
    """One connection with its publisher."""

    lease: Lease
    publisher: Publisher


class Sender:
    """The messages of one task on their way to the broker. It is for one thread.

    Args:
        options: of the sink.
        task_id: which task this is, for errors.
        connections: the pool.
        transaction: messages reach their queues at a commit, later than the broker receives them.

    Attributes:
        link: the current connection; ``None`` before the first one and after a loss.
        waiting: runs not yet passed to the current connection, in order.
        frame_format: accept-mode and maximum frame size of the encoded runs; they depend on the kind of broker.
        rows, nbytes: rows of the task so far, and bytes of their frames.
        retries, resent, discarded: see :class:`Statistics`.
    """

    def __init__(
        self, options: SinkOptions, task_id: TaskId, connections: Connections, *, transaction: bool = False
    ) -> None:
        self.options = options
        self.task_id = task_id
        self.where = place_text(task_id.partition, task_id.batch_id)
        self.link: Link | None = None
        self.waiting: deque[Transfers] = deque()
        self.frame_format: tuple[int, int] | None = None
        self.rows = self.nbytes = self.retries = self.resent = self.discarded = 0
        self._connections = connections
        self._transaction = transaction
        self._discards = options.on_unroutable == DISCARD
        self._routes = Routes(transaction=transaction)
        self._counted_rows = 0
        """Rows before this one were queried already, and the unroutable ones among them counted."""
        self._blocks = 0

    @property
    def keeps_frames(self) -> bool:
        """Whether rejected messages may be sent once more, so that their frames must be kept until completion."""
        return self._discards

    def lease(self) -> Lease:
        """Lease a connection from the pool."""
        return self._connections.lease(self.options.connect_options())

    def open(self) -> Link:
        """Lease a connection and make it ready for this task; the caller makes it the current one."""
        lease = self.lease()
        try:
            publisher = lease.client.publisher(max_in_flight=self.options.max_in_flight)
            self._routes.connected(lease.client, publisher.finish)
            self._check_same_kind(publisher)
        except BaseException:
            lease.abort()
            raise
        return Link(lease, publisher)

    def _check_same_kind(self, publisher: Publisher) -> None:
        """Check that runs encoded already suit the broker of the new connection."""
        if self.frame_format is None:
            return
        accept_mode, max_frame_size = self.frame_format
        if publisher.accept_mode != accept_mode or publisher.max_frame_size < max_frame_size:
            raise PublishFailed(
                "the connection was lost, and the broker that took over is of another kind or takes smaller frames "
                f"({publisher.max_frame_size} bytes instead of {max_frame_size}): the task has to start again",
                partition=self.task_id.partition,
                batch_id=self.task_id.batch_id,
            )

    def add(self, transfers: Transfers) -> None:
        """Queue a run of new rows for sending."""
        self.waiting.append(transfers)
        self.rows += len(transfers)
        self.nbytes += transfers.frames.nbytes

    def send_waiting(self, *, finish: bool = False) -> None:
        """Send the waiting runs on the current connection and examine rejects, which may add waiting runs.

        ``finish``: return when the broker has completed all of them.
        """
        assert self.link is not None
        publisher = self.link.publisher
        while self.waiting:
            self._check_routes(self.waiting[0])
            publisher.send(self.waiting.popleft())
            self._blocks += 1
            if self._blocks == 1:
                crashpoints.reached(crashpoints.BLOCK_SENT)
        if finish:
            publisher.finish()
        self.judge(publisher.take_rejected())
        if finish and not self.waiting:
            self._routes.verify()
            self._judge_gone()

    def forget_sent(self) -> None:
        """Forget the answers about routes and the count of discarded messages: all rows will be sent anew."""
        self._routes = Routes(transaction=self._transaction)
        self.discarded = self._counted_rows = 0

    # --- messages that cannot be published

    def _check_routes(self, transfers: Transfers) -> None:
        """Query routes whose absence the broker would not report later; nothing of the run was sent yet."""
        origin, routes = origin_of(transfers), self._routes
        start, stop = transfers.first, transfers.first + len(transfers)
        routes.look_again()
        missing = routes.missing(origin.exchange, start, stop)
        if missing is not None:
            reason = "there is no such exchange: create it, or name another one (option exchange"
            reason += ", column exchange)" if self.options.exchange_from_column else ")"
            raise self._failed(reason, origin, missing[0], routing_key=False)
        unbound = routes.unbound(origin.exchange, origin.routing_key, start, stop)
        self._judge_gone()
        if unbound and not self._discards:
            reason = _UNBOUND if origin.target(unbound[0])[1] else _NO_KEY
            raise self._failed(reason, origin, unbound[0], kind=Unroutable)
        new = [index for index in unbound if origin.row(index) >= self._counted_rows]
        self.discarded += len(new)  # sent all the same: an alternate exchange may get them
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
                partition=self.task_id.partition,
                batch_id=self.task_id.batch_id,
                row=gone.first if gone.rows else None,
                exchange=gone.exchange,
                routing_key=gone.routing_key,
                count=gone.rows or None,
            )
            if is_exchange or not self._discards:
                raise failed
            _log.warning("%s", failed)

    def judge(self, rejected: list[Rejected]) -> None:
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
        self.discarded += len(allowed)
        self.waiting.extendleft(reversed(without_accept(allowed)))

    def _reject(self, rejected: list[Rejected]) -> NoReturn:
        first = min(rejected, key=lambda one: origin_of(one).row(one.index))
        told = f"the broker rejected it with code {first.code} ({first.text or 'no reason given'})"
        kind = PublishFailed
        if first.is_unroutable:
            kind, told = Unroutable, f"{told}: {_REJECTED}"
        raise self._failed(told, origin_of(first), first.index, kind=kind, count=len(rejected))

    def refused(self, error: CommandFailed) -> NoReturn:
        """Raise for execution.exception: the session is over, and a retry would end in the same way."""
        assert self.link is not None
        found = None if error.command_id is None else self.link.publisher.locate(error.command_id)
        if found is not None and isinstance(found[0], Origin):
            raise self._failed(str(error), found[0], found[1]) from error
        raise PublishFailed(
            str(error),
            partition=self.task_id.partition,
            batch_id=self.task_id.batch_id,
            exchange=None if self.options.exchange_from_column else self.options.exchange,
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
            partition=self.task_id.partition,
            batch_id=self.task_id.batch_id,
            row=origin.row(index),
            exchange=exchange,
            routing_key=key if routing_key else None,
            count=count,
        )
