"""``python -m amqp_core.broker``: the embedded broker as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from amqp_core.address import is_loopback, is_utf8
from amqp_core.broker import user_command
from amqp_core.broker.errors import UnusableFile
from amqp_core.broker.logins import DEFAULT_LOGIN
from amqp_core.broker.memory_limit import memory_size
from amqp_core.broker.model.errors import Refused
from amqp_core.broker.open_files import allow_connections
from amqp_core.broker.server import HOST, MOST_CONNECTIONS, Server
from amqp_core.broker.settings import Settings, host_fault
from amqp_core.broker.store.database import StoreError
from amqp_core.command_line import Parser
from amqp_core.standard_output import OutputFailed, say
from amqp_core.write_primitives import MOST_SHORT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from ssl import SSLContext

WRONG_ARGUMENTS: Final = 2
UNUSABLE: Final = 3
PROGRAM: Final = "python -m amqp_core.broker"
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
    return Binding(name(exchange), name(queue), key and name(key))


def port(text: str) -> int:
    """Parse a port."""
    if not _is_number(text) or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: give a number from 0 (any free port) to 65535")
    return int(text)


def host(text: str) -> str:
    """Check an address to listen on."""
    fault = host_fault(text)
    if fault:
        raise argparse.ArgumentTypeError(fault)
    return text


def name(text: str) -> str:
    """Check the name of a queue, an exchange or a virtual host, or a routing key."""
    if not text:
        raise argparse.ArgumentTypeError("an empty name is not allowed: give one of at least one character")
    if not is_utf8(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not text in UTF-8: write it so")
    nbytes = len(text.encode())
    if nbytes > MOST_SHORT:
        raise argparse.ArgumentTypeError(f"a name of {nbytes} bytes is too long: give one of at most {MOST_SHORT}")
    return text


def size(text: str) -> int:
    """Parse a size of memory."""
    try:
        return memory_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def count(text: str) -> int:
    """Parse a number of connections."""
    if not _is_number(text) or not 0 < int(text) < 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of connections: give one of at least 1")
    return int(text)


def _is_number(text: str) -> bool:
    """Whether a text is a number of some digits: ``int`` takes neither all that are digits nor thousands of them."""
    return text.isascii() and text.isdigit() and len(text) < 20


def parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """The parser of the command line of ``program``, as its help and errors name it."""
    made = Parser(
        prog=program,
        allow_abbrev=False,
        description="A broker of AMQP 0-10, 0-9-1 and 0-9 for tests and demonstrations on this machine. Without "
        "--store it keeps everything in memory: its messages are gone when it stops.",
        epilog=f"Users are kept with: {program} user --help",
    )
    made.add_argument("--port", type=port, default=DEFAULT_PORT, help="port to listen on; 0: a free one")
    made.add_argument(
        "--host", type=host, default=HOST, metavar="ADDRESS",
        help=f"address to listen on, {HOST} by default; the user guest may come from this machine only, wherever the "
        "broker listens",
    )  # fmt: skip
    made.add_argument(
        "--users", type=Path, metavar="FILE", help="file of the users; without it: user guest, password guest"
    )
    made.add_argument(
        "--allow-anonymous",
        action="store_true",
        help="clients of other machines may log in as guest without a password",
    )
    made.add_argument(
        "--tls-cert", type=Path, metavar="PEM", help="certificate with its chain: clients have to use TLS"
    )
    made.add_argument("--tls-key", type=Path, metavar="PEM", help="its key, without a passphrase")
    made.add_argument(
        "--tls-ca", type=Path, metavar="PEM", help="authorities of client certificates, which clients may log in with"
    )
    made.add_argument(
        "--store", type=Path, metavar="FILE", help="SQLite file that keeps durable queues and persistent messages"
    )
    made.add_argument(
        "--virtual-host",
        action="extend",
        nargs="+",
        default=[],
        type=name,
        metavar="NAME",
        help="virtual hosts besides /",
    )
    made.add_argument(
        "--queue", action="extend", nargs="+", default=[], type=name, metavar="NAME", help="declare durable queues in /"
    )
    made.add_argument(
        "--bind", action="extend", nargs="+", default=[], type=binding, metavar="EXCHANGE:QUEUE[:KEY]",
        help="bind queues to exchanges, such as amq.topic:prices:stocks.#",
    )  # fmt: skip
    made.add_argument(
        "--memory-limit", type=size, metavar="SIZE",
        help="stop publishers while messages take more, such as 512M; by default 40%% of the machine's memory",
    )  # fmt: skip
    made.add_argument(
        "--max-connections", type=count, default=MOST_CONNECTIONS, metavar="N",
        help=f"refuse further connections; {MOST_CONNECTIONS} by default",
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


def login_hint(settings: Settings) -> str:
    """Who may log in, for people."""
    if settings.users is not None:
        return f"users of {settings.users}"
    name, password = DEFAULT_LOGIN
    everywhere = is_loopback(settings.host) or settings.allow_anonymous
    return f"user {name}, password {password}" + ("" if everywhere else ", from this machine only")


async def serve(server: Server, settings: Settings, tls: SSLContext | None) -> int:
    """Run the broker until a signal comes; return the exit code."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    received: list[int] = []

    def stop(which: int) -> None:
        received.append(which)
        stopped.set()

    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stop, each)
    try:
        found = await server.start(settings.port, on_failure=stopped.set, host=settings.host, tls=tls)
    except OSError as error:
        place = f"port {settings.port}" + ("" if settings.host == HOST else f" of {settings.host}")
        reason = error.strerror or error
        text = f"Cannot listen on {place}: {reason}. Give a free --port, and as --host an address of this machine."
        print(text, file=sys.stderr)  # noqa: T201 - a program
        return UNUSABLE
    except StoreError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a program
        return UNUSABLE
    try:
        say(f"{settings.url(found)}  {login_hint(settings)}")
    except OutputFailed as error:
        await server.stop()
        print(error, file=sys.stderr)  # noqa: T201 - a program
        return UNUSABLE
    await stopped.wait()
    await server.stop()
    if server.failure is not None:
        print(server.failure, file=sys.stderr)  # noqa: T201 - a program
        return UNUSABLE
    return 128 + received[0]


def main(arguments: Sequence[str] | None = None, *, program: str = PROGRAM) -> int:
    """Run the command; return its exit code.

    Args:
        arguments: of the command line; ``None``: those of the process.
        program: as the user started it.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] == "user":
        return user_command.main(arguments[1:], f"{program} user")
    options = parser(program)
    given = options.parse_args(arguments)
    if (given.tls_cert is None) != (given.tls_key is None):
        options.error("--tls-cert and --tls-key belong together: give both")
    if given.tls_ca is not None and given.tls_cert is None:
        options.error("--tls-ca needs --tls-cert and --tls-key")
    settings = Settings(
        given.port, given.store, given.host, given.users, given.tls_cert, given.tls_key, given.tls_ca,
        given.allow_anonymous, given.memory_limit, given.max_connections,
    )  # fmt: skip
    allow_connections(given.max_connections)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        tls = settings.tls()
        server = settings.server()
    except (StoreError, UnusableFile) as error:
        print(error, file=sys.stderr)  # noqa: T201 - a program
        return UNUSABLE
    except KeyboardInterrupt:  # a store with many messages takes long to read
        return 128 + signal.SIGINT
    try:
        for each in given.virtual_host:
            server.add_host(each)
        prepare(server, given.queue, given.bind)
    except Refused as refused:
        print(f"{refused}. Correct --queue or --bind.", file=sys.stderr)  # noqa: T201 - a program
        return WRONG_ARGUMENTS
    return asyncio.run(serve(server, settings, tls))


if __name__ == "__main__":
    sys.exit(main())
