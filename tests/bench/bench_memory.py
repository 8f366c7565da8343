"""``reader_rss_mb``: the most memory of the reader process above that of an idle one, with a backlog on the broker.

The sink is slow at first, so that the buffer of the receiver fills to its bound; then everything is drained. The peak
is the kernel's own high-water mark of resident memory (VmHWM) where there is one, and the largest sample elsewhere. It
counts shared pages, but so does the idle reader that is subtracted.
"""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from amqp_spark.options import SourceOptions
from tests.bench import queries
from tests.bench.bench_idle import SETTLE_S
from tests.bench.environment import Result
from tests.support.process import wait_until

if TYPE_CHECKING:
    import psutil
    from pyspark.sql import DataFrame

    from tests.bench.environment import Environment

SLOW_BATCHES = 8
PAUSE_S = 0.5
_MB = 1e6
_TIMEOUT_S = 600.0


def run(env: Environment) -> list[Result]:
    """One idle reader, then one with the backlog."""
    count, body = env.sizes.backlog_messages, env.sizes.backlog_body
    with env.queue() as queue, env.progress("reader_rss_mb", 2) as step:
        buffer_bytes = SourceOptions.parse(env.source_options(queue)).buffer_bytes
        idle = idle_rss(env, queue)
        step(f"idle {idle / _MB:.0f} MB")
        env.fill(queue, count, body_bytes=body)
        peak, rows = _busy(env, queue, count)
        step(f"peak {peak / _MB:.0f} MB")
    return [
        Result(
            name="reader_rss_mb",
            value=(peak - idle) / _MB,
            unit="MB",
            higher_is_better=False,
            detail={
                "bufferBytes": buffer_bytes,
                "bound_mb": round(buffer_bytes / _MB + 150, 1),
                "idle_mb": round(idle / _MB, 1),
                "peak_mb": round(peak / _MB, 1),
                "backlog_bytes_of_bodies": count * body,
                "rows": rows,
            },
        )
    ]


def idle_rss(env: Environment, queue: str) -> int:
    """Resident bytes of a reader on an empty queue."""
    stream = queries.source(env, queue)
    with queries.running(env, stream.writeStream.format("noop")) as process:
        settled = time.monotonic() + min(SETTLE_S, env.sizes.idle_s)
        wait_until(lambda: time.monotonic() > settled, "the reader to settle", poll_s=0.1)
        return int(process.memory_info().rss)


def _busy(env: Environment, queue: str, count: int) -> tuple[int, int]:
    rows = 0
    pause = threading.Event()

    def work(frame: DataFrame, batch: int) -> None:
        nonlocal rows
        rows += frame.count()
        if batch < SLOW_BATCHES and env.sizes.rounds > 1:
            pause.wait(PAUSE_S)

    stream = queries.source(env, queue)
    with queries.running(env, stream.writeStream.foreachBatch(work)) as process:
        sampled = 0

        def done() -> bool:
            nonlocal sampled
            sampled = max(sampled, int(process.memory_info().rss))
            return rows >= count

        wait_until(done, f"{count} rows", _TIMEOUT_S)
        return max(sampled, high_water(process)), rows


def high_water(process: psutil.Process) -> int:
    """The most resident bytes that a process ever had; 0 where the kernel does not say."""
    status = Path(f"/proc/{process.pid}/status")
    found = re.search(r"^VmHWM:\s+(\d+) kB", status.read_text(), re.MULTILINE) if status.exists() else None
    return int(found[1]) * 1024 if found else 0
