"""``python -m amqp_spark.demo``: the demonstration on the embedded broker."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from amqp_core.broker import running
from amqp_spark.demo.command import parser, run
from amqp_spark.demo.steps import Place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@contextmanager
def embedded() -> Iterator[Place]:
    """Run the embedded broker in this process."""
    with running() as broker:
        yield Place(broker.url, broker.username, broker.password)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    return run(parser("python -m amqp_spark.demo").parse_args(argv), "the embedded broker", embedded)


if __name__ == "__main__":
    sys.exit(main())
