"""Processor time of everything that works on a query: what it costs on a machine that does other things, too."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from tests.bench.environment import Environment


@contextmanager
def counted(env: Environment, spent: list[dict[str, float]]) -> Iterator[None]:
    """Append the seconds of processor time that the block took: of this process and its children, and of the broker.

    Spark's JVM, the reader and the workers are children; those that end inside are counted. A broker that is not on
    this machine is not.
    """
    before = _now(env)
    yield
    after = _now(env)
    spent.append({name: round(after[name] - before[name], 2) for name in after})


def of_broker(env: Environment, spent: list[float]) -> AbstractContextManager[None]:
    """Append the seconds of processor time that the broker took meanwhile; 0 if it is not on this machine."""
    return of_process(getattr(env.broker, "pid", None), spent)


@contextmanager
def of_process(pid: int | None, spent: list[float]) -> Iterator[None]:
    """Append the seconds of processor time that a process and its children took meanwhile; 0 without one."""

    def now() -> float:
        return 0.0 if pid is None else _of_tree(psutil.Process(pid), without=None)

    before = now()
    yield
    spent.append(now() - before)


def _now(env: Environment) -> dict[str, float]:
    broker = getattr(env.broker, "pid", None)
    found = {"query": _of_tree(psutil.Process(), without=broker)}
    if broker is not None:
        found["broker"] = _of_tree(psutil.Process(broker), without=None)
    return found


def _of_tree(process: psutil.Process, *, without: int | None) -> float:
    """Of a process, of its children, and of those that it has waited for."""
    try:
        times = process.cpu_times()
        total = times.user + times.system + times.children_user + times.children_system
        for child in process.children():
            if child.pid != without:
                total += _of_tree(child, without=without)
    except psutil.NoSuchProcess:  # its parent has its time now
        return 0.0
    return total


READER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
"""In the command line of reader processes."""
_ROLES: Final = {
    READER: "reader",
    "amqp_spark.datasource.reader_process": "reader",  # with option numReaders
    "pyspark.worker": "workers",
    "org.apache.spark.deploy.SparkSubmit": "jvm",
    "org.apache.spark.executor.CoarseGrainedExecutorBackend": "executors",
}
_EVERY_S: Final = 0.1  # each look costs 1 to 4 ms on the cores that the query works on: every 20 ms, 8 % of a core
_SEARCH_EVERY: Final = 5


@dataclass(frozen=True)
class Spent:
    """Seconds of processor time, user and system together, of the processes that work on a query.

    Attributes:
        reader: of the reader process, or of all of them.
        workers: of the Python workers of executors.
        jvm: of the driver's JVM, which is the executor, too, in local mode.
        executors: of the JVMs of executors in processes of their own.
    """

    reader: float
    workers: float
    jvm: float
    executors: float = 0.0

    @property
    def total(self) -> float:
        """All together."""
        return self.reader + self.workers + self.jvm + self.executors


class Watch:
    """Looks at the processor time of the children of this process, every 100 ms while a block runs.

    A reader process ends with its query and takes its figures along, so that the last look at it counts.
    """

    def __init__(self) -> None:
        self._looks: list[tuple[float, Spent]] = []
        self._roles: dict[psutil.Process, str] = {}
        self._spent: dict[psutil.Process, float] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="processor-watch", daemon=True)

    def __enter__(self) -> Self:
        self._look(search=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join()
        self._look(search=True)

    def since(self, moment: float) -> Spent:
        """Return the time spent after ``moment``, in seconds since 1970."""
        begin = [spent for at, spent in self._looks if at <= moment][-1]
        end = self._looks[-1][1]
        return Spent(**{role: getattr(end, role) - getattr(begin, role) for role in _ROLES.values()})

    def _run(self) -> None:
        looks = 0
        while not self._done.wait(_EVERY_S):
            looks += 1
            self._look(search=looks % _SEARCH_EVERY == 0)

    def _look(self, *, search: bool) -> None:
        if search:
            for process in psutil.Process().children(recursive=True):
                if process not in self._roles:
                    self._roles[process] = _role(process)
        for process, role in self._roles.items():
            if role:
                try:
                    times = process.cpu_times()
                except psutil.Error:  # it has ended: what was seen last stands
                    continue
                self._spent[process] = times.user + times.system
        totals = dict.fromkeys(_ROLES.values(), 0.0)
        for process, seconds in self._spent.items():
            totals[self._roles[process]] += seconds
        self._looks.append((time.time(), Spent(**totals)))


def _role(process: psutil.Process) -> str:
    try:
        arguments = process.cmdline()
    except psutil.Error:
        return ""
    return next((role for name, role in _ROLES.items() if name in arguments), "")
