"""``rabbitmq_stream_scale``: rows per second of processor time of our side, of four streams read by two tasks at a time
over one stream read by one task."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.bench import queries
from tests.bench.bench_drain import BODY_BYTES
from tests.bench.bench_stream_drain import OPTIONS
from tests.bench.environment import Result, middle, rounded
from tests.bench.rabbitmq import RabbitMQEnvironment

if TYPE_CHECKING:
    from tests.bench.environment import Environment

STREAMS = 4


def run(env: Environment) -> list[Result]:
    """Alternate both queries; the ratio is that of the medians. Our side is the reader and the workers."""
    assert isinstance(env, RabbitMQEnvironment)
    count, rounds = env.sizes.messages // STREAMS, env.sizes.rounds
    options = OPTIONS | {"numPartitions": "1"}
    one: list[float] = []
    four: list[float] = []
    with ExitStack() as stack:
        streams = [stack.enter_context(env.stream(count, body_bytes=BODY_BYTES)) for _ in range(STREAMS)]
        step = stack.enter_context(env.progress("stream_scale", 1 + 2 * rounds))
        queries.drain(env, streams[0], count, options=options, removes=False)
        step("warm")
        for _ in range(rounds):
            for found, names in ((one, streams[:1]), (four, streams)):
                total = count * len(names)
                spent = queries.drain(env, ",".join(names), total, options=options, removes=False).spent
                found.append(total / (spent.reader + spent.workers))
                step(f"{len(names)} stream(s): {found[-1]:,.0f} rows per second of processor time")
    return [
        Result(
            name="rabbitmq_stream_scale",
            value=middle(four) / middle(one),
            unit="ratio",
            higher_is_better=True,
            detail={"messages": count, "one": rounded(one), "four": rounded(four)},
        )
    ]
