"""jobs/ingest.py as users run it: a process of its own, a real broker, installed or from an archive."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from amqp_core.v0_10.messages import Message
from tests.broker.job_support import QUICK, environment, error_lines, job_path, left, login, started, submitted
from tests.support.capabilities import needs
from tests.support.jobs import load
from tests.support.process import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.spark, pytest.mark.broker]


def publish(connect: Connect, queue: str, count: int) -> None:
    client = connect()
    for number in range(count):
        client.publish(Message(body=b"%d" % number), routing_key=queue)
    client.confirm()


def bodies(directory: Path) -> list[int]:
    rows = pq.read_table(directory, columns=["body"]).to_pylist()
    return sorted(int(row["body"]) for row in rows)


def arguments(queue: str, directory: Path) -> list[str]:
    output = ["--output", str(directory / "out"), "--checkpoint", str(directory / "ck")]
    return ["--queue", queue, "--schema", "body STRING", *output, *QUICK]


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_running_job_and_leaves_the_rest_on_the_broker(
    number: signal.Signals, code: int, broker: Broker, connect: Connect, queue: str, tmp_path: Path
) -> None:
    publish(connect, queue, 1000)
    with started(
        [sys.executable, job_path("ingest"), *arguments(queue, tmp_path), "--master", "local[1]",
         "--option", "maxMessagesPerTrigger=100", "--processing-time", "2 seconds"],
        environment(login(broker)), tmp_path,
    ) as (job, log):  # fmt: skip
        wait_until(lambda: "batch 1:" in log.read_text() or job.poll() is not None, "the second batch", 120)
        job.send_signal(number)
        assert job.wait(60) == code, log.read_text()
    assert f"stopped by {number.name}" in log.read_text()
    written = bodies(tmp_path / "out")
    there = left(connect, queue)
    assert there is not None
    assert 0 < len(written) < 1000
    assert written == list(range(len(written)))
    # What was written and logged is accepted, except for the last batch whose accept the signal may have prevented.
    assert 1000 - len(written) <= there <= 1000 - len(written) + 100


@pytest.mark.parametrize(
    ("changes", "more", "text"),
    [
        pytest.param({"AMQP_PASSWORD": "n0t-the-one"}, [], "login", marks=needs("checks_passwords")),
        (
            {"AMQP_URL": "amqp://127.0.0.1:1/default"},
            ["--queue", "q", "--option", "retry.maxAttempts=0"],
            "AMQP_CONNECT_FAILED",
        ),
        ({}, ["--queue", "no-such-queue"], "no-such-queue"),
    ],
    ids=["login refused", "no broker", "no queue"],
)
def test_a_broker_that_cannot_be_used_ends_with_3_and_the_reason(
    changes: dict[str, str], more: list[str], text: str, broker: Broker, queue: str, spark: SparkSession,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name, value in (login(broker) | changes).items():
        monkeypatch.setenv(name, value)
    where = ["--output", str(tmp_path / "out"), "--checkpoint", str(tmp_path / "ck")]
    assert load("ingest").main([*(more or ["--queue", queue]), *where, "--available-now"]) == 3
    shown = capfd.readouterr()
    errors = error_lines(shown.err, "ingest")
    assert len(errors) == 1
    assert text in errors[0]
    assert "n0t-the-one" not in shown.err + shown.out
    assert spark.range(1).count() == 1  # the session that was there still is


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--schema", "body STRNG"], "STRNG"),
        (["--schema", "body INT, nonsense STRING"], "nonsense"),
        (["--select", "no_such_column"], "no_such_column"),
        (["--format", "no-such-format"], "no-such-format"),
        (["--processing-time", "soon"], "soon"),
    ],
)
def test_what_spark_does_not_take_ends_with_2_before_anything_is_read(
    more: list[str], text: str, broker: Broker, connect: Connect, queue: str, spark: SparkSession,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert spark.range(1).count() == 1
    for name, value in login(broker).items():
        monkeypatch.setenv(name, value)
    where = ["--output", str(tmp_path / "out"), "--checkpoint", str(tmp_path / "ck")]
    assert load("ingest").main(["--queue", queue, *where, *more]) == 2
    assert text in capfd.readouterr().err
    assert not (tmp_path / "out").exists()
    info = connect().query_queue(queue)
    assert info is not None
    assert info.subscriber_count == 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("suffix", "master"),
    [("zip", "local[2]"), ("whl", "local-cluster[2,1,1024]")],
)
def test_spark_submit_needs_no_installation(
    suffix: str, master: str, broker: Broker, connect: Connect, queue: str, tmp_path: Path
) -> None:
    publish(connect, queue, 500)
    job = submitted(
        "ingest",
        [*arguments(queue, tmp_path), "--available-now", "--option", "transfer=pull"],
        suffix=suffix,
        master=master,
        env=environment(login(broker)),
        directory=tmp_path,
    )
    assert job.returncode == 0, job.stdout + job.stderr
    assert "ingest: 500 rows" in job.stdout
    assert bodies(tmp_path / "out") == list(range(500))
    assert left(connect, queue) == 0
