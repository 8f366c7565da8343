"""Notice a consumer that gets nothing although its queue has messages.

RabbitMQ 4.3 takes messages back that were not settled within its ``consumer_timeout``, and sends that consumer nothing
more until all of them are settled, which it does not say. A consumer on a busy quorum queue may be forgotten, too. So
while nothing arrives and there is room, the queue is counted now and then; the next session gets the messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

QUIET_SECONDS: Final = 10.0
"""Silence after which the queue is counted."""
CERTAIN_SECONDS: Final = 2.0
"""Time until the second count: messages that came just before the first one are under way."""
LONGEST_QUIET_SECONDS: Final = 600.0


class ConsumerWatch:
    """Watches one consumer, on its thread. Sessions that bring nothing are replaced less and less often: a consumer may
    also wait because another one is active alone (``x-single-active-consumer``)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
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

    def is_stalled(self, left: int | None) -> bool:
        """Record the count of the messages that no consumer holds; return whether the session should be replaced."""
        if not left:
            self.restart()
            return False
        if not self._suspected:
            self._suspected = True
            self._next = self._clock() + CERTAIN_SECONDS
            return False
        self._quiet_s = min(LONGEST_QUIET_SECONDS, 2 * self._quiet_s)
        return True
