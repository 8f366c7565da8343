"""Spark's own Kafka source as a yardstick: the Spark that has it, and topics with the messages of the queues."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from tests.bench import apart, queries
from tests.bench.bench_drain import BODY_BYTES
from tests.bench.preload import PRICE, SYMBOL
from tests.support import kafka, spark_packages
from tests.support.kafka import SPARK, SPARK_SOURCE
from tests.versions import environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

    from tests.bench.environment import Environment, Result
    from tests.support.kafka import KafkaNode

PARTITIONS: Final = 2
"""Of a topic: one for each core."""
KEY: Final = "bench-00000000abcd"
"""As long as the names of the queues, which are the routing keys on the other side."""
_PLACE: Final = environment.ROOT / "build" / f"bench-spark-{SPARK}"
_BROKER: Final = ("AMQP_URL", "AMQP_USERNAME", "AMQP_PASSWORD")


def run(module: str, env: Environment) -> list[Result]:
    """Run a benchmark in the Spark of the Kafka source; what is not there is fetched or made first.

    Raises:
        FetchFailed: Maven could not fetch the node or the source.
        EnvironmentFailed: the environment with that Spark could not be made.
        ApartFailed: the benchmark failed.
    """
    kafka.jars()
    spark_packages.repository(SPARK_SOURCE)
    place = _environment()
    given = {name: os.environ[name] for name in _BROKER if name in os.environ}
    return apart.run(
        module, env, interpreter=str(place.interpreter), directory=place.tree, variables=place.variables() | given
    )


def settings() -> dict[str, str]:
    """Of a Spark session that has the source."""
    return {"spark.jars": ",".join(map(str, spark_packages.jars(SPARK_SOURCE)))}


def fill(env: Environment, node: KafkaNode, topic: str, count: int) -> None:
    """Write the messages that a queue gets by ``env.fill`` to a new topic: body, key and headers, no message id."""
    columns = queries.columns("id", body_bytes=BODY_BYTES, routing_key=KEY)
    rows = env.spark.range(count).selectExpr(*columns, f"CAST(id % {PARTITIONS} AS INT) AS partition")
    headers = ", ".join(
        f"struct('{name}' AS key, CAST(CAST(application_headers.{name} AS STRING) AS BINARY) AS value)"
        for name in ("symbol", "qty", "price")
    )
    records = rows.selectExpr("partition", "routing_key AS key", "body AS value", f"array({headers}) AS headers")
    queries.write(records, "kafka", {"kafka.bootstrap.servers": node.servers, "topic": topic})


def source(env: Environment, node: KafkaNode, topic: str) -> DataFrame:
    """The stream of a topic: body, key and headers, which are bytes to Kafka."""
    reader = env.spark.readStream.format("kafka").options(
        **{
            "kafka.bootstrap.servers": node.servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "includeHeaders": "true",
        }
    )
    return reader.load().selectExpr("value AS body", "CAST(key AS STRING) AS routing_key", "headers")


@contextmanager
def sending(env: Environment, node: KafkaNode, topic: str) -> Iterator[Callable[[bytes], object]]:
    """Return what publishes one body, with key and headers, to a topic and returns when the node has it.

    The topic is made by a first message. The producer is Kafka's own, in the driver's JVM.
    """
    jvm = cast("Any", env.spark._jvm)
    serializer = "org.apache.kafka.common.serialization.ByteArraySerializer"
    properties = jvm.java.util.Properties()
    for name, value in {
        "bootstrap.servers": node.servers,
        "key.serializer": serializer,
        "value.serializer": serializer,
    }.items():
        properties.put(name, value)
    headers = jvm.org.apache.kafka.common.header.internals.RecordHeaders()
    for name, value in {"symbol": SYMBOL, "qty": "1", "price": str(PRICE)}.items():
        headers.add(name, value.encode())
    record = jvm.org.apache.kafka.clients.producer.ProducerRecord
    producer = jvm.org.apache.kafka.clients.producer.KafkaProducer(properties)

    def send(body: bytes) -> None:
        producer.send(record(topic, 0, KEY.encode(), body, headers)).get()

    try:
        send(b"first")
        yield send
    finally:
        producer.close()


def _environment() -> environment.Environment:
    """The environment with that Spark, and this code: made anew when the code has changed."""
    wheel = environment.build_wheel(_PLACE / "dist")
    tree = environment.copy_tests(_PLACE / "tree")
    venv, built, digest = _PLACE / "venv", _PLACE / "built", environment.digest(wheel)
    if not (built.exists() and built.read_text(encoding="ascii") == digest):
        print(f"bench: making an environment with Spark {SPARK} in {venv}", file=sys.stderr, flush=True)
        built.unlink(missing_ok=True)
        environment.make(f"pyspark=={SPARK}", Path(sys.executable), wheel, tree, venv)
        built.write_text(digest, encoding="ascii")
    return environment.Environment(venv, tree, SPARK, sys.version.partition(" ")[0])
