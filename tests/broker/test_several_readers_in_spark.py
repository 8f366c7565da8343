"""Option ``numReaders`` in a real Spark: the life of the processes that receive, and their last accept."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from pyspark.errors import StreamingQueryException

from amqp_spark import crashpoints
from tests.broker.sink_support import login
from tests.broker.stream_support import Stream, depth, numbers, publish, subscribers
from tests.support.process import wait_until
from tests.support.query_process import Query

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from amqp_core.v0_10.client import Client
    from tests.broker.crash_scenarios import Setting
    from tests.support.fixtures import Broker, Connect
    from tests.support.query_process import QueryProcess

pytestmark = [pytest.mark.spark, pytest.mark.broker]


@pytest.fixture
def client(connect: Connect) -> Client:
    return connect(heartbeat=0)


@pytest.fixture
def queues(client: Client) -> Iterator[list[str]]:
    run = uuid.uuid4().hex[:8]
    names = [f"several-{run}-{name}" for name in "abc"]
    for name in names:
        client.declare_queue(name)
    yield names
    for name in names:
        client.delete_queue(name)


@pytest.fixture
def stream(spark: SparkSession, broker: Broker, tmp_path: Path) -> Stream:
    return Stream(spark, broker, tmp_path)


def further(parent: psutil.Process) -> list[psutil.Process]:
    """The further reader processes below a process."""
    return [child for child in parent.children(recursive=True) if is_further(child)]


def is_further(process: psutil.Process) -> bool:
    try:
        return "amqp_spark.datasource.reader_process" in process.cmdline()
    except psutil.Error:  # it has ended
        return False


def test_large_and_small_batches_of_all_queues_come_once(stream: Stream, client: Client, queues: list[str]) -> None:
    sent = [body + b"x" * 2000 for body in numbers(3000)]
    publish(client, queues[0], sent[:10])  # its process sends them inside the partition, the other one is pulled from
    publish(client, queues[1], sent[10:])
    query = stream.drain(stream.frame(",".join(queues), numReaders=2, maxBytesPerTrigger="8m"))
    assert sorted(stream.bodies()) == sent
    assert [depth(client, queue) for queue in queues] == [0, 0, 0]
    progress = query.lastProgress
    assert progress is not None
    assert all(queue in progress.sources[0].latestOffset for queue in queues)


@pytest.mark.parametrize("told", [True, False])
def test_a_query_that_is_stopped_accepts_its_last_batch_if_it_is_committed(
    stream: Stream, client: Client, queues: list[str], told: bool
) -> None:
    for at, queue in enumerate(queues):
        publish(client, queue, numbers(20, 20 * at))
    checkpoint = stream.directory / "checkpoint"
    options: dict[str, Any] = {"queryCheckpoint": checkpoint} if told else {}
    query = stream.start(stream.frame(",".join(queues), numReaders=3, **options), processingTime="10 minutes")
    try:
        wait_until((checkpoint / "commits" / "0").exists, "the first batch is committed", 120)
        assert len(further(psutil.Process())) == 3
    finally:
        query.stop()
    assert sorted(stream.bodies()) == numbers(60), "of all processes, and not an interval later"
    wait_until(lambda: not further(psutil.Process()), "the processes have gone")
    wait_until(lambda: not any(subscribers(client, queue) for queue in queues), "the broker has seen it")
    assert [depth(client, queue) for queue in queues] == ([0, 0, 0] if told else [20, 20, 20])


def test_an_error_of_a_process_is_that_of_the_query(stream: Stream, queues: list[str]) -> None:
    query = stream.start(stream.frame(f"{queues[0]},no-such-queue", numReaders=2))
    with pytest.raises(StreamingQueryException, match=r"\[AMQP_QUEUE_NOT_FOUND\] Queue 'no-such-queue' does not exist"):
        query.awaitTermination(60)
    wait_until(lambda: not further(psutil.Process()), "the processes have gone")


@pytest.mark.parametrize("killed", ["jvm", "reader"])
def test_processes_end_with_their_driver_and_their_reader(
    setting: Setting,
    driver: QueryProcess,
    broker: Broker,
    client: Client,
    queues: list[str],
    tmp_path: Path,
    killed: str,
) -> None:
    for at, queue in enumerate(queues):
        publish(client, queue, numbers(100, 100 * at))
    options = login(broker, queue=",".join(queues), numReaders=2, maxMessagesPerTrigger=60)
    query = Query(name=killed, options=options, directory=tmp_path, schema="body STRING, queue STRING")
    driver.run_to_point(query, crashpoints.ACCEPT_SENT, after=1)
    if killed == "jvm":
        assert driver.kill_driver() == [], "these outlived their driver"
        driver.start()
    else:
        (reader,) = driver.readers()
        left = further(psutil.Process(reader))
        assert len(left) == 2
        driver.kill(reader)
        assert driver.wait(query) is not None, "a query without its reader must fail"
        _gone, alive = psutil.wait_procs(left, 10)
        assert not alive
    setting.points.disarm()
    driver.drain([query])
    assert {int(row["body"]) for row in query.rows()} == set(range(300))
    assert [depth(client, queue) for queue in queues] == [0, 0, 0]
