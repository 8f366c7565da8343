"""Processor time of everything that works on a query: what it costs on a machine that does other things, too."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

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
