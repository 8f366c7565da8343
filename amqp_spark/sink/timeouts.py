"""How long a broker may be silent while it works on transactions.

Broker-J stores all of a branch in dtx.prepare, and every command about branches of its virtual host waits for that, of
whatever session: neither is answered meanwhile, nor are heartbeats sent.
"""

from __future__ import annotations

from typing import Final

OTHERS_SECONDS: Final = 300.0
"""For branches of others that are being prepared."""
_SLOWEST_ROWS: Final = 1000.0
_SLOWEST_NBYTES: Final = 1e6
"""Per second, of a broker on a busy machine."""


def silence_timeout(rows: int, nbytes: int = 0) -> float:
    """Seconds for a command about a branch that holds so much."""
    return OTHERS_SECONDS + rows / _SLOWEST_ROWS + nbytes / _SLOWEST_NBYTES
