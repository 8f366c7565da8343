"""Spark Connect, where functions of the user run in processes of the server that know of no query."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.broker.stream_support import depth, numbers, publish

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fixtures import Broker, Connect

ROWS = 1000
SCRIPT = """
import json, os, sys, time
from pyspark.sql import SparkSession
from amqp_spark.monitoring import Metrics
from amqp_spark.sink import AmqpBatchSink

login, queue, directory = json.loads(os.environ["OPTIONS"]), os.environ["QUEUE"], os.environ["DIRECTORY"]
spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
once = {"deliveryGuarantee": "exactly-once"}
metrics = Metrics()
spark.streams.addListener(metrics)
found = {"browsed": spark.read.format("amqp").options(**login, queue=queue).load().count()}


def stream(consumer):
    options = {"queue": queue, "consumerId": consumer, "spoolLocation": f"{directory}/{consumer}.spool"}
    options["maxMessagesPerTrigger"] = "300"
    return spark.readStream.format("amqp").options(**login, **once, **options).schema("body STRING").load()


def run(name, writer):
    query = writer.queryName(name).option("checkpointLocation", f"{directory}/{name}")
    query = query.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except Exception as error:
        found[name] = str(error)
    else:
        found[name] = None


target = {"routingKey": queue}
run("refused", stream("a").writeStream.foreachBatch(AmqpBatchSink({**login, **target, **once, "transactionalId": "w"})))
run("sent", stream("a").writeStream.format("amqp").options(**login, **target, **once, transactionalId="w"))
run("called", stream("b").writeStream.foreachBatch(AmqpBatchSink({**login, **target})))
deadline = time.monotonic() + 60
while (history := metrics.history())["rows_in"].sum() < 2 * 1000 and time.monotonic() < deadline:
    time.sleep(0.1)
spark.streams.removeListener(metrics)
sums = history.groupby("query")[["rows_in", "published", "committed"]].sum()
found["metrics"] = {name: [int(value) for value in row] for name, row in zip(sums.index, sums.values)}
print(json.dumps(found))
"""


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.thorough
def test_what_spark_connect_can_do(broker: Broker, connect: Connect, queue: str, tmp_path: Path) -> None:
    client = connect(heartbeat=0)
    publish(client, queue, numbers(ROWS))
    login = {"url": broker.url(), "username": broker.username, "password": broker.password}
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))} | {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "OPTIONS": json.dumps(login),
        "QUEUE": queue,
        "DIRECTORY": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-5000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["browsed"] == ROWS
    assert "[AMQP_QUERY_UNKNOWN] Spark does not say which streaming query this is" in found["refused"]
    assert (found["sent"], found["called"]) == (None, None)
    assert depth(client, queue) == ROWS
    assert found["metrics"]["sent"][:2] == [ROWS, ROWS]
    assert found["metrics"]["sent"][2] > 0  # transactions of source and sink
    assert found["metrics"]["called"][:2] == [ROWS, 0]  # the function runs where Spark says nothing of the query
