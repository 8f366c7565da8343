"""The first example of the README reads and writes as it stands; only its names, paths and trigger are replaced."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chispa import assert_df_equality

from amqp_core import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.broker, pytest.mark.spark]

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_first_example_reads_and_writes(
    spark: SparkSession, broker: Broker, connect: Connect, fresh_names: Iterator[str], tmp_path: Path
) -> None:
    code = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)[0]
    ticks, seen = next(fresh_names), next(fresh_names)
    client = connect()
    client.declare_queue(ticks)
    client.declare_queue(seen)
    client.bind(seen, "amq.topic", f"seen.{ticks}")
    code = code.replace('"ticks")', f'"{ticks}")').replace("/data/", f"{tmp_path}/")
    code = code.replace("amqp://localhost:5672/default", broker.url("default")).replace(
        '"guest"', f'"{broker.username}"', 1
    )
    code = code.replace('"guest"', f'"{broker.password}"').replace(".start(", ".trigger(availableNow=True).start(")
    read, write = code.split("# or into an exchange")
    names: dict[str, Any] = {}
    for part, body in ((read, b"one"), ("#" + write, b"two")):
        client.publish(Message(body=body), routing_key=ticks)
        client.confirm()
        exec(compile(part, "README.md", "exec"), names)
        try:
            assert names["query"].awaitTermination(120)
        finally:
            names["query"].stop()
    wanted = spark.createDataFrame([("one", ticks)], "body STRING, routing_key STRING")
    assert_df_equality(spark.read.parquet(f"{tmp_path}/ticks").select("body", "routing_key"), wanted)
    assert [message.body for message in client.subscribe(seen).take(1, timeout=10.0)] == [b"two"]
