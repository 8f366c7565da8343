"""Streaming queries as benchmarks run them, and what they tell of themselves."""

from __future__ import annotations

import gc
import json
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import psutil

from tests.bench import processor
from tests.bench.preload import HEADERS_DDL, MESSAGE_ID, PRICE, SYMBOL, body_of
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

    from tests.bench.environment import Environment

SCHEMA = f"body BINARY, routing_key STRING, message_id STRING, timestamp TIMESTAMP, application_headers {HEADERS_DDL}"


@dataclass(frozen=True)
class Drained:
    """An AvailableNow query that has ended."""

    rows: int
    batches: int
    wall_s: float
    """From ``start()`` to the end of ``awaitTermination()``: the start of the reader process is in it."""
    query_s: float
    """From the start of the first micro-batch to the end of ``awaitTermination()``."""
    durations_ms: dict[str, int]
    """Sum the durations that the engine reports over all batches."""
    spent: processor.Spent
    """Processor time from the start of the first micro-batch on."""


def source(env: Environment, queue: str, schema: str | StructType = SCHEMA, **options: str) -> DataFrame:
    """The stream of a queue."""
    reader = env.spark.readStream.format("amqp").options(**env.source_options(queue), **options)
    return reader.schema(schema).load()


def drain(
    env: Environment,
    queue: str,
    expected: int,
    *,
    schema: str | StructType = SCHEMA,
    to: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
    removes: bool = True,
) -> Drained:
    """Run ``schema`` of a queue through an AvailableNow query into the noop sink, or to a broker.

    Args:
        env: where the queue is.
        queue: its name, or a comma list of names.
        expected: how many messages are there.
        schema: what to read of each.
        to: options of the sink that gets them; None for the noop sink.
        options: further ones of the source.
        removes: whether the query empties the queue.

    Raises:
        RuntimeError: the query did not read ``expected`` rows, or left messages on the broker.
    """
    stream = source(env, queue, schema, **(options or {})).writeStream
    stream = stream.format("noop") if to is None else stream.format("amqp").options(**to)
    found = run_out(env, stream, expected)
    left = sum(map(env.depth, queue.split(","))) if removes else 0
    if left:
        raise RuntimeError(f"the query left {left} messages on the broker")
    return found


def run_out(env: Environment, stream: DataStreamWriter, expected: int) -> Drained:
    """Run an AvailableNow query of any source to its end.

    Raises:
        RuntimeError: it did not read ``expected`` rows.
    """
    writer = stream.option("checkpointLocation", env.checkpoint())
    # No progress event is dropped from recentProgress before this many.
    env.spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "10000")
    begin, begin_epoch = time.perf_counter(), time.time()
    with processor.Watch() as watch:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        wall = time.perf_counter() - begin
    events = [event for event in progress(query) if event["batchId"] >= 0]
    with_rows = [event for event in events if event["numInputRows"]]
    rows = sum(event["numInputRows"] for event in with_rows)
    if rows != expected:
        raise RuntimeError(f"the query read {rows} rows instead of {expected}")
    durations: dict[str, int] = {}
    for event in events:
        for name, value in event["durationMs"].items():
            durations[name] = durations.get(name, 0) + value
    first = datetime.fromisoformat(events[0]["timestamp"]).timestamp() if events else begin_epoch
    return Drained(rows, len(with_rows), wall, wall - (first - begin_epoch), durations, watch.since(first))


def against_raw(
    env: Environment,
    queue: str,
    count: int,
    *,
    body_bytes: int,
    unit: str,
    per_message: float,
    step: Callable[[str], None],
    options: Mapping[str, str] | None = None,
    broker: tuple[list[float], list[float]] | None = None,
) -> tuple[list[float], list[Drained]]:
    """Drain a queue in turn with the bare socket loop and with the query, round after round.

    Args:
        env: where the queue is.
        queue: its name; it is empty before and after.
        count: messages of each drain.
        body_bytes: octets of each body.
        unit: of the rate that the progress bar shows.
        per_message: how much of it one message is.
        step: is called with that rate after every drain.
        options: further ones of the source.
        broker: gets the seconds of processor time of the broker for each raw loop, and for each query.

    Returns:
        seconds of each raw loop, and what each query tells.
    """
    raw: list[float] = []
    drained: list[Drained] = []
    for_raw, for_query = ([], []) if broker is None else broker
    for _ in range(env.sizes.rounds):
        env.fill(queue, count, body_bytes=body_bytes)
        with processor.of_broker(env, for_raw):
            raw.append(env.drain_raw(queue, count))
        step(f"raw {count * per_message / raw[-1]:,.0f} {unit}")
        env.fill(queue, count, body_bytes=body_bytes)
        with processor.of_broker(env, for_query):
            drained.append(drain(env, queue, count, options=options))
        step(f"query {count * per_message / drained[-1].query_s:,.0f} {unit}")
    return raw, drained


def messages(env: Environment, count: int, *, body_bytes: int = 256, routing_key: str) -> DataFrame:
    """The messages of :mod:`tests.bench.preload` as rows, computed when they are asked for."""
    return env.spark.range(count).selectExpr(*columns("id", body_bytes=body_bytes, routing_key=routing_key))


def columns(number: str, *, body_bytes: int = 256, routing_key: str) -> list[str]:
    """Columns of the messages of :mod:`tests.bench.preload`, as SQL; ``number`` is the BIGINT column to count by."""
    digits = f"lpad(lower(hex({number})), 16, '0')"
    return [
        f"X'{body_of(body_bytes).hex()}' AS body",
        f"'{routing_key}' AS routing_key",
        f"concat('{str(MESSAGE_ID)[:18]}-', substr({digits}, 1, 4), '-', substr({digits}, 5)) AS message_id",
        f"named_struct('symbol', '{SYMBOL}', 'qty', CAST({number} AS INT), 'price', {PRICE}D) AS application_headers",
    ]


def write(frame: DataFrame, sink: str, options: Mapping[str, str]) -> float:
    """Write a frame with ``df.write.format(sink)``; return seconds from the call of ``save()`` to its end."""
    gc.collect()
    writer = frame.write.format(sink).options(**options).mode("append")
    begin = time.perf_counter()
    writer.save()
    return time.perf_counter() - begin


def progress(query: StreamingQuery) -> list[dict[str, Any]]:
    """Return the engine's reports of a query, oldest first."""
    return [json.loads(event.json) for event in query.recentProgress]


@contextmanager
def running(env: Environment, writer: DataStreamWriter) -> Iterator[psutil.Process]:
    """Run a query with the default trigger; give its reader process once the engine polls it, and stop it at the end.

    Raises:
        StreamingQueryException: the query ended by itself.
    """
    before = {process.pid for process in _readers()}
    query = writer.option("checkpointLocation", env.checkpoint()).start()
    found: list[psutil.Process] = []

    def polled() -> bool:
        if (error := query.exception()) is not None:
            raise error
        found[:] = [process for process in _readers() if process.pid not in before]
        return bool(found) and query.status["message"] != "Initializing sources"

    try:
        wait_until(polled, "the reader process of the query", 60.0)
        yield found[0]
        if (error := query.exception()) is not None:
            raise error
    finally:
        query.stop()


def _readers() -> list[psutil.Process]:
    """The reader processes that run now: Python workers of the driver's JVM that serve streaming sources."""
    return [process for process in psutil.Process().children(recursive=True) if _is_reader(process)]


def _is_reader(process: psutil.Process) -> bool:
    try:
        return processor.READER in process.cmdline()
    except psutil.Error:  # it ended meanwhile
        return False
