"""``many_queues``: time of a drain of so many messages from 200 queues over that of a drain from one queue.

What each queue costs besides its messages is in it: a connection, a thread, and its part of each batch.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.bench import queries
from tests.bench.bench_drain import BODY_BYTES, warm_query
from tests.bench.environment import Result, middle, rounded

if TYPE_CHECKING:
    from tests.bench.environment import Environment


def run(env: Environment) -> list[Result]:
    """Alternate one queue and many; the value is the ratio of the medians."""
    many, rounds = env.sizes.queues, env.sizes.rounds
    count = env.sizes.messages // many * many
    seconds: dict[int, list[float]] = {1: [], many: []}
    with ExitStack() as stack, env.progress("many_queues", 1 + 2 * rounds) as step:
        queues = [stack.enter_context(env.queue()) for _ in range(many)]
        warm_query(env, queues[0])
        step("warm")
        for _ in range(rounds):
            for number, found in seconds.items():
                for queue in queues[:number]:
                    env.fill(queue, count // number, body_bytes=BODY_BYTES)
                found.append(queries.drain(env, ",".join(queues[:number]), count).query_s)
                step(f"{number} queue(s): {found[-1]:.1f} s")
    one, all_of_them = (middle(found) for found in seconds.values())
    return [
        Result(
            name="many_queues",
            value=all_of_them / one,
            unit="ratio",
            higher_is_better=False,
            detail={
                "messages": count,
                "queues": list(seconds),
                "query_s": [rounded(found) for found in seconds.values()],
            },
        )
    ]
