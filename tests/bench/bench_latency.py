"""``latency_ratio``: median time from publishing to ``foreachBatch`` over the same from a source in memory.

One message at a time is published, at intervals that vary, to a query with the default trigger that waits for it.
The clock starts before the call that publishes and stops when ``foreachBatch`` has collected the row; both are read in
this process. The source in memory is fed over a loopback socket, and is the least that a Python stream source can do.
"""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING

from tests.bench import memory_source, queries
from tests.bench.environment import Result, middle, rounded

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from tests.bench.environment import Environment

UNCOUNTED = 3
"""First messages of a query: its first batches are slower."""
_TIMEOUT_S = 60.0


def run(env: Environment) -> list[Result]:
    """Alternate both sources; the ratio is that of the medians over all rounds."""
    env.spark.dataSource.register(memory_source.MemorySource)
    ours: list[list[float]] = []
    floor: list[list[float]] = []
    with env.progress("latency_ratio", 2 * env.sizes.rounds) as step:
        for _ in range(env.sizes.rounds):
            floor.append(_memory(env))
            step(f"memory {middle(floor[-1]) * 1e3:.0f} ms")
            ours.append(_amqp(env))
            step(f"amqp {middle(ours[-1]) * 1e3:.0f} ms")
    ours_s, floor_s = (middle([middle(each) for each in found]) for found in (ours, floor))
    return [
        Result(
            name="latency_ratio",
            value=ours_s / floor_s,
            unit="ratio",
            higher_is_better=False,
            detail={
                "amqp_ms": round(ours_s * 1e3, 1),
                "memory_ms": round(floor_s * 1e3, 1),
                "amqp_ms_by_round": rounded([middle(each) * 1e3 for each in ours], 1),
                "memory_ms_by_round": rounded([middle(each) * 1e3 for each in floor], 1),
                "messages_per_round": env.sizes.latency_messages,
            },
        )
    ]


def _amqp(env: Environment) -> list[float]:
    with env.queue() as queue, env.sending(queue) as publish:
        stream = queries.source(env, queue, memory_source.SCHEMA)
        return measure(env, stream, publish)


def _memory(env: Environment) -> list[float]:
    with memory_source.Feed() as feed:
        stream = env.spark.readStream.format("bench_memory").option("port", str(feed.port)).load()
        return measure(env, stream, feed.publish)


def measure(env: Environment, stream: DataFrame, publish: Callable[[bytes], object]) -> list[float]:
    """Seconds that each message took."""
    seen: dict[bytes, float] = {}
    changed = threading.Condition()

    def look(frame: DataFrame, batch: int) -> None:
        del batch
        bodies = [bytes(row[0]) for row in frame.collect()]
        now = time.perf_counter()
        with changed:
            seen.update(dict.fromkeys(bodies, now))
            changed.notify_all()

    query = stream.writeStream.foreachBatch(look).option("checkpointLocation", env.checkpoint()).start()
    took: list[float] = []
    pauses = random.Random(1)
    try:
        for number in range(UNCOUNTED + env.sizes.latency_messages):
            body = b"message %d" % number
            begin = time.perf_counter()
            publish(body)
            with changed:
                if not changed.wait_for(lambda body=body: body in seen, _TIMEOUT_S):  # type: ignore[misc]
                    raise RuntimeError(f"a message was not seen within {_TIMEOUT_S:g} s: {query.exception()}")
            took.append(seen[body] - begin)
            time.sleep(env.sizes.latency_spacing_s * pauses.uniform(0.5, 1.5))
    finally:
        query.stop()
    return took[UNCOUNTED:]
