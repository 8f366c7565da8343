"""A query imports only the modules that it uses: at-least-once does not import those of exactly-once."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.broker.stream_support import depth, numbers, publish

if TYPE_CHECKING:
    from tests.support.fixtures import Broker, Connect

pytestmark = pytest.mark.broker

EXACTLY_ONCE = (
    "amqp_spark.spool", "amqp_spark.datasource.exactly_once", "amqp_spark.state.queue",
    "amqp_spark.sink.exactly_once", "amqp_spark.sink.commit_coordinator",
)  # fmt: skip

QUERY = """
import json, sys

import pyarrow as pa

from amqp_spark.data_source import AmqpDataSource
from amqp_spark.sink import AmqpBatchSink
from pyspark.sql.types import StructType
from tests.spark.driver import Driver

options = json.load(sys.stdin)
schema = StructType().add("queue", "string").add("position", "long").add("body", "binary")
reader = AmqpDataSource(options | {"queue": options["routingKey"]} | {"routingKey": None}).streamReader(schema)
driver = Driver(reader)
rows = driver.rows(100)
driver.trigger()  # accepts them
reader.stop()

writer = AmqpDataSource(options).streamWriter(StructType().add("body", "binary"), overwrite=False)
published = writer.write(iter([pa.RecordBatch.from_pydict({"body": [body for _, _, body in rows]})]))
writer.commit([published], 0)
writer.abort([published], 1)
AmqpBatchSink(**options)
print(json.dumps(sorted(name for name in sys.modules if name.startswith("amqp_"))))
"""


def test_an_at_least_once_query_imports_nothing_of_exactly_once(broker: Broker, connect: Connect, queue: str) -> None:
    """From a queue and back to it, as Spark calls reader and writer, in a process that does nothing else."""
    client = connect()
    publish(client, queue, numbers(100))
    options = {"url": broker.url(), "username": broker.username, "password": broker.password, "routingKey": queue}
    done = subprocess.run(
        [sys.executable, "-c", QUERY], input=json.dumps(options), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    imported = json.loads(done.stdout)
    assert {"amqp_spark.datasource.receiver", "amqp_spark.sink.task_writer"} <= set(imported)
    assert all(importlib.util.find_spec(name) for name in EXACTLY_ONCE)
    assert [name for name in imported if name.startswith(EXACTLY_ONCE)] == []
    assert depth(client, queue) == 100
