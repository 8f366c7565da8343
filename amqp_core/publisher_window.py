"""How much a publisher may have in flight: little at first, more while the broker keeps up, little again after a stop.

That a queue is too full is said late: qpidd withholds completions above 80 % of a queue's limit, and refuses with 506
what comes above all of it; Broker-J sends message.stop. What was in flight by then goes to the queue all the same. So
the window has an upper bound, begins small where a queue may be near its limit unseen, and grows while the broker
completes what it holds.
"""

from __future__ import annotations

import math

from amqp_core.errors import UsageError

FIRST_TRANSFERS = 1000
FIRST_BYTES = 512 << 10
# What one answer of the broker makes of the window: several come for each window.
_FASTER = 1.5
# After a stop the window grows as fast up to half of what it was, and by this part of the first window from there on.
_SLOWLY = 0.125


class Window:
    """Most transfers, and most bytes, that may be sent and not completed.

    Parameters:
        most_transfers, most_bytes: its upper bounds; where they are small they are its size from the beginning.
        small: begin with ``FIRST_TRANSFERS`` and ``FIRST_BYTES``, not with the upper bounds.

    Raises:
        UsageError: bounds that let nothing pass.
    """

    def __init__(self, most_transfers: int, most_bytes: int, *, small: bool = False) -> None:
        if most_transfers < 1 or most_bytes < 1:
            raise UsageError(f"a window of {most_transfers} transfers and {most_bytes} bytes lets nothing pass")
        self._most_transfers = most_transfers
        self._most_bytes = most_bytes
        self._largest = max(1.0, most_bytes / FIRST_BYTES)
        self._small = small
        self._size = 1.0 if small else self._largest
        """In first windows."""
        self._fast_until = math.inf

    def __repr__(self) -> str:
        return f"<window of {self.transfers} transfers, {self.nbytes} bytes>"

    @property
    def transfers(self) -> int:
        """Most transfers now."""
        share = self._size / self._largest
        return min(self._most_transfers, max(FIRST_TRANSFERS, int(self._most_transfers * share)))

    @property
    def nbytes(self) -> int:
        """Most bytes now."""
        return min(self._most_bytes, int(FIRST_BYTES * self._size))

    def grow(self) -> None:
        """The broker has completed what it was asked for."""
        if self._size < self._fast_until:
            self._size = min(self._size * _FASTER, self._fast_until, self._largest)
        else:
            self._size = min(self._size + _SLOWLY, self._largest)

    def stop(self) -> None:
        """The broker takes nothing more for now."""
        if self._size > 1.0:  # else what began it lasts
            self._fast_until = max(1.0, self._size / 2)
        self._size = 1.0

    def within(self, most_transfers: int, most_bytes: int) -> Window:
        """Return a window with other bounds for the same broker, with what was found out about it."""
        window = Window(most_transfers, most_bytes, small=self._small)
        if self._small or self._fast_until < math.inf:
            window._size, window._fast_until = min(self._size, window._largest), self._fast_until
        return window
