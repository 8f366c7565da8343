"""``amqp-spark demo``, ``python -m amqp_spark.demo``: the demonstration on the embedded broker."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from amqp_core.broker import running
from amqp_spark.demo.command import parser, run
from amqp_spark.demo.steps import Place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PROGRAM: Final = "amqp-spark demo"


@contextmanager
def embedded() -> Iterator[Place]:
    """Run the embedded broker in this process."""
    with running() as broker:
        yield Place(broker.url, broker.username, broker.password)


def main(argv: Sequence[str] | None = None, *, program: str = PROGRAM) -> int:
    """Run the command; return the exit code.

    Args:
        argv: arguments; ``None``: those of the process.
        program: as the user started it.
    """
    return run(parser(program).parse_args(argv), "the embedded broker", embedded)


if __name__ == "__main__":
    sys.exit(main(program="python -m amqp_spark.demo"))
