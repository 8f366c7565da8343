"""``growth``: time per message of a drain of twice as many messages over that of a drain of so many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bench import queries
from tests.bench.bench_drain import BODY_BYTES, warm_query
from tests.bench.environment import Result, middle, rounded

if TYPE_CHECKING:
    from tests.bench.environment import Environment


def run(env: Environment) -> list[Result]:
    """Alternate both sizes; the value is the ratio of the medians of time per message."""
    count, rounds = env.sizes.messages, env.sizes.rounds
    seconds: dict[int, list[float]] = {count: [], 2 * count: []}
    with env.queue() as queue, env.progress("growth", 1 + 2 * rounds) as step:
        warm_query(env, queue)
        step("warm")
        for _ in range(rounds):
            for size, found in seconds.items():
                env.fill(queue, size, body_bytes=BODY_BYTES)
                found.append(queries.drain(env, queue, size).query_s)
                step(f"{size:,}: {found[-1] / size * 1e6:.2f} us/message")
    once, twice = (middle(found) / size for size, found in seconds.items())
    return [
        Result(
            name="growth",
            value=twice / once,
            unit="ratio",
            higher_is_better=False,
            detail={
                "messages": list(seconds),
                "us_per_message": rounded([once * 1e6, twice * 1e6]),
                "query_s": [rounded(found) for found in seconds.values()],
            },
        )
    ]
