"""How many messages one transaction accepts: the time that a broker takes for an accept may grow with their number.

qpidd's linear store needs time that is quadratic in the accepts of a transaction; Broker-J and stores in memory do not.
So the number follows what is measured: it grows while the time per accept stays level, and shrinks when that rises.
"""

from __future__ import annotations

from typing import Final

FIRST_ACCEPTS: Final = 25_000
"""Most accepts of the first transaction, and the least that the bound shrinks to."""
MOST_ACCEPTS: Final = 4_000_000
LEVEL: Final = 1.3
"""The time per accept counts as level up to this many times the best one."""
STEEP: Final = 1.6
"""From this many times the best one on it has risen."""
_LEAST_SHARE: Final = 0.5
"""A transaction tells something if it has at least this share of the bound."""
_FORGET: Final = 1.02
"""The best time grows by this with each measurement: a broker may have become busier for good."""


class CommitPace:
    """The bound of accepts per transaction.

    Attributes:
        limit: most messages of the next batch.
    """

    def __init__(self) -> None:
        self.limit = FIRST_ACCEPTS
        self._best_s: float | None = None
        self._rests = 0
        """Full transactions to wait for before the bound may grow again."""
        self._rest = 1

    def committed(self, accepts: int, seconds: float) -> None:
        """Take note of a transaction of so many accepts that took so many seconds."""
        if accepts < _LEAST_SHARE * self.limit:
            return
        each_s = seconds / accepts
        best_s = each_s if self._best_s is None else min(each_s, self._best_s * _FORGET)
        self._best_s = best_s
        if each_s > STEEP * best_s:
            self.limit = max(FIRST_ACCEPTS, self.limit // 2)
            self._rests, self._rest = self._rest, min(64, 2 * self._rest)
        elif self._rests > 0:
            self._rests -= 1
        elif each_s <= LEVEL * best_s:
            self.limit = min(MOST_ACCEPTS, 2 * self.limit)
