"""The doctor's look at a Spark that runs: versions of its workers, the data source, retries."""

from __future__ import annotations

import platform
from importlib.metadata import version
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

import amqp_spark
from amqp_spark.diagnosis import spark_side
from amqp_spark.diagnosis.findings import Report

if TYPE_CHECKING:
    from amqp_core.broker import Broker
    from amqp_spark.diagnosis.findings import Finding

pytestmark = pytest.mark.spark


def test_the_session_of_a_notebook(spark: SparkSession, amqp_broker: Broker) -> None:
    amqp_spark.register(spark)
    # what a library, or a job in this process, has set: it changes nothing of a Spark that runs
    spark = SparkSession.builder.master("local[3,4]").getOrCreate()
    report = amqp_spark.doctor({"url": amqp_broker.url, "username": "guest", "password": "guest"})

    def found(name: str) -> Finding:
        each = report.of("Spark", name)
        assert each is not None
        return each

    assert report.exit_code == 0
    assert found("session").value.startswith(f"Spark {spark.version}, Java ")
    workers = found("workers")
    assert workers.status == "ok"
    for text in (f"Python {platform.python_version()}", f"pyarrow {version('pyarrow')}"):
        assert text in workers.value
    assert report.of("Spark", "package on workers") is None
    assert found('format("amqp")').value == "found"
    retries = found("retries of tasks")
    assert retries.status == "warning"
    assert "local[2] runs each task once" in retries.value


@pytest.mark.parametrize(
    ("master", "failures", "text"),
    [
        ("local[4]", None, "local[4] runs each task once"),
        ("local[4,1]", None, "local[4,1] runs each task once"),
        ("spark://host:7077", "1", "spark.task.maxFailures is 1"),
        ("local[4,4]", "1", None),  # a local master has its own number
        ("spark://host:7077", None, None),
    ],
)
def test_masters_that_run_a_task_once(master: str, failures: str | None, text: str | None) -> None:
    settings: dict[str, str] = {} if failures is None else {"spark.task.maxFailures": failures}
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(master=master), conf=settings)
    report = Report("a session")
    spark_side._retries(report, session)
    (finding,) = report.findings
    assert finding.status == ("warning" if text else "ok")
    assert (text or "as configured") in finding.value
