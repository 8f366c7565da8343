"""``make demo BROKER=...``: the demonstration of the package on a real broker."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from amqp_spark.demo.command import parser, run
from amqp_spark.demo.steps import Place
from tests.support.brokerj import BrokerJ
from tests.support.rabbitmq import RabbitMQNode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BROKERS: dict[str, type[BrokerJ] | type[RabbitMQNode]] = {"broker-j": BrokerJ, "rabbitmq": RabbitMQNode}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration; return the exit code."""
    command = parser("python -m tests.support.demo")
    command.add_argument("--broker", choices=BROKERS, required=True, help="kind of broker")
    arguments = command.parse_args(argv)
    kind = BROKERS[arguments.broker]

    @contextmanager
    def started() -> Iterator[Place]:
        with kind() as broker:
            yield Place(broker.url(), broker.username, broker.password)

    return run(arguments, kind.title, started)


if __name__ == "__main__":
    sys.exit(main())
