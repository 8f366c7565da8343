"""``publish_rss_mb``: the most memory of a worker above an idle one, while the broker takes nothing more.

A proxy between worker and broker passes some megabytes and then stops reading. Two gigabytes of rows are to be sent;
Spark computes them as they are asked for, so that they lie nowhere. The largest sample of resident memory of any worker
counts; it holds shared pages, but so does the idle worker that is subtracted. The same is done with larger bodies, for
which Spark's Arrow batches are larger, too.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import psutil
from pyspark import InheritableThread

from amqp_core.address import parse_url
from tests.bench import queries
from tests.bench.environment import Result
from tests.support.process import wait_until
from tests.support.proxy import FaultProxy

if TYPE_CHECKING:
    from tests.bench.environment import Environment

BODY_BYTES = 256
LARGE_BODY_BYTES = 16_384
_MB = 1e6
_TIMEOUT_S = 300.0
_SAMPLE_S = 0.02


def run(env: Environment) -> list[Result]:
    """A worker that has written one row and idles; then one that wants to write much to a broker that has stopped."""
    count = env.sizes.stalled_rows
    with env.queue() as queue, env.progress("publish_rss_mb", 3) as step:
        idle = _idle(env, queue)
        step(f"idle {idle / _MB:.0f} MB")
        peak, passed = _stalled(env, queue, count, BODY_BYTES)
        step(f"peak {peak / _MB:.0f} MB")
        large_count = count * BODY_BYTES // LARGE_BODY_BYTES
        large_peak, _ = _stalled(env, queue, large_count, LARGE_BODY_BYTES)
        step(f"peak with large bodies {large_peak / _MB:.0f} MB")
    return [
        Result(
            name="publish_rss_mb",
            value=(peak - idle) / _MB,
            unit="MB",
            higher_is_better=False,
            detail={
                "idle_mb": round(idle / _MB, 1),
                "peak_mb": round(peak / _MB, 1),
                "above_idle_with_large_bodies_mb": round((large_peak - idle) / _MB, 1),
                "large_body_bytes": LARGE_BODY_BYTES,
                "bytes_of_bodies_to_send": count * BODY_BYTES,
                "bytes_passed": passed,
                "stalled_s": env.sizes.stalled_s,
            },
        )
    ]


def _idle(env: Environment, queue: str) -> int:
    for worker in _workers():  # what other benchmarks left in them is not idle; Spark starts others
        worker.terminate()
    wait_until(lambda: not _workers(), "the old workers to end")
    queries.write(queries.messages(env, 1000, routing_key=queue), "amqp", env.sink_options())
    env.purge(queue)
    return max(_rss())


def _stalled(env: Environment, queue: str, count: int, body_bytes: int) -> tuple[int, int]:
    """The largest sample of any worker, and how many bytes the broker got."""
    frame = queries.messages(env, count, body_bytes=body_bytes, routing_key=queue)
    ended: list[Exception] = []
    context = env.spark.sparkContext
    group = f"bench-stalled-{body_bytes}"

    with FaultProxy(parse_url(env.broker.url())[0][0], record=False) as proxy:

        def passed() -> int:
            return sum(connection.to_broker._passed for connection in proxy.connections)

        def write() -> None:
            context.setJobGroup(group, group, interruptOnCancel=True)
            try:
                queries.write(frame, "amqp", {**env.sink_options(), "url": _through(env.broker.url(), proxy)})
            except Exception as error:  # noqa: BLE001 - told by who waits
                ended.append(error)

        peak = 0
        stalled_at = 0.0

        def over() -> bool:
            nonlocal peak, stalled_at
            if not thread.is_alive():
                raise RuntimeError("the write ended, which it cannot without the broker") from next(iter(ended), None)
            peak = max(peak, *_rss(), 0)
            if not stalled_at and passed() >= env.sizes.stalled_after_bytes:
                proxy.to_broker.stall(times=None)
                stalled_at = time.monotonic()
            return stalled_at > 0 and time.monotonic() > stalled_at + env.sizes.stalled_s

        thread = InheritableThread(target=write)
        thread.start()
        try:
            wait_until(over, "the broker to be stalled for long enough", _TIMEOUT_S, poll_s=_SAMPLE_S)
            got = passed()
        finally:
            context.cancelJobGroup(group)
            thread.join(_TIMEOUT_S)
    env.purge(queue)
    return peak, got


def _through(url: str, proxy: FaultProxy) -> str:
    host, port = proxy.address
    return urlunsplit(urlsplit(url)._replace(netloc=f"{host}:{port}"))


def _workers() -> list[psutil.Process]:
    """The Python workers of tasks: what Spark's daemon has forked."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            parent = process.parent()
            if parent is not None and "pyspark.daemon" in process.cmdline() and "pyspark.daemon" in parent.cmdline():
                found.append(process)
    return found


def _rss() -> list[int]:
    found = []
    for worker in _workers():
        with contextlib.suppress(psutil.Error):
            found.append(int(worker.memory_info().rss))
    return found
