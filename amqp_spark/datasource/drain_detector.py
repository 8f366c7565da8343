"""AvailableNow: how far a queue is read, and how its end is detected.

A broker does not signal that a queue is empty, and its message count includes messages held by other consumers
(Broker-J) or excludes them (qpidd). So at most the count at the start is read; to end earlier, silence, an empty flush
round and the broker's count must agree. After a reconnect the count proves nothing as long as the broker may still keep
the lost session: the messages which that session holds are not sent and, on qpidd, not counted.

Without credit nothing is flushed, and the count of a broker may be late (on RabbitMQ's quorum queues it is 0 for a
moment although confirmed messages are there). There the count is asked again some time after the start, and silence
must last as long (:data:`SETTLING_SECONDS`).

Where only messages that no consumer holds are counted, a consumer that gets none of them is replaced once: the broker
may have forgotten it (see :mod:`.consumer_watch`). Only if the next one gets nothing either, the query ends. Neither
happens while Spark processes a batch: a broker that sends less than the prefetch allows waits until that is accepted.

RabbitMQ counts 0 messages and 0 consumers in a quorum queue whose leader does not answer it within a quarter of a
second, as while another one is elected. So a count without any consumer, although there is ours, proves nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

QUIET_SECONDS: Final = 0.1
"""Silence after which a flush asks the broker for further messages."""
HELD_ELSEWHERE_SECONDS: Final = 5.0
"""How long empty flush rounds go on while the broker counts messages that other consumers hold."""
HELD_BY_UNKNOWN_SECONDS: Final = 30.0
"""The same where the broker knows of no other consumer: it is busy, or a transaction or a dying session holds them."""
STALLED_SECONDS: Final = 5.0
"""How long a broker may count messages that no consumer holds, and send none, until the consumer is replaced."""
SETTLING_SECONDS: Final = 1.0
"""How long a count may be late."""
_UNCOUNTED: Final = 1 << 62
"""More than any queue holds."""
_LONGEST_PAUSE_SECONDS: Final = 1.0
_EMPTY_ROUNDS: Final = 2
"""Consecutive empty rounds that prove the end where one does not: on Broker-J a competing consumer can end a flush
early, and an answer of qpidd may give the message count before a session ended and the consumer count after it."""


class DrainDetector:
    """Detects the end of one queue. ``selector``: the subscription selects only a part of it, while the broker counts
    the rest, too. ``target``: the position to stop at, None before the first incarnation; ``alone``: the broker
    reported no other consumer when it was last asked; ``blind``: it did not report ours, either; ``last_arrival``: when
    something came; ``settling_s``: seconds for which its count may be too low; ``replaces``: whether a consumer that
    gets nothing is replaced; ``stalled``: number of messages that the broker does not send to it, now that it should
    be."""

    def __init__(self, queue: str, *, selector: bool, clock: Callable[[], float]) -> None:
        self.target: int | None = None
        self.alone = self.blind = False
        self._queue = queue
        self._selector = selector
        self._clock = clock
        self.settling_s = 0.0
        self.replaces = False
        self.stalled = 0
        self._replaced = False
        """Whether the consumer before was replaced, and nothing has arrived since."""
        self._there = 0
        self._counts_accepted = True
        """Whether the target has room for messages that come again although they were accepted. It has none if it
        follows from positions alone: those of a batch count once, although its acceptance was lost."""
        self._counted = True
        self._has_settled = False
        """Whether the count of the start is final: what is published later is not read, also after a reconnect."""
        self._most = _UNCOUNTED
        """No target is larger, once that count is final."""
        self._settles_at: float | None = None
        """When the count of the start may be asked again; None: the target is final."""
        self._lost_until: float | None = None
        self.last_arrival = 0.0
        self._empty_since: float | None = None
        self._was_blind = False
        """Whether the count before came from a broker that did not see our consumer."""
        self._unsent_since: float | None = None
        """Since when each count found messages."""
        self._empty_rounds = 0
        self._rounds_alone = 0
        self._next_flush = 0.0

    def begin(self, there: int | None, *, received: int, confirmed: int, lost_for: float = 0.0) -> int:
        """Begin an incarnation; return the target.

        ``there``: messages that the broker counts, again including those planned and not accepted; without a count
        (None) the end is reached when it sends no more. ``received``: the position now; ``confirmed``: the position up
        to which the broker has completed the settlements. ``lost_for``: seconds for which it may keep the previous
        session, if any, alive and hide the messages which that holds; 0 when it knows of no other consumer.
        """
        now = self._clock()
        self._counted = there is not None
        if there is None:
            there = _UNCOUNTED
        self._counts_accepted = True
        if self.target is None:
            self._there = there
        else:
            # Positions count a redelivered message twice: never read more than was there at the start.
            missing = min(self.target - confirmed, self._there)
            self._most = received + missing if self._has_settled else _UNCOUNTED
            if lost_for or missing <= there:
                there, self._counts_accepted = missing, False
            self._lost_until = now + lost_for if lost_for else None
        # With a selector the broker also counts messages that do not match: still a bound that a busy producer cannot
        # move.
        self.target = received + there
        self._settles_at = now + self.settling_s if self.settling_s and self._counted else None
        self._next_flush = now
        self.stalled = 0
        self._end_silence()
        return self.target

    def arrived(self) -> None:
        """Record that transfers arrived."""
        self._replaced = False
        self._end_silence()

    def dropped(self, count: int) -> None:
        """Record that so many of the messages that came again are not received, since they were accepted before.
        This comes before the end is looked for."""
        self._there = max(0, self._there - count)
        if self.target is not None and self._counts_accepted:
            self.target -= count

    def came_back(self, count: int) -> None:
        """Record that so many messages come again in this session, or come besides those that were there."""
        if self.target is not None:
            self.target += count
        if self._most < _UNCOUNTED:
            self._most += count

    def kept(self, count: int) -> None:
        """Record that so many messages are received although they may have been accepted before: once more, then. This
        comes before the next session begins, which receives them."""
        if self.target is not None and not self._counts_accepted:
            self.target += count

    def _end_silence(self) -> None:
        self.last_arrival = self._clock()
        self._empty_since = self._unsent_since = None
        self._empty_rounds = 0
        self._rounds_alone = 0

    @property
    def limit(self) -> int | None:
        """The target, once it is final."""
        return self.target if self._settles_at is None else None

    @property
    def most(self) -> int | None:
        """Position beyond which nothing is read; None: not known. It is known before the target is final after a
        reconnect, since no more can come again than was there at the start."""
        return self._most if self._settles_at is not None and self._has_settled else self.limit

    def wants_count(self) -> bool:
        """Whether to count the queue again: nothing arrives, so nothing is under way; or the messages never end."""
        if self._settles_at is None or (now := self._clock()) < self._settles_at:
            return False
        return self.is_quiet() or now >= self._settles_at + self.settling_s

    def is_quiet(self) -> bool:
        """Whether nothing has arrived for a while; without credit long enough that nothing is under way: all that is
        comes before the answer to a question, however much it is."""
        return self._clock() >= self.last_arrival + max(QUIET_SECONDS, self.settling_s / 2)

    def not_recounted(self) -> None:
        """Record that the broker cannot be asked for the second count now: try it again later."""
        self._settles_at = self._clock() + self.settling_s

    def recounted(self, left: int | None, *, received: int, under_way: int = 0) -> None:
        """Record the second count of the messages that are not held here; ``received``: the position now;
        ``under_way``: messages that may be counted neither there nor here."""
        self._settles_at = None
        if left is None or self.target is None:
            return
        if (more := received + left - self.target) > 0:
            more = min(more + under_way, self._most - self.target)
            self.target += more
            if not self._has_settled:
                self._there += more
        self._has_settled = True

    def reached(self, received: int) -> bool:
        """Whether the target position is reached."""
        return self.limit is not None and received >= self.limit

    def wants_flush(self) -> bool:
        """Whether the queue has been silent long enough for a flush."""
        return self.is_quiet() and self._clock() >= self._next_flush

    def empty_round(self, left: Callable[[], int | None], *, received: int, busy: bool = False) -> bool:
        """Record a flush that brought nothing; return whether that is the end, and set ``stalled``.

        ``left`` asks the broker for its count of messages that are not held here, and sets ``alone``; ``received`` is
        the position now; ``busy``: Spark processes a batch of this queue.
        """
        self._empty_rounds += 1
        if (self._selector or not self._counted) and self._lost_until is None:
            return self._empty_rounds >= _EMPTY_ROUNDS
        now = self._clock()
        count = left()
        if count and busy and self.replaces:
            self._empty_since = self._unsent_since = None
            return self._go_on(now)
        if self._empty_since is None or (self._was_blind and not self.blind):
            self._empty_since = now
        self._was_blind = self.blind
        self._look_for_lost_session(count, received)
        settling = self.settling_s
        if self.blind:
            settling = HELD_BY_UNKNOWN_SECONDS
        elif count and not self._selector:
            settling = HELD_BY_UNKNOWN_SECONDS if self.alone else HELD_ELSEWHERE_SECONDS
        if self._looks_stalled(count, now):
            return self._go_on(now)
        until = self._empty_since + settling
        if now < (until if self._lost_until is None else max(until, self._lost_until)):
            return self._go_on(now)
        self._warn_of_rest(count or 0, received)
        return True

    def _looks_stalled(self, count: int | None, now: float) -> bool:
        """Whether the consumer should be replaced before the query ends; set ``stalled`` when it is time."""
        if not count:
            self._unsent_since = None
        elif self._unsent_since is None:
            self._unsent_since = now
        if self._unsent_since is None or not self.replaces or self._replaced:
            return False
        if now >= self._unsent_since + STALLED_SECONDS:
            self.stalled, self._replaced = count or 0, True
        return True

    def _go_on(self, now: float) -> bool:
        """Choose when the next flush follows; return that this is not the end."""
        self._next_flush = now + min(_LONGEST_PAUSE_SECONDS, QUIET_SECONDS * 2**self._empty_rounds)
        return False

    def _look_for_lost_session(self, count: int | None, received: int) -> None:
        """Detect the end of the previous session, which hides messages; from then on the broker's count is complete."""
        self._rounds_alone = self._rounds_alone + 1 if self.alone else 0
        if self._lost_until is None or self._rounds_alone < _EMPTY_ROUNDS:
            return
        self._lost_until = None
        if self.target is not None and count is not None and not self._selector:
            self.target = min(self.target, received + count)

    def _warn_of_rest(self, count: int, received: int) -> None:
        """Warn of messages that are left at the end."""
        if self._lost_until is not None and self.target is not None:
            hidden = max(count, self.target - received) if self._counted else None
            _log.warning(
                "queue %r: the connection was lost, and %s message(s) that the session before may have held were "
                "not sent again: it had accepted them, or it or other consumers hold them; this AvailableNow query "
                "ends without them",
                self._queue, "some" if hidden is None else f"up to {hidden}",
            )  # fmt: skip
        elif self.blind and not count:
            _log.warning(
                "queue %r: the broker counts no message, and not even this consumer, as RabbitMQ does while a quorum "
                "queue has no leader that answers; this AvailableNow query may end before all that was there has come",
                self._queue,
            )  # fmt: skip
        elif count and not self._selector:
            _log.warning(
                "queue %r: the broker counts %d message(s) that it does not send: %s; this AvailableNow query ends "
                "without them",
                self._queue, count, self._reason(),
            )  # fmt: skip

    def _reason(self) -> str:
        """Why the broker does not send what it counts."""
        if self._replaced:
            return "a new consumer got none either, or another one is active alone"
        return (
            "a transaction or a dying session holds them" if self.alone or self.blind else "other consumers hold them"
        )
