"""``small_batch_ms``: what the sink adds to a micro-batch of ten rows.

The median ``addBatch`` of the progress events with our stream writer, less that with an Arrow stream writer that does
nothing with the same rows. Ten rows of the rate source in each batch, one partition, a batch every 200 ms.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.bench import nothing_sink, queries
from tests.bench.environment import Result, middle, rounded
from tests.support.process import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.bench.environment import Environment

ROWS = 10
UNCOUNTED = 5
"""First batches of a query: they connect, and Spark's JIT has not settled."""
_EVERY = "200 milliseconds"
_TIMEOUT_S = 300.0


def run(env: Environment) -> list[Result]:
    """Alternate both sinks; the value is the difference of the medians over all rounds."""
    env.spark.dataSource.register(nothing_sink.NothingSink)
    env.spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "10000")
    ours: list[list[float]] = []
    floor: list[list[float]] = []
    with env.queue() as queue, env.progress("small_batch_ms", 1 + 2 * env.sizes.rounds) as step:

        def nothing() -> list[float]:
            return _measure(env, queue, "bench_nothing", {})

        def amqp() -> list[float]:
            took = _measure(env, queue, "amqp", env.sink_options())
            depth = env.depth(queue)
            if depth < ROWS * len(took):
                raise RuntimeError(f"{depth} messages arrived of {len(took)} batches of {ROWS} rows")
            env.purge(queue)
            return took

        nothing()
        amqp()
        step("warm")
        for _ in range(env.sizes.rounds):
            floor.append(nothing())
            step(f"nothing {middle(floor[-1]):.0f} ms")
            ours.append(amqp())
            step(f"amqp {middle(ours[-1]):.0f} ms")
    ours_ms, floor_ms = (middle([middle(each) for each in found]) for found in (ours, floor))
    return [
        Result(
            name="small_batch_ms",
            value=ours_ms - floor_ms,
            unit="ms",
            higher_is_better=False,
            detail={
                "amqp_ms": round(ours_ms, 1),
                "nothing_ms": round(floor_ms, 1),
                "amqp_ms_by_round": rounded([middle(each) for each in ours], 1),
                "nothing_ms_by_round": rounded([middle(each) for each in floor], 1),
                "batches_per_round": env.sizes.small_batches,
                "rows_per_batch": ROWS,
            },
        )
    ]


def _measure(env: Environment, queue: str, sink: str, options: dict[str, str]) -> list[float]:
    """Milliseconds of ``addBatch`` of each batch that counts."""
    writer = _rows(env, queue).writeStream.format(sink).options(**options)
    query = writer.option("checkpointLocation", env.checkpoint()).trigger(processingTime=_EVERY).start()
    found: list[dict[str, Any]] = []

    def enough() -> bool:
        if (error := query.exception()) is not None:
            raise error
        found[:] = _batches(query)
        return len(found) >= UNCOUNTED + env.sizes.small_batches

    try:
        wait_until(enough, "batches", _TIMEOUT_S, poll_s=0.02)
    finally:
        query.stop()
    return [float(event["durationMs"]["addBatch"]) for event in found[UNCOUNTED:]]


def _rows(env: Environment, queue: str) -> DataFrame:
    rate = env.spark.readStream.format("rate-micro-batch").options(rowsPerBatch=str(ROWS), numPartitions="1").load()
    return rate.selectExpr(*queries.columns("value", routing_key=queue))


def _batches(query: StreamingQuery) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [json.loads(event.json) for event in query.recentProgress]
    return [event for event in events if event["numInputRows"]]
