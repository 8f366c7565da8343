"""Window of a publisher: few transfers in flight at first, more while the broker keeps up, few again after a stop.

Brokers report a full queue late: qpidd withholds completions above 80 % of a queue's limit, and refuses transfers above
the limit with 506; Broker-J sends message.stop. Transfers in flight by then still go to the queue. So the window has an
upper bound, starts small where a queue may be near its limit, and grows while the broker completes the transfers in it.
"""

from __future__ import annotations

import math

from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import UsageError

FIRST_TRANSFERS = 1000
FIRST_BYTES = 512 << 10
# Growth factor per answer of the broker; there are several answers per window.
_FASTER = 1.5
# Answers of the broker for which a probing window has one transfer: a stop may follow the first answer.
_PROBES = 2
# After a stop the window grows as fast up to half of its former size, then by this part of the first window.
_SLOWLY = 0.125


class Window:
    """Most transfers, and most bytes, that may be sent and not completed. Not thread-safe.

    It starts with its upper bounds; if it is ``small`` with ``FIRST_TRANSFERS`` and ``FIRST_BYTES`` at most.

    Raises:
        UsageError: a bound is less than 1.
    """

    def __init__(self, most_transfers: int, most_bytes: int, *, small: bool = False) -> None:
        if most_transfers < 1 or most_bytes < 1:
            name = f"A window of {most_transfers} transfers and {most_bytes} bytes"
            raise UsageError(CoreCondition.ARGUMENT_INVALID(name=name, reason="it lets nothing pass"))
        self._most_transfers = most_transfers
        self._most_bytes = most_bytes
        self._largest = max(1.0, most_bytes / FIRST_BYTES)
        self._small = small
        self._size = 1.0 if small else self._largest
        """Size in units of the first window."""
        self._fast_until = math.inf
        self._probes = 0
        """Answers for which there is still one transfer only."""

    def __repr__(self) -> str:
        return f"<window of {self.transfers} transfers, {self.nbytes} bytes>"

    @property
    def transfers(self) -> int:
        """Most transfers at present."""
        if self._probes:
            return 1
        share = self._size / self._largest
        return min(self._most_transfers, max(FIRST_TRANSFERS, int(self._most_transfers * share)))

    @property
    def nbytes(self) -> int:
        """Most bytes at present."""
        return min(self._most_bytes, int(FIRST_BYTES * self._size))

    def grow(self) -> None:
        """Enlarge the window: the broker has completed the transfers of a sync."""
        if self._probes:
            self._probes -= 1
        elif self._size < self._fast_until:
            self._size = min(self._size * _FASTER, self._fast_until, self._largest)
        else:
            self._size = min(self._size + _SLOWLY, self._largest)

    def stop(self) -> None:
        """Reset the window: the broker takes no transfers at present."""
        if self._size > 1.0:  # else the same stop continues
            self._fast_until = max(1.0, self._size / 2)
        self._size = 1.0

    def probe(self) -> None:
        """Allow one transfer only until the broker has taken two, one after the other.

        A new session does not know that the queue is full; the broker stops it when the first transfer has arrived.
        """
        self.stop()
        self._probes = _PROBES

    def within(self, most_transfers: int, most_bytes: int) -> Window:
        """Return a window with other bounds for the same broker; its measured size is kept.

        Raises:
            UsageError: a bound is less than 1.
        """
        window = Window(most_transfers, most_bytes, small=self._small)
        if self._small or self._fast_until < math.inf:
            window._size, window._fast_until = min(self._size, window._largest), self._fast_until
        return window
