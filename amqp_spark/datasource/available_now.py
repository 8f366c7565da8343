"""AvailableNow: the consumer of a queue receives what was there at the start, then ends.

:mod:`.drain_detector` decides where the end is, and whether the consumer has reached it. This module asks the broker
for the counts that it needs, takes no more messages at the end, and returns those beyond it to the queue.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from amqp_spark.datasource.credit import MAX_CREDIT
from amqp_spark.datasource.drain_detector import SETTLING_SECONDS, DrainDetector
from amqp_spark.datasource.receive_buffer import add_range
from amqp_spark.datasource.second_count import SecondCount

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqp_core.address import ConnectOptions
    from amqp_core.api import Block, Client, QueueInfo, Subscription
    from amqp_spark.connect import Connector
    from amqp_spark.datasource.flow_control import FlowControl
    from amqp_spark.datasource.receive_buffer import ReceiveBuffer
    from amqp_spark.options import SourceOptions

_log = logging.getLogger(__name__)

LEAST_UNSETTLED: Final = 256
"""Smallest bound that a count gives to the limit of unsettled messages, since counts may be late."""

MOST_FAILED_COUNTS: Final = 5
"""After so many failed counts on a second connection, the first one counts."""
MOST_BLIND_COUNTS: Final = 30
"""After so many counts that do not have our consumer, they count: the broker may never count it."""
CEASE_SECONDS: Final = 30.0
"""How long nothing may come after the consumer has asked for no more messages."""


class Consumer(Protocol):
    """What this needs of the consumer of the queue; :class:`.QueueConsumer` implements it.

    Attributes:
        queue: the queue.
        end_estimate: position of the end of the queue when the broker was last asked.
        has_credit: whether the protocol of the session has credit.
        flow: the flow control of the session.
    """

    queue: str
    end_estimate: int | None
    has_credit: bool
    flow: FlowControl

    @property
    def beside_options(self) -> ConnectOptions:
        """Options for another connection to the host of this one. Any thread."""

    def ask_end(self, client: Client, subscription: Subscription | None = None) -> int | None:
        """Ask the broker for the number of messages that the consumer does not hold; None if not known.

        ``subscription``: what has arrived before the answer is stored, so that it counts as received.
        """

    def estimate(self, message_count: int, *, counts_held: bool) -> int:
        """Record a count of the queue, under the lock; return the number of messages that the consumer does not
        hold."""

    def surveyed(self, info: QueueInfo | None, *, counts_held: bool) -> None:
        """Record the answer to a queue query on another connection; ``None``: there is no such queue."""

    def store(self, blocks: Sequence[Block]) -> None:
        """Put transfers that have arrived into the buffer."""


class AvailableNow:
    """Ends one consumer when it has received what was there at the start, if the query is ``bounded``; else it goes on.
    For the thread of the consumer.

    Attributes:
        bounded: the query is AvailableNow; set before the consumer starts.
        exhausted: the end is reached in the present session; set under the lock.
        ending: the present session takes no more messages than those under way.
    """

    def __init__(self, consumer: Consumer, options: SourceOptions, held: ReceiveBuffer, connector: Connector) -> None:
        self.bounded = self.exhausted = self.ending = False
        self._consumer = consumer
        self._options = options
        self._buffer = held.buffers[consumer.queue]
        self._lock = held.changed
        self._clock = held.clock
        self._connector = connector
        self._detector = DrainDetector(consumer.queue, selector=options.selector is not None, clock=held.clock)
        self._second_count = SecondCount(consumer.queue)
        self._is_past_returned = False
        """Whether a message has come in this session that was never delivered: a quorum queue has sent all that was
        returned before."""
        self._blind_counts = 0
        """How many counts for the end, one after the other, had not even our consumer."""
        self._ceased_at = 0.0
        """When it asked for no more, or could not read the answer."""
        self._excess: list[tuple[int, int]] = []
        """Ids of messages beyond the end, which go back to the queue."""

    @property
    def is_looking(self) -> bool:
        """Whether the end is still to be reached."""
        return self.bounded and not self.exhausted

    def most_unsettled(self, there: int) -> int | None:
        """A bound for the limit of unsettled messages, where the broker counted so many; None: there is none."""
        return max(there, LEAST_UNSETTLED) if self.bounded else None

    def left_to_take(self) -> int:
        """Number of messages still wanted from the queue."""
        if self.exhausted or self.ending:
            return 0
        if self.bounded and self._consumer.has_credit and self._detector.target is not None:
            return max(0, self._detector.target - self._buffer.received)
        return MAX_CREDIT

    def arrived(self) -> None:
        """Record that transfers arrived."""
        self._detector.arrived()

    def cut_off(self) -> None:
        """Without credit, drop what the buffer holds beyond the end, so that it goes back; under the lock."""
        limit = self._detector.most
        if self.bounded and limit is not None and not self._consumer.has_credit and self._options.accepts:
            for ids in self._buffer.cut_off(limit):
                add_range(self._excess, *ids)

    def look_for_returned(self, client: Client, blocks: Sequence[Block]) -> None:
        """Look whether a quorum queue returns messages in the middle of the session: before they are received.

        When the link between two nodes breaks, it takes back what this session holds, and sends it again. So each of
        these messages has a second position, behind which the end is. What other consumers return comes besides, too.
        The first ones may come in one block with others, where reading was paused.
        """
        if not (self.bounded and self._options.accepts and client.capabilities.counts_deliveries):
            return
        for block in blocks:
            returned = client.returned(block)
            if not self._is_past_returned:
                first = next((place for place, index in enumerate(returned) if place != index), len(returned))
                is_new = bool(returned) or not client.first_is_redelivered(block)
                self._is_past_returned = is_new and first < len(block.ends)
                returned = returned[first:]
            if returned:
                self._detector.came_back(len(returned))

    def came_again(self, dropped: int, kept: int) -> None:
        """Record that so many of the messages that came again are not received, since they were accepted before; and
        that so many are, although they may have been accepted before."""
        self._detector.dropped(dropped)
        self._detector.kept(kept)

    def surveyed(self, consumers: int | None) -> None:
        """Take the number of consumers of the queue, asked for on the session, which is one of them."""
        self._detector.blind = consumers == 0 and not self._consumer.has_credit
        self._detector.alone = consumers is not None and consumers <= 1 and not self._detector.blind

    def begin(self, client: Client, *, confirmed: int | None, lost_for: float) -> None:
        """Begin a session. ``confirmed``: position up to which the broker has completed settlements; None: of all that
        is accepted. ``lost_for``: seconds for which the broker may keep the session before."""
        self.ending, self._excess, self._is_past_returned = False, [], False
        credit = self._consumer.has_credit
        self._detector.replaces = not credit and not client.capabilities.counts_held_messages
        self._detector.settling_s = 0.0 if credit else SETTLING_SECONDS
        info = client.query_queue(self._consumer.queue)
        there = 0 if info is None else info.message_count
        # Without credit, 0 consumers of 0 messages may be the answer of a queue that has no leader.
        others = info is not None and (info.subscriber_count != 0 or not (credit or there))
        # With accept-mode none, sessions hold no messages, and none is redelivered.
        may_hold = others and self._options.accepts
        with self._lock:
            if not self._options.accepts:
                confirmed = self._buffer.received
            elif confirmed is None:
                confirmed = self._buffer.accepted
            target = self._detector.begin(
                there,
                received=self._buffer.received,
                confirmed=confirmed,
                lost_for=lost_for if may_hold else 0.0,
            )
            if self._options.selector is None and there is not None:
                self._consumer.end_estimate = target

    def look_for_end(self, client: Client, subscription: Subscription) -> int:
        """Look whether the end is reached; return the number of messages for which the consumer should be replaced,
        since the broker does not send them to it."""
        if self.ending:
            self._exhaust(client, subscription)
            return 0
        if client.under_way_bytes:
            self._detector.arrived()  # a part of a message has
            return 0
        self._second_count.take()
        if self._detector.wants_count():
            self._recount(client, subscription)
        if self._detector.reached(self._buffer.received):
            self._exhaust(client, subscription)
            return 0
        return self._flush(client, subscription) if self._detector.wants_flush() else 0

    def _flush(self, client: Client, subscription: Subscription) -> int:
        """Take what the queue still has; if that is nothing, ask the broker whether this is the end."""
        blocks = self._consumer.flow.probe(subscription)
        if blocks is None:
            return 0
        if blocks:
            self._consumer.store(blocks)
        self._consumer.flow.leave_turn()
        if blocks:
            return 0
        busy, left = self._buffer.planned > self._buffer.accepted, partial(self._consumer.ask_end, client)
        if self._detector.empty_round(left, received=self._buffer.received, busy=busy):
            self._exhaust(client, subscription)
            return 0
        return self._detector.stalled

    def _recount(self, client: Client, subscription: Subscription) -> None:
        """Count the queue again, before anything else arrives: while messages arrive, on another connection.

        Where this thread was kept from reading, messages arrive although it was quiet: those before the answer.
        """
        in_vain = self._second_count.failures >= MOST_FAILED_COUNTS
        if (in_vain or self._detector.is_quiet()) and not self._consumer.flow.paused:
            if in_vain:
                _log.warning(
                    "queue %r: no second connection could be had %d times, so its messages are counted behind those "
                    "that are under way: this AvailableNow query may read more than was there at its start",
                    self._consumer.queue, self._second_count.failures,
                )  # fmt: skip
            left = self._consumer.ask_end(client, subscription)
            if self._is_final(blind=self._detector.blind and not left):
                self._detector.recounted(left, received=self._buffer.received)
            else:
                self._detector.not_recounted()
        else:
            self._detector.not_recounted()  # until there is an answer
            self._second_count.begin(self._connect_beside, partial(self._counted_apart, self._buffer.incarnation))

    def _is_final(self, *, blind: bool) -> bool:
        """Whether a count may fix the end; ``blind``: the broker has not even counted our consumer."""
        self._blind_counts = self._blind_counts + 1 if blind else 0
        return not blind or self._blind_counts > MOST_BLIND_COUNTS

    def _connect_beside(self) -> Client:
        return self._connector(self._consumer.beside_options)

    def _counted_apart(self, incarnation: int, other: Client, info: QueueInfo | None) -> Callable[[], None]:
        """Take the answer to a second count, on its thread, with the position that it belongs to; return what the
        consumer does with it."""
        counts_held = other.capabilities.counts_held_messages
        if info is None:
            return partial(self._consumer.surveyed, None, counts_held=counts_held)
        with self._lock:
            there, received = info.message_count, self._buffer.received
            left = None if there is None else self._consumer.estimate(there, counts_held=counts_held)
            under_way = max(0, (self._consumer.flow.most or 0) - self._buffer.held_by_session)

        def use() -> None:
            is_due = self._buffer.incarnation == incarnation and self._detector.limit is None
            if is_due and self._is_final(blind=not (info.subscriber_count or left)):
                self._detector.recounted(left, received=received, under_way=under_way)

        return use

    def _exhaust(self, client: Client, subscription: Subscription) -> None:
        """End the queue; without credit, once no more messages arrive: those beyond the end go back."""
        if not self._consumer.has_credit:
            if not self.ending:
                self.ending = True
                self._ceased_at = self._clock()
                subscription.cease()
            if self._excess:
                client.release(self._excess)
                self._excess = []
            if not subscription.ceased:
                if self._consumer.flow.paused or client.under_way_bytes:
                    self._ceased_at = self._clock()  # the answer may wait behind what is not read yet
                elif self._clock() >= max(self._ceased_at, self._detector.last_arrival) + CEASE_SECONDS:
                    subscription.cancel()  # it waits for the answer, too, and gives the connection up
                return
        with self._lock:
            self.exhausted = True
            self._lock.notify_all()
