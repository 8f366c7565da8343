"""Executors in JVMs of their own (``local-cluster``): they pull batches from the reader on the driver, and publish.

One that dies in the middle of a batch is replaced: the batch is the same for those that follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import pytest

from amqp_spark import crashpoints
from tests.broker.cluster_support import COUNT as ROWS
from tests.broker.cluster_support import ENTRIES, PER_TASK, prepare
from tests.broker.log_support import Streams, judge, replayed
from tests.broker.sink_scenarios import duplicates, taken
from tests.broker.sink_support import login
from tests.broker.stream_support import depth, numbers, publish
from tests.support.process import wait_until
from tests.support.query_process import CrashPoints, Query, QueryProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.fixtures import Broker, Connect
    from tests.support.rabbitmq import RabbitMQNode

pytestmark = [pytest.mark.spark, pytest.mark.broker]

COUNT = 3000


@pytest.fixture(scope="module")
def cluster(points: CrashPoints) -> Iterator[QueryProcess]:
    """Two executors with one core each."""
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


def kill(executor: psutil.Process) -> None:
    """SIGKILL; returns when it has ended."""
    executor.kill()
    wait_until(lambda: not executor.is_running() or executor.status() == psutil.STATUS_ZOMBIE, "the executor's end")


@pytest.mark.sampled("transfer", every=2)
@pytest.mark.parametrize("transfer", ["pull", "inline"])
def test_a_cluster_reads_every_message(
    cluster: QueryProcess, broker: Broker, connect: Connect, queue: str, tmp_path: Path, transfer: str
) -> None:
    client = connect(heartbeat=0)  # the test leaves it alone while queries run
    sent = [number + b"x" * 1000 for number in numbers(6000)]
    publish(client, queue, sent)
    options = {
        "url": broker.url(),
        "username": broker.username,
        "password": broker.password,
        "queue": queue,
        "transfer": transfer,
        "maxBytesPerTrigger": "2m",
    }
    query = Query(name=transfer, options=options, directory=tmp_path, schema="body BINARY, position BIGINT")
    cluster.drain([query])
    rows = sorted(query.rows(), key=lambda row: row["position"])
    assert [row["body"] for row in rows] == sent
    assert [row["position"] for row in rows] == list(range(6000))
    assert depth(client, queue) == 0
    assert len(query.batches()) >= 3


def test_executors_pull_from_several_readers(
    cluster: QueryProcess, broker: Broker, connect: Connect, queue: str, tmp_path: Path
) -> None:
    client = connect(heartbeat=0)
    sent = [number + b"x" * 1000 for number in numbers(6000)]
    queues = [queue, f"{queue}-second"]
    client.declare_queue(queues[1])
    publish(client, queues[0], sent[:4000])
    publish(client, queues[1], sent[4000:])
    options = login(broker, queue=",".join(queues), numReaders=2, transfer="pull", maxBytesPerTrigger="4m")
    query = Query(name="several", options=options, directory=tmp_path, schema="body BINARY")
    cluster.drain([query])
    assert sorted(row["body"] for row in query.rows()) == sent
    assert [depth(client, each) for each in queues] == [0, 0]
    client.delete_queue(queues[1])


@pytest.mark.thorough
def test_a_cluster_that_encrypts_pulls_what_is_encrypted(
    broker: Broker, connect: Connect, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(heartbeat=0)
    sent = [number + b"x" * 1000 for number in numbers(6000)]
    publish(client, queue, sent)
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text("spark.network.crypto.enabled: true\nspark.authenticate = true\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(conf))
    settings = {"spark.master": "local-cluster[1,2,1024]", "spark.executor.memory": "512m"}
    options = {
        "url": broker.url(),
        "username": broker.username,
        "password": broker.password,
        "queue": queue,
        "transfer": "pull",
    }
    query = Query(name="tls", options=options, directory=tmp_path, schema="body BINARY, position BIGINT")
    with QueryProcess(settings=settings | {"spark.authenticate.secret": "for-this-test"}) as process:
        process.drain([query])
    assert [row["body"] for row in sorted(query.rows(), key=lambda row: row["position"])] == sent
    assert depth(client, queue) == 0


@pytest.mark.sampled("point", every=2)
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
    kill(executor_of(worker))

    assert cluster.wait(query) is None, "a lost executor is Spark's to replace"
    rows = sorted(query.rows(), key=lambda row: row["position"])
    assert [row["body"] for row in rows] == sent
    assert [row["position"] for row in rows] == list(range(COUNT))
    assert depth(client, queue) == 0
    points.disarm()


@pytest.mark.thorough
@pytest.mark.parametrize("point", [crashpoints.READ_STARTED, crashpoints.READ_MID])
def test_an_executor_killed_while_it_reads_a_stream(
    cluster: QueryProcess, points: CrashPoints, rabbitmq: RabbitMQNode, tmp_path: Path, point: str
) -> None:
    """Batches before it stay as they are; every row comes once, and a replay of the last batch has the same rows."""
    place = Streams(rabbitmq.url("durable"), rabbitmq.username, rabbitmq.password)
    place.declare()
    place.publish(numbers(COUNT))
    options = {
        "url": place.address,
        "username": place.username,
        "password": place.password,
        "queue": place.queue,
        "queueType": "stream",
        "startingOffsets": "earliest",
        "maxMessagesPerTrigger": "1000",
    }
    again = {"skip_written": False}
    schema = "stream STRING, offset BIGINT, body STRING"
    query = Query(name=place.queue, options=options, directory=tmp_path, schema=schema, sink_options=again)
    worker = cluster.run_to_point(query, point, after=1, availableNow=True)
    before = query.tables()
    kill(executor_of(worker))
    assert cluster.wait(query) is None, "a lost executor is Spark's to replace"
    points.disarm()
    expected = {place.queue: numbers(COUNT)}
    judge(query, expected, before)
    replayed(cluster, query, expected)
    place.close()


@pytest.mark.thorough
@pytest.mark.sampled("entry", every=3)
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_cluster_writes_every_row_once(
    cluster: QueryProcess, broker: Broker, connect: Connect, queue: str, tmp_path: Path, entry: str
) -> None:
    write = prepare(broker, queue, tmp_path, entry)
    cluster.start_query(write)
    assert cluster.wait(write) is None
    assert duplicates(taken(connect(), queue), ROWS) == 0


@pytest.mark.sampled("entry", every=3)
@pytest.mark.parametrize(
    ("entry", "point"),
    [
        ("stream", crashpoints.BLOCK_SENT),
        ("foreachBatch", crashpoints.SYNCED),
        ("batch", crashpoints.ALL_SENT),
    ],
)
def test_an_executor_killed_in_a_write(
    cluster: QueryProcess,
    points: CrashPoints,
    broker: Broker,
    connect: Connect,
    queue: str,
    tmp_path: Path,
    entry: str,
    point: str,
) -> None:
    write = prepare(broker, queue, tmp_path, entry)
    kill(executor_of(cluster.run_to_point(write, point)))
    assert cluster.wait(write) is None, "a lost executor is Spark's to replace"
    points.disarm()
    # what other tasks of the executor had returned is not lost with it: only the task that was killed is run again
    least = PER_TASK if point == crashpoints.SYNCED else 0
    assert least <= duplicates(taken(connect(), queue), ROWS) <= PER_TASK
