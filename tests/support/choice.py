"""Which tests are run."""

from __future__ import annotations

import os


def all_cases() -> bool:
    """Whether all cases are run (``make test-all``), not those of ``make test`` only."""
    return os.environ.get("AMQP_TEST_ALL", "") not in ("", "0")
