"""``idle_cpu``: processor share of the reader process on an empty queue, less that of a source that does nothing.

Both run under the default trigger, under which the engine polls without pause. 1.0 is one core.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.bench import memory_source, queries
from tests.bench.environment import Result, middle, rounded
from tests.support.process import wait_until

if TYPE_CHECKING:
    import psutil
    from pyspark.sql import DataFrame

    from tests.bench.environment import Environment

SETTLE_S = 3.0
"""After the first poll: imports and the first batch of the engine are not idling."""


def run(env: Environment) -> list[Result]:
    """Alternate both sources; the value is the difference of the medians."""
    env.spark.dataSource.register(memory_source.MemorySource)
    ours: list[float] = []
    nothing: list[float] = []
    with env.queue() as queue, env.progress("idle_cpu", 2 * env.sizes.rounds) as step:
        for _ in range(env.sizes.rounds):
            nothing.append(_share(env, env.spark.readStream.format("bench_memory").load()))
            step(f"nothing {nothing[-1]:.4f}")
            ours.append(_share(env, queries.source(env, queue)))
            step(f"amqp {ours[-1]:.4f}")
    return [
        Result(
            name="idle_cpu",
            value=middle(ours) - middle(nothing),
            unit="cores",
            higher_is_better=False,
            detail={
                "amqp": rounded(ours, 4),
                "nothing": rounded(nothing, 4),
                "seconds": env.sizes.idle_s,
            },
        )
    ]


def _share(env: Environment, stream: DataFrame) -> float:
    with queries.running(env, stream.writeStream.format("noop")) as process:
        settled = time.monotonic() + min(SETTLE_S, env.sizes.idle_s)
        wait_until(lambda: time.monotonic() > settled, "the reader to settle", poll_s=0.1)
        begin, used = time.perf_counter(), _cpu_s(process)
        end = begin + env.sizes.idle_s
        wait_until(lambda: time.perf_counter() > end, "the time to pass", env.sizes.idle_s + 60, poll_s=0.1)
        return (_cpu_s(process) - used) / (time.perf_counter() - begin)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
