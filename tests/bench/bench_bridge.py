"""``bridge_ratio``: messages/s from queue to queue in one query over those of its two halves one after the other.

The halves are measured in the same run: the source into the noop sink, and the sink from a cached frame. If one
message costs ``1/source + 1/sink`` seconds, the bridge runs at the rate of both in sequence; the ratio is to that rate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bench import bench_publish, queries
from tests.bench.environment import Result, middle, rounded
from tests.bench.preload import HEADERS_DDL

if TYPE_CHECKING:
    from tests.bench.environment import Environment

SCHEMA = f"body BINARY, routing_key STRING, message_id STRING, application_headers {HEADERS_DDL}"
"""The columns that the frame of ``publish_ratio`` has."""
WARM_BRIDGES = 4


def run(env: Environment) -> list[Result]:
    """Source, sink and both together in turn, in another order each round; all figures are of medians."""
    count, rounds = env.sizes.messages, env.sizes.rounds
    sources: list[queries.Drained] = []
    sinks: list[float] = []
    bridges: list[queries.Drained] = []
    with (
        env.queue() as start,
        env.queue() as end,
        bench_publish.cached(env, end, count) as frame,
        env.progress("bridge_ratio", 1 + 3 * rounds) as step,
    ):
        warm(env, start, end)
        step("warm")

        def source() -> None:
            env.fill(start, count, body_bytes=bench_publish.BODY_BYTES)
            sources.append(queries.drain(env, start, count, schema=SCHEMA))
            step(f"source {count / sources[-1].query_s:,.0f}/s")

        def sink() -> None:
            sinks.append(bench_publish.write_all(env, end, frame, count))
            step(f"sink {count / sinks[-1]:,.0f}/s")

        def both() -> None:
            bridges.append(bridge(env, start, end, count))
            step(f"bridge {count / bridges[-1].query_s:,.0f}/s")

        sides = [source, sink, both]
        for _ in range(rounds):
            for side in sides:
                side()
            sides.append(sides.pop(0))
    source_rate = count / middle([each.query_s for each in sources])
    sink_rate = count / middle(sinks)
    bridge_rate = count / middle([each.query_s for each in bridges])
    return [
        Result(
            name="bridge_ratio",
            value=bridge_rate * (1 / source_rate + 1 / sink_rate),
            unit="ratio",
            higher_is_better=True,
            detail={
                "messages": count,
                "bridge_per_s": round(bridge_rate),
                "source_per_s": round(source_rate),
                "sink_per_s": round(sink_rate),
                "bridge_s": rounded([each.query_s for each in bridges]),
                "source_s": rounded([each.query_s for each in sources]),
                "sink_s": rounded(sinks),
                "batches": bridges[-1].batches,
                "durations_ms": bridges[-1].durations_ms,
            },
        )
    ]


def bridge(env: Environment, start: str, end: str, count: int) -> queries.Drained:
    """Fill ``start``, publish what it has to ``end``, check that all of it is there, and empty it again."""
    env.fill(start, count, body_bytes=bench_publish.BODY_BYTES)
    # The option takes the place of the column, which names the queue that the messages come from.
    took = queries.drain(env, start, count, schema=SCHEMA, to={**env.sink_options(), "routingKey": end})
    env.take_all(end, count)
    return took


def warm(env: Environment, start: str, end: str) -> None:
    """All three, with few messages."""
    count = env.sizes.warm_messages
    bench_publish.warm_write(env, end)
    for _ in range(WARM_BRIDGES if env.sizes.rounds > 1 else 1):
        env.fill(start, count, body_bytes=bench_publish.BODY_BYTES)
        queries.drain(env, start, count, schema=SCHEMA)
        bridge(env, start, end, count)
