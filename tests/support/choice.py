"""Which tests are run, and how thoroughly."""

from __future__ import annotations

import os


def all_cases() -> bool:
    """Whether all cases are run (``make test-all``), not those of ``make test`` only."""
    return os.environ.get("AMQP_TEST_ALL", "") not in ("", "0")


def in_ci() -> bool:
    """Whether this is a run of the continuous integration, where nothing may be missing."""
    return os.environ.get("CI", "") not in ("", "0", "false")


def examples(count: int) -> int:
    """Number of examples of a property: ``make test`` tries a third of them, and ten at least."""
    return count if all_cases() else max(min(count, 10), count // 3)
