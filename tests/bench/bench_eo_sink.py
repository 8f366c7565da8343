"""``eo_sink_ratio``: rows/s of a batch write with exactly-once over the same with at-least-once."""

from __future__ import annotations

from itertools import count as numbers
from typing import TYPE_CHECKING

from tests.bench import bench_publish, guarantees, processor, queries
from tests.bench.environment import Result, middle, rounded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame

    from tests.bench.environment import Environment

WARM_WRITES = 3


def run(env: Environment) -> list[Result]:
    """One guarantee and the other in turn, from the same cached frame; the ratio is that of the medians."""
    count, rounds = env.sizes.messages, env.sizes.rounds
    least: list[float] = []
    once: list[float] = []
    least_spent: list[dict[str, float]] = []
    once_spent: list[dict[str, float]] = []
    batch = numbers()
    with (
        env.queue() as queue,
        guarantees.writer(env) as options,
        bench_publish.cached(env, queue, count) as frame,
        env.progress("eo_sink_ratio", 1 + 2 * rounds) as step,
    ):
        bench_publish.warm_write(env, queue)
        with bench_publish.cached(env, queue, env.sizes.warm_messages) as small:
            for _ in range(WARM_WRITES if rounds > 1 else 1):
                write_once(env, queue, small, env.sizes.warm_messages, options, batch)
        step("warm")
        for _ in range(rounds):
            with processor.counted(env, least_spent):
                least.append(bench_publish.write_all(env, queue, frame, count))
            step(f"at-least-once {count / least[-1]:,.0f}/s")
            with processor.counted(env, once_spent):
                once.append(write_once(env, queue, frame, count, options, batch))
            step(f"exactly-once {count / once[-1]:,.0f}/s")
        row = queries.messages(env, 1, routing_key=queue)
        one_row = [write_once(env, queue, row, 1, options, batch) for _ in range(rounds)]
        one_row_least = [bench_publish.write_all(env, queue, row, 1) for _ in range(rounds)]
    return [
        Result(
            name="eo_sink_ratio",
            value=middle(least) / middle(once),
            unit="ratio",
            higher_is_better=True,
            detail={
                "messages": count,
                "exactly_once_per_s": round(count / middle(once)),
                "at_least_once_per_s": round(count / middle(least)),
                "exactly_once_s": rounded(once),
                "at_least_once_s": rounded(least),
                "exactly_once_processor_s": once_spent,
                "at_least_once_processor_s": least_spent,
                "exactly_once_of_one_row_s": rounded(one_row),
                "at_least_once_of_one_row_s": rounded(one_row_least),
            },
        )
    ]


def write_once(
    env: Environment, queue: str, frame: DataFrame, count: int, options: Mapping[str, str], batch: Iterator[int]
) -> float:
    """Write a frame of ``count`` rows exactly once, under the next batch id; check, empty the queue, return seconds."""
    seconds = queries.write(frame, "amqp", {**env.sink_options(), **options, "batchId": str(next(batch))})
    env.take_all(queue, count)
    return seconds
