"""Sends the messages of one task over one connection at a time: checks their routes, and examines rejects."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from amqp_core.error_conditions import reason
from amqp_core.errors import given
from amqp_core.transfer_ledger import runs_of
from amqp_spark import crashpoints
from amqp_spark.arrow.encode import FrameFormat
from amqp_spark.connect import require, require_prepared_transactions
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import MessagePlace, PublishFailed, Unroutable
from amqp_spark.host_order import HostOrder
from amqp_spark.options import DISCARD
from amqp_spark.sink.origins import Origin, origin_of, without_accept
from amqp_spark.sink.routes import Routes

if TYPE_CHECKING:
    from amqp_core.api import Client, Publisher
    from amqp_core.errors import CommandFailed, PublisherStopped, PublishingBlocked
    from amqp_core.transfer_ledger import Rejected, Transfers
    from amqp_spark.arrow.encode import TaskId
    from amqp_spark.options import SinkOptions
    from amqp_spark.sink.connections import Connections, Lease

_log = logging.getLogger("amqp_spark.sink")


class Link(NamedTuple):
    """One connection with its publisher."""

    lease: Lease
    publisher: Publisher

    @property
    def frame_format(self) -> FrameFormat:
        """Form of the frames that it sends."""
        return FrameFormat.of(self.lease.client, self.publisher)


class Sender:
    """The messages of one task on their way to the broker. It is for one thread.

    In a ``transaction`` messages reach their queues at a commit, later than the broker receives them. ``link`` is None
    before the first connection and after a loss; ``hosts`` has the host that was lost latest as its last one;
    ``waiting`` has the runs not yet passed to it, in order. The form of encoded runs (``frame_format``) depends on the
    kind of broker. If the sink ``discards`` unroutable messages, rejected ones may be sent once more: their frames are
    kept until completion (``keeps_frames``).
    """

    def __init__(
        self, options: SinkOptions, task_id: TaskId, connections: Connections, *, transaction: bool = False
    ) -> None:
        self.options = options
        self.task_id = task_id
        self.place = MessagePlace(task_id.partition, task_id.batch_id)
        self.link: Link | None = None
        self.hosts = HostOrder()
        self.waiting: deque[Transfers] = deque()
        self.frame_format: FrameFormat | None = None
        self.was_stopped = False
        """Whether the broker stopped the publisher of the latest connection for long: its queues may be full."""
        self.was_replaced = False
        """Whether a connection that had confirmed all was replaced, since it is blocked; the policy resets it."""
        self.rows = self.nbytes = self.retries = self.resent = self.discarded = 0
        self._connections = connections
        self._transaction = transaction
        self.discards = options.on_unroutable == DISCARD
        self._routes = Routes(transaction=transaction)
        self._returns = False
        """Whether the broker of the latest connection returns unroutable messages."""
        self._counted_rows = 0
        """Rows before this one were queried already, and the unroutable ones among them counted."""
        self._blocks = 0
        self.nacked: list[Rejected] = []
        """Messages that no queue has taken for now: a queue is full, or has lost its leader."""

    @property
    def keeps_frames(self) -> bool:
        """Whether a rejected message may have to be sent again: it may be discarded if it is unroutable, which a reject
        does not say for certain, but a return of the message does."""
        return self.discards and not self._returns

    def lease(self) -> Lease:
        """Lease a connection from the pool."""
        return self._connections.lease(self.options.connect_options(), self.hosts)

    def open(self) -> Link:
        """Lease a connection and make it ready for this task; the caller makes it the current one."""
        lease = self.lease()
        try:
            self._check_capabilities(lease.client)
            publisher = lease.client.publisher(
                max_in_flight=self.options.max_in_flight, blocked_timeout_s=self.options.blocked_timeout
            )
            if self.was_stopped:
                publisher.probe()
            self._returns = lease.client.capabilities.returns_unroutable
            self._routes.connected(lease.client, publisher.finish)
            link = Link(lease, publisher)
            self._check_same_kind(link.frame_format)
        except BaseException:
            lease.abort()
            raise
        return link

    def _check_capabilities(self, client: Client) -> None:
        require(client, "The sink", "confirms", "exchange_queries")
        if self._transaction:
            require_prepared_transactions(client)
            require(client, "deliveryGuarantee=exactly-once", "binding_queries")
        elif not client.capabilities.rejects_unroutable:
            require(client, "The sink, at a broker that drops unroutable messages,", "binding_queries")

    def _check_same_kind(self, found: FrameFormat) -> None:
        """Check that runs encoded already suit the broker of the new connection."""
        expected = self.frame_format
        if expected is not None and not expected.suits(found):
            text = SparkCondition.BROKER_CHANGED(
                place=self.place,
                protocol=found.protocol,
                found=found.max_frame_size,
                expected=expected.max_frame_size,
            )
            raise PublishFailed(text, self.place)

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
        if finish and not self.waiting and not self.nacked:
            if self.link.lease.client.is_blocked and not self._transaction:
                self._replace_blocked()
            self._routes.verify()
            self._judge_gone()

    def _replace_blocked(self) -> None:
        """Take another connection for the last queries, which a broker that blocks this one does not answer. It blocks
        connections that publish, and all is confirmed. Nor would the next task get an answer."""
        assert self.link is not None
        link, self.link, self.was_replaced = self.link, None, True
        link.lease.abort()
        self.link = self.open()

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
            place = replace(self._place(origin, missing[0]), routing_key=None)
            options = "option exchange, column exchange" if self.options.exchange_from_column else "option exchange"
            raise PublishFailed(SparkCondition.EXCHANGE_NOT_FOUND(place=place, options=options), place)
        unbound = routes.unbound(origin.exchange, origin.routing_key, start, stop)
        self._judge_gone()
        if unbound and not self.discards:
            place = self._place(origin, unbound[0])
            text = SparkCondition.UNROUTABLE if place.routing_key else SparkCondition.ROUTING_KEY_UNVERIFIABLE
            raise Unroutable(text(place=place), place)
        new = [index for index in unbound if origin.row(index) >= self._counted_rows]
        self.discarded += len(new)  # sent all the same: an alternate exchange may get them
        self._counted_rows = max(self._counted_rows, origin.row(stop))
        routes.sent(origin.first_row)

    def _judge_gone(self) -> None:
        """Fail the task if the target of sent messages is missing now, unless they may be discarded.

        A missing exchange always fails the task: it is no matter of routing.
        """
        for gone in self._routes.take_gone():
            is_exchange = gone.routing_key is None
            place = replace(
                self.place,
                row=gone.first if gone.rows else None,
                exchange=gone.exchange,
                routing_key=gone.routing_key,
                count=gone.rows or None,
            )
            if is_exchange:
                failed = PublishFailed(SparkCondition.EXCHANGE_DELETED(place=place), place)
            else:
                failed = Unroutable(SparkCondition.BINDING_DELETED(place=place), place)
            if is_exchange or not self.discards:
                raise failed
            _log.warning("%s", failed)

    def judge(self, rejected: list[Rejected]) -> None:
        """Fail the task for rejected messages, unless they were unroutable and may be discarded.

        Broker-J gives the same code for a full queue as for a missing one. Messages that may be discarded are therefore
        sent once more in a way that reveals a full queue; unroutable ones are dropped then, and those bound meanwhile
        arrive. A broker that returns messages leaves no doubt, and what it nacks (:attr:`nacked`) may pass later.
        """
        if not rejected:
            return
        allowed: list[Rejected] = []
        others: list[Rejected] = []
        for one in rejected:
            # only runs not yet resent keep their frames: a broker must not cause endless repetition
            unroutable = one.is_unroutable and (self._returns or origin_of(one).frames is not None)
            (allowed if self.discards and unroutable else others).append(one)
        if others and self._returns and all(one.run is not None and not one.is_unroutable for one in others):
            self.nacked += others
        elif others:  # what is nacked beside them would be sent again: returned ones are the cause
            self.reject([one for one in others if self._returns and one.is_unroutable] or others)
        self.discarded += len(allowed)
        if not self._returns:
            self.waiting.extendleft(reversed(without_accept(allowed)))

    def take_nacked(self) -> list[Transfers]:
        """Return the nacked messages, to be sent again, and forget them."""
        nacked, self.nacked = self.nacked, []
        return runs_of(nacked)

    def reject(self, rejected: list[Rejected]) -> NoReturn:
        """Raise for messages that the broker has rejected."""
        first = min(rejected, key=lambda one: origin_of(one).row(one.index))
        place = replace(self._place(origin_of(first), first.index), count=len(rejected))
        code, text = first.code, given(first.text)
        if first.is_unroutable and self._returns:
            raise Unroutable(SparkCondition.UNROUTABLE(place=place), place)
        if first.is_unroutable:
            raise Unroutable(SparkCondition.REJECTED_AS_UNROUTABLE(place=place, code=code, text=text), place)
        raise PublishFailed(SparkCondition.PUBLISH_REJECTED(place=place, code=code, text=text), place)

    def refused(self, error: CommandFailed) -> NoReturn:
        """Raise for execution.exception: the session is over, and a retry would end in the same way."""
        assert self.link is not None
        found = None if error.command_id is None else self.link.publisher.locate(error.command_id)
        if found is not None and isinstance(found[0], Origin):
            place = self._place(found[0], found[1])
        else:
            place = replace(self.place, exchange=None if self.options.exchange_from_column else self.options.exchange)
        raise PublishFailed(SparkCondition.PUBLISH_REFUSED(place=place, reason=reason(error)), place) from error

    def blocked(self, error: PublishingBlocked | PublisherStopped) -> NoReturn:
        """Raise for a broker that has blocked its publishers for too long, where another connection would be, too; or
        stopped this one, whose transaction ends with its connection."""
        timeout = f"{self.options.blocked_timeout:g}"
        text = SparkCondition.PUBLISHING_BLOCKED_TOO_LONG(place=self.place, reason=reason(error), timeout=timeout)
        raise PublishFailed(text, self.place) from error

    def _place(self, origin: Origin, index: int) -> MessagePlace:
        """Place of transfer ``index`` of a block."""
        exchange, key = origin.target(index)
        return replace(self.place, row=origin.row(index), exchange=exchange, routing_key=key)
