"""How long selectors may look at messages before others have their turn: all clients share one event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from amqp_core.broker.model.queues import Queue

MOST: Final = 1 << 16
"""Effort of one turn: some 200 messages with small headers and a simple selector, or 5 ms (measured)."""
EACH: Final = 256
"""Effort of a message besides its header, of which each byte is one: to decode one takes as long as 256 bytes."""


class Effort:
    """The effort that the consumers of a virtual host may make in one turn.

    Queues whose consumers could not look at all messages go on in the next turn, in the order in which they stopped.
    """

    __slots__ = ("_left", "_unfinished")

    def __init__(self) -> None:
        self._left = MOST
        self._unfinished: dict[Queue, None] = {}

    @property
    def has_unfinished(self) -> bool:
        """Whether ``next_turn`` is to be called again soon, after others had their turn."""
        return bool(self._unfinished)

    def make(self, effort: int, queue: Queue) -> bool:
        """Look at a message in a queue; False: not in this turn, and the queue will be asked again.

        One look may take more than is left: what takes more than a whole turn would else never come.
        """
        if self._left <= 0:
            self._unfinished[queue] = None
            return False
        self._left -= effort
        return True

    def next_turn(self, now: float) -> None:
        """Begin a turn: let the queues go on that have not finished."""
        self._left = MOST
        for queue in list(self._unfinished):
            if self._left <= 0:
                break
            del self._unfinished[queue]  # if it stops again it is the last
            queue.ready(now)
