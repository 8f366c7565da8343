"""jobs/publish.py against a real broker: from files, tables and queries to an exchange."""

from __future__ import annotations

import json
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from amqp_core.v0_10.messages import Message
from tests.broker.job_support import (
    QUICK,
    Here,
    environment,
    error_lines,
    job_path,
    left,
    login,
    received,
    run,
    started,
    submitted,
)  # fmt: skip
from tests.support.capabilities import needs
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.spark, pytest.mark.broker]

TICKS = [("SAP", 101.5, 7), ("BMW", 80.25, 1), ("SAP", None, 3)]
DDL = "symbol STRING, price DOUBLE, qty INT"
MAPPED = [
    "--column", "body=to_json(struct(*))", "--column", "routing_key=concat('ticks.', symbol)",
    "--column", "content_type='application/json'", "--column", "priority=qty",
    "--header", "symbol=symbol", "--header", "price=price", "--header", "at=timestamp'2026-11-21 00:05:30.123456Z'",
]  # fmt: skip


@pytest.fixture
def publish(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Here:
    return Here("publish", login(broker), monkeypatch)


@pytest.fixture
def ticks(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(TICKS, DDL).coalesce(1)


def test_columns_and_headers_become_messages(
    publish: Here, ticks: DataFrame, connect: Connect, queue: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ticks.write.parquet(str(tmp_path / "ticks"))
    connect().bind(queue, "amq.topic", "ticks.#")
    try:
        assert publish("--input", str(tmp_path / "ticks"), "--exchange", "amq.topic", *MAPPED) == 0
        messages = received(connect(), queue)
    finally:
        connect().unbind(queue, "amq.topic", "ticks.#")
    assert [json.loads(message.body) for message in messages] == [
        {"symbol": "SAP", "price": 101.5, "qty": 7}, {"symbol": "BMW", "price": 80.25, "qty": 1},
        {"symbol": "SAP", "qty": 3},
    ]  # fmt: skip
    assert [message.routing_key for message in messages] == ["ticks.SAP", "ticks.BMW", "ticks.SAP"]
    assert [message.delivery.exchange for message in messages] == ["amq.topic"] * 3
    assert [message.delivery.priority for message in messages] == [7, 1, 3]
    assert [message.delivery.delivery_mode for message in messages] == [2, 2, 2]
    assert [message.properties.content_type for message in messages] == ["application/json"] * 3
    at = "2026-11-21T00:05:30.123456Z"
    assert [message.headers for message in messages] == [
        {"symbol": "SAP", "price": 101.5, "at": at}, {"symbol": "BMW", "price": 80.25, "at": at},
        {"symbol": "SAP", "at": at},
    ]  # fmt: skip
    assert capfd.readouterr().out.startswith("publish: 3 messages in ")


@pytest.mark.parametrize("kind", ["csv", "json", "table", "sql", "sql over files"])
def test_any_source_of_spark_can_be_published(
    publish: Here, ticks: DataFrame, connect: Connect, queue: str, tmp_path: Path, kind: str
) -> None:
    place = str(tmp_path / "ticks")
    table = queue.replace("-", "_")
    arguments = {
        "csv": ["--format", "csv", "--input", place, "--schema", DDL, "--source-option", "header=true"],
        "json": ["--format", "json", "--input", place],
        "table": ["--table", table],
        "sql": ["--sql", "select * from values ('SAP', 7), ('BMW', 1), ('SAP', 3) as t(symbol, qty)"],
        "sql over files": ["--input", place, "--sql", "select symbol, qty from input"],
    }[kind]
    if kind == "table":
        ticks.write.saveAsTable(table)
    elif kind != "sql":
        writer = ticks.write.option("header", "true")
        writer.format("parquet" if kind == "sql over files" else kind).save(place)
    try:
        assert publish(*arguments, "--routing-key", queue, "--column", "body=concat(symbol, qty)") == 0
    finally:
        ticks.sparkSession.sql(f"drop table if exists {table}")
    assert sorted(message.body for message in received(connect(), queue)) == [b"BMW1", b"SAP3", b"SAP7"]


def test_the_columns_of_the_input_are_those_of_the_message_when_nothing_else_is_said(
    publish: Here, spark: SparkSession, connect: Connect, queue: str, tmp_path: Path
) -> None:
    rows = spark.createDataFrame(
        [("one", queue, 9), ("two", queue, None)], "body STRING, routing_key STRING, priority INT"
    )
    rows.coalesce(1).write.parquet(str(tmp_path / "rows"))
    assert publish("--input", str(tmp_path / "rows")) == 0
    messages = received(connect(), queue)
    assert [(message.body, message.delivery.priority) for message in messages] == [(b"one", 9), (b"two", None)]


def test_a_stream_publishes_what_is_new(
    publish: Here, spark: SparkSession, connect: Connect, queue: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    incoming = tmp_path / "incoming"
    arguments = [
        "--format", "json", "--input", str(incoming), "--schema", DDL, "--stream", "--available-now",
        "--checkpoint", str(tmp_path / "ck"), "--routing-key", queue,
        "--sql", "select symbol as body from input where qty = 1",
    ]  # fmt: skip
    for symbol in ("SAP", "BMW"):
        spark.createDataFrame([(symbol, 1.0, 1)] * 5 + [(symbol, 1.0, 2)], DDL).write.mode("append").json(str(incoming))
        assert publish(*arguments) == 0
        assert [message.body for message in received(connect(), queue)] == [symbol.encode()] * 5
    assert publish(*arguments) == 0
    assert received(connect(), queue) == []
    shown = capfd.readouterr()
    assert shown.out.count("publish: 5 rows in 1 batch") == 2
    assert shown.out.count("publish: 0 rows in 0 batches") == 1
    assert shown.err.count(": 5 rows") == 2


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--input", "{directory}/nothing"], 2, "PATH_NOT_FOUND"),
        (["--sql", "select nothing"], 2, "nothing"),
        (["--sql", "select 'a' as body, 'k' as routing_key, 1 as bdy"], 2, "bdy"),
        (["--sql", "select 'a' as routing_key"], 2, "body"),
        (["--sql", "select 'a' as body", "--column", "body=upper(bdy)"], 2, "bdy"),
        (["--sql", "select 'a' as body"], 2, "where the messages go"),
        (["--sql", "select 'a' as body", "--routing-key", "k", "--header", "x=interval 1 day"], 2, "headers.x"),
        (["--sql", "select 'a' as body, repeat('k', 300) as routing_key"], 1, "'routing_key'"),
        (["--sql", "select 'a' as body, map('x', 1) as Application_Headers", "--header", "y=1"], 2, "would replace"),
        (["--sql", "select 'a' as body", "--exchange", "no-such-exchange"], 3, "no-such-exchange"),
        (["--sql", "select 'a' as body", "--routing-key", "no-such-queue"], 3, "no-such-queue"),
    ],
)
def test_what_cannot_be_published_is_one_clear_line(
    publish: Here, spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str],
    arguments: list[str], code: int, text: str,
) -> None:  # fmt: skip
    assert spark.range(1).count() == 1
    assert publish(*(each.format(directory=tmp_path) for each in arguments)) == code
    errors = error_lines(capfd.readouterr().err, "publish")
    assert len(errors) == 1
    assert text in errors[0]


def test_discarded_rows_are_not_counted_as_messages(publish: Here, capfd: pytest.CaptureFixture[str]) -> None:
    nowhere = ["--sql", "select 'a' as body from range(3)", "--routing-key", "no-such-queue"]
    assert publish(*nowhere, "--option", "onUnroutable=discard") == 0
    assert capfd.readouterr().out.startswith("publish: 3 rows sent, unroutable ones are discarded, in ")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        pytest.param({"PASSWORD": "n0t-the-one"}, "login", marks=needs("checks_passwords")),
        ({"URL": "amqp://127.0.0.1:1/default"}, "Connecting to 127.0.0.1:1 failed"),
    ],
    ids=["login refused", "no broker"],
)
def test_a_broker_that_cannot_be_used_ends_with_3(
    broker: Broker, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    changes: dict[str, str], text: str,
) -> None:  # fmt: skip
    publish = Here("publish", login(broker, **changes), monkeypatch)
    assert publish("--sql", "select 'a' as body", "--routing-key", "k", "--option", "retry.maxAttempts=0") == 3
    shown = capfd.readouterr()
    (error,) = error_lines(shown.err, "publish")
    assert text in error
    assert "n0t-the-one" not in shown.err + shown.out
    assert spark.range(1).count() == 1  # the session that was there still is


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_cancels_a_batch(
    number: signal.Signals, code: int, broker: Broker, connect: Connect, queue: str, tmp_path: Path
) -> None:
    # A row takes a millisecond, and ten are a batch of Arrow: the whole would take a quarter of an hour.
    slow = "select if(java_method('java.lang.Thread', 'sleep', 1L) is null, 'a', 'b') as body from range(1000000)"
    command = [
        sys.executable, job_path("publish"), "--sql", slow, "--routing-key", queue, "--master", "local[1]", *QUICK,
        "--conf", "spark.sql.execution.arrow.maxRecordsPerBatch=10",
    ]  # fmt: skip
    with started(command, environment(login(broker)), tmp_path) as (job, log):
        wait_until(lambda: left(connect, queue) or job.poll() is not None, "the first message", 120)
        job.send_signal(number)
        assert job.wait(60) == code, log.read_text()
    assert f"stopped by {number.name}" in log.read_text()
    assert "error:" not in log.read_text()
    assert 0 < left(connect, queue) < 1_000_000


@pytest.mark.thorough
@pytest.mark.parametrize(("suffix", "master"), [("zip", "local[2]"), ("whl", "local-cluster[2,1,1024]")])
def test_spark_submit_needs_no_installation(
    suffix: str, master: str, broker: Broker, connect: Connect, queue: str, tmp_path: Path
) -> None:
    arguments = ["--sql", "select cast(id as string) as body from range(500)", "--routing-key", queue, *QUICK]
    job = submitted(
        "publish", arguments, suffix=suffix, master=master, env=environment(login(broker)), directory=tmp_path
    )
    assert job.returncode == 0, job.stdout + job.stderr
    assert "publish: 500 messages" in job.stdout
    assert sorted(int(message.body) for message in received(connect(), queue)) == list(range(500))


@pytest.mark.thorough
def test_a_file_of_a_drained_queue_can_be_published_again(
    publish: Here, broker: Broker, connect: Connect, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect()
    for number in range(20):
        client.publish(Message(b"%d" % number), routing_key=queue)
    client.confirm()
    drain = Here("drain", login(broker), monkeypatch)
    where = ["--output", str(tmp_path / "out"), "--checkpoint", str(tmp_path / "ck")]
    assert drain("--queue", queue, *where, "--exact", "--option", "numPartitions=1") == 0
    assert left(connect, queue) == 0
    assert publish("--input", str(tmp_path / "out")) == 0
    assert sorted(int(message.body) for message in received(connect(), queue)) == list(range(20))


@pytest.mark.thorough
def test_the_way_of_a_user(broker: Broker, connect: Connect, queue: str, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{broker.password}\n")
    job = run(
        sys.executable, job_path("publish"), "--url", broker.url(), "--username", broker.username,
        "--password-file", str(file), "--sql", "select 'a' as body", "--routing-key", queue, *QUICK,
        env=environment({}), cwd=tmp_path,
    )  # fmt: skip
    assert job.returncode == 0, job.stdout + job.stderr
    assert [message.body for message in received(connect(), queue)] == [b"a"]
    assert job.stdout.startswith("publish: 1 message in ")
    assert "1 messages" in job.stderr  # the line of the sink, with bytes and retries
    assert "0 retries" in job.stderr
    assert broker.password not in job.stdout + job.stderr


def test_market_data_needs_its_exchange(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Here("market_data", login(broker), monkeypatch)
    assert job("--exchange", "nope", "--count", "1") == 3
    assert "exchange 'nope': there is no such exchange" in capsys.readouterr().err


@pytest.fixture(autouse=True)
def _no_views_are_left(spark: SparkSession) -> Iterator[None]:
    yield
    spark.catalog.dropTempView("input")
