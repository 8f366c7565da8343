"""``amqp-spark broker``: the embedded broker, as ``python -m amqp_core.broker`` starts it; without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_core.broker.__main__ import main as run_broker

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM: Final = "amqp-spark broker"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the broker, or keep its users (``user``); return the exit code."""
    return run_broker(argv, program=PROGRAM)
