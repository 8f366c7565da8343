"""The steps of the demonstration, each with the public interface of client and connector."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from amqp_core import ConnectOptions, connect, parse_url
from amqp_spark.cli import Progress
from amqp_spark.demo.ticks import send, ticks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from amqp_spark.demo.reporting import Reporter

EXCHANGE: Final = "amq.topic"
TICKS: Final = "ticks"
SUMMARIES: Final = "summaries"
_SCHEMA: Final = (
    "queue STRING, position BIGINT, message_id STRING, routing_key STRING, timestamp TIMESTAMP, body STRING, "
    "application_headers STRUCT<id BIGINT, symbol STRING, price DOUBLE, qty INT>"
)
_BATCH: Final = 20_000
_CONFIRM_EVERY: Final = 1_000
_SAY_EVERY: Final = 10_000
_POLL_SECONDS: Final = 1
_SILENCE_SECONDS: Final = 2.0


class Place(NamedTuple):
    """A broker, and how to log in."""

    url: str
    username: str
    password: str

    @property
    def of_client(self) -> ConnectOptions:
        """The options of the client."""
        hosts, virtual_host, _ = parse_url(self.url)
        return ConnectOptions(
            hosts=hosts, virtual_host=virtual_host, username=self.username, password=self.password, client_name="demo"
        )

    @property
    def of_connector(self) -> dict[str, str]:
        """The options of the connector."""
        return self._asdict()


class Published(NamedTuple):
    """What the broker has confirmed: the number of ticks, and the sum of their quantities."""

    messages: int
    quantity: int


def declare(place: Place) -> None:
    """Declare and bind both queues."""
    with connect(place.of_client) as client:
        for queue, key in ((TICKS, "ticks.#"), (SUMMARIES, "summary.#")):
            client.declare_queue(queue)
            client.bind(queue, EXCHANGE, key)


def publish(place: Place, count: int, seed: int, reporter: Reporter) -> Published:
    """Publish ticks to the exchange, and wait until the broker has confirmed them."""
    quantity = 0
    with connect(place.of_client) as client:
        for number, tick in enumerate(ticks(count, seed), start=1):
            send(client, tick, EXCHANGE)
            quantity += tick.qty
            if number % _CONFIRM_EVERY == 0:
                client.confirm()
                reporter.check()
            if number % _SAY_EVERY == 0:
                reporter.detail(f"{number:,} confirmed")
        client.confirm()
    return Published(count, quantity)


def stream(spark: SparkSession, place: Place, output: Path, checkpoint: Path, reporter: Reporter) -> None:
    """Stream what the queue holds into Parquet files, in micro-batches."""
    source = spark.readStream.format("amqp").options(**place.of_connector)
    rows = source.option("queue", TICKS).option("maxMessagesPerTrigger", _BATCH).schema(_SCHEMA).load()
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start(str(output))
    progress = Progress(
        io.StringIO(),
        quiet=True,
        on_batch=lambda batch: reporter.detail(f"batch {batch.batchId}: {batch.numInputRows:,} rows"),
    )
    try:
        while not query.awaitTermination(_POLL_SECONDS):
            progress.update(query)
            reporter.check()
        progress.update(query)
    finally:
        query.stop()


def waiting(place: Place) -> int | None:
    """How many ticks the broker still holds."""
    with connect(place.of_client) as client:
        queue = client.query_queue(TICKS)
    return None if queue is None else queue.message_count


def summarise(spark: SparkSession, place: Place, source: Path) -> None:
    """Publish a summary of each symbol to the exchange: a JSON body, and typed headers."""
    rows = spark.read.parquet(str(source)).selectExpr("application_headers.*")
    rows.createOrReplaceTempView(TICKS)
    summaries = spark.sql(
        "SELECT symbol, count(*) AS ticks, sum(qty) AS qty, max_by(price, id) AS last, round(avg(price), 4) AS mean "
        "FROM ticks GROUP BY symbol ORDER BY symbol"
    )
    messages = summaries.selectExpr(
        "concat('summary.', symbol) AS routing_key",
        "to_json(struct(*)) AS body",
        "'application/json' AS content_type",
        "struct(symbol, ticks, last) AS application_headers",
    )
    writer = messages.write.format("amqp").mode("append").options(**place.of_connector)
    writer.option("exchange", EXCHANGE).save()


def receive(place: Place, reporter: Reporter) -> list[Any]:
    """Receive the summaries with the client alone, and accept them."""
    found: list[Any] = []  # messages of either protocol
    with connect(place.of_client) as client:
        credit = client.capabilities.credit
        subscription = client.subscribe(SUMMARIES, max_unsettled=None if credit else 100)
        if credit:
            subscription.grant(100)
        take: Callable[..., Any] = subscription.take_one
        while (message := take(timeout=_SILENCE_SECONDS)) is not None:
            found.append(message)
            client.accept([(message.transfer_id, message.transfer_id)])
            reporter.detail(f"{message.routing_key:<12} {message.body.decode()}")
    return found
