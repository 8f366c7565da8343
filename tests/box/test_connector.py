"""The connector on the embedded broker: the example of docs/broker.md as it stands, and selectors."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from amqp_core.v0_10 import spec
from amqp_core.v0_10.messages import Message
from tests.support.documents import ROOT, blocks

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.box.conftest import Connect010

DOCUMENT = ROOT / "docs" / "broker.md"


@pytest.mark.thorough
@pytest.mark.spark
def test_the_example_of_a_test_of_a_pipeline(tmp_path: Path) -> None:
    (example,) = [block.code for block in blocks(DOCUMENT, "python") if not block.runs_here]
    (tmp_path / "test_orders.py").write_text(example)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.spark
def test_the_option_selector(spark: SparkSession, amqp_url: str, connect_0_10: Connect010, tmp_path: Path) -> None:
    virtual_host = amqp_url.rpartition("/")[2]
    client = connect_0_10(virtual_host=virtual_host)
    client.declare_queue("q", durable=True)
    for number in range(20):
        properties = spec.MessageProperties(application_headers={"symbol": "AB"[number % 2]})
        client.publish(Message(b"%d" % number, properties=properties), routing_key="q")
    client.confirm()
    options = {"url": amqp_url, "queue": "q", "username": "guest", "password": "guest", "selector": "symbol = 'B'"}
    expected = sorted(str(number) for number in range(1, 20, 2))

    browsed = spark.read.format("amqp").options(**options).schema("body STRING").load()
    assert sorted(row.body for row in browsed.collect()) == expected
    frame = spark.readStream.format("amqp").options(**options).schema("body STRING").load()
    stream = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    stream.trigger(availableNow=True).start(str(tmp_path / "rows")).awaitTermination()

    stored = spark.read.parquet(str(tmp_path / "rows"))
    assert sorted(row.body for row in stored.collect()) == expected
    queue = client.query_queue("q")
    assert queue is not None
    assert queue.message_count == 10
