"""``amqp_spark.register`` in a thread without an active session, as a notebook has after an interrupted cell."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # Spark's, without types

import amqp_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from amqp_core.broker import Broker

pytestmark = pytest.mark.spark


def test_the_sink_is_found_in_a_thread_that_registers_it(spark: SparkSession, amqp_broker: Broker) -> None:
    options = {"url": amqp_broker.url, "username": "guest", "password": "guest", "exchange": "amq.fanout"}
    options["onUnroutable"] = "discard"

    def write() -> None:
        frame = spark.range(3).selectExpr("CAST(id AS STRING) AS body")
        frame.write.format("amqp").mode("append").options(**options).save()

    def in_thread() -> None:
        spark._jvm.SparkSession.clearActiveSession()  # type: ignore[union-attr]  # not Spark Connect
        with pytest.raises(Py4JJavaError, match="DATA_SOURCE_NOT_FOUND"):
            write()
        amqp_spark.register(spark)
        write()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(in_thread).result()
