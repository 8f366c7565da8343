"""A subscription: a consumer whose prefetch limits the unsettled messages (0-9-1 sections basic.qos, basic.consume).

There is no credit: the broker sends whatever the prefetch allows, as messages are settled. A program that receives more
than it can hold leaves data in the socket (:meth:`Client.pause_reading`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NoReturn

from amqp_core.arrivals import Arrivals
from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import AmqpError, ResourceDeleted, UsageError
from amqp_core.sequence_numbers import RangeSet
from amqp_core.transport import monotonic
from amqp_core.v0_9 import spec
from amqp_core.v0_9.connection import CONSUMING
from amqp_core.v0_9.messages import Message, each_message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqp_core.blocks import Block
    from amqp_core.v0_9.channel import Request
    from amqp_core.v0_9.driver import Driver

UNLIMITED: Final = (1 << 31) - 1
"""Credit of a subscription without settlement: the broker sends all that it has."""


class Subscription(Arrivals[Message]):
    """A subscription of a queue; made by :meth:`Client.subscribe`. Not thread-safe.

    Every method that sends or waits raises the error that ended the connection or the consuming channel (see
    :class:`Client`), and ResourceDeleted once the broker has cancelled the consumer, after all blocks that arrived
    before were returned.

    Attributes:
        consumer_tag: its name on the consuming channel.
        queue: name of the queue.
        overflowed: whether messages were dropped: see :meth:`bound`.
    """

    def __init__(
        self, client: Driver, consumer_tag: str, queue: str, on_cancel: Callable[[str], None], most: int | None
    ) -> None:
        super().__init__()
        self._client = client
        self._on_cancel = on_cancel
        self._most = most
        self._unsettled = RangeSet()
        self._cancelled: AmqpError | None = None
        self._ceasing: Request | None = None
        self._admits: Callable[[int, int, int], bool] | None = None
        self._dropped: Callable[[Block], None] | None = None
        self.overflowed = False
        self.consumer_tag = consumer_tag
        self.queue = queue

    @property
    def credit(self) -> int:
        """Number of messages that may still arrive: the prefetch without the unsettled ones."""
        if self._cancelled is not None:
            return 0
        return UNLIMITED if self._most is None else max(0, self._most - self._unsettled.count())

    @property
    def credit_bytes(self) -> float:
        """Infinite while messages may arrive: their size is not limited."""
        return math.inf if self.credit else 0.0

    def grant(self, messages: int) -> None:
        """Refused, since there is no credit.

        Raises:
            UsageError: always.
        """
        _no_credit(f"grant({messages})")

    def renew(self, messages: int, nbytes: int | None = None) -> None:
        """Refused, as :meth:`grant`.

        Raises:
            UsageError: always.
        """
        _no_credit(f"renew({messages}, {nbytes})")

    def flush(self) -> None:
        """Refused, as :meth:`grant`.

        Raises:
            UsageError: always.
        """
        _no_credit("flush()")

    def probe(self) -> None:
        """Refused, as :meth:`grant`.

        Raises:
            UsageError: always.
        """
        _no_credit("probe()")

    def take_blocks(self, timeout: float, *, begun: bool = False) -> list[Block]:
        """Return the blocks that have arrived; wait at most ``timeout`` seconds for some. A wake-up ends the wait.

        Args:
            timeout: in seconds.
            begun: a large message of which the first part arrives ends the wait, too, so that the program can pause
                reading before it has all of it (:attr:`Client.under_way_bytes`).

        Raises:
            AmqpError: the connection, channel or consumer has ended, and all blocks that arrived before were returned.
        """
        client = self._client
        deadline = monotonic() + timeout
        known = client.connection.under_way_bytes > 0
        self._check_if_empty()
        while not self._blocks:
            woken = client.pump(deadline, reading=client.reading)
            self._check_if_empty()
            begins = begun and not known and client.connection.under_way_bytes > 0
            if woken or begins or monotonic() >= deadline:
                break
        return self.take_arrived()

    def take(self, count: int = 1, *, timeout: float = 10.0) -> list[Message]:
        """Return up to ``count`` messages as objects, waiting at most ``timeout`` seconds for the first of them.

        More messages than ``count`` may arrive; later calls return them, and at close they go back to the queue.

        Raises:
            UndecodableMessage: the next message cannot be decoded. Previous calls have returned those before it, the
                next call returns those after it; it can be settled by its ``command_id``.
            AmqpError: as :meth:`take_blocks`.
        """
        deadline = monotonic() + timeout
        while len(self._messages) < count:
            try:
                wait = 0.0 if self._messages else max(0.0, deadline - monotonic())
                blocks = self.take_blocks(wait)
            except AmqpError:
                if self._messages:
                    break
                raise
            for block in blocks:
                self._messages.extend(each_message(block))
            if not blocks and (self._messages or monotonic() >= deadline):
                break
        return self._next_up_to(count)

    def take_one(self, *, timeout: float) -> Message | None:
        """Return the next message; ``None`` if none arrived within ``timeout`` seconds.

        It reads even if reading is paused: messages of other subscriptions that arrive then wait there.

        Raises:
            UndecodableMessage, AmqpError: as :meth:`take`.
        """
        deadline = monotonic() + timeout
        while not self._messages:
            while self._blocks:
                self._messages.extend(each_message(self._blocks.pop(0)))
            if self._messages:
                break
            self._check_if_empty()
            if monotonic() >= deadline:
                return None
            self._client.pump(deadline, reading=True)
        return self._next()

    def cease(self) -> None:
        """Ask the broker to end the subscription, without waiting (basic.cancel); messages under way still arrive."""
        if self.goes_on:
            self._ceasing = self._client.request(CONSUMING, spec.BasicCancel(consumer_tag=self.consumer_tag))

    @property
    def goes_on(self) -> bool:
        """Whether neither side has begun to end the subscription."""
        return self._cancelled is None and self._ceasing is None

    @property
    def ceased(self) -> bool:
        """Whether the broker has ended the subscription."""
        return self._cancelled is not None or (self._ceasing is not None and self._ceasing.is_done)

    def cancel(self) -> None:
        """End the subscription (basic.cancel). Messages received until the answer can still be settled."""
        self.cease()
        self._client.wait_for(lambda: self.ceased, "the answer to basic.cancel")
        self._on_cancel(self.consumer_tag)

    def cancelled_by_broker(self) -> None:
        """Record that the broker has cancelled the consumer (basic.cancel, an extension of RabbitMQ)."""
        text = CoreCondition.CONSUMER_CANCELLED(queue=self.queue)
        self._cancelled = ResourceDeleted(spec.ReplyCode.NOT_FOUND, None, text, spec.BasicCancel.NAME)

    def bound(self, admits: Callable[[int, int, int], bool], dropped: Callable[[Block], None] | None = None) -> None:
        """Bound what is kept while a call waits for an answer: it reads all that comes before, paused or not.

        ``admits`` is called meanwhile, for each block and each large message that begins to arrive, with the number of
        messages that wait to be taken, their bytes, and the bytes of the message under way, if it is about that. Once
        it returns false, everything that was not taken is dropped, and everything that comes later, and
        :attr:`overflowed` is true. The broker still counts what was dropped as unsettled: close the client, then it
        comes again. ``dropped`` is called with each block, in the order in which they came; it must not raise.
        """
        self._admits, self._dropped = admits, dropped

    def admits_under_way(self, nbytes: int) -> bool:
        """Whether a large message of which a part has arrived is kept; the client calls it."""
        return self._keeps(0, 0, nbytes)

    def _keeps(self, count: int, nbytes: int, under_way: int) -> bool:
        if not self.overflowed and self._client.awaits_answer and self._admits is not None:
            count += sum(len(each.ends) for each in self._blocks)
            nbytes += sum(len(each.frames) for each in self._blocks)
            self.overflowed = not self._admits(count, nbytes, under_way)
            if self.overflowed:
                blocks, self._blocks = self._blocks, []
                for each in blocks:
                    self._drop(each)
        return not self.overflowed

    def _drop(self, block: Block) -> None:
        if self._dropped is not None:
            self._dropped(block)

    def receive_block(self, block: Block) -> None:
        """Take a block of this consumer."""
        if self._keeps(len(block.ends), len(block.frames), 0):
            self._blocks.append(block)
        else:
            self._drop(block)
        if self._most is not None:
            self._unsettled.add(block.first_id, block.first_id + len(block.ends) - 1)

    @property
    def settles(self) -> bool:
        """Whether its messages must be settled."""
        return self._most is not None

    def settled(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Record that these messages were settled, and perhaps others; the client calls it."""
        for low, high in ranges:
            self._unsettled.discard(low, high)

    def _check_if_empty(self) -> None:
        if self._blocks:
            return
        self._client.check()
        if self._cancelled is not None:
            raise self._cancelled


def _no_credit(call: str) -> NoReturn:
    why = f"{call} changes the credit, which AMQP 0-9-1 does not have: the limit of unsettled messages does its work"
    raise UsageError(CoreCondition.CALL_NOT_ALLOWED(reason=why))
