"""``publish_ratio``: rows/s of a batch write from a cached frame over messages/s of a bare socket loop.

Both send the same messages through the default exchange to the same queue, which is emptied in between.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.bench import nothing_sink, processor, queries
from tests.bench.environment import Result, middle, rounded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame

    from tests.bench.environment import Environment

BODY_BYTES = 256
WARM_WRITES = 6


def run(env: Environment) -> list[Result]:
    """Alternate raw loop and write, each in turn the first; the ratio is that of the medians."""
    count, rounds = env.sizes.messages, env.sizes.rounds
    raw: list[float] = []
    wrote: list[float] = []
    for_raw: list[float] = []
    for_write: list[float] = []
    with (
        env.queue() as queue,
        cached(env, queue, count) as frame,
        env.progress("publish_ratio", 1 + 2 * rounds) as step,
    ):
        blocks = env.ready_made(queue, count, body_bytes=BODY_BYTES)
        warm_write(env, queue)
        step("warm")

        def loop() -> None:
            raw.append(write_raw(env, queue, blocks, count, for_raw))
            step(f"raw {count / raw[-1]:,.0f}/s")

        def write() -> None:
            wrote.append(write_all(env, queue, frame, count, for_write))
            step(f"write {count / wrote[-1]:,.0f}/s")

        for number in range(rounds):
            for side in (loop, write) if number % 2 == 0 else (write, loop):
                side()
        one_row = [write_all(env, queue, queries.messages(env, 1, routing_key=queue), 1) for _ in range(rounds)]
        env.spark.dataSource.register(nothing_sink.NothingSink)
        nothing = [queries.write(frame, "bench_nothing", {}) for _ in range(rounds + 1)][1:]
    return [
        Result(
            name="publish_ratio",
            value=middle(raw) / middle(wrote),
            unit="ratio",
            higher_is_better=True,
            detail={
                "messages": count,
                "bytes_per_message": sum(map(len, blocks)) // count,
                "rows_per_s": round(count / middle(wrote)),
                "raw_per_s": round(count / middle(raw)),
                "write_s": rounded(wrote),
                "raw_s": rounded(raw),
                "broker_us_per_message": [round(middle(spent) / count * 1e6, 2) for spent in (for_raw, for_write)],
                "write_of_one_row_s": rounded(one_row),
                "write_to_a_sink_that_does_nothing_s": rounded(nothing),
            },
        )
    ]


@contextmanager
def cached(env: Environment, queue: str, count: int) -> Iterator[DataFrame]:
    """``count`` messages for a queue as a frame in memory."""
    frame = queries.messages(env, count, body_bytes=BODY_BYTES, routing_key=queue).cache()
    try:
        if frame.count() != count:
            raise RuntimeError("the frame does not have the rows that it should have")
        yield frame
    finally:
        frame.unpersist(blocking=True)


def warm_write(env: Environment, queue: str) -> None:
    """Start Spark and its workers, and let its JIT and the broker's see this write."""
    count = env.sizes.warm_messages
    with cached(env, queue, count) as frame:
        for _ in range(WARM_WRITES if env.sizes.rounds > 1 else 1):
            write_all(env, queue, frame, count)


def write_all(env: Environment, queue: str, frame: DataFrame, count: int, broker: list[float] | None = None) -> float:
    """Write a frame of ``count`` rows to an empty queue with ``format("amqp")``, check, empty it; return seconds.

    ``broker`` gets the seconds of processor time of the broker.
    """
    with processor.of_broker(env, [] if broker is None else broker):
        seconds = queries.write(frame, "amqp", env.sink_options())
    env.take_all(queue, count)
    return seconds


def write_raw(env: Environment, queue: str, blocks: Sequence[bytes], count: int, broker: list[float]) -> float:
    """The same with the socket loop."""
    with processor.of_broker(env, broker):
        seconds = env.publish_raw(blocks, count)
    env.take_all(queue, count)
    return seconds
