"""``publish_rss_mb``: the most memory of a worker above an idle one, while the broker takes nothing more.

A proxy between worker and broker passes some megabytes and then stops reading. Two gigabytes of rows are to be sent;
Spark computes them as they are asked for, so that they lie nowhere. The largest sample of resident memory of any worker
counts; it holds shared pages, but so does the idle worker that is subtracted. The same is done with larger bodies, for
which Spark's Arrow batches are larger, too.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import psutil
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from amqp_core.address import parse_url
from tests.bench import queries
from tests.bench.environment import Result
from tests.support.process import wait_until
from tests.support.proxy import FaultProxy
from tests.support.triggers import after

if TYPE_CHECKING:
    from tests.bench.environment import Environment
    from tests.support.proxied import Fault

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
        peak = _stalled(env, queue, count, BODY_BYTES)
        step(f"peak {peak / _MB:.0f} MB")
        large_count = count * BODY_BYTES // LARGE_BODY_BYTES
        large_peak = _stalled(env, queue, large_count, LARGE_BODY_BYTES)
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
                "bytes_passed_per_connection": env.sizes.stalled_after_bytes,
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


def _stalled(env: Environment, queue: str, count: int, body_bytes: int) -> int:
    """The largest sample of any worker, in bytes."""
    frame = queries.messages(env, count, body_bytes=body_bytes, routing_key=queue)
    with FaultProxy(parse_url(env.broker.url())[0][0]) as proxy:
        stall = proxy.to_broker.stall(after(env.sizes.stalled_after_bytes), times=None)
        watch = _Watch(env, stall)
        watch.start()
        try:
            queries.write(frame, "amqp", {**env.sink_options(), "url": _through(env.broker.url(), proxy)})
        except Py4JJavaError:
            if not watch.cancelled:
                raise
        else:
            raise RuntimeError("the write ended, which it cannot without the broker")
        finally:
            watch.end()
    env.purge(queue)
    return watch.peak


class _Watch(threading.Thread):
    """Looks at the workers while this process writes, and ends the write when the broker was stalled for long enough.

    Attributes:
        peak: the largest sample of resident memory of any worker, in bytes.
        cancelled: whether the write was ended.
    """

    def __init__(self, env: Environment, stall: Fault) -> None:
        super().__init__(name="bench-watch", daemon=True)
        self.peak = 0
        self.cancelled = False
        self._context = env.spark.sparkContext
        self._stall = stall
        self._stalled_s = env.sizes.stalled_s
        self._over = threading.Event()

    def run(self) -> None:
        """Sample until it is over."""
        enough_at = time.monotonic() + _TIMEOUT_S
        stalled = False
        while not self._over.wait(_SAMPLE_S):
            self.peak = max([self.peak, *_rss()])
            if not stalled and self._stall.struck.is_set():
                stalled = True
                enough_at = time.monotonic() + self._stalled_s
            if time.monotonic() > enough_at:
                self.cancelled = stalled
                self._context.cancelAllJobs()
                return

    def end(self) -> None:
        """Sample no more."""
        self._over.set()
        self.join()


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
