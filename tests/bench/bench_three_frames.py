"""``three_frame_reader_us`` and others: what a drain costs against a broker that itself costs next to nothing.

The broker is :mod:`tests.bench.replay`: it frames every message as qpidd does and sends as fast as a socket takes it,
so that reader, workers and JVM share the machine among themselves. Processor time says what a message costs whatever
else runs; the smallest of the rounds counts, since noise only adds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bench import queries, replay
from tests.bench.bench_drain import WARM_QUERIES
from tests.bench.environment import Environment, Result, middle, rounded

if TYPE_CHECKING:
    from tests.bench.queries import Drained


def run(env: Environment) -> list[Result]:
    """Alternate raw loop and query, as ``drain_ratio`` does."""
    count, rounds, warm = env.sizes.messages, env.sizes.rounds, env.sizes.warm_messages
    raw: list[float] = []
    drained: list[Drained] = []
    with replay.ReplayBroker() as broker, env.progress("three_frames", 1 + rounds) as step:
        at = Environment(sizes=env.sizes, given_broker=broker, given_spark=env.spark, quiet=True, warms=False)
        with at:
            for _ in range(WARM_QUERIES if rounds > 1 else 1):
                queries.drain(at, replay.queue_name(warm), warm)
            step("warm")
            for _ in range(rounds):
                raw.append(at.drain_raw(replay.queue_name(count), count))
                drained.append(queries.drain(at, replay.queue_name(count), count))
                step(f"raw {count / raw[-1]:,.0f}/s, query {count / drained[-1].query_s:,.0f}/s")

    def each_us(seconds: list[float]) -> list[float]:
        return rounded([spent / count * 1e6 for spent in seconds])

    readers, workers, jvms = (
        each_us([getattr(each.spent, role) for each in drained]) for role in ("reader", "workers", "jvm")
    )
    together = [sum(pair) for pair in zip(readers, workers, strict=True)]
    query_s = [each.query_s for each in drained]
    return [
        _microseconds("three_frame_reader_us", min(readers), {"messages": count, "rounds": readers}),
        _microseconds("three_frame_workers_us", min(workers), {"messages": count, "rounds": workers}),
        _microseconds("three_frame_us", min(together), {"messages": count, "rounds": rounded(together), "jvm": jvms}),
        Result(
            name="three_frame_ratio",
            value=middle(raw) / middle(query_s),
            unit="ratio",
            higher_is_better=True,
            detail={
                "messages": count,
                "rows_per_s": round(count / middle(query_s)),
                "raw_per_s": round(count / middle(raw)),
                "raw_s": rounded(raw),
                "query_s": rounded(query_s),
                "batches": drained[-1].batches,
                "durations_ms": drained[-1].durations_ms,
            },
        ),
    ]


def _microseconds(name: str, value: float, detail: object) -> Result:
    return Result(name=name, value=float(value), unit="us", higher_is_better=False, detail=detail)
