"""AvailableNow: how far a queue is read, and how one knows that there is no more.

A broker does not say that a queue is empty, and a count of messages includes what other consumers hold (Broker-J) or
leaves it out (qpidd). So the count at the start is the most that is read, and before that is reached silence, an empty
flush round and the broker's count must agree. After a reconnect the count proves nothing as long as the broker may
still see the session that was lost: what that one holds is neither sent nor, on qpidd, counted.
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
_UNCOUNTED: Final = 1 << 62
"""More than any queue holds."""
_LONGEST_PAUSE_SECONDS: Final = 1.0
_EMPTY_ROUNDS: Final = 2
"""So many empty rounds that agree are proof where one is not: a competing consumer can end a flush early on Broker-J,
and an answer of qpidd may give the count before a session ended and the consumers after."""


class DrainDetector:
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
        self._there = 0
        self._counted = True
        self._lost_until: float | None = None
        self._last_arrival = 0.0
        self._empty_since: float | None = None
        self._empty_rounds = 0
        self._rounds_alone = 0
        self._next_flush = 0.0

    def begin(self, there: int | None, *, received: int, confirmed: int, lost_for: float = 0.0) -> int:
        """An incarnation begins; return the target.

        Parameters:
            there: messages that the broker counts. What was planned and not accepted is among them again. ``None``:
                it does not say; then the end is where it sends no more.
            received: the position now.
            confirmed: the position up to which the broker has completed what it was told.
            lost_for: seconds for which the broker may take the session before this one, if there was one, for a live
                one, and hide what that holds; 0 when it knows of no other consumer.
        """
        now = self._clock()
        self._counted = there is not None
        if there is None:
            there = _UNCOUNTED
        if self.target is None:
            self._there = there
        else:
            # Positions count what came twice twice: never more than what was there at the start.
            missing = min(self.target - confirmed, self._there)
            there = missing if lost_for else min(there, missing)
            self._lost_until = now + lost_for if lost_for else None
        # With a selector the broker counts what is left out, too: an end that a busy producer cannot push away.
        self.target = received + there
        self._next_flush = now
        self.arrived()
        return self.target

    def arrived(self) -> None:
        """There was more."""
        self._last_arrival = self._clock()
        self._empty_since = None
        self._empty_rounds = 0
        self._rounds_alone = 0

    def reached(self, received: int) -> bool:
        """Whether everything is there that was to be read."""
        return self.target is not None and received >= self.target

    def wants_flush(self) -> bool:
        """Whether it has been silent for long enough to ask."""
        return self._clock() >= max(self._last_arrival + QUIET_SECONDS, self._next_flush)

    def empty_round(self, left: Callable[[], int | None], *, received: int) -> bool:
        """A flush brought nothing; whether that is the end.

        ``left`` asks the broker how many messages it counts that are not held here, and sets ``alone``; ``received`` is
        the position now.
        """
        self._empty_rounds += 1
        if (self._selector or not self._counted) and self._lost_until is None:
            return self._empty_rounds >= _EMPTY_ROUNDS
        now = self._clock()
        count = left()
        self._empty_since = now if self._empty_since is None else self._empty_since
        self._look_for_lost_session(count, received)
        patience = 0.0
        if count and not self._selector:
            patience = HELD_BY_NOBODY_SECONDS if self.alone else HELD_ELSEWHERE_SECONDS
        until = self._empty_since + patience
        if now < (until if self._lost_until is None else max(until, self._lost_until)):
            self._next_flush = now + min(_LONGEST_PAUSE_SECONDS, QUIET_SECONDS * 2**self._empty_rounds)
            return False
        self._warn_of_rest(count or 0, received)
        return True

    def _look_for_lost_session(self, count: int | None, received: int) -> None:
        """Whether the session before this one still hides messages; afterwards the broker's count is all there is."""
        self._rounds_alone = self._rounds_alone + 1 if self.alone else 0
        if self._lost_until is None or self._rounds_alone < _EMPTY_ROUNDS:
            return
        self._lost_until = None
        if self.target is not None and count is not None and not self._selector:
            self.target = min(self.target, received + count)

    def _warn_of_rest(self, count: int, received: int) -> None:
        """Say what is left at the end."""
        if self._lost_until is not None and self.target is not None:
            hidden = max(count, self.target - received) if self._counted else None
            _log.warning(
                "queue %r: the connection was lost, and %s message(s) that the session before may have held have "
                "not come again: it had accepted them, or it or other consumers hold them; this AvailableNow query "
                "ends without them",
                self._queue, "some" if hidden is None else f"up to {hidden}",
            )  # fmt: skip
        elif count and not self._selector:
            _log.warning(
                "queue %r: the broker counts %d message(s) that it does not send: %s; this AvailableNow query ends "
                "without them",
                self._queue, count, "a transaction or a dying session holds them" if self.alone
                else "other consumers hold them",
            )  # fmt: skip
