"""The next batch: its fair division between the queues that have messages, and the bound of one transaction.

No I/O, no threads, no clock: the receiver calls these functions under its lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_spark.datasource.receive_buffer import QueueBuffer

FIRST_ACCEPTS: Final = 25_000
"""Most accepts of the first transaction, and the lower limit of the bound."""
MOST_ACCEPTS: Final = 4_000_000
LEVEL: Final = 1.3
"""The time per accept counts as level up to this many times the best one."""
STEEP: Final = 1.6
"""The time per accept counts as risen from this many times the best one on."""
SHORT_SECONDS: Final = 0.4
"""A transaction of this time may have twice the accepts: even where time is quadratic, it then takes 1.6 s at most."""
HELPS: Final = 1.25
"""Half the accepts have helped if one of them takes less time by this factor."""
_TRIES: Final = 3
"""After so many transactions with half the accepts it is known whether they have helped."""
_LEAST_SHARE: Final = 0.5
"""A transaction is measured if it has at least this share of the bound."""
_FORGET: Final = 1.02
"""The best time grows by this with each measurement: a broker may have become busier for good."""


def plan_batch(buffers: Sequence[QueueBuffer], *, max_messages: int | None, max_bytes: int, turn: int) -> int:
    """Plan one batch, as :func:`measure_batch` measures it; return its number of messages."""
    count = 0
    for buffer, end, size in measure_batch(buffers, max_messages=max_messages, max_bytes=max_bytes, turn=turn):
        count += end - buffer.planned
        buffer.fix(end, size)
    return count


def measure_batch(
    buffers: Sequence[QueueBuffer], *, max_messages: int | None, max_bytes: int, turn: int
) -> list[tuple[QueueBuffer, int, int]]:
    """Measure the next batch fairly over the queues that have messages, within both bounds: end and bytes per queue.

    ``turn`` selects the queue that gets at least one message, so that no queue waits forever behind the others. A
    message larger than ``max_bytes`` makes up a batch of its own.
    """
    ready = [buffer for buffer in buffers if buffer.waiting]
    if not ready:
        return []
    head = ready[turn % len(ready)]
    first = head.first_waiting_bytes()
    if first > max_bytes:
        return [(head, head.planned + 1, first)]
    reach = {buffer.queue: (buffer.planned, 0) for buffer in ready}
    reach[head.queue] = (head.planned + 1, first)
    messages = sum(buffer.waiting for buffer in ready) if max_messages is None else max_messages
    messages, room = messages - 1, max_bytes - first
    # Serve small queues first and redistribute unused quota. The second round distributes the rest of the first, where
    # a share ended inside a message or the other bound was reached.
    ready.sort(key=lambda buffer: buffer.waiting_bytes)
    for _round in range(2):
        for index, buffer in enumerate(ready):
            sharing = len(ready) - index
            begin, size = reach[buffer.queue]
            end, more = buffer.measure(begin, -(-messages // sharing), room // sharing)
            reach[buffer.queue] = end, size + more
            messages -= end - begin
            room -= more
    return [(buffer, *reach[buffer.queue]) for buffer in ready if reach[buffer.queue][0] > buffer.planned]


class CommitPace:
    """Number of messages that one transaction accepts: a broker's time per accept may grow with that number.

    The time of qpidd's linear store is quadratic in the accepts of a transaction; that of Broker-J and of stores in
    memory is not. So the number (``limit``) follows the measured times: it grows while transactions are short or the
    time per accept stays level, and shrinks when that rises. Where half the accepts do not make it fall again, the
    broker is busy with something else, or the best time was measured while it was idle: then the number grows back.
    """

    def __init__(self) -> None:
        self.limit = FIRST_ACCEPTS
        self._best_s: float | None = None
        self._rests = 0
        """Full transactions to wait for before the bound may grow again."""
        self._rest = 1
        self._risen_s = 0.0
        """The time per accept for which the bound was halved; 0: it was not, or that has helped."""
        self._halved_s: list[float] = []
        """Times per accept since then."""

    def committed(self, accepts: int, seconds: float) -> None:
        """Record a transaction: its number of accepts and its duration in seconds."""
        if accepts < _LEAST_SHARE * self.limit:
            return
        each_s = seconds / accepts
        best_s = each_s if self._best_s is None else min(each_s, self._best_s * _FORGET)
        self._best_s = best_s
        short = seconds <= SHORT_SECONDS
        if self._halved_in_vain(each_s):
            self._best_s = min(self._halved_s)
            self._rests, self._rest, self._risen_s = 0, 1, 0.0
            self.limit *= 2
        elif each_s > STEEP * best_s and not short and self.limit > FIRST_ACCEPTS:
            self.limit = max(FIRST_ACCEPTS, self.limit // 2)
            self._rests, self._rest = self._rest, min(64, 2 * self._rest)
            self._risen_s, self._halved_s = each_s, []
        elif self._rests > 0:
            self._rests -= 1
        elif short or each_s <= LEVEL * best_s:
            self.limit, self._risen_s = min(MOST_ACCEPTS, 2 * self.limit), 0.0

    def _halved_in_vain(self, each_s: float) -> bool:
        """Record a time per accept after the bound was halved; return whether halving is known to be in vain."""
        if not self._risen_s:
            return False
        self._halved_s.append(each_s)
        if len(self._halved_s) < _TRIES:
            return False
        if min(self._halved_s) * HELPS < self._risen_s:
            self._risen_s = 0.0
        return self._risen_s > 0
