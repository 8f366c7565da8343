"""How long a broker may be silent while it works: on accepts, and on transactions.

Broker-J stores by the thread that sends heartbeats. It stores all of a branch in dtx.prepare, and every command about
branches of its virtual host waits for that, of whatever session.
"""

from __future__ import annotations

from typing import Final

LONGEST_ACCEPTS_SECONDS: Final = 300.0
"""Longest silence that is put down to accepts."""
OTHERS_SECONDS: Final = 300.0
"""For branches of others that are being prepared."""
# Per second, of a broker on a busy machine.
_SLOWEST_ACCEPTS: Final = 1000.0
_SLOWEST_ROWS: Final = 1000.0
_SLOWEST_NBYTES: Final = 1e6


def accept_timeout(accepts: int) -> float:
    """Seconds of silence while the broker stores so many accepts."""
    return min(LONGEST_ACCEPTS_SECONDS, accepts / _SLOWEST_ACCEPTS)


def branch_timeout(rows: int, nbytes: int = 0) -> float:
    """Seconds of silence for a command about a branch that holds so much."""
    return OTHERS_SECONDS + rows / _SLOWEST_ROWS + nbytes / _SLOWEST_NBYTES
