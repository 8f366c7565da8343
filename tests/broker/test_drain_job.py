"""jobs/drain.py: queues into files, and what was in them."""

from __future__ import annotations

import json
import re
import signal
import sys
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from amqp_core.v0_10 import spec
from amqp_core.v0_10.messages import Message
from tests.broker.job_support import (
    QUICK,
    Here,
    environment,
    error_lines,
    job_path,
    left,
    login,
    started,
    submitted,
)  # fmt: skip
from tests.support.frames import assert_rows
from tests.support.process import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.spark, pytest.mark.broker]

#: Seconds and milliseconds since 1970, as clients disagree; one without.
TIMES = [1_795_219_530, 1_795_219_530_123, 1_700_000_000, None]
BODIES = [b"abc", b"", b"x" * 5000, b"\xff"]
REPORT = {
    "messages": 4,
    "without_timestamp": 1,
    "first_timestamp": "2023-11-14T22:13:20.000000Z",
    "last_timestamp": "2026-11-21T00:05:30.123000Z",
    "body_bytes": 5004,
    "smallest_body": 0,
    "largest_body": 5000,
}
TEXT = """messages         4
first timestamp  2023-11-14T22:13:20.000000Z
last timestamp   2026-11-21T00:05:30.123000Z
no timestamp     1 message
bodies           5,004 bytes, smallest 0, largest 5,000
"""


@pytest.fixture
def drain(broker: Broker, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Here:
    return Here("drain", login(broker), monkeypatch)


def send(connect: Connect, queue: str) -> None:
    client = connect()
    for body, time in zip(BODIES, TIMES, strict=True):
        client.publish(Message(body, spec.DeliveryProperties(timestamp=time)), routing_key=queue)
    client.confirm()


def many(connect: Connect, queue: str, count: int) -> None:
    client = connect()
    for number in range(count):
        client.publish(Message(b"%d" % number), routing_key=queue)
    client.confirm()


def files(directory: Path) -> list[str]:
    return ["--output", str(directory / "out"), "--checkpoint", str(directory / "ck")]


@pytest.mark.sampled("arguments", every=3)
@pytest.mark.parametrize(
    ("arguments", "columns"),
    [
        ([], 29),
        (["--exact"], 29),
        (["--schema", "routing_key STRING"], 1),
        (["--schema", "`Body` BINARY, routing_key STRING", "--option", "maxMessagesPerTrigger=1"], 2),
    ],
)
def test_a_drained_queue_is_in_files_and_in_the_report(
    drain: Here, connect: Connect, queue: str, tmp_path: Path, capfd: pytest.CaptureFixture[str],
    arguments: list[str], columns: int,
) -> None:  # fmt: skip
    send(connect, queue)
    report = tmp_path / "report.json"
    assert drain("--queue", queue, *files(tmp_path), "--report", str(report), *arguments) == 0
    assert left(connect, queue) == 0
    table = pq.read_table(tmp_path / "out")
    assert (table.num_rows, table.num_columns) == (4, columns)
    assert set(table["routing_key"].to_pylist()) == {queue}
    shown = capfd.readouterr().out
    assert shown.startswith("drain: 4 rows in ")
    assert shown.endswith(f"\n{TEXT}")
    assert json.loads(report.read_text()) == REPORT


def test_a_failure_reports_what_was_taken(
    drain: Here, connect: Connect, queue: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    client = connect()
    for body in (b"a", b"bc", b"\xff"):
        client.publish(Message(body), routing_key=queue)
    client.confirm()
    report = tmp_path / "report.json"
    one_by_one = ["--schema", "body STRING", "--option", "mode=FAILFAST", "--option", "maxMessagesPerTrigger=1"]
    assert drain("--queue", queue, *files(tmp_path), "--report", str(report), *one_by_one) == 1
    found = json.loads(report.read_text())
    assert (found["messages"], found["body_bytes"], found["complete"]) == (2, 3, False)
    shown = capfd.readouterr()
    assert shown.out.startswith("drain: 2 rows in 2 batches, ")
    assert ", then it failed\nmessages         2\n" in shown.out
    assert "AMQP_MESSAGE_UNFIT" in error_lines(shown.err, "drain")[0]
    assert set(pq.read_table(tmp_path / "out")["body"].to_pylist()) == {"a", "bc"}


def test_a_dry_run_reports_the_same_and_takes_nothing(
    drain: Here, connect: Connect, queue: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    send(connect, queue)
    report = tmp_path / "report.json"
    assert drain("--queue", queue, *files(tmp_path), "--dry-run", "--report", str(report)) == 0
    shown = capfd.readouterr().out
    assert "nothing was consumed" in shown
    assert shown.endswith(f"\n{TEXT}")
    assert json.loads(report.read_text()) == REPORT
    assert left(connect, queue) == 4
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "ck").exists()


@pytest.mark.thorough
@pytest.mark.sampled("more", every=2)
@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_empty_queues_are_no_error(
    drain: Here, queue: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], more: list[str]
) -> None:
    assert drain("--queue", queue, *files(tmp_path), *more) == 0
    assert capfd.readouterr().out.endswith("\nno messages\n")


@pytest.mark.thorough
def test_several_queues_and_files_of_another_format(
    drain: Here, connect: Connect, queue: str, spark: SparkSession, tmp_path: Path
) -> None:
    other = f"{queue}-other"
    connect().declare_queue(other)
    try:
        many(connect, queue, 30)
        many(connect, other, 20)
        schema = ["--schema", "queue STRING, body STRING", "--format", "json", "--sink-option", "compression=gzip"]
        assert drain("--queue", queue, "--queue", other, *files(tmp_path), *schema) == 0
        assert left(connect, other) == 0
    finally:
        connect().delete_queue(other)
    wanted = [(queue, str(number)) for number in range(30)] + [(other, str(number)) for number in range(20)]
    rows = spark.read.json(str(tmp_path / "out")).select("queue", "body")
    assert_rows(rows, wanted, "queue STRING, body STRING", any_order=True)
    assert list((tmp_path / "out").glob("*.json.gz"))


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--queue", "no-such-queue"], 3, "no-such-queue"),
        (["--queue", "no-such-queue", "--dry-run"], 3, "no-such-queue"),
        (["--schema", "body STRNG"], 2, "STRNG"),
        (["--schema", "bdy STRING"], 2, "bdy"),
        (["--format", "no-such-format"], 2, "no-such-format"),
        (["--dry-run", "--option", "mode=REJECT"], 2, "REJECT"),
        (["--schema", "body STRING"], 1, "UTF-8"),
    ],
)
def test_what_cannot_be_drained_is_one_clear_line(
    drain: Here, connect: Connect, queue: str, tmp_path: Path, capfd: pytest.CaptureFixture[str],
    arguments: list[str], code: int, text: str,
) -> None:  # fmt: skip
    send(connect, queue)
    more = arguments if arguments[0] == "--queue" else ["--queue", queue, *arguments]
    assert drain(*files(tmp_path), *more) == code
    (error,) = error_lines(capfd.readouterr().err, "drain")
    assert text in error
    wait_until(lambda: left(connect, queue) == 4, "the messages to be back on their queue")


@pytest.mark.thorough
def test_a_signal_leaves_the_rest_on_the_queue(broker: Broker, connect: Connect, queue: str, tmp_path: Path) -> None:
    many(connect, queue, 20_000)
    command = [
        sys.executable, job_path("drain"), "--queue", queue, *files(tmp_path), "--schema", "body STRING",
        "--option", "maxMessagesPerTrigger=50", "--master", "local[1]", *QUICK,
    ]  # fmt: skip
    with started(command, environment(login(broker)), tmp_path) as (job, log):
        wait_until(lambda: "batch 1:" in log.read_text() or job.poll() is not None, "the second batch", 120)
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) == 143, log.read_text()
    written = pq.read_table(tmp_path / "out").num_rows
    found = re.search(r"^messages +([\d,]+)$", log.read_text(), re.MULTILINE)
    assert found is not None, log.read_text()
    # The signal may have come between the files of a batch and its end.
    assert written - 50 <= int(found[1].replace(",", "")) <= written
    there = left(connect, queue)
    # What was written is accepted, except for the last batch whose accept the signal may have prevented.
    assert 20_000 - written <= there <= 20_000 - written + 50


@pytest.mark.thorough
def test_spark_submit_needs_no_installation(broker: Broker, connect: Connect, queue: str, tmp_path: Path) -> None:
    many(connect, queue, 500)
    arguments = ["--queue", queue, *files(tmp_path), *QUICK]
    env = environment(login(broker))
    job = submitted("drain", arguments, suffix="zip", master="local[2]", env=env, directory=tmp_path)
    assert job.returncode == 0, job.stdout + job.stderr
    assert "messages         500\n" in job.stdout
    assert sorted(int(row["body"]) for row in pq.read_table(tmp_path / "out").to_pylist()) == list(range(500))
    assert left(connect, queue) == 0
