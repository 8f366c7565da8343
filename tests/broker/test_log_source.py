"""Streams of RabbitMQ in a real Spark: every process and the node are killed, and every row comes exactly once."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from amqp_spark import crashpoints
from tests.broker.job_support import Here
from tests.broker.log_support import Streams, judge, replayed
from tests.broker.source_0_9_support import numbers
from tests.broker.stream_support import Stream
from tests.support.process import wait_until
from tests.support.query_process import CrashPoints, Query, QueryProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.support.rabbitmq import RabbitMQNode

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(600)]

MESSAGES = 200
PER_BATCH = 40
SCHEMA = "stream STRING, offset BIGINT, body STRING"
IN_READER = {
    crashpoints.END_RETURNED_UNLOGGED: 2,
    crashpoints.LOGGED_BEFORE_PARTITIONS: 2,
    crashpoints.PARTITIONS_RETURNED: 2,
}
"""Points that the reader passes, and how often before it is killed there: a batch shall have been committed before."""
IN_WORKER = (crashpoints.READ_STARTED, crashpoints.READ_MID)


@pytest.fixture
def log_node(rabbitmq: RabbitMQNode) -> RabbitMQNode:
    return rabbitmq


@pytest.fixture(scope="module")
def _process(points: CrashPoints) -> Iterator[QueryProcess]:
    process = QueryProcess(points=points, settings={"spark.master": "local[16,4]"})
    yield process
    process.close()


@pytest.fixture
def query(streams: Streams, tmp_path: Path) -> Callable[..., Query]:
    """A function that makes a query over the streams; the sink writes each batch again when it is replayed."""

    def make(**options: str) -> Query:
        name = f"log-{uuid.uuid4().hex[:6]}"
        given = {
            "url": streams.address, "username": streams.username, "password": streams.password,
            "queue": streams.queue, "queueType": "stream", "startingOffsets": "earliest",
            "maxMessagesPerTrigger": str(PER_BATCH), "retry.maxDelay": "0.2",
        }  # fmt: skip
        how = {"skip_written": False}
        return Query(name=name, options=given | options, directory=tmp_path / name, schema=SCHEMA, sink_options=how)

    return make


def test_drain_and_its_dry_run_take_all_of_a_stream(
    spark: SparkSession, streams: Streams, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    del spark  # the job finds it
    streams.publish(numbers(10))
    login = {"AMQP_URL": streams.address, "AMQP_USERNAME": streams.username, "AMQP_PASSWORD": streams.password}
    drain = Here("drain", login, monkeypatch)
    stream = ["--queue", streams.queue, "--option", "queueType=stream"]
    assert drain("--dry-run", *stream) == 0
    shown = capfd.readouterr().out
    assert "nothing was consumed" in shown
    assert "messages         10\n" in shown
    files = ["--output", str(tmp_path / "out"), "--checkpoint", str(tmp_path / "ck")]
    assert drain(*stream, *files) == 0
    assert "messages         10\n" in capfd.readouterr().out
    streams.publish(numbers(3))
    assert drain(*stream, *files) == 0
    assert "messages         3\n" in capfd.readouterr().out
    assert drain(*stream, *files, "--option", "startingOffsets=latest", "--checkpoint", str(tmp_path / "other")) == 0
    assert "no messages" in capfd.readouterr().out


@pytest.mark.thorough
def test_a_batch_read_counts_exactly(spark: SparkSession, streams: Streams) -> None:
    streams.publish(numbers(12_000))
    options = {
        "url": streams.address, "username": streams.username, "password": streams.password, "queue": streams.queue,
        "queueType": "stream", "endingOffsets": "11900",
    }  # fmt: skip
    frame = spark.read.format("amqp").options(**options, startingOffsets="100").schema(SCHEMA).load()
    assert frame.count() == 11_800
    assert frame.rdd.getNumPartitions() == 2
    assert frame.selectExpr("min(offset)", "max(offset)", "count(distinct body)").first() == (100, 11_899, 11_800)


def test_a_batch_read_of_nothing_has_no_rows(spark: SparkSession, streams: Streams) -> None:
    options = {
        "url": streams.address, "username": streams.username, "password": streams.password, "queue": streams.queue,
        "queueType": "stream",
    }  # fmt: skip
    frame = spark.read.format("amqp").options(**options).schema(SCHEMA).load()
    assert frame.count() == 0, "an empty stream"
    streams.publish(numbers(10))
    frame = spark.read.format("amqp").options(**options, startingOffsets="10").schema(SCHEMA).load()
    assert frame.collect() == [], "nothing new"


def test_a_running_query_gets_what_arrives_and_reports_where_it_is(
    spark: SparkSession, streams: Streams, tmp_path: Path
) -> None:
    stream = Stream(spark, streams, tmp_path)
    streams.publish(numbers(100))
    query = stream.start(stream.frame(streams.queue, queueType="stream", startingOffsets="earliest"))
    try:
        wait_until(lambda: len(stream.rows) == 100, "what was there")
        streams.publish(numbers(50, 100))
        wait_until(lambda: len(stream.rows) == 150, "what arrives")
        wait_until(lambda: reached(query) == 150, "progress")
    finally:
        query.stop()
    assert stream.bodies() == numbers(150)
    assert [row["offset"] for row in stream.rows] == list(range(150))
    assert {row["stream"] for row in stream.rows} == {streams.queue}


@pytest.mark.thorough
def test_ten_streams_in_one_query(spark: SparkSession, streams: Streams, tmp_path: Path) -> None:
    places = [Streams(streams.address, streams.username, streams.password) for _ in range(10)]
    for number, place in enumerate(places):
        place.declare()
        place.publish(numbers(50 * (number + 1)))
    queues = ",".join(place.queue for place in places)
    stream = Stream(spark, streams, tmp_path)
    options: dict[str, Any] = {"queueType": "stream", "startingOffsets": "earliest", "maxMessagesPerTrigger": 1000}
    stream.drain(stream.frame(queues, SCHEMA, **options))
    places[3].publish(numbers(7, 200))
    stream.drain(stream.frame(queues, SCHEMA, **options))
    for number, place in enumerate(places):
        rows = [row for row in stream.rows if row["stream"] == place.queue]
        bodies = numbers(50 * (number + 1) + (7 if number == 3 else 0))
        assert [(row["offset"], row["body"].encode()) for row in rows] == list(enumerate(bodies))
        place.close()


@pytest.mark.thorough
@pytest.mark.parametrize("fails", ["true", pytest.param("false", marks=pytest.mark.thorough)])
def test_a_running_query_that_is_slower_than_retention(
    spark: SparkSession, streams: Streams, tmp_path: Path, fails: str
) -> None:
    """The rows of the batch that runs, and of later ones, are removed before Spark reads them."""
    streams.make_forgetful()
    streams.publish(numbers(45))
    stream = Stream(spark, streams, tmp_path)
    first_kept: list[int] = []

    def slow(frame: DataFrame, batch: int) -> None:
        if batch == 2:
            first_kept.append(streams.forget())
        stream.collect(frame, batch)

    options: dict[str, Any] = {"queueType": "stream", "startingOffsets": "earliest", "maxMessagesPerTrigger": 20}
    query = stream.start(stream.frame(streams.queue, SCHEMA, failOnDataLoss=fails, **options), slow)
    try:
        if fails == "true":
            with pytest.raises(StreamingQueryException, match=r"AMQP_LOG_DATA_LOST.*Messages 20 to"):
                query.awaitTermination(60)
            assert len(stream.rows) == 20
        else:
            wait_until(lambda: len(stream.rows) > 20, "it goes on", 60)
            assert stream.rows[20]["offset"] >= first_kept[0] > 50
    finally:
        query.stop()
    assert [row["offset"] for row in stream.rows[:20]] == list(range(20))


def reached(query: StreamingQuery) -> int:
    """The offset up to which Spark reports a query to have read its stream."""
    progress = query.lastProgress
    assert progress is not None
    (offset,) = json.loads(progress["sources"][0]["endOffset"]).values()
    found: int = offset["offset"]
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("victim", ["driver", "reader"])
def test_rows_come_exactly_once_although_the_reader_dies_at_each_point(
    streams: Streams, query: Callable[..., Query], driver: QueryProcess, points: CrashPoints, victim: str
) -> None:
    streams.publish(numbers(MESSAGES))
    queries = {}
    for point, after in (IN_READER | {crashpoints.BATCH_DONE_UNCOMMITTED: 1}).items():
        readers = set(driver.readers())
        queries[point] = query()
        held = driver.run_to_point(queries[point], point, after=after)
        if victim == "reader":
            (reader,) = set(driver.readers()) - readers
            driver.kill(reader)
            if held != reader:
                points.release(point, held)
            assert driver.wait(queries[point]) is not None, "a query without its reader must fail"
    before = {point: each.tables() for point, each in queries.items()}
    assert any(before.values())
    if victim == "driver":
        assert driver.kill_driver() == [], "these outlived their driver"
        driver.start()
    points.disarm()
    streams.publish(numbers(30, MESSAGES))
    driver.drain(queries.values())
    for point, each in queries.items():
        judge(each, {streams.queue: numbers(MESSAGES + 30)}, before[point])


@pytest.mark.thorough
def test_a_killed_worker_is_replaced_and_reads_the_same_rows(
    streams: Streams, query: Callable[..., Query], driver: QueryProcess, points: CrashPoints
) -> None:
    streams.publish(numbers(MESSAGES))
    for point in IN_WORKER:
        each = query()
        victim = driver.run_to_point(each, point, after=1, availableNow=True)
        before = each.tables()
        assert any(table.num_rows for table in before.values())
        driver.kill(victim)
        points.disarm()
        assert driver.wait(each) is None, "a lost worker is Spark's to replace"
        judge(each, {streams.queue: numbers(MESSAGES)}, before)
        replayed(driver, each, {streams.queue: numbers(MESSAGES)})


@pytest.mark.thorough
def test_the_node_is_killed_while_tasks_read_and_offsets_are_planned(
    rabbitmq_private: RabbitMQNode, query: Callable[..., Query], driver: QueryProcess, points: CrashPoints
) -> None:
    node = rabbitmq_private
    place = Streams(node.url("durable"), node.username, node.password)
    place.declare()
    place.publish(numbers(MESSAGES))
    each = query(url=place.address, queue=place.queue, heartbeat="2", **{"retry.maxAttempts": "200"})
    held = driver.run_to_point(each, crashpoints.READ_MID, after=1)
    before = each.tables()
    assert any(table.num_rows for table in before.values())
    node.kill9()
    points.disarm()
    assert held
    node.start()
    place.publish(numbers(100, MESSAGES))
    wait_until(lambda: len(each.rows()) == MESSAGES + 100, "all rows", 120)
    driver.stop_query(each)
    judge(each, {place.queue: numbers(MESSAGES + 100)}, before)
    replayed(driver, each, {place.queue: numbers(MESSAGES + 100)})
    place.close()
