"""Credit of one queue, computed from the free part of the byte budget and the sizes of recent messages.

No I/O and no clock. The bound in bytes is the effective one: it is granted as credit, too. Credit in messages follows
the largest recent message and starts small, for brokers that count only a part of a transfer, or no bytes at all.
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
"""Initial credit of a session, in messages; it doubles each time as many messages have arrived."""
FIRST_GUESS_BYTES: Final = 16_384
"""Assumed size of a transfer before the first one arrives."""
UNDER_WAY_BYTES: Final = 8 << 20
"""Bytes by which expected transfers may exceed the free part of the budget before the credit is revoked."""
SLACK_BYTES: Final = 16 << 20
"""Bytes by which the buffer may exceed the budget, plus one message."""
HEADER_BYTES: Final = 8192
"""Room for the headers of each message under way: Broker-J counts only bodies against credit in bytes."""


LOOK_SECONDS: Final = 0.5
"""How long queues with a known large message go before queues that only probe for one."""


class CreditWindow:
    """Credit of one session on one queue; ``largest``: bytes of the largest of the recent transfers."""

    def __init__(self) -> None:
        self.largest = FIRST_GUESS_BYTES
        self._known = False
        self._most = FIRST_CREDIT
        self._arrived = 0

    def restart(self) -> None:
        """Start again with little credit: the session is new, or message sizes have jumped."""
        self._most = FIRST_CREDIT
        self._arrived = 0

    def arrived(self, count: int, largest: int) -> None:
        """Record a block of ``count`` transfers, the largest of ``largest`` bytes."""
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
        """Whether the outstanding credit exceeds the share by far, so that it must be revoked."""
        return min(credit * self.largest, credit_bytes) > share_bytes + UNDER_WAY_BYTES


class Turns:
    """Queues whose next message is larger than their share of the budget: one at a time gets credit for one message.

    So no queue waits forever while the budget has room, and the buffer exceeds the budget by one message at most.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._line: deque[str] = deque()
        self._idle: set[str] = set()
        self._looked_at = float("-inf")
        """When an idle queue last had its turn."""

    def take(self, queue: str, *, idle: bool = False) -> str:
        """Join the line; return the queue whose turn it is. ``idle``: the queue only probes for a message; queues with
        a known message go first, unless no idle queue had a turn for ``LOOK_SECONDS``."""
        if queue not in self._line:
            at = len(self._line)
            # If no idle queue had a turn for long, one idle queue stays ahead of each of the others.
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
        """Leave the line; return the queue whose turn begins now, if any."""
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
