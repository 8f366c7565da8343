"""How long to wait: between two attempts to connect (options ``retry.*``), and for a broker that stores accepts."""

from __future__ import annotations

import random
from typing import Final

FIRST_DELAY_SECONDS: Final = 0.2
"""Most time before the first attempt to connect again."""
SLOWEST_ACCEPTS: Final = 1000.0
"""Accepts per second of a broker on a busy machine: while it stores durable ones it may not send heartbeats."""
LONGEST_SILENCE_SECONDS: Final = 300.0
"""Longest silence that is put down to accepts."""


def silence_of(accepts: int) -> float:
    """Seconds for which a broker may be silent while it stores so many accepts."""
    return min(LONGEST_SILENCE_SECONDS, accepts / SLOWEST_ACCEPTS)


def pause_before(attempt: int, longest: float) -> float:
    """How many seconds to wait before the ``attempt``-th attempt (from 1) to connect again: jittered, and growing."""
    delay = min(longest, FIRST_DELAY_SECONDS * 2.0 ** min(attempt - 1, 30))
    return delay * random.uniform(0.5, 1.0)  # noqa: S311  jitter, not a secret
