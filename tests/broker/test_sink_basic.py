"""The three ways to write in a real Spark: what is checked when, errors of tasks, counts, logs and connections."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException

from amqp_core.address import ConnectOptions, parse_url
from amqp_core.v0_10 import spec
from amqp_spark.errors import OptionError, SchemaError
from amqp_spark.sink import AmqpBatchSink
from amqp_spark.sink.connections import Connections
from tests.broker.sink_support import ENTRIES, Entry, login, publish, write
from tests.broker.stream_support import depth
from tests.support.capabilities import needs
from tests.support.dial import address, by_way_of
from tests.support.process import wait_until
from tests.support.proxy import FaultProxy
from tests.support.taking import bodies, take
from tests.support.triggers import frames

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.broker, pytest.mark.spark]

NOWHERE = {"url": "amqp://127.0.0.1:1/default", "exchange": "e", "retry.maxAttempts": "0"}
"""Whoever connects fails."""


def numbered(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    """Bodies that say which row they are."""
    return spark.range(0, count, 1, partitions).selectExpr("CAST(id AS STRING) AS body")


def stream_of(frame: DataFrame, directory: Path) -> DataFrame:
    """The same rows as a stream: one micro-batch."""
    files = str(directory / "rows")
    frame.write.parquet(files)
    return frame.sparkSession.readStream.schema(frame.schema).parquet(files)


def started(frame: DataFrame, directory: Path, options: dict[str, str], mode: str = "append") -> StreamingQuery:
    writer = frame.writeStream.format("amqp").options(**options).outputMode(mode).trigger(availableNow=True)
    return writer.option("checkpointLocation", str(directory / "checkpoint")).start()


@pytest.fixture
def proxy(broker: Broker) -> Iterator[FaultProxy]:
    with FaultProxy(address(broker)) as proxy:
        yield proxy


# --- before any task


def test_everything_that_is_wrong_is_told_when_a_write_is_planned(spark: SparkSession, tmp_path: Path) -> None:
    frame = numbered(spark, 3).selectExpr("body", "1 AS topic", "'x' AS priority")
    wrong = NOWHERE | {"maxInFlight": "0", "routing": "k"}
    columns = "column 'topic'.*[Cc]olumn 'priority'.*STRING"
    all_named = rf"(?s)OptionError: \[AMQP_OPTIONS_INVALID\] 4 options.*'routing'.*'maxInFlight'.*{columns}"
    with pytest.raises(AnalysisException, match=all_named):
        write(frame, wrong)
    with pytest.raises(AnalysisException, match=rf"(?s)SchemaError: \[AMQP_COLUMNS_INVALID\] 2 columns.*{columns}"):
        write(frame, NOWHERE)
    with pytest.raises(StreamingQueryException, match=all_named):
        started(stream_of(frame, tmp_path), tmp_path, wrong).awaitTermination(60)
    with pytest.raises(OptionError, match=r"(?s)2 options.*'routing'.*'maxInFlight'"):
        AmqpBatchSink(wrong)
    with pytest.raises(SchemaError, match=rf"(?s)2 columns.*{columns}"):
        AmqpBatchSink(NOWHERE)(frame, 0)


def test_a_write_has_to_append(spark: SparkSession) -> None:
    writer = numbered(spark, 3).write.format("amqp").options(**NOWHERE)
    with pytest.raises(AnalysisException, match=r'UnsupportedModeError: .*Use mode\("append"\)'):
        writer.mode("overwrite").save()
    with pytest.raises(AnalysisException, match='Please use either the "Append"'):
        numbered(spark, 3).write.format("amqp").options(**NOWHERE).save()


def test_output_modes_of_a_stream(
    spark: SparkSession, broker: Broker, connect: Connect, queue: str, tmp_path: Path
) -> None:
    options = login(broker, routingKey=queue)
    counts = stream_of(numbered(spark, 30), tmp_path).groupBy("body").count().selectExpr("body")
    with pytest.raises(StreamingQueryException, match="amqp does not support Update mode"):
        started(counts, tmp_path / "update", options, "update").awaitTermination(60)
    assert started(counts, tmp_path / "complete", options, "complete").awaitTermination(120)
    assert depth(connect(), queue) == 30
    # through foreachBatch Spark allows it
    writer = counts.writeStream.outputMode("update").foreachBatch(AmqpBatchSink(options)).trigger(availableNow=True)
    assert writer.option("checkpointLocation", str(tmp_path / "each")).start().awaitTermination(120)
    assert depth(connect(), queue) == 60


# --- errors of tasks

FAILURES = {
    "missing exchange": (
        {"exchange": "no-such-exchange"},
        "body",
        r"PublishFailed: \[AMQP_EXCHANGE_NOT_FOUND\] .*row 0 of .* for exchange 'no-such-exchange': there is no such",
    ),
    "unroutable": (
        {"exchange": "amq.direct", "routingKey": "unbound"},
        "body",
        r"Unroutable: \[AMQP_(REJECTED_AS_)?UNROUTABLE\] .*row 0 of .* with routing key 'unbound': .*no queue is bound",
    ),
    "wrong password": ({"password": "wrong-s3cret"}, "body", "AuthenticationFailed: "),
    "no body": (
        {},
        "IF(body = '7', NULL, body) AS body",
        r"RowError: \[AMQP_ROW_INVALID\] Row 7 of partition 0.* cannot be sent: column 'body' ",
    ),
    "closed port": ({"url": "amqp://127.0.0.1:1/default", "retry.maxAttempts": "1"}, "body", "ConnectionFailed: "),
}


@pytest.mark.parametrize(
    "failure",
    [pytest.param(name, marks=needs("checks_passwords")) if name == "wrong password" else name for name in FAILURES],
)
def test_an_error_of_a_task_names_row_and_place_and_no_secret(
    spark: SparkSession, broker: Broker, connect: Connect, queue: str, failure: str
) -> None:
    options, body, text = FAILURES[failure]
    frame = numbered(spark, 10, 1).selectExpr(body)
    with pytest.raises(PythonException, match=text) as caught:
        write(frame, login(broker, routingKey=queue) | options)
    assert "s3cret" not in str(caught.value)
    assert depth(connect(), queue) == 0


def test_an_error_of_a_stream_names_the_batch(spark: SparkSession, broker: Broker, queue: str, tmp_path: Path) -> None:
    rows = stream_of(numbered(spark, 10, 1).selectExpr("IF(body = '7', NULL, body) AS body"), tmp_path)
    with pytest.raises(StreamingQueryException, match="Row 7 of partition 0 in batch 0 cannot be sent"):
        started(rows, tmp_path, login(broker, routingKey=queue)).awaitTermination(120)


def test_what_cannot_be_routed_is_discarded_and_counted_if_so_wished(
    spark: SparkSession, broker: Broker, connect: Connect, queue: str
) -> None:
    connect().bind(queue, "amq.direct", queue)
    frame = numbered(spark, 10).selectExpr("body", f"IF(body < '3', 'unbound', '{queue}') AS routing_key")
    sink = AmqpBatchSink(login(broker, exchange="amq.direct", onUnroutable="discard"))
    sink(frame, 0)
    assert (sink.last.messages, sink.last.discarded) == (7, 3)
    assert depth(connect(), queue) == 7


@needs("rejects_overflow")
@pytest.mark.parametrize("policy", ["fail", "discard"])
def test_a_full_queue_fails_the_task_in_either_case(
    spark: SparkSession, broker: Broker, connect: Connect, fresh_names: Iterator[str], policy: str
) -> None:
    full = next(fresh_names)
    client = connect()
    client.declare_queue(full, arguments={"qpid.max_count": 5, "qpid.policy_type": "reject"})
    text = "or a queue is full" if policy == "fail" else rf"506: .*Maximum depth exceeded on '{full}'"
    with pytest.raises(PythonException, match=text):
        write(numbered(spark, 10, 1), login(broker, routingKey=full, onUnroutable=policy))


# --- counts, places and logs


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_row_arrives_once_and_says_where_it_came_from(
    entry: Entry, spark: SparkSession, broker: Broker, connect: Connect, queue: str, tmp_path: Path
) -> None:
    publish(entry, numbered(spark, 1000, 2), tmp_path, login(broker, routingKey=queue, stampHeaders=True))
    subscription = connect().subscribe(queue)
    subscription.grant(1001)
    messages = take(subscription, 1000)
    assert sorted(int(message.body) for message in messages) == list(range(1000))
    headers = [message.properties.application_headers or {} for message in messages]
    places = {(each["amqp-spark.partition"], each["amqp-spark.row"]) for each in headers}
    assert len(places) == 1000
    if entry == "batch":
        assert set(headers[0]) == {"amqp-spark.partition", "amqp-spark.row"}
    else:
        assert {each["amqp-spark.batch-id"] for each in headers} == {0}
        assert len({each["amqp-spark.query-id"] for each in headers}) == 1


def test_a_batch_write_may_have_an_id(spark: SparkSession, broker: Broker, connect: Connect, queue: str) -> None:
    write(numbered(spark, 1, 1), login(broker, routingKey=queue, stampHeaders=True, batchId=77))
    subscription = connect().subscribe(queue)
    subscription.grant(1)
    [message] = take(subscription, 1)
    headers = message.properties.application_headers
    assert headers == {"amqp-spark.batch-id": 77, "amqp-spark.partition": 0, "amqp-spark.row": 0}


def test_the_progress_of_a_stream_counts_rows(spark: SparkSession, broker: Broker, queue: str, tmp_path: Path) -> None:
    query = started(stream_of(numbered(spark, 1000), tmp_path), tmp_path, login(broker, routingKey=queue))
    assert query.awaitTermination(120)
    assert [progress["sink"]["numOutputRows"] for progress in query.recentProgress] == [1000]


_PROGRAM = """
import logging, sys
from pyspark.sql import SparkSession
from amqp_spark.sink import AmqpBatchSink
options, directory = eval(sys.argv[1]), sys.argv[2]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.range(10).selectExpr("CAST(id AS STRING) AS body")
frame.write.format("amqp").options(**options).mode("append").save()
frame.write.parquet(directory + "/rows")
rows = spark.readStream.schema(frame.schema).parquet(directory + "/rows").writeStream.trigger(availableNow=True)
rows.format("amqp").options(**options).option("checkpointLocation", directory + "/a").start().awaitTermination()
logging.basicConfig(level=logging.INFO, format="job: %(message)s")
rows.foreachBatch(AmqpBatchSink(options)).option("checkpointLocation", directory + "/b").start().awaitTermination()
print(logging.getLogger("amqp_spark.sink").handlers)
"""


@pytest.mark.thorough
def test_the_drivers_log_has_one_line_per_batch(broker: Broker, connect: Connect, queue: str, tmp_path: Path) -> None:
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-c", _PROGRAM, repr(login(broker, routingKey=queue)), str(tmp_path)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    assert depth(connect(), queue) == 30
    lines = [line for line in run.stderr.splitlines() if " messages, " in line]
    assert [line[line.index("batch") :].partition(",")[0] for line in lines] == [
        "batch write: 10 messages",
        "batch 0: 10 messages",
        "batch 0: 10 messages",
    ], run.stderr[-3000:]
    assert "INFO amqp_spark.sink: batch write" in lines[0]
    assert re.search(r"job: batch 0: 10 messages, 0\.\d kB, \d+\.\d s, 0 retries$", lines[2])
    assert run.stdout == "[]\n"


# --- connections


def clients(proxy: FaultProxy) -> list[int]:
    """The processes that connected, by what they told the broker."""
    marker = b"qpid.client_pid"
    return [int.from_bytes(connection.from_client.partition(marker)[2][1:5]) for connection in proxy.connections]


def test_partitions_without_rows_do_not_connect(spark: SparkSession, broker: Broker, proxy: FaultProxy) -> None:
    options = login(broker, url=by_way_of(proxy.port, broker.url()), exchange="no-such-exchange")
    write(numbered(spark, 10).where("body > 'x'").repartition(20), options)
    assert proxy.connections == []


def test_a_worker_keeps_its_connection_for_the_next_batch(
    spark: SparkSession, broker: Broker, connect: Connect, proxy: FaultProxy, queue: str
) -> None:
    options = login(broker, url=by_way_of(proxy.port, broker.url()), routingKey=queue)
    sink = AmqpBatchSink(options)
    for batch in range(10):
        sink(numbered(spark, 10), batch)
    processes = clients(proxy)
    assert len(processes) == len(set(processes)) < 20  # 20 tasks
    assert depth(connect(), queue) == sink.total.messages == 100


def test_a_kept_connection_that_was_lost_costs_no_attempt(
    spark: SparkSession, broker: Broker, connect: Connect, proxy: FaultProxy, queue: str
) -> None:
    options = login(broker, url=by_way_of(proxy.port, broker.url()), routingKey=queue, retry__maxAttempts=0)
    for _ in range(5):
        write(numbered(spark, 10, 1), options)
        proxy.cut_all()
    assert depth(connect(), queue) == 50


def test_heartbeats_go_on_while_spark_computes(broker: Broker, connect: Connect, proxy: FaultProxy, queue: str) -> None:
    hosts, vhost, _ = parse_url(by_way_of(proxy.port, broker.url()))
    pool = Connections(idle_seconds=1)
    options = ConnectOptions(
        hosts=hosts, virtual_host=vhost, heartbeat=1, username=broker.username, password=broker.password
    )
    lease = pool.lease(options)

    def heartbeats() -> int:
        sent = frames(proxy.connections[0].from_client)
        return sum(found.code == spec.ConnectionHeartbeat.CODE for found in sent)

    with lease.resting():
        wait_until(lambda: heartbeats() >= 4, "heartbeats go on for longer than the broker waits")
    assert lease.client.query_queue(queue) is not None
    lease.give_back()
    wait_until(lambda: not proxy.open_connections, "what is idle for too long is closed")
    sent = [found.code for found in frames(proxy.connections[0].from_client)]
    assert sent[-2:] == [spec.SessionDetach.CODE, spec.ConnectionClose.CODE]


def test_a_task_that_fails_half_way_leaves_nothing_behind_that_arrives_late(
    spark: SparkSession, broker: Broker, connect: Connect, proxy: FaultProxy, queue: str
) -> None:
    options = login(broker, url=by_way_of(proxy.port, broker.url()), routingKey=queue)
    frame = numbered(spark, 30_000, 1).selectExpr("IF(body = '29999', NULL, body) AS body")
    with pytest.raises(PythonException, match="Row 29999 of partition 0 cannot be sent"):
        write(frame, options)
    wait_until(lambda: not proxy.open_connections, "its connection is closed")
    sent: list[Any] = [found.code for found in frames(proxy.connections[0].from_client)]
    assert spec.SessionDetach.CODE in sent
    client = connect()
    left = depth(client, queue)
    assert 0 < left < 30_000
    subscription = client.subscribe(queue)
    subscription.grant(left)
    assert [int(body) for body in bodies(subscription, left)] == list(range(left))
