"""Executors in JVMs of their own that die in the middle of a batch: the batch is the same for those that follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import pytest

from amqp_spark import crashpoints
from tests.broker.stream_support import depth, numbers, publish
from tests.support.process import wait_until
from tests.support.query_process import CrashPoints, Query, QueryProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.spark, pytest.mark.broker]

COUNT = 3000


@pytest.fixture(scope="module")
def points() -> Iterator[CrashPoints]:
    points = CrashPoints()
    yield points
    points.close()


@pytest.fixture(scope="module")
def cluster(points: CrashPoints) -> Iterator[QueryProcess]:
    settings = {"spark.master": "local-cluster[2,1,1024]", "spark.executor.memory": "512m"}
    with QueryProcess(points=points, settings=settings) as process:
        yield process


def executor_of(worker: int) -> psutil.Process:
    """The JVM of an executor: it started the daemon that forked the worker."""
    daemon = psutil.Process(worker).parent()
    assert daemon is not None
    executor = daemon.parent()
    assert executor is not None
    assert "CoarseGrainedExecutorBackend" in " ".join(executor.cmdline())
    return executor


@pytest.mark.parametrize(("point", "transfer"), [(crashpoints.READ_STARTED, "inline"), (crashpoints.READ_MID, "pull")])
def test_an_executor_killed_in_a_batch(
    cluster: QueryProcess,
    points: CrashPoints,
    broker: Broker,
    connect: Connect,
    queue: str,
    tmp_path: Path,
    point: str,
    transfer: str,
) -> None:
    client = connect(heartbeat=0)  # the test leaves it alone while queries run
    sent = [number + b"x" * 1000 for number in numbers(COUNT)]
    publish(client, queue, sent)
    options = {
        "url": broker.url(),
        "username": broker.username,
        "password": broker.password,
        "queue": queue,
        "transfer": transfer,
        "maxMessagesPerTrigger": "1000",
    }
    query = Query(name=queue, options=options, directory=tmp_path, schema="body BINARY, position BIGINT")

    worker = cluster.run_to_point(query, point, availableNow=True)
    executor = executor_of(worker)
    executor.kill()
    wait_until(lambda: not executor.is_running() or executor.status() == psutil.STATUS_ZOMBIE, "the executor's end")

    assert cluster.wait(query) is None, "a lost executor is Spark's to replace"
    rows = sorted(query.rows(), key=lambda row: row["position"])
    assert [row["body"] for row in rows] == sent
    assert [row["position"] for row in rows] == list(range(COUNT))
    assert depth(client, queue) == 0
    points.disarm()
