"""Time for which a broker may be silent while it works on accepts and on transactions.

Broker-J stores messages on the thread that sends heartbeats. It stores a whole branch in dtx.prepare, and every command
about branches of its virtual host, on any session, waits for that.
"""

from __future__ import annotations

from typing import Final

LONGEST_ACCEPTS_SECONDS: Final = 300.0
"""Longest silence allowed for accepts."""
OTHERS_SECONDS: Final = 300.0
"""Silence allowed for branches of other clients that are being prepared."""
# Rates per second of a broker on a busy machine.
_SLOWEST_ACCEPTS: Final = 1000.0
_SLOWEST_ROWS: Final = 1000.0
_SLOWEST_NBYTES: Final = 1e6


def accept_timeout(accepts: int) -> float:
    """Seconds of silence allowed while the broker stores so many accepts."""
    return min(LONGEST_ACCEPTS_SECONDS, accepts / _SLOWEST_ACCEPTS)


def branch_timeout(rows: int, nbytes: int = 0) -> float:
    """Seconds of silence allowed for a command about a branch with so many rows and bytes."""
    return OTHERS_SECONDS + rows / _SLOWEST_ROWS + nbytes / _SLOWEST_NBYTES
