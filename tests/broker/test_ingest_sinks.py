"""jobs/ingest.py into each kind of sink that its help names: what was published is there, and the queue is empty."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tests.broker.job_support import left, login
from tests.broker.test_ingest_job import publish
from tests.support.frames import assert_rows
from tests.support.jobs import load

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.spark, pytest.mark.broker]


@pytest.fixture
def ingest(
    broker: Broker, connect: Connect, queue: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The arguments that every run here shares; twenty messages wait on the queue."""
    assert spark.range(1).count() == 1
    for name, value in login(broker).items():
        monkeypatch.setenv(name, value)
    publish(connect, queue, 20)
    return ["--queue", queue, "--schema", "body STRING", "--available-now", "--checkpoint", str(tmp_path / "ck")]


@pytest.mark.thorough
def test_json(ingest: list[str], connect: Connect, queue: str, tmp_path: Path) -> None:
    assert load("ingest").main([*ingest, "--format", "json", "--output", str(tmp_path / "out")]) == 0
    lines = [line for file in (tmp_path / "out").glob("*.json") for line in file.read_text().splitlines()]
    assert sorted(int(json.loads(line)["body"]) for line in lines) == list(range(20))
    assert left(connect, queue) == 0


@pytest.mark.thorough
def test_console(ingest: list[str], connect: Connect, queue: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert load("ingest").main([*ingest, "--format", "console"]) == 0
    assert "20 rows in 1 batch" in capfd.readouterr().out  # the rows themselves are printed by the JVM
    assert left(connect, queue) == 0


@pytest.mark.thorough
def test_a_table(ingest: list[str], connect: Connect, queue: str, spark: SparkSession) -> None:
    try:
        assert load("ingest").main([*ingest, "--table", "ingested"]) == 0
        assert_rows(spark.table("ingested"), [(str(number),) for number in range(20)], "body STRING", any_order=True)
    finally:
        spark.sql("DROP TABLE IF EXISTS ingested")
    assert left(connect, queue) == 0


def test_directories_by_a_column(ingest: list[str], tmp_path: Path) -> None:
    more = ["--select", "body", "--select", "length(body) AS digits", "--partition-by", "digits"]
    assert load("ingest").main([*ingest, *more, "--output", str(tmp_path / "out")]) == 0
    assert {path.name for path in (tmp_path / "out").glob("digits=*")} == {"digits=1", "digits=2"}
    assert pq.read_table(tmp_path / "out" / "digits=1").num_rows == 10
