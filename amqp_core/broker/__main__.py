"""``python -m amqp_core.broker``: the embedded broker as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from amqp_core.broker.logins import DEFAULT_LOGIN
from amqp_core.broker.model.errors import Refused
from amqp_core.broker.server import HOST, Server
from amqp_core.broker.store.database import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

WRONG_ARGUMENTS: Final = 2
UNUSABLE: Final = 3
DEFAULT_PORT: Final = 5672


class Binding(NamedTuple):
    """A binding of the command line."""

    exchange: str
    queue: str
    key: str


def binding(text: str) -> Binding:
    """Parse ``EXCHANGE:QUEUE[:KEY]``."""
    exchange, _, rest = text.partition(":")
    queue, _, key = rest.partition(":")
    if not exchange or not queue:
        raise argparse.ArgumentTypeError(f"{text!r} is not EXCHANGE:QUEUE or EXCHANGE:QUEUE:KEY")
    return Binding(exchange, queue, key)


def port(text: str) -> int:
    """Parse a port."""
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: give a number from 0 (any free port) to 65535")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m amqp_core.broker",
        description="A broker of AMQP 0-10 and 0-9-1 for tests and demonstrations on this machine. Without --store "
        "it keeps everything in memory: its messages are gone when it stops.",
    )
    made.add_argument("--port", type=port, default=DEFAULT_PORT, help="port on the loopback address; 0: a free one")
    made.add_argument(
        "--store", type=Path, metavar="FILE", help="SQLite file that keeps durable queues and persistent messages"
    )
    made.add_argument("--queue", action="append", default=[], metavar="NAME", help="declare a durable queue")
    made.add_argument(
        "--bind", action="append", default=[], type=binding, metavar="EXCHANGE:QUEUE[:KEY]",
        help="bind a queue to an exchange, such as amq.topic:prices:stocks.#",
    )  # fmt: skip
    return made


def prepare(server: Server, queues: Sequence[str], bindings: Sequence[Binding]) -> None:
    """Declare queues in the virtual host ``/``, and bind them.

    Raises:
        Refused: a name is reserved, or an exchange or queue is missing.
    """
    host = server.hosts["/"]
    for name in queues:
        host.declare_queue(name, owner=server, durable=True)
    for each in bindings:
        host.bind_queue(each.queue, each.exchange, each.key, owner=server)


async def serve(server: Server, number: int) -> int:
    """Run the broker until a signal comes; return the exit code."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    received: list[int] = []

    def stop(which: int) -> None:
        received.append(which)
        stopped.set()

    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stop, each)
    try:
        found = await server.start(number, on_failure=stopped.set)
    except OSError as error:
        say = f"Cannot listen on port {number}: {error.strerror}. Stop what uses it, or give another --port."
        print(say, file=sys.stderr)  # noqa: T201 - a program
        return UNUSABLE
    except StoreError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a program
        return UNUSABLE
    name, password = DEFAULT_LOGIN
    print(f"amqp://{HOST}:{found}/  user {name}, password {password}", flush=True)  # noqa: T201 - a program
    await stopped.wait()
    await server.stop()
    if server.failure is not None:
        print(server.failure, file=sys.stderr)  # noqa: T201 - a program
        return UNUSABLE
    return 128 + received[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    given = parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        server = Server(store=given.store)
    except StoreError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a program
        return UNUSABLE
    try:
        prepare(server, given.queue, given.bind)
    except Refused as refused:
        print(f"{refused}. Correct --queue or --bind.", file=sys.stderr)  # noqa: T201 - a program
        return WRONG_ARGUMENTS
    return asyncio.run(serve(server, given.port))


if __name__ == "__main__":
    sys.exit(main())
