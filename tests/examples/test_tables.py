"""Delta and Iceberg as targets of ingest: the examples, with the packages from Maven Central."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.broker.job_support import error_lines
from tests.examples.examples_support import COUNT, EXAMPLES, run, succeeds
from tests.support.spark_packages import coordinates, ivy_settings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.examples.examples_support import Queues

pytestmark = [pytest.mark.spark, pytest.mark.thorough]


def commits(table: Path) -> list[dict[str, Any]]:
    """The actions in the log of a Delta table, in order."""
    files = sorted((table / "_delta_log").glob("*.json"))
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


def test_delta(queues: Queues, tmp_path: Path) -> None:
    environment = queues.environment(tmp_path, ivy_settings(coordinates("delta.sh"), tmp_path))
    shown = succeeds("sh", str(EXAMPLES / "delta.sh"), env=environment, directory=tmp_path)
    assert "1,000 rows" in shown
    table = tmp_path / "data" / "delta"
    actions = commits(table)
    files = [table / action["add"]["path"] for action in actions if "add" in action]
    rows = pa.concat_tables([pq.read_table(file, columns=["message_id"]) for file in files])
    assert sorted(str(identity) for identity in rows.column("message_id").to_pylist()) == queues.ids
    assert [action["txn"]["version"] for action in actions if "txn" in action] == [0]  # Delta knows the batch
    assert queues.depth("ticks") == 0


def test_an_iceberg_that_does_not_fit_ends_in_one_line_and_loses_nothing(queues: Queues, tmp_path: Path) -> None:
    """Once Iceberg works this fails: make it like that of Delta then, and change iceberg.sh and README.md."""
    environment = queues.environment(tmp_path, ivy_settings(coordinates("iceberg.sh"), tmp_path))
    done = run("sh", str(EXAMPLES / "iceberg.sh"), env=environment, directory=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    (said,) = error_lines(done.stdout, "ingest")  # spark-submit puts both streams of the job there
    assert "[AMQP_JAVA_LIBRARY_UNFIT] A library of Java that Spark has loaded does not fit Spark" in said
    assert "IncompatibleClassChangeError" in said
    assert "Traceback" not in done.stdout + done.stderr
    assert queues.depth("ticks") == COUNT
