"""``format("amqp")`` without registration; plans show no secret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, cast

import pytest

from amqp_core.v0_10.messages import Message

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.fixtures import Connect, OwnBroker

PASSWORD = "pl41n-t0-see"
SCRIPT = """
import json, os, sys
from pyspark.sql import SparkSession

spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
         .config("spark.log.level", "ERROR").getOrCreate())
options = json.loads(os.environ["OPTIONS"])
browsed = spark.read.format("amqp").options(**options).load()
streamed = []
query = (spark.readStream.format("amqp").options(**options).schema("body STRING").load().writeStream
         .foreachBatch(lambda rows, batch: streamed.extend(row.body for row in rows.collect()))
         .trigger(availableNow=True).start())
query.awaitTermination()
plans = [browsed._jdf.queryExecution().toString(), query._jsq.explainInternal(True)]
print(json.dumps({"browsed": browsed.count(), "streamed": sorted(streamed), "plans": plans,
                  "progress": [each.json for each in query.recentProgress]}))
"""


def login(own_broker: OwnBroker, connect: Connect) -> dict[str, str]:
    """Options for a queue with two messages, "a" and "b", of a broker that has a password of its own."""
    broker = own_broker(users={"reader": PASSWORD}, durable=False)
    client = connect(broker=broker)
    client.declare_queue("q")
    for body in (b"a", b"b"):
        client.publish(Message(body=body), routing_key="q")
    client.confirm()
    return {"url": broker.url(), "queue": "q", "username": "reader", "password": PASSWORD}


@pytest.mark.spark
@pytest.mark.broker
def test_plans_and_progress_show_no_password(spark: SparkSession, own_broker: OwnBroker, connect: Connect) -> None:
    options = login(own_broker, connect)
    browsed = spark.read.format("amqp").options(**options).load()
    streamed = spark.readStream.format("amqp").options(**options).schema("body STRING").load()
    query = streamed.writeStream.format("memory").queryName("taken").trigger(availableNow=True).start()
    query.awaitTermination()
    assert sorted(row.body for row in spark.table("taken").collect()) == ["a", "b"]
    plans = cast("Any", browsed)._jdf.queryExecution(), cast("Any", query)._jsq.explainInternal(True)
    shown = [str(plan) for plan in plans]
    assert all("amqp" in plan for plan in shown)
    shown += [each.json for each in query.recentProgress]
    assert len(shown) >= 3
    assert not any(PASSWORD in text for text in shown)


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.broker
def test_installed_it_is_found_from_an_empty_directory_and_plans_show_no_password(
    own_broker: OwnBroker, connect: Connect, tmp_path: Path
) -> None:
    options = login(own_broker, connect)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "OPTIONS": json.dumps(options),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    # Counted after the stream has taken them: a browser sees what is there at the time of the action.
    assert (seen["browsed"], seen["streamed"]) == (0, ["a", "b"])
    assert len(seen["plans"]) == 2
    assert PASSWORD not in done.stdout
    assert PASSWORD not in done.stderr


def test_the_package_that_spark_looks_for_imports_nothing_of_ours() -> None:
    code = "import sys, pyspark_amqp; print([m for m in sys.modules if m.split('.')[0] in ('amqp_core', 'amqp_spark')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_what_spark_makes_of_it_is_our_source() -> None:
    from amqp_spark import AmqpDataSource  # noqa: PLC0415
    from pyspark_amqp import DefaultSource  # noqa: PLC0415

    options = {"url": "amqp://localhost", "queue": "q"}
    made = DefaultSource(options)
    assert isinstance(made, AmqpDataSource)
    assert DefaultSource.name() == AmqpDataSource.name() == "amqp"
    assert made.schema() == AmqpDataSource(options).schema()
