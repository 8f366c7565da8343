"""``reader_rss_mixed_mb``: the most memory of the reader above that of an idle one, when messages become larger.

20,000 messages of 200 bytes, then 1,500 of 1 MB, with a buffer of 8 MB; the larger of both guarantees is the figure.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

from tests.bench import guarantees, queries
from tests.bench.bench_memory import high_water, idle_rss
from tests.bench.environment import Result
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from tests.bench.environment import Environment

BUFFER_BYTES = 8_000_000
SMALL_BODY = 200
_GUARANTEES = ("at-least-once", "exactly-once")
_AT_LEAST_ONCE: dict[str, str] = {}  # no options, and nothing in a spool
_MB = 1e6
_TIMEOUT_S = 600.0


def run(env: Environment) -> list[Result]:
    """An idle reader, then one of each guarantee with the same backlog."""
    sizes = env.sizes
    count = sizes.mixed_small + sizes.mixed_large
    found: dict[str, float] = {}
    seconds: dict[str, float] = {}
    with env.progress("reader_rss_mixed_mb", 1 + len(_GUARANTEES)) as step:
        with env.queue() as queue:
            idle = idle_rss(env, queue)
        step(f"idle {idle / _MB:.0f} MB")
        for guarantee in _GUARANTEES:
            with env.queue() as queue:
                env.fill(queue, sizes.mixed_small, body_bytes=SMALL_BODY)
                env.fill(queue, sizes.mixed_large, body_bytes=sizes.large_body)
                with (
                    guarantees.consumer(env) if guarantee == "exactly-once" else nullcontext(_AT_LEAST_ONCE) as options
                ):
                    begin = time.perf_counter()
                    peak = _peak(env, queue, count, options)
                    seconds[guarantee] = round(time.perf_counter() - begin, 2)
                found[guarantee] = round((peak - idle) / _MB, 1)
            step(f"{guarantee} {found[guarantee]:.0f} MB")
    return [
        Result(
            name="reader_rss_mixed_mb",
            value=max(found.values()),
            unit="MB",
            higher_is_better=False,
            detail={
                "bufferBytes": BUFFER_BYTES,
                "bound_mb": BUFFER_BYTES / _MB + 150,
                "idle_mb": round(idle / _MB, 1),
                "by_guarantee_mb": found,
                "by_guarantee_s": seconds,
                "small": sizes.mixed_small,
                "large": sizes.mixed_large,
            },
        )
    ]


def _peak(env: Environment, queue: str, count: int, options: Mapping[str, str]) -> int:
    """The reader's most memory until all rows came and the last batch is committed; an owned one would be left."""
    rows = 0

    def work(frame: DataFrame, _batch: int) -> None:
        nonlocal rows
        rows += frame.count()

    stream = queries.source(env, queue, bufferBytes=str(BUFFER_BYTES), **options)
    with queries.running(env, stream.writeStream.foreachBatch(work)) as process:
        sampled = 0

        def done() -> bool:
            nonlocal sampled
            sampled = max(sampled, int(process.memory_info().rss))
            return rows >= count and env.depth(queue) == 0 and (not options or guarantees.spooled_bytes(options) == 0)

        wait_until(done, f"{count} rows", _TIMEOUT_S)
        return max(sampled, high_water(process))
