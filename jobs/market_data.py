"""Publish sample market data to an exchange, with the AMQP client alone (no Spark).

    python jobs/market_data.py --url amqp://broker/default --username guest --password-file /run/secrets/amqp \\
        --exchange amq.topic --count 10000

Every tick has an id, a symbol, a price and a quantity: as a JSON body, as typed application headers, and with the
routing key ticks.<symbol>. The same --seed gives the same ticks and message ids. The last line on standard
output is a JSON summary: how many were confirmed by the broker, and the sum of their quantities.

exit codes: 0 done; 1 some were not confirmed; 2 the command line is wrong; 3 the broker could not be used; 130, 143
stopped by SIGINT, SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from typing import TYPE_CHECKING

from amqp_core import AmqpError, ConnectOptions, MessageRejected, OutcomeUnknown, UsageError, parse_url
from amqp_core.command_line import Parser
from amqp_core.protocols import connect
from amqp_core.standard_output import OutputFailed, say
from amqp_spark import cli
from amqp_spark.demo.ticks import SYMBOLS, send, ticks
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import MessagePlace, PublishFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_core.api import Client

_CONFIRM_EVERY = 1000
_LOOK_SECONDS = 0.2


def publish(client: Client, arguments: argparse.Namespace, signals: cli.Signals) -> tuple[int, int]:
    """Publish and confirm; return the number of confirmed messages, and the sum of their quantities."""
    if arguments.exchange and not client.query_routes([(arguments.exchange, None)]).answers()[0].exists:
        # brokers would report each tick as unroutable, or end the session or channel
        text = SparkCondition.EXCHANGE_NOT_FOUND(place=f"to exchange {arguments.exchange!r}", options="--exchange")
        raise PublishFailed(text, MessagePlace(0, exchange=arguments.exchange))
    confirmed = total = pending = pending_total = 0
    started = time.monotonic()
    for tick in ticks(arguments.count, arguments.seed, arguments.symbols.split(",")):
        send(client, tick, arguments.exchange)
        pending += 1
        pending_total += tick.qty
        if pending == _CONFIRM_EVERY or arguments.rate:
            client.confirm()
            confirmed, total, pending, pending_total = confirmed + pending, total + pending_total, 0, 0
        if arguments.rate:
            wait_until(started + confirmed / arguments.rate, signals)
        if signals.received is not None:
            break
    client.confirm()
    return confirmed + pending, total + pending_total


def wait_until(moment: float, signals: cli.Signals) -> None:
    """Wait until a moment of the monotonic clock, or a signal: a sleep goes on after one."""
    while signals.received is None and (left := moment - time.monotonic()) > 0:
        time.sleep(min(left, _LOOK_SECONDS))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    arguments = Parser(
        prog="market_data.py",
        allow_abbrev=False,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cli.add_connection_arguments(arguments)
    arguments.add_argument("--exchange", default="amq.topic", help="exchange to publish to (default: %(default)s)")
    arguments.add_argument("--count", type=_positive, default=10_000, help="number of ticks (default: %(default)s)")
    arguments.add_argument("--rate", type=_rate, help="ticks per second (default: as fast as possible)")
    arguments.add_argument("--seed", type=int, default=1, help="of the random numbers (default: %(default)s)")
    arguments.add_argument("--symbols", default=",".join(SYMBOLS), help="comma list (default: %(default)s)")
    return arguments


def connect_options(arguments: argparse.Namespace) -> ConnectOptions:
    """Address and login from the command line."""
    if not arguments.url:
        raise cli.CommandLineError("--url is missing", "Add --url amqp://host[:port]/vhost, or set AMQP_URL")
    login = cli.credentials(arguments)
    try:
        hosts, virtual_host, tls = parse_url(arguments.url)
    except UsageError as error:
        raise cli.CommandLineError(str(error)) from error
    return ConnectOptions(
        hosts=hosts,
        virtual_host=virtual_host,
        tls=tls,
        username=login.get("username"),
        password=login.get("password"),
        password_file=login.get("passwordFile"),
        client_name="market_data",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return the exit code."""
    arguments = parser().parse_args(argv)
    with cli.Signals() as signals:
        try:
            with connect(connect_options(arguments)) as client:
                confirmed, total = publish(client, arguments, signals)
            say(json.dumps({"published": confirmed, "sum_qty": total, "seed": arguments.seed}))
        except (MessageRejected, OutcomeUnknown) as error:
            cli.fail("market_data", error)
            return cli.EXIT_FAILED
        except (AmqpError, cli.CommandLineError, OutputFailed) as error:
            return cli.fail("market_data", error)
    return signals.exit_code or cli.EXIT_DONE


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _rate(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


if __name__ == "__main__":
    sys.exit(main())
