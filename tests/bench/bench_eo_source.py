"""``eo_source_ratio``: rows/s of an AvailableNow query with exactly-once over the same with at-least-once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bench import bench_drain, guarantees, processor, queries
from tests.bench.environment import Result, middle, rounded

if TYPE_CHECKING:
    from tests.bench.environment import Environment

WARM_QUERIES = 3


def run(env: Environment) -> list[Result]:
    """One guarantee and the other in turn, on the same queue content; the ratio is that of the medians."""
    count, rounds = env.sizes.messages, env.sizes.rounds
    least: list[queries.Drained] = []
    once: list[queries.Drained] = []
    least_spent: list[dict[str, float]] = []
    once_spent: list[dict[str, float]] = []
    with env.queue() as queue, env.progress("eo_source_ratio", 1 + 2 * rounds) as step:
        bench_drain.warm_query(env, queue)
        for _ in range(WARM_QUERIES if rounds > 1 else 1):
            drain_once(env, queue, env.sizes.warm_messages)
        step("warm")
        for _ in range(rounds):
            env.fill(queue, count, body_bytes=bench_drain.BODY_BYTES)
            with processor.counted(env, least_spent):
                least.append(queries.drain(env, queue, count))
            step(f"at-least-once {count / least[-1].query_s:,.0f}/s")
            once.append(drain_once(env, queue, count, once_spent))
            step(f"exactly-once {count / once[-1].query_s:,.0f}/s")
    least_s, once_s = ([each.query_s for each in side] for side in (least, once))
    return [
        Result(
            name="eo_source_ratio",
            value=middle(least_s) / middle(once_s),
            unit="ratio",
            higher_is_better=True,
            detail={
                "messages": count,
                "exactly_once_per_s": round(count / middle(once_s)),
                "at_least_once_per_s": round(count / middle(least_s)),
                "exactly_once_s": rounded(once_s),
                "at_least_once_s": rounded(least_s),
                "exactly_once_processor_s": once_spent,
                "at_least_once_processor_s": least_spent,
                "batches": once[-1].batches,
                "exactly_once_ms": once[-1].durations_ms,
                "at_least_once_ms": least[-1].durations_ms,
            },
        )
    ]


def drain_once(
    env: Environment, queue: str, count: int, spent: list[dict[str, float]] | None = None
) -> queries.Drained:
    """Fill a queue and drain it exactly once, as a new consumer."""
    env.fill(queue, count, body_bytes=bench_drain.BODY_BYTES)
    with guarantees.consumer(env) as options, processor.counted(env, [] if spent is None else spent):
        return queries.drain(env, queue, count, options=options)
