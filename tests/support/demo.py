"""``make demo``: from nothing to rows and back, with proof.

Starts a broker (the embedded one, or a real one), publishes sample market data to an exchange, streams the bound queue
into Parquet with ``jobs/ingest.py``, and checks that every message arrived exactly once with its content, and that the
broker holds none of them any more. Then ``jobs/publish.py`` publishes a summary per symbol, and a plain AMQP client
receives it. Exit code 0 only when all of it is right.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from amqp_core.address import ConnectOptions, parse_url
from amqp_core.protocols import connect
from tests.support.box import Box
from tests.support.brokerj import BrokerJ
from tests.support.rabbitmq import RabbitMQNode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
QUEUE = "ticks"
EXCHANGE = "amq.topic"
SUMMARIES = "summaries"
SUMMARY = """
    SELECT symbol, count(*) AS ticks, sum(qty) AS qty, max_by(price, id) AS last, round(avg(price), 4) AS mean
    FROM (SELECT application_headers.* FROM input) GROUP BY symbol ORDER BY symbol
"""
BROKERS: dict[str, type[BrokerJ] | type[RabbitMQNode] | type[Box]] = {
    "box": Box,
    "broker-j": BrokerJ,
    "rabbitmq": RabbitMQNode,
}
SPARK = ("--master", "local[2]", "--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=ERROR")
SCHEMA = (
    "queue STRING, position BIGINT, message_id STRING, routing_key STRING, timestamp TIMESTAMP, body STRING, "
    "application_headers STRUCT<id BIGINT, symbol STRING, price DOUBLE, qty INT>"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration; return the exit code."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=50_000, help="number of messages (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample data (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "demo", help="directory (default: build/demo)")
    parser.add_argument("--broker", choices=BROKERS, default="box", help="kind of broker (default: %(default)s)")
    arguments = parser.parse_args(argv)

    output: Path = arguments.output
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    kind = BROKERS[arguments.broker]
    say(f"1/6 starting a broker ({kind.title})")
    with kind() as broker:
        environment = dict(os.environ) | {
            "AMQP_URL": broker.url(),
            "AMQP_USERNAME": broker.username,
            "AMQP_PASSWORD": broker.password,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        hosts, virtual_host, _ = parse_url(broker.url())
        options = ConnectOptions(
            hosts=hosts, virtual_host=virtual_host, username=broker.username, password=broker.password
        )
        with connect(options) as client:
            for queue, key in ((QUEUE, "ticks.#"), (SUMMARIES, "summary.#")):
                client.declare_queue(queue)
                client.bind(queue, EXCHANGE, key)
        checks = there(environment, output, arguments)
        with connect(options) as client:
            left = client.query_queue(QUEUE)
        checks["the queue is empty on the broker"] = left is not None and left.message_count == 0
        checks |= back(environment, output, options)
    say("6/6 checking")
    for text, holds in checks.items():
        say(f"  {'ok  ' if holds else 'FAIL'} {text}")
    if not all(checks.values()):
        say("demo: FAILED")
        return 1
    say("demo: every message arrived exactly once, and the summaries of them came back")
    return 0


def there(environment: Mapping[str, str], output: Path, arguments: argparse.Namespace) -> dict[str, bool]:
    """Send ticks to the broker and from there to Parquet; return the checks and their results."""
    say(f"2/6 publishing {arguments.count:,} ticks to exchange {EXCHANGE}, which queue {QUEUE!r} is bound to")
    published = run_job(
        environment, "market_data.py", "--exchange", EXCHANGE, "--count", str(arguments.count),
        "--seed", str(arguments.seed),
    )  # fmt: skip
    say(f"3/6 streaming the queue into Parquet: {output / 'ticks'}")
    run_job(
        environment, "ingest.py", "--queue", QUEUE, "--schema", SCHEMA, "--available-now",
        "--option", "maxMessagesPerTrigger=20000", "--format", "parquet", "--output", str(output / "ticks"),
        "--checkpoint", str(output / "checkpoint"), *SPARK,
    )  # fmt: skip
    return verify(output / "ticks", json.loads(published), arguments)


def back(environment: Mapping[str, str], output: Path, options: ConnectOptions) -> dict[str, bool]:
    """Send summaries of the ticks to the broker, and from there to a client; return the checks and their results."""
    say(f"4/6 publishing a summary of each symbol to exchange {EXCHANGE}, which queue {SUMMARIES!r} is bound to")
    run_job(
        environment, "publish.py", "--input", str(output / "ticks"), "--sql", SUMMARY, "--exchange", EXCHANGE,
        "--column", "routing_key=concat('summary.', symbol)", "--column", "body=to_json(struct(*))",
        "--column", "content_type='application/json'", "--header", "symbol=symbol", "--header", "ticks=ticks",
        "--header", "last=last", *SPARK,
    )  # fmt: skip
    say("5/6 receiving the summaries with the AMQP client alone")
    found: list[Any] = []
    with connect(options) as client:
        credit = client.capabilities.credit
        subscription = client.subscribe(SUMMARIES, max_unsettled=None if credit else 100)
        if credit:
            subscription.grant(100)
        take: Callable[..., Any] = subscription.take_one  # returns a message of either protocol
        while (message := take(timeout=2.0)) is not None:
            found.append(message)
            client.accept([(message.transfer_id, message.transfer_id)])
            say(f"    {message.routing_key:<12} {message.body.decode()}")
    return verify_summaries(output / "ticks", found)


def run_job(environment: Mapping[str, str], script: str, *arguments: str) -> str:
    """Run one of the jobs; return the last line that it printed, or end with its exit code."""
    started = time.monotonic()
    job = subprocess.run(
        [sys.executable, str(ROOT / "jobs" / script), *arguments], env=environment, stdout=subprocess.PIPE, check=False
    )
    lines = job.stdout.decode().splitlines()
    for line in lines:
        say(f"    {line}")
    if job.returncode != 0 or not lines:
        say(f"demo: jobs/{script} ended with exit code {job.returncode}")
        raise SystemExit(job.returncode or 1)
    say(f"    ({time.monotonic() - started:.1f} s)")
    return lines[-1]


def verify(directory: Path, published: Mapping[str, int], arguments: argparse.Namespace) -> dict[str, bool]:
    """Check the Parquet files; return the checks and their results."""
    rows = pq.read_table(directory).to_pylist()
    headers = [row["application_headers"] for row in rows]
    ids = sorted(header["id"] for header in headers)
    total = sum(header["qty"] for header in headers)
    for row in sorted(rows, key=lambda each: each["position"])[:3]:
        say(f"    {row['timestamp']:%H:%M:%S} {row['routing_key']:<12} {row['body']}")
    return {
        f"{len(rows):,} rows for {published['published']:,} published and confirmed messages": (
            len(rows) == published["published"] == arguments.count
        ),
        "every published id is there exactly once": ids == list(range(arguments.count)),
        "message ids are all different": len({row["message_id"] for row in rows}) == len(rows),
        f"the quantities sum up to {total:,}, as published": total == published["sum_qty"],
        "every body says the same as its typed headers": all(
            json.loads(row["body"]) == header for row, header in zip(rows, headers, strict=True)
        ),
        "every routing key is that of its symbol": all(
            row["routing_key"] == f"ticks.{header['symbol']}" for row, header in zip(rows, headers, strict=True)
        ),
    }


def verify_summaries(directory: Path, found: Sequence[Any]) -> dict[str, bool]:
    """Check the summaries against ones computed here without Spark; return the checks and their results."""
    headers: list[Any] = pq.read_table(directory)["application_headers"].to_pylist()
    ticks: dict[str, list[dict[str, Any]]] = {}
    for header in sorted(headers, key=lambda each: each["id"]):
        ticks.setdefault(header["symbol"], []).append(header)
    wanted = {
        symbol: {
            "symbol": symbol,
            "ticks": len(rows),
            "qty": sum(row["qty"] for row in rows),
            "last": rows[-1]["price"],
            "mean": round(sum(row["price"] for row in rows) / len(rows), 4),
        }
        for symbol, rows in ticks.items()
    }
    bodies = [json.loads(message.body) for message in found]
    return {
        f"{len(found)} summaries came back, one per symbol": sorted(body["symbol"] for body in bodies)
        == sorted(wanted),
        "their counts, sums, last and mean prices are those of the ticks": all(
            _same(body, wanted.get(body["symbol"], {})) for body in bodies
        ),
        "their typed headers and routing keys say the same": all(
            message.headers == {name: body[name] for name in ("symbol", "ticks", "last")}
            and message.routing_key == f"summary.{body['symbol']}"
            for message, body in zip(found, bodies, strict=True)
        ),
    }


def _same(body: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether two summaries are equal except for rounding of the mean: Spark adds up in another order."""
    return body.keys() == wanted.keys() and all(
        abs(value - wanted[name]) < 0.001 if name == "mean" else value == wanted[name] for name, value in body.items()
    )


def say(text: str) -> None:
    """Print one line and flush."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
