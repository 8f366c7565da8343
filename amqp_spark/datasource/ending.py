"""AvailableNow: how far a queue is read, and how one knows that there is no more.

A broker does not say that a queue is empty, and a count of messages includes what other consumers hold. So the count at
the start is the most that is read, and before that is reached silence, an empty flush round and the broker's count must
agree.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

QUIET_SECONDS: Final = 0.1
"""Silence after which a flush asks the broker whether there is more."""
HELD_ELSEWHERE_SECONDS: Final = 5.0
"""How long empty flush rounds go on while the broker counts messages, which others then hold."""
HELD_BY_NOBODY_SECONDS: Final = 30.0
"""The same where the broker knows of no other consumer: it is busy, or a transaction or a dying session holds them."""
_LONGEST_PAUSE_SECONDS: Final = 1.0


class Ending:
    """The end of one queue.

    Parameters:
        queue: its name.
        selector: whether only a part of the queue is asked for: the broker counts the rest, too.
        clock: seconds.

    Attributes:
        target: the position to stop at; ``None`` before the first incarnation.
        alone: whether the broker, when it was last asked, knew of no other consumer.
    """

    def __init__(self, queue: str, *, selector: bool, clock: Callable[[], float]) -> None:
        self.target: int | None = None
        self.alone = False
        self._queue = queue
        self._selector = selector
        self._clock = clock
        self._last_arrival = 0.0
        self._empty_since: float | None = None
        self._empty_rounds = 0
        self._next_flush = 0.0

    def begin(self, there: int, *, received: int, confirmed: int) -> int:
        """An incarnation begins; return the target.

        Parameters:
            there: messages that the broker counts. What was planned and not accepted is among them again.
            received: the position now.
            confirmed: the position up to which the broker has completed what it was told.
        """
        if self.target is not None:
            there = min(there, self.target - confirmed)
        # With a selector the broker counts what is left out, too: an end that a busy producer cannot push away.
        self.target = received + there
        self._next_flush = self._clock()
        self.arrived()
        return self.target

    def arrived(self) -> None:
        """There was more."""
        self._last_arrival = self._clock()
        self._empty_since = None
        self._empty_rounds = 0

    def reached(self, received: int) -> bool:
        """Whether everything is there that was to be read."""
        return self.target is not None and received >= self.target

    def wants_flush(self) -> bool:
        """Whether it has been silent for long enough to ask."""
        return self._clock() >= max(self._last_arrival + QUIET_SECONDS, self._next_flush)

    def empty_round(self, left: Callable[[], int | None]) -> bool:
        """A flush brought nothing; whether that is the end.

        ``left`` asks the broker how many messages it counts that are not held here, and sets ``alone``.
        """
        self._empty_rounds += 1
        if self._selector:
            # A competing consumer can end a flush early on Broker-J, so one empty round is no proof.
            return self._empty_rounds >= 2
        now = self._clock()
        count = left()
        if not count:
            return True
        self._empty_since = now if self._empty_since is None else self._empty_since
        patience = HELD_BY_NOBODY_SECONDS if self.alone else HELD_ELSEWHERE_SECONDS
        if now - self._empty_since >= patience:
            _log.warning(
                "queue %r: the broker counts %d message(s) that it does not send: %s; this AvailableNow query ends "
                "without them",
                self._queue, count, "a transaction or a dying session holds them" if self.alone
                else "other consumers hold them",
            )  # fmt: skip
            return True
        self._next_flush = now + min(_LONGEST_PAUSE_SECONDS, QUIET_SECONDS * 2**self._empty_rounds)
        return False
