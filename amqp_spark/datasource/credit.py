"""How much credit one queue gets: from the free part of the budget, and from the sizes of the messages that came.

No I/O and no clock. The bound of bytes is what holds: it is credit, too. Credit in messages follows the largest recent
message and grows from little, for brokers that count only a part of a transfer, or no bytes at all.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_CREDIT: Final = 16_384
"""Most transfers under way: a broker that counts uncompleted commands stops at 65,536 (Broker-J halts there)."""
FIRST_CREDIT: Final = 16
"""Credit of a session of which nothing has come yet; it doubles each time that so much has arrived."""
FIRST_GUESS_BYTES: Final = 16_384
"""Size assumed of a transfer before the first one came."""
UNDER_WAY_BYTES: Final = 8 << 20
"""What may be under way may exceed the free part of the budget by so much before the credit is taken back."""
SLACK_BYTES: Final = 16 << 20
"""What is held may exceed the budget by so much, and one message."""
HEADER_BYTES: Final = 8192
"""Room for the headers of each message under way: Broker-J counts only bodies against credit in bytes."""


LOOK_SECONDS: Final = 0.5
"""How long queues that know of a large message keep those from their turn that only look for one."""


class CreditWindow:
    """Credit of one session on one queue.

    Attributes:
        largest: bytes of the largest of the recent transfers.
    """

    def __init__(self) -> None:
        self.largest = FIRST_GUESS_BYTES
        self._known = False
        self._most = FIRST_CREDIT
        self._arrived = 0

    def restart(self) -> None:
        """Begin with little again: a new session, or sizes that have jumped."""
        self._most = FIRST_CREDIT
        self._arrived = 0

    def arrived(self, count: int, largest: int) -> None:
        """Take note of a block of ``count`` transfers, the largest of ``largest`` bytes."""
        self.largest = max(largest, self.largest // 2) if self._known else largest
        self._known = True
        self._arrived += count
        if self._arrived >= self._most:
            self._most = min(MAX_CREDIT, 2 * self._most)
            self._arrived = 0

    def wanted(self, share_bytes: int) -> int:
        """Messages that may be under way while ``share_bytes`` of the budget are free for this queue."""
        return min(self._most, share_bytes // self.largest, (share_bytes + SLACK_BYTES) // HEADER_BYTES)

    def is_too_much(self, credit: int, credit_bytes: float, share_bytes: int) -> bool:
        """Whether what may still come does not fit, by far: the credit is to be taken back."""
        return min(credit * self.largest, credit_bytes) > share_bytes + UNDER_WAY_BYTES


class Turns:
    """Queues whose share of the budget is less than their next message: one at a time gets credit for one message.

    So no queue waits for ever while anything is free, and what is held exceeds the budget by one message at most.

    Parameters:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._line: deque[str] = deque()
        self._idle: set[str] = set()
        self._looked_at = float("-inf")
        """When one that only looks had its turn."""

    def take(self, queue: str, *, idle: bool = False) -> str:
        """Line up; return the queue whose turn it is.

        Parameters:
            queue: its name.
            idle: it only looks whether there is a message; those that know of one come before it, unless none has
                looked for ``LOOK_SECONDS``.
        """
        if queue not in self._line:
            at = len(self._line)
            # Where none has looked for long, one of those that look stays before each of the others.
            kept = 1 if self._clock() - self._looked_at < LOOK_SECONDS else 2
            while not idle and at > 1 and all(each in self._idle for each in islice(self._line, at - kept, at)):
                at -= 1
            self._line.insert(at, queue)
            if idle:
                self._idle.add(queue)
        return self._line[0]

    def is_free_for(self, queue: str) -> bool:
        """Whether no other queue has the turn."""
        return not self._line or self._line[0] == queue

    def waits(self, queue: str) -> bool:
        """Whether a queue stands in the line."""
        return queue in self._line

    def leave(self, queue: str) -> str | None:
        """Leave the line; return the queue whose turn begins by that."""
        if queue not in self._line:
            return None
        was_first = self._line[0] == queue
        if was_first and queue in self._idle:
            self._looked_at = self._clock()
        self._idle.discard(queue)
        self._line.remove(queue)
        return self._line[0] if was_first and self._line else None

    def is_contended(self) -> bool:
        """Whether other queues wait behind the one whose turn it is."""
        return len(self._line) > 1
