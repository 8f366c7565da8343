"""Number of messages that one transaction accepts: a broker's time per accept may grow with that number.

The time of qpidd's linear store is quadratic in the accepts of a transaction; that of Broker-J and of stores in memory
is not. So the number follows the measured times: it grows while the time per accept stays level, and shrinks when that
rises.
"""

from __future__ import annotations

from typing import Final

FIRST_ACCEPTS: Final = 25_000
"""Most accepts of the first transaction, and the lower limit of the bound."""
MOST_ACCEPTS: Final = 4_000_000
LEVEL: Final = 1.3
"""The time per accept counts as level up to this many times the best one."""
STEEP: Final = 1.6
"""The time per accept counts as risen from this many times the best one on."""
_LEAST_SHARE: Final = 0.5
"""A transaction is measured if it has at least this share of the bound."""
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
        """Record a transaction: its number of accepts and its duration in seconds."""
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
