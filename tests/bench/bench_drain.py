"""``drain_ratio``: rows/s of an AvailableNow query over messages/s of a bare socket loop, on the same queue content."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bench import queries
from tests.bench.environment import Result, middle, rounded

if TYPE_CHECKING:
    from tests.bench.environment import Environment

BODY_BYTES = 256
WARM_QUERIES = 6


def run(env: Environment) -> list[Result]:
    """Alternate raw loop and query; the ratio is that of the medians."""
    count, rounds = env.sizes.messages, env.sizes.rounds
    broker: tuple[list[float], list[float]] = [], []
    with env.queue() as queue, env.progress("drain_ratio", 1 + 2 * rounds) as step:
        warm_query(env, queue)
        step("warm")
        raw, drained = queries.against_raw(
            env, queue, count, body_bytes=BODY_BYTES, unit="messages/s", per_message=1, step=step, broker=broker
        )
    raw_rate = count / middle(raw)
    rate = count / middle([each.query_s for each in drained])
    last = drained[-1]
    return [
        Result(
            name="drain_ratio",
            value=rate / raw_rate,
            unit="ratio",
            higher_is_better=True,
            detail={
                "messages": count,
                "rows_per_s": round(rate),
                "raw_per_s": round(raw_rate),
                "raw_s": rounded(raw),
                "query_s": rounded([each.query_s for each in drained]),
                "query_s_with_start": rounded([each.wall_s for each in drained]),
                "broker_us_per_message": [round(middle(spent) / count * 1e6, 2) for spent in broker],
                "batches": last.batches,
                "durations_ms": last.durations_ms,
            },
        )
    ]


def warm_query(env: Environment, queue: str) -> None:
    """Start Spark and its first workers, and let its JIT see this query: it compiles for about a million rows."""
    count = env.sizes.warm_messages
    for _ in range(WARM_QUERIES if env.sizes.rounds > 1 else 1):
        env.fill(queue, count, body_bytes=BODY_BYTES)
        queries.drain(env, queue, count)
