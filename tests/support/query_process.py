"""Streaming queries in a Spark driver of their own, so that its processes can be killed.

The driver (:mod:`tests.support._query_driver`) is a Python process; its JVM starts one reader process per query and
the executors' Python workers. Every batch becomes one Parquet file that is named by its batch id.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from amqp_spark import crashpoints
from tests.support import checkpoints
from tests.support.process import die_with_us, wait_until

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_ROOT = Path(__file__).parents[2]
WARM: Mapping[str, str] = {
    "PYTHONPATH": os.pathsep.join([str(_ROOT), str(Path(__file__).with_name("warm"))]),
    "OPENBLAS_NUM_THREADS": "1",  # forked processes must have no threads
}
"""Environment of a Spark whose Python workers start quickly."""
_READER_MODULE = "python_streaming_source_runner"
# Spark gives a reader process 10 s to start, whatever the load of the machine; then the query is restarted.
_SLOW_START = ("Timed out while waiting for the Python worker to connect back", "Python worker failed to connect back")
_STARTS = 3
_AT_ONCE = 2
_POLL_S = 0.02

_SETTINGS = {
    "spark.master": "local[4,4]",  # four attempts of a task: a worker may be killed
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",  # these drivers live for seconds
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stopTimeout": "60s",
}


class QueryProcessFailed(AssertionError):
    """The driver ended, or a command in it failed; the text holds the end of its log."""


@dataclass(kw_only=True)
class Query:
    """Definition of a query; after a restart it continues from its checkpoint."""

    name: str
    options: Mapping[str, str]
    directory: Path
    schema: str | None = None
    union: bool = False
    """Whether the stream is united with itself."""
    sink_options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the sink of :mod:`tests.support._query_driver`."""

    @property
    def checkpoint(self) -> Path:
        """Directory of Spark's logs."""
        return self.directory / "checkpoint"

    @property
    def sink(self) -> Path:
        """Directory of the sink's files."""
        return self.directory / "sink"

    def batches(self) -> list[int]:
        """The ids of the batches in the sink."""
        return sorted(int(path.stem) for path in self.sink.glob("*.parquet"))

    def has_batches(self, count: int) -> bool:
        """Whether this many batches are in the sink."""
        return len(self.batches()) >= count

    def tables(self) -> dict[int, pa.Table]:
        """The rows of the sink by batch."""
        return {batch: pq.read_table(self.sink / f"{batch}.parquet") for batch in self.batches()}

    def rows(self) -> list[dict[str, Any]]:
        """All rows of the sink in the order of their batches."""
        return [row for table in self.tables().values() for row in table.to_pylist()]


@dataclass(kw_only=True)
class Publishing:
    """Publishes rows of files to an exchange; a restarted stream continues from its checkpoint."""

    name: str
    entry: str
    """``stream`` (``writeStream.format``), ``foreachBatch`` (``AmqpBatchSink``) or ``batch`` (``df.write``)."""
    options: Mapping[str, str]
    """Options of the sink."""
    directory: Path
    files_per_batch: int = 2
    """For a stream: each of them is a task."""
    body: str = "CAST(id AS STRING)"
    """SQL expression of column ``id`` for the bodies."""
    lose: Mapping[str, Any] | None = None
    """Fault of the first attempt of a task: see :mod:`tests.support._query_driver`."""

    @property
    def checkpoint(self) -> Path:
        """Directory of Spark's logs."""
        return self.directory / "checkpoint"

    @property
    def rows(self) -> Path:
        """Parquet files with a column ``id``."""
        return self.directory / "rows"


@dataclass(kw_only=True)
class Chain:
    """Publishes messages from queues to an exchange, bodies only."""

    name: str
    entry: str
    """``stream`` (``writeStream.format``) or ``foreachBatch`` (``AmqpBatchSink``)."""
    source: Mapping[str, str]
    """Options of the source."""
    options: Mapping[str, str]
    """Options of the sink."""
    directory: Path

    @property
    def checkpoint(self) -> Path:
        """Directory of Spark's logs."""
        return self.directory / "checkpoint"


AnyQuery: TypeAlias = Query | Publishing | Chain
"""Any query that a driver can run."""
KNOWN_POINTS = frozenset(
    value for name, value in vars(crashpoints).items() if isinstance(value, str) and name.isupper()
)
"""Names of crash points."""


@dataclass
class CrashPoints:
    """The test's side of :mod:`amqp_spark.crashpoints`."""

    directory: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="amqp-spark-crash-")))
    _taken: set[str] = field(default_factory=set)

    def arm(self, point: str, *, action: str = "wait", after: int = 0) -> None:
        """Stop (or kill) the process that passes ``point`` for the ``after``-th time."""
        assert point in KNOWN_POINTS, point
        part = self.directory / f"{point}.part"
        part.write_text(f"{action} {after}", encoding="ascii")
        part.rename(self.directory / f"{point}.armed")

    def take(self, point: str) -> int | None:
        """Take the process at ``point``, once. It stays there, and the point can be armed again."""
        for path in self.directory.glob(f"{point}.*.reached"):
            if path.name not in self._taken:
                self._taken.add(path.name)
                return int(path.name.split(".")[1])
        return None

    def unarm(self, point: str) -> None:
        """Disarm ``point``; only processes already there stay stopped."""
        (self.directory / f"{point}.armed").unlink(missing_ok=True)

    def release(self, point: str, pid: int) -> None:
        """Release the process that waits at ``point``."""
        for announced in self.directory.glob(f"{point}.{pid}.*.reached"):
            announced.unlink()

    def disarm(self) -> None:
        """Disarm all points and release all waiting processes."""
        for path in self.directory.iterdir():
            path.unlink()
        self._taken.clear()

    def close(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self.directory, ignore_errors=True)


class QueryProcess:
    """One driver; a context manager that starts it and ends it with all its child processes."""

    def __init__(
        self,
        *,
        points: CrashPoints | None = None,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = _SETTINGS | dict(settings or {})
        self._environment = {**WARM, **(environment or {})}
        self._points = points
        self._directory = Path(tempfile.mkdtemp(prefix="amqp-spark-driver-"))
        self._process: subprocess.Popen[str] | None = None
        self._jvm: psutil.Process | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the driver and wait for its Spark session."""
        environment = (
            os.environ
            | {
                "PYSPARK_PYTHON": sys.executable,
                "PYSPARK_DRIVER_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_LOCAL_DIRS": str(self._directory / "local"),
            }
            | self._environment
        )
        if self._points is not None:
            environment[crashpoints.VARIABLE] = str(self._points.directory)
        settings = self._settings | {"spark.sql.warehouse.dir": str(self._directory / "warehouse")}
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support._query_driver", json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=_ROOT,
                env=environment,
                text=True,
                start_new_session=True,
            )
        self._watcher = die_with_us(self._process.pid, self._directory)
        self._jvm = psutil.Process(self._answer()["jvm"])

    @property
    def running(self) -> bool:
        """Whether it was started and not killed."""
        return self._process is not None and self._process.poll() is None

    def close(self) -> None:
        """Kill the remaining processes."""
        if self._process is not None:
            self.kill_driver()
        shutil.rmtree(self._directory, ignore_errors=True)

    def log(self, last_bytes: int = 6000) -> str:
        """The end of the output of the driver and its processes."""
        return (self._directory / "log").read_bytes()[-last_bytes:].decode(errors="replace")

    # -- queries -------------------------------------------------------------------------------------------

    def start_query(self, query: AnyQuery, **trigger: Any) -> None:
        """Start a query; ``trigger`` as for Spark, without one as fast as possible."""
        if isinstance(query, Chain):
            self._do(
                "chain",
                name=query.name,
                entry=query.entry,
                source=dict(query.source),
                options=dict(query.options),
                checkpoint=str(query.checkpoint),
                trigger=trigger or {"processingTime": "0 seconds"},
            )
            return
        if isinstance(query, Publishing):
            self._start_publishing(query, trigger or {"availableNow": True})
            return
        self._do(
            "start",
            name=query.name,
            options=dict(query.options),
            schema=query.schema,
            checkpoint=str(query.checkpoint),
            directory=str(query.sink),
            trigger=trigger or {"processingTime": "0 seconds"},
            union=query.union,
            how=dict(query.sink_options),
        )

    def _start_publishing(self, query: Publishing, trigger: dict[str, Any]) -> None:
        what: dict[str, Any] = {"name": query.name, "options": dict(query.options), "rows": str(query.rows)}
        what["body"] = query.body
        what["lose"] = None if query.lose is None else dict(query.lose)
        if query.entry == "batch":
            self._do("save", **what)
        else:
            what |= {"entry": query.entry, "files_per_batch": query.files_per_batch}
            self._do("publish", **what, checkpoint=str(query.checkpoint), trigger=trigger)

    def status(self, query: AnyQuery) -> tuple[bool, str | None]:
        """Whether a query is active, and its error."""
        answer = self._do("status", name=query.name)
        return bool(answer["active"]), answer["error"]

    def wait(self, query: AnyQuery, timeout_s: int = 120) -> str | None:
        """Wait for a query to end; return its error, if it has one."""
        answer = self._do("wait", name=query.name, timeout_s=timeout_s)
        if not answer["ended"]:
            raise QueryProcessFailed(f"query {query.name} has not ended after {timeout_s} s\n{self.log()}")
        error: str | None = answer["error"]
        return error

    def run_to_point(self, query: AnyQuery, point: str, *, after: int = 0, timeout_s: int = 60, **trigger: Any) -> int:
        """Start a query and wait until one of its processes has reached a point; return the process id."""
        assert self._points is not None
        points = self._points
        points.arm(point, after=after)
        self.start_query(query, **trigger)
        deadline = time.monotonic() + timeout_s
        while (pid := points.take(point)) is None:
            status = self._do("status", name=query.name)
            if is_slow_start(status["error"]):
                self.start_query(query, **trigger)
            elif not status["active"] or time.monotonic() > deadline:
                raise QueryProcessFailed(f"query {query.name} did not reach {point}: {status}\n{self.log()}")
            time.sleep(_POLL_S)
        return pid

    def drain(self, queries: Iterable[AnyQuery], timeout_s: int = 120) -> None:
        """Run queries until their data is drained (AvailableNow), a few at once."""
        running: deque[AnyQuery] = deque()
        for query in queries:
            self.start_query(query, availableNow=True)
            running.append(query)
            if len(running) == _AT_ONCE:
                self._must_end(running.popleft(), timeout_s)
        for query in running:
            self._must_end(query, timeout_s)

    def stop_query(self, query: AnyQuery) -> None:
        """Stop a query cleanly."""
        self._do("stop", name=query.name)

    def progress(self, query: AnyQuery) -> list[dict[str, Any]]:
        """Spark's progress reports of a query, oldest first."""
        reports: list[dict[str, Any]] = self._do("progress", name=query.name)["progress"]
        return reports

    # -- processes -----------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The driver's Python process."""
        assert self._process is not None
        return self._process.pid

    def readers(self) -> list[int]:
        """The processes of the streaming readers, one per running query."""
        assert self._jvm is not None
        return [child.pid for child in self._jvm.children() if _READER_MODULE in " ".join(_command(child))]

    def workers(self) -> list[int]:
        """The Python workers of the executor: children of the daemon that forks them."""
        assert self._jvm is not None
        daemons = [child for child in self._jvm.children() if "pyspark.daemon" in _command(child)]
        return [worker.pid for daemon in daemons for worker in daemon.children()]

    def kill(self, pid: int) -> None:
        """Kill one process of this driver with SIGKILL; return when it is gone."""
        assert self._jvm is not None
        process = psutil.Process(pid)
        assert self._jvm in process.parents(), "no process of this driver"
        process.kill()
        wait_until(lambda: not _alive(process), f"the end of process {pid}")

    def kill_driver(self, timeout_s: float = 20.0, spare: Collection[int] = ()) -> list[str]:
        """Kill the JVM, then the driver's Python, with SIGKILL; wait for their children to end by themselves.

        Args:
            timeout_s: seconds that the children have to end.
            spare: processes that are left alone.

        Returns:
            The commands of those that did not (they are killed then).
        """
        process = self._process
        assert process is not None
        children = [] if self._jvm is None or not _alive(self._jvm) else self._jvm.children(recursive=True)
        children = [child for child in children if child.pid not in spare]
        if self._jvm is not None:
            _kill(self._jvm)
        process.kill()
        process.communicate()
        if self._watcher is not None:
            self._watcher.wait()
        _gone, left = psutil.wait_procs(children, timeout_s)
        stubborn = [" ".join(_command(child)) for child in left if _alive(child)]
        for child in left:
            _kill(child)
        self._process = self._jvm = self._watcher = None
        return stubborn

    # -- internals -----------------------------------------------------------------------------------------

    def _must_end(self, query: AnyQuery, timeout_s: int) -> None:
        error = self.wait(query, timeout_s)
        for _ in range(_STARTS - 1):
            if checkpoints.is_refused(error):
                if reason := checkpoints.forget(query.checkpoint):
                    raise QueryProcessFailed(f"query {query.name}: {reason}")
            elif not is_slow_start(error):
                break
            self.start_query(query, availableNow=True)
            error = self.wait(query, timeout_s)
        if error is not None:
            raise QueryProcessFailed(f"query {query.name} failed: {error}\n{self.log()}")

    def _do(self, command: str, **arguments: Any) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise QueryProcessFailed(f"the driver is gone ({error})\n{self.log()}") from error
        answer = self._answer()
        if "failed" in answer:
            raise QueryProcessFailed(f"{command}: {answer['failed']}\n{self.log()}")
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise QueryProcessFailed(f"the driver is gone\n{self.log()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def is_slow_start(error: str | None) -> bool:
    """Whether a query failed because the machine was too busy to start a Python process within Spark's limit."""
    return error is not None and any(text in error for text in _SLOW_START)


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _kill(process: psutil.Process) -> None:
    try:
        process.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        pass
