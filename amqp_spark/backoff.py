"""How long to wait between two attempts to connect: the same for source and sink (options ``retry.*``)."""

from __future__ import annotations

import random
from typing import Final

FIRST_DELAY_SECONDS: Final = 0.2
"""Most time before the first attempt to connect again."""


def pause_before(attempt: int, longest: float) -> float:
    """How many seconds to wait before the ``attempt``-th attempt (from 1) to connect again: jittered, and growing."""
    delay = min(longest, FIRST_DELAY_SECONDS * 2.0 ** min(attempt - 1, 30))
    return delay * random.uniform(0.5, 1.0)  # noqa: S311  jitter, not a secret
