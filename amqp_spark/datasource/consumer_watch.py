"""Notice a consumer that gets nothing although its queue has messages, and messages that are delivered too often.

RabbitMQ 4.3 takes messages back that were not settled within its ``consumer_timeout``, and sends that consumer nothing
more until all of them are settled, which it does not say. A consumer on a busy quorum queue may be forgotten, too. So
while nothing arrives and there is room, the queue is counted now and then; the next session gets the messages.

Not every count proves that: a broker may count the messages that consumers hold, too, or send fewer than the prefetch
allows. Then a new session gets the same messages again, and no batch that is longer than the silence is ever accepted.
So a consumer that holds messages is replaced only for more than it holds, unless an earlier count has shown that those
are not counted; and not where the consumer before held as many when it was replaced. One that holds none is replaced.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.api import Block, Client

_log = logging.getLogger(__name__)

QUIET_SECONDS: Final = 10.0
"""Silence after which the queue is counted."""
CERTAIN_SECONDS: Final = 2.0
"""Time until the second count: messages that came just before the first one are under way."""
LONGEST_QUIET_SECONDS: Final = 600.0
DELIVERY_LIMIT: Final = 20
"""Returns after which RabbitMQ from 4.0 on drops a message of a quorum queue, or dead-letters it, by default."""
WARNING_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 1.0
"""Least time between two looks at counts of deliveries in one session. A look at 33 messages takes 0.2 ms if all of
them were redelivered, and 0.01 ms if none was."""


class ConsumerWatch:
    """Watches one consumer, on its thread. Sessions that bring nothing are replaced less and less often: a consumer may
    also wait because another one is active alone (``x-single-active-consumer``)."""

    def __init__(self, queue: str, clock: Callable[[], float]) -> None:
        self._queue = queue
        self._clock = clock
        self._counts_ready_only = False
        """Whether a count was less than what the consumer held."""
        self._most_held = 0
        """Most messages that a consumer held when it was replaced."""
        self._has_warned = False
        self._quiet_s = QUIET_SECONDS
        self._next = clock() + QUIET_SECONDS
        self._suspected = False

    def restart(self) -> None:
        """Record a new session, or that nothing can arrive."""
        self._suspected = False
        self._next = self._clock() + self._quiet_s

    def arrived(self) -> None:
        """Record that messages arrived."""
        self._quiet_s = QUIET_SECONDS
        self.restart()

    def is_due(self) -> bool:
        """Whether to count the messages of the queue."""
        return self._clock() >= self._next

    def is_stalled(self, left: int | None, *, held: int) -> bool:
        """Record the count of the messages of the queue; return whether the session, which holds ``held`` messages,
        should be replaced."""
        if left is not None and left < held:
            self._counts_ready_only = True
        if not left or (left <= held and not self._counts_ready_only):
            self.restart()
            return False
        if not self._suspected:
            self._suspected = True
            self._next = self._clock() + CERTAIN_SECONDS
            return False
        if not self.may_help(left, held=held):
            self.restart()
            return False
        self._quiet_s = min(LONGEST_QUIET_SECONDS, 2 * self._quiet_s)
        return True

    def may_help(self, left: int, *, held: int) -> bool:
        """Whether another session may get more than this one, which gets none of ``left`` messages; it is replaced
        then. Else warn once."""
        if not held or held > self._most_held:
            self._most_held = max(self._most_held, held)
            return True
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "queue %r: the broker counts %d message(s) and sends none of them, and a new consumer got no more than "
                "this one, which holds %d: it may count these, or send fewer than the prefetch allows. While Spark "
                "works on them the consumer is not replaced again",
                self._queue, left, held,
            )  # fmt: skip
        return False


class DeliveryCountWatch:
    """Warns of messages of one queue that come near a limit of deliveries, on the thread of its consumer.

    Each crash of a reader is a delivery of all that it held, whether it was processed or not.
    """

    def __init__(self, queue: str, clock: Callable[[], float]) -> None:
        self._queue = queue
        self._clock = clock
        self._next_look = self._next_warning = clock()

    def restart(self) -> None:
        """Record a new session: what the one before held comes first."""
        self._next_look = self._clock()

    def arrived(self, client: Client, block: Block) -> None:
        """Look at a block, unless another one was looked at just before."""
        now = self._clock()
        if now < self._next_look or not client.capabilities.counts_deliveries:
            return
        self._next_look = now + LOOK_SECONDS
        count = client.earlier_deliveries(block)
        if count >= DELIVERY_LIMIT // 2 and now >= self._next_warning:
            self._next_warning = now + WARNING_SECONDS
            _log.warning(
                "queue %r: messages were delivered %d times before. Unless the queue has no limit, RabbitMQ drops or "
                "dead-letters them after %d returns: set a policy with delivery-limit=-1, or declare the queue with "
                "x-delivery-limit=-1, as declare=ifMissing does",
                self._queue, count, DELIVERY_LIMIT,
            )  # fmt: skip
