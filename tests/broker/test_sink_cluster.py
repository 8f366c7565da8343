"""Speculative execution: a slow task is run twice and both publish; what comes twice of it is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import pytest

from amqp_spark import crashpoints
from tests.broker.cluster_support import COUNT, ENTRIES, PER_TASK, prepare
from tests.broker.sink_scenarios import duplicates, taken
from tests.support.process import wait_until
from tests.support.query_process import CrashPoints, QueryProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(600)]

_SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "2s",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
}


@pytest.fixture(scope="module")
def speculating(points: CrashPoints) -> Iterator[QueryProcess]:
    """Two executors that count as two hosts, so that each may run a copy of a slow task of the other."""
    settings = {"spark.master": "two-hosts[1024]", "spark.executor.memory": "512m", **_SPECULATION}
    with QueryProcess(points=points, settings=settings) as process:
        yield process


@pytest.mark.thorough
@pytest.mark.sampled("entry", every=3)
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_slow_task_is_run_twice_and_its_copy_counts(
    speculating: QueryProcess, broker: Broker, connect: Connect, queue: str, tmp_path: Path, entry: str
) -> None:
    """The first attempt has every row and waits for ever; the other one ends, and Spark kills the first."""
    write = prepare(broker, queue, tmp_path, entry, lose={"after": PER_TASK, "slow": str(tmp_path / "never")})
    speculating.start_query(write)
    assert speculating.wait(write) is None
    assert duplicates(taken(connect(), queue), COUNT) <= PER_TASK


@pytest.mark.thorough
def test_a_task_that_has_published_and_is_overtaken_leaves_duplicates(
    speculating: QueryProcess,
    points: CrashPoints,
    broker: Broker,
    connect: Connect,
    queue: str,
    tmp_path: Path,
) -> None:
    write = prepare(broker, queue, tmp_path, "stream")
    held = speculating.run_to_point(write, crashpoints.SYNCED)
    assert speculating.wait(write) is None
    wait_until(lambda: not psutil.pid_exists(held), "Spark to kill the worker of the first attempt", 60)
    points.disarm()
    assert duplicates(taken(connect(), queue), COUNT) == PER_TASK
