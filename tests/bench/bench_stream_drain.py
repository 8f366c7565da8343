"""``rabbitmq_stream_drain_ratio``: rows/s of an AvailableNow query over a stream, read by two tasks, over messages/s of
one bare consumer of the same stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bench import queries, raw_0_9
from tests.bench.bench_drain import BODY_BYTES
from tests.bench.environment import Result, middle, rounded
from tests.bench.rabbitmq import RabbitMQEnvironment

if TYPE_CHECKING:
    from tests.bench.environment import Environment

OPTIONS = {"queueType": "stream", "startingOffsets": "earliest"}


def run(env: Environment) -> list[Result]:
    """Fill a stream once, then alternate raw loop and query; the ratio is that of the medians."""
    assert isinstance(env, RabbitMQEnvironment)
    count, rounds = env.sizes.messages, env.sizes.rounds
    raw: list[float] = []
    query: list[queries.Drained] = []
    with env.stream(count, body_bytes=BODY_BYTES) as stream, env.progress("stream_drain", 1 + 2 * rounds) as step:
        queries.drain(env, stream, count, options=OPTIONS, removes=False)
        step("warm")
        for _ in range(rounds):
            raw.append(raw_0_9.drain(env.connect_options, stream, count, arguments={"x-stream-offset": "first"}))
            step(f"raw {count / raw[-1]:,.0f} messages/s")
            query.append(queries.drain(env, stream, count, options=OPTIONS, removes=False))
            step(f"query {count / query[-1].query_s:,.0f} messages/s")
    raw_rate, rate = count / middle(raw), count / middle([each.query_s for each in query])
    return [
        Result(
            name="rabbitmq_stream_drain_ratio",
            value=rate / raw_rate,
            unit="ratio",
            higher_is_better=True,
            detail={
                "messages": count,
                "rows_per_s": round(rate),
                "raw_per_s": round(raw_rate),
                "raw_s": rounded(raw),
                "query_s": rounded([each.query_s for each in query]),
                "batches": query[-1].batches,
                "durations_ms": query[-1].durations_ms,
            },
        )
    ]
